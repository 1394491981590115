# SPDX-License-Identifier: Apache-2.0
"""Who is alike is learned with the models: alone, one model for all, the true graph, a learned one.

Clustered moons (100 parties), 139 schools and, with `--har FOLDER`, 30 people with a phone. See
README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.sparse import csr_array
from torch import Tensor

import archipel as ar
from archipel.data import moons
from archipel.data.federation import Federation
from archipel.engines.local.engine import LocalEngine
from archipel.graphs import Topology
from archipel.graphs.fixed import fixed
from archipel.models.model import Model
from archipel.runs.parts import build_model
from archipel.tree import leaves

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from reporting import BLUE, GREEN, GREY, ORANGE, gates, table  # noqa: E402

NEVER = 10**6
FEW: Any = {"confident": 14, "kappa": 20}
CYCLE: Any = {"alone": 50, "graph_rounds": 20, "model_rounds": 80}
CYCLES = 4
MOONS: dict[str, dict[str, Any]] = {"own points": {"own_points": True}, "authors' points": {}}
CLUSTER = np.repeat(np.arange(4), [10, 20, 30, 40])
PARTS = ("moons", "school", "har")


def learn(
    algorithm: Any, data: Federation, model: Model, rounds: int, graph: Topology | None = None
) -> tuple[Tensor, Topology | None]:
    """The parties' own models at the end, and the graph."""
    everybody = np.arange(data.training)
    with LocalEngine(algorithm, data, model, topology=graph, workers=1) as engine:
        for t in range(rounds):
            engine.round(t, everybody)
        models = leaves(engine.own_states(everybody))[0]
        learned = engine.graph() if getattr(algorithm, "learns_graph", False) else graph
    return models, learned


def accuracy(models: Tensor, data: Federation, model: Model) -> float:
    """Of each party's own model at its test points, averaged over parties."""
    scores = []
    for k in range(data.training):
        rows = slice(int(data.test_from[k]), int(data.offsets[k + 1]))
        outputs, y = model.predict(models[k], data.x[rows]), data.y[rows]
        said = outputs[:, 0] > 0 if outputs.shape[-1] == 1 else outputs.argmax(dim=-1)
        scores.append(float((said.long() == y).double().mean()))
    return float(np.mean(scores))


def together(data: Federation, model: Model, lr: float, rounds: int) -> float:
    """Accuracy of one model for all, averaged over parties."""
    run = ar.simulate(
        ar.FedAvg(lr=lr, batch_size=20),
        data,
        model,
        rounds=rounds,
        evaluate_every=rounds,
        workers=1,
    )
    return float(np.nanmean(run.parties["accuracy"]))


def on_moons(kind: str, seed: int) -> dict[str, Any]:
    data = ar.load("moons", clusters=True, seed=seed, **MOONS[kind])
    model = build_model("stumps", data, options={"count": 200, "low": -2.0, "high": 2.0})
    axes = moons.axes(clusters=True, seed=seed)
    axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    cos, others = axes @ axes.T, 1 - np.eye(100)
    true = fixed("true", csr_array(np.exp(-((1 - cos) ** 2 + 1 - cos**2) / 0.2) * others))
    same = CLUSTER[:, None] == CLUSTER
    clusters = fixed("clusters", csr_array(same * others))

    def scored(algorithm: Any, rounds: int, graph: Topology | None = None) -> float:
        return accuracy(learn(algorithm, data, model, rounds, graph)[0], data, model)

    given = ar.DadaBoosted(**FEW, learned=False)
    models = CYCLES * CYCLE["model_rounds"]
    row = {
        "alone": scored(ar.DadaBoosted(**FEW, alone=NEVER, ridge=0.0), 100),
        "all": together(data, model, 0.01, 100),
        "true graph": scored(given, models, true),
        "whole models": scored(ar.Dada(lr=0.01, **FEW, learned=False), 150, true),
        "best fit": accuracy(
            best_fit(learn(given, data, model, 150, clusters)[0], data, model), data, model
        ),
    }
    started = time.perf_counter()
    rounds = CYCLE["alone"] + CYCLES * CYCLE["graph_rounds"] + models
    learned, graph = learn(ar.DadaBoosted(**FEW, **CYCLE), data, model, rounds)
    assert graph is not None
    W = graph.affinity().toarray()
    return row | {
        "learned graph": accuracy(learned, data, model),
        "seconds": time.perf_counter() - started,
        "neighbours": float((W > 0).sum() / len(W)),
        "edges within": float(((W > 0) & same).sum() / (W > 0).sum()),
        "weight within": float((W * same).sum() / W.sum()),
        "edges": [[int(i), int(j), float(W[i, j])] for i, j in np.argwhere(np.triu(W) > 0)],
    }


def best_fit(models: Tensor, data: Federation, model: Model) -> Tensor:
    """For each party, of the four clusters' mean models the one that fits its own points best."""
    means, chosen = torch.stack([models[q == CLUSTER].mean(dim=0) for q in range(4)]), []
    for k in range(data.training):
        x, y = data.party(k)[:2]
        margins = (2 * y - 1) * torch.stack([model.predict(mean, x)[:, 0] for mean in means])
        chosen.append(int((-margins).logsumexp(dim=1).argmin()))
    return means[chosen]


