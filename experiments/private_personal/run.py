# SPDX-License-Identifier: Apache-2.0
"""Personalised models on a graph, learnt privately: accuracy against ε, and who is helped most.

Bellet, Guerraoui, Taziki, Tommasi, AISTATS 2018, https://arxiv.org/abs/1705.08435, section 5.1: 100
parties with 10 to 100 points each in [-1, 1]^100, labels by a line of each party's own in the first
two dimensions, 5 % of them wrong; W_ij = exp((cos of the angle between the lines - 1) / 0.1).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

import archipel as ar
from archipel.data.federation import Federation
from archipel.engines.local.engine import LocalEngine
from archipel.graphs import Topology
from archipel.graphs.fixed import weighted
from archipel.privacy.promise import Privacy

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, GREY, INK, ORANGE, gates, save, table

FOLDER = Path(__file__).parent
DIMS, GAMMA, WRONG, TESTED = 100, 0.1, 0.05, 100
DELTA = exp(-5)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
FEW = 30  # points up to which a party has few
CLIP = {"gaussian": sqrt(DIMS / 3) / 2, "laplace": DIMS / 4}  # of a point's gradient at 0, about
Floats = NDArray[np.float64]


def problem(parties: int, seed: int) -> tuple[Federation, Topology]:
    """The parties' points, the last `TESTED` of each for tests, and how alike they are."""
    random = np.random.default_rng(seed)
    lines = random.standard_normal((parties, 2))
    lines /= np.linalg.norm(lines, axis=1, keepdims=True)
    xs, ys, n = [], [], random.integers(10, 101, parties)
    for line, size in zip(lines, n, strict=True):
        x = random.uniform(-1, 1, (size + TESTED, DIMS))
        y = x[:, :2] @ line > 0
        y[:size] ^= random.random(size) < WRONG
        xs.append(torch.from_numpy(x))
        ys.append(torch.from_numpy(y.astype(np.int64)))
    alike = np.exp((lines @ lines.T - 1) / GAMMA)
    alike[alike < 1e-3] = 0
    rows = [len(x) for x in xs]
    ends = torch.tensor(np.cumsum([0, *rows]))
    data = Federation(
        torch.cat(xs),
        torch.cat(ys),
        ends,
        ends[:-1] + torch.from_numpy(n),
        parties,
        "classification",
        2,
    )
    return data, weighted(alike)


