# SPDX-License-Identifier: Apache-2.0
"""Rounds of FedAvg to a test accuracy on MNIST, beside the paper's tables.

McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Tables 1 and 2: 100 parties, a tenth
of them each round. As in the paper, the learning rate is the best of a grid per cell, judged by the
test curve, and rounds are counted on the best accuracy so far, interpolated between two rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import archipel as ar

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, PURPLE, gates, has_reached, save, table

FOLDER = Path(__file__).parent
GRID = tuple(round(10 ** (k / 3), 4) for k in range(-4, 0))  # .0464 .1 .2154 .4642


@dataclass(frozen=True)
class Cell:
    """An entry of the paper's tables."""

    title: str
    model: str
    partition: str
    target: float
    paper: float  # rounds
    gate: float  # rounds, at most
    local_epochs: int
    rates: tuple[float, ...]
    most: int  # rounds before giving up
    at_once: bool  # all rates side by side, up to the first to arrive; else one after another


CELLS = {
    "2nn-iid": Cell("2NN, IID, E = 1, B = 10", "2nn", "iid", 0.97, 87, 100, 1, GRID, 150, True),
    "2nn-shards": Cell(
        "2NN, two shards each, E = 1, B = 10", "2nn", "shards:2", 0.97, 664, 700, 1, GRID[:3], 800,
        True,
    ),
    "cnn-iid": Cell(
        "CNN, IID, E = 5, B = 10", "cnn", "iid", 0.99, 20, 25, 5, GRID[1:3], 30, False
    ),
}  # fmt: skip


def measure(cell: Cell, rates: tuple[float, ...], most: int, target: float, seed: int) -> Any:
    """Return the curve of each rate; rates that arrive later than the best one are cut short."""
    fed = ar.load("mnist", partition=cell.partition, parties=100, seed=seed)
    runs: list[ar.Run] = []
    began, best = time.perf_counter(), most
    for group in [rates] if cell.at_once else [(rate,) for rate in rates]:

        def stop(now: list[ar.Run]) -> bool:
            last = now[0].history[-1]
            shown = ", ".join(f"{run.algorithm.lr:g}: {run.metrics['accuracy']:.4f}" for run in now)
            print(last["round"], shown, f"{last['seconds']:.0f} s", file=sys.stderr, flush=True)
            return any(has_reached(run, target) for run in now)

        runs += ar.sweep(
            ar.FedAvg(local_epochs=cell.local_epochs, batch_size=10), fed, cell.model,
            {"lr": group}, rounds=best, sample=0.1, seed=seed, on_round=stop,
        )  # fmt: skip
        best = min(best, len(runs[-1].history))
    reached = {run.algorithm.lr: run.rounds_to(target) for run in runs}
    arrived = {rate: rounds for rate, rounds in reached.items() if rounds is not None}
    lr = min(arrived, key=lambda rate: arrived[rate]) if arrived else None
    return {
        "target": target, "lr": lr, "rounds": None if lr is None else arrived[lr],
        "rates": list(rates), "seconds": round(time.perf_counter() - began),
        "curves": {f"{run.algorithm.lr:g}": run.curve()[1] for run in runs},
    }  # fmt: skip


def draw(done: dict[str, Any]) -> Figure:
    """Draw test accuracy by round, our arrival and the paper's."""
    figure = Figure(figsize=(4.6 * len(done), 4.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(done)))
    colours = dict(zip((f"{rate:g}" for rate in GRID), (GREEN, BLUE, ORANGE, PURPLE), strict=True))
    for ax, (name, result) in zip(panels, done.items(), strict=True):
        cell, target = CELLS[name], 100 * result["target"]
        for rate, curve in result["curves"].items():
            best = 100 * np.maximum.accumulate(curve)
            rounds = range(1, len(curve) + 1)
            ax.plot(rounds, 100 * np.array(curve), color=colours[rate], linewidth=0.6, alpha=0.35)
            ax.plot(rounds, best, color=colours[rate], label=f"learning rate {rate}")
        ax.axhline(target, color=INK, linewidth=1, linestyle=":")
        if result["rounds"] is not None:
            ax.plot(result["rounds"], target, "o", color=INK, markersize=9, clip_on=False, zorder=5,
                    label=f"here: {result['rounds']:.0f} rounds")  # fmt: skip
        ax.plot(cell.paper, target, "D", markerfacecolor="white", markeredgecolor=INK, zorder=4,
                markeredgewidth=1.6, markersize=9, label=f"the paper: {cell.paper:g}")  # fmt: skip
        ax.set_ylim(target - (17 if "shards" in name else 7), min(100, target + 1.2))
        ax.set(title=cell.title, xlabel="round", ylabel="test accuracy (%), best so far")
        ax.legend(loc="lower right")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cells", nargs="+", choices=CELLS, default=list(CELLS), help="the others are kept"
    )
    parser.add_argument(
        "--rates", nargs="+", type=float, help="learning rates, instead of the grid"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="2NN, IID, to 93 %% with one rate")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write")
    args = parser.parse_args()
    stored = args.out / "results.json"
    done = json.loads(stored.read_text())["cells"] if stored.exists() else {}
    for name in ["2nn-iid"] if args.quick else args.cells:
        cell = CELLS[name]
        rates = tuple(args.rates or (GRID[1:2] if args.quick else cell.rates))
        done[name] = measure(cell, rates, cell.most, 0.93 if args.quick else cell.target, args.seed)
    done = {name: done[name] for name in CELLS if name in done}
    rows, checks = [], []
    for name, result in done.items():
        cell, rounds = CELLS[name], result["rounds"]
        got = "not reached" if rounds is None else f"{rounds:.1f}"
        tried = " ".join(f"{rate:g}" for rate in result["rates"])
        figures = [got, f"{cell.paper:g}", result["lr"], tried, result["seconds"]]
        rows.append([cell.title, f"{result['target']:.0%}", *figures])
        checks.append(
            (f"{cell.title}: at most {cell.gate:g}", got, bool(rounds and rounds <= cell.gate))
        )
    header = ["cell", "target", "rounds", "paper", "best lr", "rates tried", "seconds"]
    tables = f"{table(header, rows)}\n\n{gates(checks)}"
    save(args.out, {"cells": done, "checks": checks}, tables, {"plot.png": draw(done)})


if __name__ == "__main__":
    main()
