# SPDX-License-Identifier: Apache-2.0
"""Peer sampling: how often peers are known, how the dead are forgotten, when peers fall apart.

Jelasity et al., ACM TOCS 2007, https://doi.org/10.1145/1275517.1275520. No learning: views alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.sparse import csgraph, csr_array

from archipel.rng import Ints, generator
from archipel.sampling.population import cycle, dead_links, in_degrees, ring_views, star_views
from archipel.sampling.views import Sampling, View

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, gates, save, table

FOLDER = Path(__file__).parent
KINDS = {"blind": ORANGE, "healer": BLUE, "swapper": GREEN}
STARTS = {"ring": ring_views, "star": star_views}
C, CYCLES, HEALING = 20, 30, 60
REMOVED = tuple(range(50, 100, 5))  # percent


def grown(sampling: Sampling, start: str, n: int, seed: int) -> View:
    """Return the views after CYCLES cycles."""
    view = STARTS[start](n, C)
    for t in range(CYCLES):
        view = cycle(sampling, view, seed, t)
    return view


def parts(view: View, here: Any) -> tuple[int, float]:
    """Return into how many parts those who are left fall, and how many are not in the largest."""
    n = len(view.peer)
    i, j = np.repeat(np.arange(n), C), view.peer.ravel()
    both = (j >= 0) & here[i] & here[np.maximum(j, 0)]
    edges = csr_array((np.ones(both.sum()), (i[both], j[both])), shape=(n, n))
    _, labels = csgraph.connected_components(edges, directed=False)
    sizes = np.unique(labels[here], return_counts=True)[1]
    return len(sizes), 1 - float(sizes.max() / sizes.sum())


def healed(sampling: Sampling, view: View, dead: Ints, seed: int) -> list[float]:
    """Return the part of entries that name the dead, cycle by cycle after half of all are gone."""
    found = [dead_links(view, dead)]
    for t in range(CYCLES, CYCLES + HEALING):
        view = cycle(sampling, view, seed, t, dead)
        found.append(dead_links(view, dead))
    return found


def learn(kind: str, start: str, n: int, seeds: int) -> dict[str, Any]:
    """Return what is measured of one kind of service and one start, over seeds."""
    sampling, found = Sampling.named(kind, C), dict[str, Any]()
    found |= {"degrees": [], "connected": [], "healing": [], "tail": [], "outside": []}
    for seed in range(seeds):
        view = grown(sampling, start, n, seed)
        order = generator(seed, "dead", n).permutation(n)
        dead = order[: n // 2]
        found["degrees"] += in_degrees(view).tolist()
        found["connected"].append(parts(view, np.ones(n, dtype=bool))[0] == 1)
        found["healing"].append(healed(sampling, view, dead, seed))
        found["tail"].append(healed(replace(sampling, tail=True), view, dead, seed))
        left = []
        for percent in REMOVED:
            here = np.ones(n, dtype=bool)
            here[order[: n * percent // 100]] = False
            left.append(parts(view, here))
        found["outside"].append(left)
    return found


def draw(results: dict[str, dict[str, Any]], n: int) -> Figure:
    figure = Figure(figsize=(13, 3.9), layout="constrained")
    degrees, healing, removed = figure.subplots(1, 3)
    bins = np.arange(0, 81, 2)
    for kind, colour in KINDS.items():
        found = results[f"{kind}, ring"]
        spread = np.std(found["degrees"])
        degrees.hist(
            found["degrees"], bins, density=True, histtype="step", color=colour, linewidth=2,
            label=f"{kind} (± {spread:.1f})",
        )  # fmt: skip
        for way, line in (("healing", "-"), ("tail", ":")):
            curve = 100 * np.mean(found[way], axis=0)
            label = kind if way == "healing" else None
            healing.plot(range(len(curve)), curve, line, color=colour, label=label)
        outside = 100 * np.array(found["outside"])[..., 1].mean(axis=0)
        removed.plot(REMOVED, outside, color=colour, marker="o", label=kind)
    degrees.axvline(C, color=INK, linestyle="--", linewidth=1)
    degrees.set(xlabel="views that a peer is in", ylabel="density", title="How often one is known")
    healing.set(
        xlabel="cycles after half of the peers died", ylabel="% of entries that name the dead",
        title="How the dead are forgotten", ylim=(-2, 85),
    )  # fmt: skip
    healing.plot([], [], ":", color=INK, label="oldest asked, and dropped if silent")
    removed.set(
        xlabel="% of the peers removed at once", ylabel="% of the rest outside the largest part",
        title="When peers fall apart",
    )  # fmt: skip
    for axes in (degrees, healing, removed):
        axes.legend()
    figure.suptitle(
        f"Peer sampling, {n} peers with views of {C}, {CYCLES} cycles from a ring",
        x=0.01, ha="left", color=INK, fontweight="bold",
    )  # fmt: skip
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    began = time.perf_counter()
    results = {
        f"{kind}, {start}": learn(kind, start, args.peers, args.seeds)
        for start in STARTS
        for kind in KINDS
    }
    rows, checks = [], []
    for name, found in results.items():
        degree, healing = np.array(found["degrees"]), 100 * np.mean(found["healing"], axis=0)
        whole = np.array(found["outside"])[..., 0].max(axis=0) == 1
        first = next((p for p, w in zip(REMOVED, whole, strict=True) if not w), None)
        rows.append([
            name, f"{degree.mean():.3f}", f"{degree.std():.2f}", int(degree.max()),
            *(f"{healing[k]:.2f} %" for k in (5, 20, HEALING)),
            f"{100 * np.mean(found['tail'], axis=0)[20]:.2f} %",
            "none" if first is None else f"{first} %",
        ])  # fmt: skip
    for start in STARTS:
        kinds = {kind: results[f"{kind}, {start}"] for kind in KINDS}
        std = {kind: float(np.std(found["degrees"])) for kind, found in kinds.items()}
        after = {k: 100 * float(np.mean(f["healing"], axis=0)[20]) for k, f in kinds.items()}
        checks += [
            (f"{start}: mean in-degree is exactly {C}",
             ", ".join(f"{np.mean(found['degrees']):.6f}" for found in kinds.values()),
             all(sum(found["degrees"]) == C * len(found["degrees"]) for found in kinds.values())),
            (f"{start}: spread of swapper < healer < blind",
             f"{std['swapper']:.2f} < {std['healer']:.2f} < {std['blind']:.2f}",
             std["swapper"] < std["healer"] < std["blind"]),
            (f"{start}: all connected", "every seed",
             all(all(found["connected"]) for found in kinds.values())),
            (f"{start}: half dead, 20 cycles on: healer about 0",
             f"{after['healer']:.3f} %", after["healer"] < 0.1),
            (f"{start}: half dead, 20 cycles on: swapper slowest",
             f"blind {after['blind']:.1f} %, swapper {after['swapper']:.1f} %",
             after["swapper"] > after["blind"]),
        ]  # fmt: skip
    seconds = time.perf_counter() - began
    header = ["service, start", "mean in-degree", "spread", "largest", "dead after 5 cycles",
              "after 20", f"after {HEALING}", "oldest asked, after 20", "apart at"]  # fmt: skip
    tables = (
        f"{args.peers} peers, views of {C}, push-pull, any of the view asked, {CYCLES} cycles, "
        f"{args.seeds} seeds; then half of the peers die. Apart at: the smallest share removed, in "
        "steps of 5 %, after which the rest is not connected with some seed.\n\n"
        + table(header, rows)
        + f"\n\n{gates(checks)}"
    )
    counts = {
        name: {**found, "degrees": np.bincount(found["degrees"]).tolist()}
        for name, found in results.items()
    }
    document = {"results": counts, "checks": checks, "seconds": round(seconds)}
    save(args.out, document, tables, {"plot.png": draw(results, args.peers)})


if __name__ == "__main__":
    main()