def on_table(data: Federation, name: str, lr: float, mu1: float) -> dict[str, Any]:
    """Linear models: alone, together, and with a learned graph."""
    model = build_model(name, data)
    terms: Any = {"lr": lr, "mu1": mu1, "mu2": 0.3, "lam": 1.0, "confident": 60, "kappa": 10}
    cycle: Any = {"alone": 10, "graph_rounds": 10, "model_rounds": 20}
    alone, _ = learn(ar.Dada(**terms, alone=NEVER), data, model, 50)
    learned, graph = learn(ar.Dada(**terms, **cycle), data, model, 70)
    assert graph is not None
    return {
        "alone": accuracy(alone, data, model),
        "all": together(data, model, lr / 3, 30),
        "learned graph": accuracy(learned, data, model),
        "neighbours": float(graph.affinity().nnz / data.training),
    }


def people(folder: str, seed: int, six: bool) -> Federation:
    only: Any = {} if six else {"only": ["upstairs", "downstairs"]}
    data = ar.load("uci_har", folder=folder, summary=True, test_fraction=0.9, seed=seed, **only)
    return data.standardised(data.marks)


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--seeds", type=int, default=3)
    parse.add_argument("--parts", nargs="+", choices=PARTS, default=["moons", "school"],
                       help="what is run; the rest of the table stays")  # fmt: skip
    parse.add_argument("--har", help="folder with uci_har_inertial.npz, for the part har")
    options = parse.parse_args()
    torch.set_num_threads(1)
    found = json.loads((HERE / "results.json").read_text())
    found = {k: runs for k, runs in found.items() if not k.startswith(tuple(options.parts))}

    def add(what: str, row: dict[str, Any]) -> None:
        found.setdefault(what, []).append(row)
        print(what, {k: round(v, 3) for k, v in row.items() if k != "edges"}, flush=True)
        (HERE / "results.json").write_text(json.dumps(found) + "\n")

    for seed in range(options.seeds):
        if "moons" in options.parts:
            for kind in MOONS:
                add(f"moons, {kind}", on_moons(kind, seed))
        if "school" in options.parts:
            school = ar.load("school", above=20, pupils=True, seed=seed)
            add("school", on_table(school, "linear_score", 1.0, 0.3))
        if "har" in options.parts:
            add("har, stairs", on_table(people(options.har, seed, False), "linear_score", 0.3, 0.1))
            add("har, six", on_table(people(options.har, seed, True), "logistic", 0.3, 0.1))
    report(found)


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    """Write the tables and the figure."""
    columns = ["alone", "all", "true graph", "learned graph", "best fit", "whole models"]
    rows, checks = [], []
    for what, runs in found.items():
        mean = {k: float(np.mean([r[k] for r in runs])) for k in runs[0] if k != "edges"}
        cells = [f"{100 * mean[k]:.1f}" if k in mean else "" for k in columns]
        rows.append([what, len(runs), *cells, f"{mean['neighbours']:.1f}"])
        ahead = mean["learned graph"] - mean["alone"]
        if "true graph" in mean:
            behind, within = mean["true graph"] - mean["learned graph"], mean["edges within"]
            weight = mean["weight within"]
            rows[-1].append(f"{100 * within:.0f} %, {100 * weight:.0f} % of the weight")
            checks += [
                (f"{what}: 5 points over alone", f"{100 * ahead:.1f}", ahead >= 0.05),
                (f"{what}: 2 below the true graph at most", f"{100 * behind:.1f}", behind <= 0.02),
                (f"{what}: 90 % of edges in clusters", f"{100 * within:.0f} %", within >= 0.9),
            ]
        else:
            rows[-1].append("")
            over = mean["learned graph"] - mean["all"]
            checks += [
                (f"{what}: at least alone", f"{100 * ahead:+.1f}", ahead >= 0),
                (f"{what}: at least one for all", f"{100 * over:+.1f}", over >= 0),
            ]
    header = ["data", "splits", *columns, "neighbours", "edges in clusters"]
    (HERE / "table.md").write_text(table(header, rows) + "\n\n" + gates(checks) + "\n")
    draw(found)


def draw(found: dict[str, list[dict[str, Any]]]) -> None:
    """The first learned graph of each kind of moons, parties by their axis."""
    kinds = [what for what in found if what.startswith("moons")]
    figure = Figure(figsize=(6.2 * len(kinds), 6.4))
    for i, what in enumerate(kinds):
        plot = figure.add_subplot(1, len(kinds), i + 1, aspect="equal")
        axes = moons.axes(clusters=True, seed=0)
        edges = found[what][0]["edges"]
        most = max(weight for *_, weight in edges)
        for k, j, weight in edges:
            plot.plot(
                *axes[[k, j]].T, color=GREY if CLUSTER[k] == CLUSTER[j] else ORANGE,
                linewidth=0.3 + 1.5 * weight / most, alpha=0.6, zorder=1,
            )  # fmt: skip
        plot.scatter(
            *axes.T, s=18, c=np.array([BLUE, GREEN, "#CC79A7", "#2B2F38"])[CLUSTER], zorder=2
        )
        plot.set_title(f"{what}: {100 * found[what][0]['edges within']:.0f} % of edges in clusters")
        plot.set_xlabel("axis of a party's moons, first coordinate")
        plot.set_ylabel("second coordinate")
    figure.tight_layout()
    figure.savefig(HERE / "graph.png", dpi=110)


if __name__ == "__main__":
    main()
