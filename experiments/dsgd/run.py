# SPDX-License-Identifier: Apache-2.0
"""Decentralised SGD on several graphs: accuracy and consensus by spectral gap.

Lian et al., NeurIPS 2017, https://arxiv.org/abs/1705.09056; Koloskova et al., ICML 2020,
https://arxiv.org/abs/2003.10422. Softmax regression on MNIST, unlike parties, no server.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import nn

import archipel as ar
from archipel.graphs import Topology, topology
from archipel.models import build

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, PURPLE, SKY, gates, save, table

FOLDER = Path(__file__).parent
GRAPHS = ("complete", "exponential", "torus:4x4", "ring", "matching")
COLOURS = dict(zip(GRAPHS, (BLUE, GREEN, ORANGE, PURPLE, SKY), strict=True))
LR, BATCH = 0.1, 32


def federation(parties: int, partition: str) -> ar.Federation:
    """Return MNIST's test set as 8000 training and 2000 test images, dealt to parties."""
    _, _, x, y = ar.load("mnist", parties=1).party(0)
    return ar.Federation.from_split(
        x[:8000], y[:8000], x[8000:], y[8000:], partition=partition, parties=parties, classes=10
    )


def model(fed: ar.Federation) -> ar.Model:
    module = build("logistic", fed.shape, fed.classes)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return ar.Model(module)


def learn(fed: ar.Federation, graph: Topology, rounds: int) -> dict[str, Any]:
    """Return accuracies of the mean model and of single peers' models, and the consensus error."""
    history: dict[str, Any] = {"round": [], "mean": [], "worst": [], "consensus": []}
    with ar.LocalEngine(ar.DSGD(LR, BATCH), fed, model(fed), topology=graph) as engine:
        for t in range(rounds):
            engine.round(t, range(fed.parties))
            if (t + 1) % 10:
                continue
            models, mean = engine.own_models(), engine.vector()
            peers = [engine.evaluate(w).pooled["accuracy"] for w in models]
            history["round"].append(t + 1)
            history["mean"].append(engine.evaluate(mean).pooled["accuracy"])
            history["worst"].append(min(peers))
            history["consensus"].append(float((models - mean).square().sum(1).mean().sqrt()))
    return history


def draw(results: dict[str, dict[str, Any]], central: float) -> Figure:
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, history in results.items():
        label = f"{name} (gap {history['gap']:.2f})"
        left.plot(history["round"], history["worst"], color=COLOURS[name], label=label)
        right.plot(history["round"], history["consensus"], color=COLOURS[name], label=label)
    left.axhline(central, color=INK, linestyle=":", label="parallel SGD, with a server")
    left.set(xlabel="round", ylabel="accuracy of the worst peer's model", ylim=(0.4, 0.95))
    right.set(xlabel="round", ylabel="distance of peers from their mean", yscale="log")
    left.legend(loc="lower right")
    figure.suptitle(
        "Decentralised SGD, 16 unlike parties: the smaller the spectral gap, the further apart",
        x=0.01, ha="left", color=INK, fontweight="bold",
    )  # fmt: skip
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    began = time.perf_counter()
    fed = federation(16, "shards:2")
    results: dict[str, dict[str, Any]] = {}
    for name in GRAPHS:
        graph = topology(name, 16)
        results[name] = {"gap": graph.spectral_gap, **learn(fed, graph, args.rounds)}
        print(name, results[name]["worst"][-1], file=sys.stderr, flush=True)
    sgd = ar.FedSGD(LR, BATCH)
    central = ar.simulate(sgd, fed, model(fed), rounds=args.rounds, evaluate_every=10)
    accuracy = central.metrics["accuracy"]
    eight = federation(8, "iid")
    ring = learn(eight, topology("ring", 8), args.rounds)
    pooled = ar.simulate(sgd, eight, model(eight), rounds=args.rounds, evaluate_every=args.rounds)
    rows = [
        [name, f"{h['gap']:.3f}", f"{h['mean'][-1]:.1%}", f"{h['worst'][-1]:.1%}",
         f"{h['consensus'][-1]:.3f}"]
        for name, h in results.items()
    ]  # fmt: skip
    order = sorted(
        (h for name, h in results.items() if name != "matching"), key=lambda h: -h["gap"]
    )
    errors = [h["consensus"][-1] for h in order]
    difference = pooled.metrics["accuracy"] - ring["mean"][-1]
    same = abs(results["complete"]["mean"][-1] - accuracy)
    checks = [
        ("ring of 8, iid: within 1 point of parallel SGD", f"{100 * difference:.2f} points",
         abs(difference) <= 0.01),
        ("complete graph: the accuracy of parallel SGD", f"{100 * same:.2f} points apart",
         same <= 0.002),
        ("fixed graphs: the smaller the gap, the larger the distance from the mean",
         " < ".join(f"{e:.3f}" for e in errors), errors == sorted(errors)),
    ]  # fmt: skip
    seconds = time.perf_counter() - began
    tables = (
        f"16 parties with two shards each, {args.rounds} rounds, lr {LR}, batches of {BATCH}. "
        f"Parallel SGD with a server: {accuracy:.1%}.\n\n"
        + table(["graph", "gap", "mean model", "worst peer", "distance from mean"], rows)
        + f"\n\n{gates(checks)}\n\n{seconds:.0f} seconds."
    )
    document = {"graphs": results, "central": accuracy, "ring of 8": ring, "checks": checks,
                "seconds": round(seconds)}  # fmt: skip
    save(args.out, document, tables, {"plot.png": draw(results, accuracy)})


if __name__ == "__main__":
    main()
