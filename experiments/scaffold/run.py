# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD against FedAvg, FedProx and SGD by similarity of the parties' data.

Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, Table 3, on MNIST: rounds of
softmax regression to a test accuracy, 100 parties, a fifth of them each round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter
from torch import nn

import archipel as ar
from archipel.models import build

sys.path.insert(0, str(Path(__file__).parents[1]))
from drift import draw_drift
from reporting import BLUE, GREEN, GREY, INK, ORANGE, first_round, gates, has_reached, save, table

FOLDER = Path(__file__).parent
SIMILARITIES, EPOCHS = (0, 10, 100), (1, 5, 10)
LONG_EPOCHS, LONG_RATES = (1, 5, 10, 20), (0.1, 0.3, 1.0, 3.0)  # for the accuracy after 100 rounds
RATES = {"SGD": (0.1, 0.3, 1.0, 3.0), "local": (0.03, 0.1, 0.3, 1.0)}
METHODS: dict[str, Any] = {  # batches of a fifth of a party's data: five steps an epoch
    "SCAFFOLD": ar.Scaffold(batch_size=0.2),
    "FedAvg": ar.FedAvg(batch_size=0.2),
    "FedProx": ar.FedProx(batch_size=0.2, mu=1.0),
}
PAPER = {  # Table 3: EMNIST, rounds to 50 %; 1001 stands for "1k+"
    "SGD": {0: (317,), 10: (365,), 100: (416,)},
    "SCAFFOLD": {0: (77, 152, 286), 10: (62, 20, 16), 100: (60, 10, 7)},
    "FedAvg": {0: (258, 428, 711), 10: (74, 34, 25), 100: (83, 10, 6)},
    "FedProx": {0: (1001, 1001, 1001), 10: (979, 794, 894), 100: (459, 351, 308)},
}
COLOURS = {"SCAFFOLD": BLUE, "FedAvg": ORANGE, "FedProx": GREEN, "SGD": GREY}
SIZES = {"SCAFFOLD": 11, "FedAvg": 7, "FedProx": 8}  # so that equal ones both show
MARKS = {"SCAFFOLD": "o", "FedAvg": "s", "FedProx": "^", "SGD": "_"}


def mnist(similarity: int, full: bool, seed: int) -> ar.Federation:
    """Return MNIST, or its test set alone as 8000 training and 2000 test images."""
    if full:
        return ar.load("mnist", partition=f"similarity:{similarity}", parties=100, seed=seed)
    central = ar.load("mnist", parties=1)
    _, _, x, y = central.party(0)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:8000], order[8000:]
    return ar.Federation.from_split(
        x[train], y[train], x[test], y[test],
        partition=f"similarity:{similarity}", parties=100, classes=10, about=central.about,
        seed=seed,
    )  # fmt: skip


def softmax_regression(fed: ar.Federation) -> nn.Module:
    """Return the model at zero, where all of its gradients are alike for all methods."""
    module = build("logistic", fed.shape, fed.classes)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def rounds(
    algorithm: Any,
    fed: ar.Federation,
    rates: tuple[float, ...],
    most: int,
    target: float,
    seed: int,
) -> dict[float, int | None]:
    """Return the rounds to the target with each learning rate, None if more than `most`."""
    runs = ar.sweep(
        algorithm, fed, softmax_regression(fed), {"lr": rates},
        rounds=most, sample=0.2, seed=seed,
        on_round=lambda runs: all(has_reached(run, target) for run in runs),
    )  # fmt: skip
    return {rate: first_round(run, target) for rate, run in zip(rates, runs, strict=True)}


def known(cells: list[dict[str, Any]], key: str, **which: Any) -> dict[str, Any]:
    """What an earlier run measured for a cell, by learning rate."""
    found = [c for c in cells if all(c.get(k) == v for k, v in which.items())]
    return found[0][key] if found else {}


