# SPDX-License-Identifier: Apache-2.0
"""FedProx against FedAvg when parties do not finish their local work in time.

Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, Figure 1, on synthetic(1, 1): 30 devices,
10 a round, 20 local epochs, batches of 10, learning rate 0.01. FedAvg drops stragglers, FedProx
keeps what they have done.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

import archipel as ar

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, gates, save, table

FOLDER = Path(__file__).parent
STRAGGLERS = (0.0, 0.5, 0.9)
LAST = 10  # rounds that a figure of the table is the mean of
WORK: dict[str, Any] = {"lr": 0.01, "local_epochs": 20, "batch_size": 10}
METHODS: dict[str, Any] = {
    "FedAvg": ar.FedAvg(**WORK),
    "FedProx, mu = 0": ar.FedProx(**WORK, mu=0.0),
    "FedProx, mu = 1": ar.FedProx(**WORK, mu=1.0),
}
COLOURS = dict(zip(METHODS, (ORANGE, GREEN, BLUE), strict=True))
STYLES = dict(zip(METHODS, ("-", "--", "-"), strict=True))


def train_loss(fed: ar.Federation, model: ar.Model, w: torch.Tensor) -> float:
    """Return the mean loss over all training points, which is what the paper draws."""
    parts = [fed.party(k)[:2] for k in range(fed.training)]
    x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model.predict(w, x), y))


def measure(fed: ar.Federation, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Return one entry per method and share of stragglers, all with the same devices late."""
    cells = []
    for share in STRAGGLERS:
        for name, algorithm in METHODS.items():
            losses: list[float] = []

            def note(run: ar.Run, losses: list[float] = losses) -> None:
                losses.append(train_loss(fed, run.task_model, run.vector))

            run = ar.simulate(
                algorithm, fed, "logistic",
                rounds=rounds, sample=10, stragglers=share, seed=seed, on_round=note,
            )  # fmt: skip
            cells.append(
                {"method": name, "stragglers": share, "loss": losses,
                 "accuracy": run.curve()[1], "vector": run.vector}
            )  # fmt: skip
            print(name, share, losses[-1], run.metrics, file=sys.stderr, flush=True)
    return cells


def summarise(cells: list[dict[str, Any]]) -> dict[tuple[str, float], dict[str, float]]:
    """Return mean and deviation over the last rounds, and over seeds where there are several."""
    keys = dict.fromkeys((c["method"], c["stragglers"]) for c in cells)
    out = {}
    for key in keys:
        mine = [c for c in cells if (c["method"], c["stragglers"]) == key]
        losses, accuracies = (
            np.array([c[name][-LAST:] for c in mine]) for name in ("loss", "accuracy")
        )
        out[key] = {
            "accuracy": float(accuracies.mean()),
            "loss": float(losses.mean()),
            "loss_sd": float(losses.std(axis=1).mean()),
        }
    return out


def check(
    cells: list[dict[str, Any]], summary: dict[tuple[str, float], dict[str, float]]
) -> list[tuple[str, str, bool]]:
    average, near, far = METHODS
    gain = 100 * (summary[far, 0.9]["accuracy"] - summary[average, 0.9]["accuracy"])
    ratio = summary[average, 0.9]["loss_sd"] / summary[far, 0.9]["loss_sd"]
    plain = [c["vector"] for c in cells if c["stragglers"] == 0 and c["method"] == average]
    prox = [c["vector"] for c in cells if c["stragglers"] == 0 and c["method"] == near]
    same = all(torch.equal(a, b) for a, b in zip(plain, prox, strict=True))
    return [
        (
            "90 % stragglers: mu = 1 at least 10 points above FedAvg",
            f"{gain:.1f} points",
            gain >= 10,
        ),
        (
            "90 % stragglers: FedAvg's loss varies at least 5 times as much",
            f"{ratio:.1f}",
            ratio >= 5,
        ),
        ("no stragglers: mu = 0 is FedAvg, bit for bit", str(same).lower(), same),
    ]


def draw(cells: list[dict[str, Any]], seed: int) -> Figure:
    """Draw training loss and test accuracy by round, a column per share of stragglers."""
    figure = Figure(figsize=(11.5, 6.4), layout="constrained")
    axes = figure.subplots(2, len(STRAGGLERS), sharex=True, sharey="row")
    for column, share in enumerate(STRAGGLERS):
        for cell in cells:
            if cell["stragglers"] != share or cell["seed"] != seed:
                continue
            name = cell["method"]
            for row, values in enumerate((cell["loss"], 100 * np.array(cell["accuracy"]))):
                axes[row, column].plot(
                    range(1, len(values) + 1), values, label=name,
                    color=COLOURS[name], linestyle=STYLES[name],
                )  # fmt: skip
        axes[0, column].set_title(f"{share:.0%} stragglers")
        axes[0, column].set_yscale("log")
        axes[1, column].set_xlabel("round")
    axes[0, 0].set_yticks([0.4, 0.6, 1, 2, 4])
    axes[0, 0].yaxis.set_major_formatter(ScalarFormatter())
    axes[0, 0].yaxis.set_minor_formatter(NullFormatter())
    axes[0, 0].set_ylabel("training loss")
    axes[1, 0].set_ylabel("test accuracy (%)")
    axes[1, 0].legend(loc="lower right")
    figure.suptitle(
        "FedProx keeps the partial work of stragglers; FedAvg drops them",
        x=0.01, ha="left", color=INK, fontweight="bold",
    )  # fmt: skip
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1, help="runs with other draws of devices")
    parser.add_argument("--most", type=int, default=2000, help="cap on a device's points")
    parser.add_argument("--quick", action="store_true", help="30 rounds")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write")
    args = parser.parse_args()
    rounds = 30 if args.quick else args.rounds
    began = time.perf_counter()
    fed = ar.load("synthetic", alpha=1.0, beta=1.0, most=args.most, seed=0)
    cells = [
        {**cell, "seed": seed} for seed in range(args.seeds) for cell in measure(fed, rounds, seed)
    ]
    summary = summarise(cells)
    checks = check(cells, summary)
    seconds = time.perf_counter() - began
    rows = [
        [
            f"{share:.0%}",
            name,
            f"{100 * s['accuracy']:.1f}",
            f"{s['loss']:.3f}",
            f"{s['loss_sd']:.3f}",
        ]
        for (name, share), s in summary.items()
    ]
    header = ["stragglers", "method", "test accuracy (%)", "training loss", "its sd over rounds"]
    tables = (
        f"synthetic(1, 1), {rounds} rounds, mean of the last {LAST}, {args.seeds} seed(s).\n\n"
        f"{table(header, rows)}\n\n{gates(checks)}\n\n{seconds:.0f} seconds."
    )
    curves = [{k: v for k, v in cell.items() if k != "vector"} for cell in cells]
    results = {
        "rounds": rounds, "seconds": round(seconds), "checks": checks, "curves": curves,
        "summary": [{"method": m, "stragglers": s, **v} for (m, s), v in summary.items()],
    }  # fmt: skip
    save(args.out, results, tables, {"plot.png": draw(cells, 0)})


if __name__ == "__main__":
    main()
