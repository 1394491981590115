# SPDX-License-Identifier: Apache-2.0
"""Server optimisers: FedAvg, FedAvgM, FedAdagrad, FedAdam and FedYogi on unlike parties.

Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295, Table 1, moved to MNIST in two shards.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

import archipel as ar

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, gates, save, table

FOLDER = Path(__file__).parent
CLIENT = (0.03, 0.1, 0.3)  # rates at the parties, with every rate at the server
METHODS: dict[str, tuple[dict[str, Any], tuple[float, ...], str]] = {
    "FedAvg": ({"server_optimiser": "sgd"}, (0.5, 1.0, 2.0), ORANGE),
    "FedAvgM": ({"server_optimiser": "momentum"}, (0.1, 0.3, 1.0), SKY),
    "FedAdagrad": ({"server_optimiser": "adagrad"}, (0.01, 0.03, 0.1), GREEN),
    "FedAdam": ({"server_optimiser": "adam"}, (0.01, 0.03, 0.1), BLUE),
    "FedYogi": ({"server_optimiser": "yogi"}, (0.01, 0.03, 0.1), PURPLE),
}
PAPER = {  # Table 1, CIFAR-10 and EMNIST-CR, per cent
    "FedAvg": (72.8, 84.9),
    "FedAvgM": (77.4, 85.2),
    "FedAdagrad": (72.1, 85.1),
    "FedAdam": (77.4, 85.6),
    "FedYogi": (78.0, 85.5),
}


def draw(curves: dict[str, tuple[list[int], list[float]]]) -> Figure:
    figure = Figure(figsize=(8.5, 4), layout="constrained")
    axes = figure.subplots()
    for name, (rounds, values) in curves.items():
        axes.plot(rounds, values, color=METHODS[name][2], label=name)
    axes.set(xlabel="round", ylabel="test accuracy", ylim=(0.5, 1.0))
    axes.legend(loc="lower right")
    figure.suptitle(
        "Server optimisers on MNIST in two shards, each at its best rates",
        x=0.01, ha="left", color=INK, fontweight="bold",
    )  # fmt: skip
    return figure


def last_rounds(run: ar.Run) -> float:
    """Mean accuracy of the last ten rounds."""
    return mean(run.curve()[1][-10:])


def at_edge(best: tuple[float, float], rates: tuple[float, ...]) -> list[str]:
    """Which of both rates is the smallest or largest tried."""
    tried = {"client": CLIENT, "server": rates}
    return [
        side
        for (side, values), rate in zip(tried.items(), best, strict=True)
        if rate in (min(values), max(values))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    began = time.perf_counter()
    data = ar.load("mnist", partition="shards:2", parties=100)
    tuning = data.validation(0.1)
    rows, curves, results = [], {}, {}
    for name, (fields, rates, _) in METHODS.items():
        algorithm = ar.FedOpt(batch_size=20, **fields)
        options: dict[str, Any] = {"rounds": args.rounds, "sample": 0.1}
        pairs = list(itertools.product(CLIENT, rates))
        grid = {"lr": [lr for lr, _ in pairs], "server_lr": [eta for _, eta in pairs]}
        tried = ar.sweep(algorithm, tuning, "2nn", grid, **options)
        scores = [last_rounds(run) for run in tried]
        lr, eta = best = pairs[scores.index(max(scores))]
        run = ar.sweep(algorithm, data, "2nn", {"lr": [lr], "server_lr": [eta]}, **options)[0]
        last, edges = last_rounds(run), at_edge(best, rates)
        curves[name] = run.curve()
        results[name] = {
            "lr": lr, "server_lr": eta, "accuracy": last, "edges": edges,
            "tried": [[*pair, each] for pair, each in zip(pairs, scores, strict=True)],
        }  # fmt: skip
        cifar, emnist = PAPER[name]
        rows.append([name, lr, eta, ", ".join(edges) or "-", f"{last:.1%}", cifar, emnist])
        print(rows[-1], file=sys.stderr, flush=True)
    plain = results["FedAvg"]["accuracy"]
    better = [name for name in METHODS if results[name]["accuracy"] > plain]
    checks = [
        ("momentum, Adam and Yogi at the server beat FedAvg", ", ".join(better) + " do",
         {"FedAvgM", "FedAdam", "FedYogi"} <= set(better)),
    ]  # fmt: skip
    seconds = time.perf_counter() - began
    header = ["method", "client rate", "server rate", "at the edge", "accuracy",
              "paper, CIFAR-10", "paper, EMNIST"]  # fmt: skip
    tables = (
        f"MNIST in two shards, 100 parties, 10 a round, 2NN, one local epoch of batches of 20, "
        f"{args.rounds} rounds: mean test accuracy of the last ten. Both rates chosen on a tenth "
        f"of the training points, of three by three for every method (client rates "
        f"{', '.join(map(str, CLIENT))}); a rate at the edge is the smallest or largest tried. One "
        "seed.\n\n" + table(header, rows) + f"\n\n{gates(checks)}\n\n{seconds:.0f} seconds."
    )
    save(args.out, {"methods": results, "checks": checks}, tables, {"plot.png": draw(curves)})


if __name__ == "__main__":
    main()