def measure(args: argparse.Namespace, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry per method, similarity and number of epochs; only new rates are run."""
    cells = []
    for similarity in SIMILARITIES:
        feds = [mnist(similarity, args.full, seed) for seed in range(args.seeds)]
        jobs = [("SGD", 1, ar.FedSGD(), RATES["SGD"])]
        for name, algorithm in METHODS.items():
            for epochs in args.epochs:
                job = replace(algorithm, local_epochs=epochs)
                jobs.append((name, epochs, job, RATES["local"]))
        for name, epochs, algorithm, rates in jobs:
            which = {"method": name, "similarity": similarity, "epochs": epochs}
            had = known(before, "rounds_by_lr", **which)
            missing = tuple(rate for rate in rates if f"{rate:g}" not in had)
            by_seed = [
                rounds(algorithm, fed, missing, args.rounds, args.target, seed)
                for seed, fed in enumerate(feds if missing else [])
            ]
            had |= {f"{r:g}": mean(one[r] or args.rounds + 1 for one in by_seed) for r in missing}
            by_rate = {f"{rate:g}": had[f"{rate:g}"] for rate in rates}
            best = min(by_rate, key=lambda rate: by_rate[rate])
            cells.append(
                {**which, "rounds_by_lr": by_rate, "lr": best, "rounds": by_rate[best]}
            )  # fmt: skip
            print(cells[-1], file=sys.stderr, flush=True)
    return cells


def measure_long(args: argparse.Namespace, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the accuracy after many rounds at 0 % similarity, the mean of the last ten."""
    cells = []
    feds = [mnist(0, args.full, seed) for seed in range(args.seeds)]
    for method in ("FedAvg", "SCAFFOLD"):
        for epochs in LONG_EPOCHS:
            job = replace(METHODS[method], local_epochs=epochs)
            had, by_seed = known(before, "by_lr", method=method, epochs=epochs), []
            missing = [rate for rate in LONG_RATES if f"{rate:g}" not in had]
            for seed, fed in enumerate(feds if missing else []):
                runs = ar.sweep(
                    job, fed, softmax_regression(fed), {"lr": missing},
                    rounds=100, sample=0.2, seed=seed,
                )  # fmt: skip
                by_seed.append([mean(run.curve()[1][-10:]) for run in runs])
            had |= {f"{rate:g}": [one[i] for one in by_seed] for i, rate in enumerate(missing)}
            by_rate = {f"{rate:g}": had[f"{rate:g}"] for rate in LONG_RATES}
            best = max(by_rate, key=lambda rate: mean(by_rate[rate]))
            cells.append({"method": method, "epochs": epochs, "lr": best, "by_lr": by_rate})
            print(cells[-1], file=sys.stderr, flush=True)
    return cells


def named(lr: str, tried: Iterable[str]) -> str:
    """The chosen rate, with a star where it is the smallest or the largest tried."""
    numbers = [float(rate) for rate in tried]
    return f"lr {lr}{'*' if float(lr) in (min(numbers), max(numbers)) else ''}"


def long_accuracy(cells: list[dict[str, Any]], method: str) -> list[list[float]]:
    """Accuracies by seed at the best rate, one list per number of epochs."""
    return [c["by_lr"][c["lr"]] for c in cells if c["method"] == method]


def tabulate_long(cells: list[dict[str, Any]]) -> str:
    rows = [
        [
            c["method"],
            c["epochs"],
            f"{mean(c['by_lr'][c['lr']]):.1%} ± {stdev(c['by_lr'][c['lr']]):.1%} "
            f"({named(c['lr'], c['by_lr'])})",
            " / ".join(f"{mean(values):.1%}" for values in c["by_lr"].values()),
        ]
        for c in cells
    ]
    return table(["method", "epochs", "accuracy", "at lr .1 / .3 / 1 / 3"], rows)


def cell(cells: list[dict[str, Any]], method: str, similarity: int, epochs: int) -> dict[str, Any]:
    key = (method, similarity, epochs)
    return next(c for c in cells if (c["method"], c["similarity"], c["epochs"]) == key)


def shown(value: float, most: int) -> str:
    return f"{most}+" if value > most else f"{value:.1f}".removesuffix(".0")


def check(cells: list[dict[str, Any]], args: argparse.Namespace) -> list[tuple[str, str, bool]]:
    """Return what the paper claims, and what was measured."""
    ours = {
        (m, s): [cell(cells, m, s, e)["rounds"] for e in args.epochs]
        for m in METHODS
        for s in SIMILARITIES
    }
    ratios = [a / b for a, b in zip(ours["SCAFFOLD", 0], ours["FedAvg", 0], strict=True)]
    apart = [abs(a - b) for a, b in zip(ours["SCAFFOLD", 100], ours["FedAvg", 100], strict=True)]
    return [
        (
            "0 %: SCAFFOLD needs at most 0.65 of FedAvg's rounds, each at its best rate",
            ", ".join(f"{r:.2f}" for r in ratios) + f" ({', '.join(map(str, args.epochs))} epochs)",
            max(ratios) <= 0.65,
        ),
        (
            "100 %: equal within one round",
            "apart by " + ", ".join(f"{a:.1f}" for a in apart),
            max(apart) <= 1,
        ),
    ]


def check_long(cells: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """Return what more local epochs do at 0 % similarity; differences are paired by seed."""
    checks = []
    for method, claim in (("FedAvg", "worsens"), ("SCAFFOLD", "does not worsen")):
        few, *_, many = long_accuracy(cells, method)
        change = [b - a for a, b in zip(few, many, strict=True)]
        holds = max(change) < 0 if method == "FedAvg" else min(change) >= 0
        checks.append(
            (
                f"0 %, 100 rounds: {method} {claim} from 1 to 20 epochs, at its best rate",
                f"{mean(few):.1%} -> {mean(many):.1%}"
                f" (by seed {', '.join(f'{100 * c:+.1f}' for c in change)} points)",
                holds,
            )
        )
    return checks


def tabulate(cells: list[dict[str, Any]], args: argparse.Namespace) -> str:
    header = ["method", "epochs", *(f"{s} % similar" for s in SIMILARITIES)]
    header += [f"paper {s} %" for s in SIMILARITIES]
    rows = []
    for method in ("SGD", *METHODS):
        for i, epochs in enumerate((1,) if method == "SGD" else args.epochs):
            got = [cell(cells, method, s, epochs) for s in SIMILARITIES]
            paper = [PAPER[method][s][i] for s in SIMILARITIES]
            rows.append(
                [method, "-" if method == "SGD" else epochs]
                + [
                    f"{shown(c['rounds'], args.rounds)} ({named(c['lr'], c['rounds_by_lr'])})"
                    for c in got
                ]
                + [shown(p, 1000) for p in paper]
            )
    return table(header, rows)


def tabulate_rates(cells: list[dict[str, Any]], args: argparse.Namespace) -> str:
    header = ["method", "epochs", *(f"{s} %: lr .03 / .1 / .3 / 1" for s in SIMILARITIES)]
    rows = [
        [method, epochs]
        + [
            " / ".join(
                shown(r, args.rounds)
                for r in cell(cells, method, s, epochs)["rounds_by_lr"].values()
            )
            for s in SIMILARITIES
        ]
        for method in METHODS
        for epochs in args.epochs
    ]
    return table(header, rows)


def draw(cells: list[dict[str, Any]], args: argparse.Namespace) -> Figure:
    """Draw rounds against epochs: measured above, the paper's below."""
    figure = Figure(figsize=(11, 6.6), layout="constrained")
    axes = figure.subplots(2, 3, sharey="row")
    for column, similarity in enumerate(SIMILARITIES):
        for row in (0, 1):
            ax = axes[row, column]
            for method in METHODS:
                values = (
                    [cell(cells, method, similarity, e)["rounds"] for e in args.epochs]
                    if row == 0
                    else PAPER[method][similarity][: len(args.epochs)]
                )
                ax.plot(
                    range(len(args.epochs)), values, color=COLOURS[method], marker=MARKS[method],
                    markersize=SIZES[method], linestyle="-" if row == 0 else "--", label=method,
                )  # fmt: skip
            sgd = (
                cell(cells, "SGD", similarity, 1)["rounds"] if row == 0
                else PAPER["SGD"][similarity][0]
            )  # fmt: skip
            ax.axhline(sgd, color=GREY, linestyle=":", label="SGD")
            ax.set_xticks(range(len(args.epochs)), [str(e) for e in args.epochs])
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(ScalarFormatter())
            ax.yaxis.set_minor_formatter(NullFormatter())
            if row == 0:
                ax.set_title(f"{similarity} % similar")
            else:
                ax.set_xlabel("local epochs")
    size = "MNIST" if args.full else "MNIST-10k"
    axes[0, 0].set_yticks([1, 2, 5, 10, 20, 50])
    axes[1, 0].set_yticks([5, 10, 20, 50, 100, 200, 500, 1000])
    axes[0, 0].set_ylabel(f"here: rounds to {args.target:.0%}\n{size}")
    axes[1, 0].set_ylabel("the paper: rounds to 50 %\nEMNIST (1000 = more)")
    axes[0, 2].legend(loc="upper right")
    figure.suptitle(
        "SCAFFOLD, FedAvg and FedProx by local epochs and similarity of the parties",
        x=0.01, ha="left", color=INK, fontweight="bold",
    )  # fmt: skip
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all of MNIST rather than MNIST-10k")
    parser.add_argument("--target", type=float, help="test accuracy: 0.8, with --full 0.85")
    parser.add_argument("--seeds", type=int, default=3, help="repetitions to average over")
    parser.add_argument("--rounds", type=int, default=100, help="give up after so many")
    parser.add_argument("--quick", action="store_true", help="one seed, 1 and 5 epochs, a minute")
    parser.add_argument("--redraw", action="store_true", help="tables and plots of results.json")
    parser.add_argument("--out", type=Path, help="where to write: beside this file")
    args = parser.parse_args()
    args.epochs = EPOCHS[:2] if args.quick else EPOCHS
    args.seeds = 1 if args.quick else args.seeds
    args.target = args.target or (0.85 if args.full else 0.8)
    out = args.out or (FOLDER / "full" if args.full else FOLDER)
    began = time.perf_counter()
    path = out / "results.json"
    old = json.loads(path.read_text()) if path.exists() else {}
    if (old.get("target"), old.get("seeds")) != (args.target, args.seeds):
        old = {}
    cells = old["cells"] if args.redraw else measure(args, old.get("cells", []))
    checks = check(cells, args)
    if not args.quick:
        long = old["long"] if args.redraw else measure_long(args, old.get("long") or [])
        checks += check_long(long)
    figures, stall = {"plot.png": draw(cells, args)}, None
    if not args.full:
        figures["drift.png"], stall = draw_drift()
        checks.append(
            (
                "quadratics: SCAFFOLD arrives (1e-8) where FedAvg stalls",
                f"distance {stall['SCAFFOLD']:.1e} against {stall['FedAvg']:.1e}",
                stall["SCAFFOLD"] < 1e-8 < 1e-3 < stall["FedAvg"],
            )
        )
    seconds = old.get("seconds", 0) + (0 if args.redraw else time.perf_counter() - began)
    tables = (
        f"Rounds to {args.target:.0%} (mean of {args.seeds} seeds, the best of four learning "
        "rates, with a star where it is the smallest or the largest tried); the paper's on EMNIST "
        "to 50 %.\n\n"
        f"{tabulate(cells, args)}\n\n{gates(checks)}\n\nBy learning rate:\n\n"
        f"{tabulate_rates(cells, args)}\n\n"
    )
    if not args.quick:
        tables += (
            "Test accuracy after 100 rounds at 0 % similarity, mean of the last ten rounds and of "
            f"{args.seeds} seeds ± sd over seeds:\n\n{tabulate_long(long)}\n\n"
        )
    tables += f"{seconds:.0f} seconds."
    results = {
        "target": args.target, "seeds": args.seeds, "seconds": round(seconds), "cells": cells,
        "long": None if args.quick else long, "drift": stall, "checks": checks, "paper": PAPER,
    }  # fmt: skip
    save(out, results, tables, figures)


if __name__ == "__main__":
    main()
