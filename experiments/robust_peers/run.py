# SPDX-License-Identifier: Apache-2.0
"""Attacks of a fifth of the peers on their neighbours, against rules for what a peer takes, MNIST.

The attacks' and the rules' papers are named in their files. Twenty peers, dealt out alike or by
Dirichlet(1), all joined or each with ten others, a linear model, decentralised SGD; the seed draws
who attacks. Adversaries tell every neighbour something else.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import archipel as ar
from archipel import adversaries as attacks
from archipel import rules
from archipel.aggregation.rule import InTurn
from archipel.runs.parts import federation

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import gates, save, show, table

FOLDER = Path(__file__).parent
PEERS, LIARS, ROUNDS, SEED = 20, 4, 30, 0
WORK: dict[str, Any] = {"lr": 0.5, "batch_size": 100}
PARTITIONS = {"alike": "iid", "unlike": "dirichlet:1"}
GRAPHS = {"all joined": "complete", "ten neighbours": "random_regular:10"}

NONE, PLAIN, CLIPPED, MIXED = "nobody", "plain gossip", "clipped gossip", "nnm, trimmed mean"
TRIMMED, TOO_FEW = "trimmed mean", "trimmed mean, for 1"
ATTACKS: dict[str, Any] = {
    NONE: None,
    "dissensus": attacks.Dissensus(),
    "alie": attacks.ALIE(),
    "alie, z = 10": attacks.ALIE(10.0),
    "ipm, 0.5": attacks.IPM(0.5),
    "ipm, 10": attacks.IPM(10.0),
}
RULES: dict[str, Any] = {
    PLAIN: None,
    CLIPPED: rules.ClippedGossip(LIARS),
    TRIMMED: rules.TrimmedMean(LIARS),
    TOO_FEW: rules.TrimmedMean(1),
    MIXED: InTurn((rules.NNM(LIARS), rules.TrimmedMean(LIARS))),
}
Cells = dict[str, dict[str, list[float]]]


def learnt(
    data: ar.Federation, graph: str, attack: Any, rule: Any, rounds: int, **options: Any
) -> list[float]:
    """Accuracy of honest peers, each with its own model and points; and of their mean model."""
    given: dict[str, Any] = {"rounds": rounds, "seed": SEED, "evaluate_every": rounds, **options}
    if attack is not None:
        given["adversary"] = ar.Adversary(attack, LIARS)
    if rule is not None:
        given["wire"] = ar.Wire(rule=rule)
    run = ar.simulate(ar.DSGD(**WORK), data, "logistic", topology=graph, **given)
    last = run.history[-1]
    assert last["own"] is not None
    return [last["own"]["accuracy"], last["metrics"]["accuracy"]]


def measure(
    rounds: int = ROUNDS,
    partitions: dict[str, str] = PARTITIONS,
    graphs: dict[str, str] = GRAPHS,
    **options: Any,
) -> dict[str, Cells]:
    """Every attack against every rule, by setting."""
    found: dict[str, Cells] = {}
    for how, partition in partitions.items():
        data = federation("mnist", partition, PEERS, SEED)
        for joined, graph in graphs.items():
            cells = found[f"{how}, {joined}"] = {}
            for name, rule in RULES.items():
                cells[name] = {
                    attack: learnt(data, graph, made, rule, rounds, **options)
                    for attack, made in ATTACKS.items()
                }
                print(how, joined, name, cells[name], file=sys.stderr, flush=True)
    return found


def tables(found: dict[str, Cells]) -> str:
    """What was measured, and whether it is what was promised."""
    parts = []
    for setting, cells in found.items():
        rows = [
            [rule, *("{:.1f} ({:.1f})".format(*(100 * x for x in row[each])) for each in ATTACKS)]
            for rule, row in cells.items()
        ]
        parts.append(table([f"accuracy, %, {setting}", *ATTACKS], rows))
    return "\n\n".join([*parts, gates(checks(found))])


def lost(cells: Cells, rule: str, attack: str) -> float:
    """Points of accuracy at the peers below plain gossip that nobody attacks."""
    return 100 * (cells[PLAIN][NONE][0] - cells[rule][attack][0])


def checks(found: dict[str, Cells]) -> list[tuple[str, str, bool]]:
    """What must hold."""
    like = [cells for setting, cells in found.items() if setting.startswith("alike")]
    unlike = [cells for setting, cells in found.items() if setting.startswith("unlike")]

    def most(some: list[Cells], rule: str) -> float:
        return max(lost(cells, rule, attack) for cells in some for attack in ATTACKS)

    falls = min(
        lost(cells, PLAIN, attack)
        for cells in found.values()
        for attack in ("dissensus", "ipm, 10")
    )
    clip = max(lost(cells, CLIPPED, "dissensus") for cells in found.values())
    fails = max(lost(cells, CLIPPED, "ipm, 10") for cells in unlike)
    few = max(lost(cells, TOO_FEW, "ipm, 10") for cells in found.values())
    return [
        ("plain gossip loses 20 points to dissensus and to ipm, 10, at least",
         f"{falls:.1f} points", falls >= 20),
        ("clipped gossip loses 3 to dissensus, at most, also where peers are unlike",
         f"{clip:.1f} points", clip <= 3),
        ("and 7 to any attack, where peers are alike", f"{most(like, CLIPPED):.1f} points",
         most(like, CLIPPED) <= 7),
        ("a trimmed mean loses 3 to any, where peers are alike",
         f"{most(like, TRIMMED):.1f} points", most(like, TRIMMED) <= 3),
        ("mixing and a trimmed mean 2, also where they are unlike",
         f"{most([*like, *unlike], MIXED):.1f} points", most([*like, *unlike], MIXED) <= 2),
        ("shown to fail: clipped gossip where peers are unlike, ipm, 10",
         f"{fails:.1f} points lost", fails > 10),
        ("shown to fail: a trimmed mean for one where four lie", f"{few:.1f} points lost",
         few > 10),
    ]  # fmt: skip


def plot(found: dict[str, Cells]) -> Figure:
    """Accuracy at the peers by rule and attack."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (setting, cells) in zip(figure.subplots(2, 2).flat, found.items(), strict=True):
        values = [[cells[rule][attack][0] for attack in ATTACKS] for rule in RULES]
        axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                colour = "white" if value < 0.6 else "black"
                axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour)
        axes.set_xticks(range(len(ATTACKS)), list(ATTACKS), rotation=30, ha="right")
        axes.set_yticks(range(len(RULES)), list(RULES))
        axes.grid(visible=False)
        axes.set_title(f"honest peers' accuracy, %: {setting}")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="tables of results.json, no runs")
    given = parser.parse_args()
    if given.again:
        kept = json.loads((FOLDER / "results.json").read_text())
        found: dict[str, Cells] = kept["cells"]
        show(FOLDER, tables(found), {"plot.png": plot(found)})
        return
    found = measure(given.rounds, workers=given.workers)
    save(FOLDER, {"cells": found}, tables(found), {"plot.png": plot(found)})


if __name__ == "__main__":
    main()
