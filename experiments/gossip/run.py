# SPDX-License-Identifier: Apache-2.0
"""How fast mixing agrees: consensus error by round on five graphs, against the spectral gap.

Koloskova et al., ICML 2020, https://arxiv.org/abs/2003.10422: one mixing leaves 1 - p of the
squared distance from the mean, p = 1 - (1 - gap)².
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from archipel.graphs import Topology, topology

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, gates, save, table

FOLDER = Path(__file__).parent
GRAPHS = ("ring", "torus", "hypercube", "small_world:4", "random_regular:4")
COLOURS = dict(zip(GRAPHS, (BLUE, GREEN, ORANGE, PURPLE, SKY), strict=True))


def errors(graph: Topology, floor: float = 1e-10, most: int = 20_000) -> list[float]:
    """Return the distance from the mean after each round, from 1 down to the floor."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(graph.n, 8, dtype=torch.float64, generator=draw)
    found: list[float] = []
    while (not found or found[-1] > floor * found[0]) and len(found) < most:
        found.append(float((x - x.mean(dim=0)).norm()))
        x = graph.mix(x, len(found) - 1)
    return [each / found[0] for each in found]


def slope(error: list[float]) -> float:
    """Return what a round multiplies the error by, in the later half, where one mode is left."""
    half = len(error) // 2
    steps = np.arange(half, len(error))
    return float(np.exp(np.polyfit(steps, np.log(error[half:]), 1)[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parties", type=int, default=64)
    parties = parser.parse_args().parties
    began = time.perf_counter()
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    rows, checks, results = [], [], {}
    for name in GRAPHS:
        graph = topology(name, parties, seed=0)
        error, rate = errors(graph), 1 - graph.spectral_gap
        measured = slope(error)
        off = np.log(measured) / np.log(rate) - 1
        axes.semilogy(error, color=COLOURS[name], label=f"{name}: {rate:.3f}")
        at = np.arange(len(error))
        axes.semilogy(error[-1] * rate ** (at - at[-1]), color=INK, lw=0.8, ls=(0, (3, 3)))
        rows.append([name, len(graph.edges()), f"{rate:.4f}", f"{measured:.4f}", len(error) - 1])
        checks.append([f"{name}: slope within 10 %", f"{100 * off:+.2f} %", abs(off) < 0.1])
        results[name] = {"gap": graph.spectral_gap, "slope": measured, "rounds": len(error) - 1}
    axes.set(xlabel="round of mixing", ylabel="distance from the mean", xlim=(0, 400))
    axes.set_title(f"{parties} parties; dashed: what the spectral gap says", fontsize=11)
    axes.legend(title="graph: 1 - gap", loc="upper right", bbox_to_anchor=(1, 0.84))
    header = ["graph", "edges", "1 - gap", "measured", "rounds to 1e-10"]
    text = f"{table(header, rows)}\n\n{gates([tuple(each) for each in checks])}"  # type: ignore[misc]
    took = f"{time.perf_counter() - began:.0f} seconds."
    save(FOLDER, results, f"{text}\n\n{took}", {"plot.png": figure})


if __name__ == "__main__":
    main()