def model() -> ar.Model:
    module = nn.Linear(DIMS, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    return ar.Model(module, "binary_cross_entropy")


def accuracy(data: Federation, graph: Topology, algorithm: Any, rounds: int, seed: int,
             privacy: Privacy | None = None) -> Floats:  # fmt: skip
    """Of every party's own model, on its test points."""
    everybody = np.arange(data.training)
    with LocalEngine(
        algorithm, data, model(), topology=graph, seed=seed, privacy=privacy, rounds=rounds,
        plan=ar.Plan("stacked", 512, 1),
    ) as engine:  # fmt: skip
        for t in range(rounds):
            engine.round(t, everybody)
        theta = engine.own_states(everybody)
    theta = theta if privacy is None else theta.inner
    found = []
    for k in everybody:
        _, _, x, y = data.party(int(k))
        found.append(float((((x.double() @ theta[k]) > 0) == (y > 0.5)).double().mean()))
    return np.array(found)


def promised(epsilon: float, mechanism: str = "gaussian", **changes: Any) -> Privacy:
    given: dict[str, Any] = {"wakes": 1, "spent": "propagate"}
    return Privacy(
        "record", epsilon=epsilon, delta=DELTA, mechanism=mechanism,  # type: ignore[arg-type]
        clip=CLIP[mechanism], **{**given, **changes},
    )  # fmt: skip


def measured(parties: int, seed: int, epsilons: tuple[float, ...], every: bool) -> dict[str, Any]:
    """Accuracies of all parties, by way and ε; by every way or the best and who is alone."""
    data, graph = problem(parties, seed)
    common = {"smoothness": 2.0, "l2": 1.0}
    alone = ar.Coordinate(warm_rounds=10**6, **common)
    public, private = ar.Coordinate(mu=1.0, **common), ar.Coordinate(mu=0.3, **common)
    at = (data, graph)
    found: dict[str, Any] = {
        "n": data.n.tolist(),
        "alone": accuracy(*at, alone, 60, seed).tolist(),
        "together": accuracy(*at, public, 40, seed).tolist(),
    }
    for epsilon in epsilons:
        plain = {"spent": "rest", "wakes": 3}
        found[f"alone, ε = {epsilon:g}"] = accuracy(
            *at, alone, 16, seed, promised(epsilon, spent="rest")
        ).tolist()
        found[f"gaussian, ε = {epsilon:g}"] = accuracy(
            *at, private, 16, seed, promised(epsilon)
        ).tolist()
        if not every:
            continue
        found[f"laplace, ε = {epsilon:g}"] = accuracy(
            *at, private, 16, seed, promised(epsilon, "laplace")
        ).tolist()
        found[f"rests, ε = {epsilon:g}"] = accuracy(
            *at, private, 16, seed, promised(epsilon, **plain)
        ).tolist()
    return found


def means(found: dict[str, Any], parties: str, name: str, few: bool = False) -> float:
    """Over parties and seeds, of all parties or of those with few points."""
    values = []
    for each in found[parties]:
        n = np.array(each["n"])
        values.append(np.array(each[name])[(n <= FEW) if few else (n > 0)].mean())
    return float(np.mean(values))


def tables(found: dict[str, Any]) -> str:
    out, checks = [], []
    for parties, runs in found.items():
        rows = []
        for name in runs[0]:
            if name != "n":
                few = means(found, parties, name, True)
                rows.append([name, f"{means(found, parties, name):.3f}", f"{few:.3f}"])
        heading = f"## {parties} parties, {len(runs)} seed{'s' * (len(runs) > 1)}\n\n"
        out.append(heading + table(["", "all parties", f"at most {FEW} points"], rows))

        def at(name: str, few: bool = False, parties: str = parties) -> float:
            return means(found, parties, name, few)

        one, tenth = at("gaussian, ε = 1"), at("gaussian, ε = 0.1")
        private = [(at(f"alone, ε = {e:g}"), at(f"gaussian, ε = {e:g}")) for e in EPSILONS]
        gained = at("gaussian, ε = 1", True) - at("alone", True)
        checks += [
            (f"{parties} parties: alone < ε = 1 < no privacy",
             f"{at('alone'):.3f} < {one:.3f} < {at('together'):.3f}",
             at("alone") < one < at("together")),
            (f"{parties} parties: ε = 0.1 < ε = 1", f"{tenth:.3f} < {one:.3f}", tenth < one),
            (f"{parties} parties: at every ε, together > alone with the same ε",
             f"by {min(b - a for a, b in private):.3f} at least", all(b > a for a, b in private)),
            (f"{parties} parties: those with few points gain more at ε = 1 than all",
             f"{gained:.3f} > {one - at('alone'):.3f}", gained > one - at("alone")),
        ]  # fmt: skip
    return "\n\n".join([*out, "## Gates\n\n" + gates(checks)]) + "\n"


def figure(found: dict[str, Any]) -> Figure:
    drawn = Figure(figsize=(5.2 * len(found), 4.4), layout="constrained")
    for axes, parties in zip(np.atleast_1d(drawn.subplots(1, len(found), sharey=True)), found,
                             strict=True):  # fmt: skip
        lines = {
            "gaussian": ("together, Gaussian", BLUE), "rests": ("…, which rests after 3", GREEN),
            "laplace": ("together, Laplace", ORANGE), "alone": ("alone, as private", GREY),
        }  # fmt: skip
        for name, (label, colour) in lines.items():
            if f"{name}, ε = 1" not in found[parties][0]:
                continue
            y = [means(found, parties, f"{name}, ε = {e:g}") for e in EPSILONS]
            axes.plot(EPSILONS, y, "o-", color=colour, label=label)
        few = [means(found, parties, f"gaussian, ε = {e:g}", True) for e in EPSILONS]
        axes.plot(EPSILONS, few, "o:", color=BLUE, label=f"Gaussian, at most {FEW} points")
        for name, label in (("together", "together, no privacy"), ("alone", "alone, no privacy")):
            axes.axhline(means(found, parties, name), color=INK, lw=1)
            axes.annotate(label, (EPSILONS[0], means(found, parties, name)), xytext=(0, 3),
                          textcoords="offset points", fontsize=9)  # fmt: skip
        axes.axhline(means(found, parties, "alone", True), color=INK, lw=1, ls=":")
        at = (EPSILONS[0], means(found, parties, "alone", True))
        axes.annotate(f"alone, at most {FEW} points", at, xytext=(0, 3),
                      textcoords="offset points", fontsize=9)  # fmt: skip
        axes.set(
            xscale="log", ylim=(0.48, 0.98), xlabel="ε of every record", title=f"{parties} parties"
        )
    first = drawn.axes[0]
    first.set_ylabel("accuracy, mean over parties")
    first.legend(loc="upper left", bbox_to_anchor=(0.0, 0.84))
    return drawn


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--draw", action="store_true", help="of what is in results.json")
    args = given.parse_args()
    began = time.perf_counter()
    if args.draw:
        results = json.loads((FOLDER / "results.json").read_text())
    else:
        found: dict[str, Any] = {}
        for parties, seeds in ((100, 3), (500, 1)):
            few = parties <= 100
            found[str(parties)] = [measured(parties, k, EPSILONS, few) for k in range(seeds)]
            print(f"{parties} parties: {time.perf_counter() - began:.0f} s", flush=True)
        results = {"found": found}
    save(FOLDER, results, tables(results["found"]), {"plot.png": figure(results["found"])})


if __name__ == "__main__":
    main()
