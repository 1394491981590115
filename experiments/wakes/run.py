# SPDX-License-Identifier: Apache-2.0
"""Without rounds: how fast parties that wake at random agree, and what their theorems say.

Pairwise gossip: Boyd, Ghosh, Prabhakar, Shah, IEEE Trans. Inf. Theory 2006. Coordinate descent on a
graph of tasks: Bellet, Guerraoui, Taziki, Tommasi, AISTATS 2018, https://arxiv.org/abs/1705.08435.
Model propagation: Vanhaesebrouck, Bellet, Tommasi, AISTATS 2017, https://arxiv.org/abs/1610.05202.
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
from torch import Tensor, nn

import archipel as ar
from archipel.data.federation import Federation
from archipel.data.quadratic import quadratics
from archipel.engines.local.engine import LocalEngine
from archipel.graphs import Topology, topology
from archipel.graphs.fixed import weighted

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, gates, save, table

FOLDER = Path(__file__).parent
GRAPHS = {
    "ring": BLUE, "torus": ORANGE, "small_world:4": GREEN, "hypercube": PURPLE, "complete": INK,
}  # fmt: skip
N, GOSSIP_ROUNDS, DESCENT_ROUNDS = 16, 30, 60
MU, CONFIDENT = 0.5, 20


def states(
    algorithm: Any,
    data: Federation,
    model: ar.Model,
    graph: Topology,
    rounds: int,
    seed: int,
    start: Tensor | None = None,
) -> list[Any]:
    """The parties' own states before the first round and after each."""
    everybody = np.arange(data.training)
    with LocalEngine(algorithm, data, model, topology=graph, seed=seed) as engine:
        if start is not None:
            rows = {"visited": torch.from_numpy(everybody), "own.0": start}
            engine.restore({**engine.state(), **rows})
        found = [engine.own_states(everybody)]
        for t in range(rounds):
            engine.round(t, everybody)
            found.append(engine.own_states(everybody))
    return found


def linear(dims: int) -> ar.Model:
    module = nn.Linear(dims, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    return ar.Model(module, "squared_error")


def slope(values: Tensor) -> float:
    """How much of a falling sequence one round leaves, by least squares of its logarithm."""
    kept = values[values > 1e-20]
    return float(np.exp(np.polyfit(np.arange(len(kept)), kept.log().numpy(), 1)[0]))


# -- pairwise gossip -------------------------------------------------------------------------------


def boyd(graph: Topology) -> float:
    """lambda_2 of the mean of I - (e_i - e_j)(e_i - e_j)' / 2, to the power of a round's wake-ups.

    Their number in a round is Poisson of mean n: E[lambda^K] = exp(-n (1 - lambda)).
    """
    adjacent = graph.affinity().toarray() > 0
    drawn = adjacent / adjacent.sum(axis=1, keepdims=True) / graph.n
    both = drawn + drawn.T
    mean = np.eye(graph.n) - (np.diag(both.sum(axis=1)) - both) / 2
    second = float(np.sort(np.linalg.eigvalsh(mean))[-2])
    return float(np.exp(-graph.n * (1 - second)))


def gossip(seeds: int) -> dict[str, Any]:
    data, _ = quadratics(N, 50, 5)  # of which nothing is learned
    found = {}
    for name in GRAPHS:
        graph = topology(name, N)
        errors = []
        for seed in range(seeds):
            start = torch.randn(N, 50, dtype=torch.float64, generator=_generator(seed))
            rows = states(
                ar.Gossip(lr=0.0, batch_size=None), data, linear(50), graph, GOSSIP_ROUNDS, seed,
                start,
            )  # fmt: skip
            apart = torch.stack([(x - x.mean(dim=0)).square().sum() for x in rows])
            errors.append(apart / apart[0])
        mean = torch.stack(errors).mean(dim=0)
        found[name] = {"error": mean.tolist(), "rate": slope(mean), "bound": boyd(graph)}
    return found


# -- coordinate descent ----------------------------------------------------------------------------


def descent(seeds: int) -> dict[str, Any]:
    """Q - Q* of least squares on a graph of tasks, beside (1 - sigma / (n L_max))^K."""
    data, _ = quadratics(N, 3, 10)
    parts = [data.party(k)[:2] for k in range(N)]
    hessian = torch.stack([x.T @ x / len(x) for x, _ in parts])
    target = torch.stack([x.T @ y.flatten() / len(x) for x, y in parts])
    smooth = float(torch.linalg.eigvalsh(hessian).max())
    found = {}
    for name in GRAPHS:
        graph = topology(name, N)
        W = torch.from_numpy(graph.affinity().toarray())
        D, c = W.sum(dim=1), (data.n.double() / CONFIDENT).clamp(max=1)
        own = MU * D * c
        whole = torch.kron(torch.diag(D) - W, torch.eye(3, dtype=torch.float64))
        whole = whole + torch.block_diag(*(own[:, None, None] * hessian))
        right = (own[:, None] * target).flatten()
        best = torch.linalg.solve(whole, right)
        sigma = float(torch.linalg.eigvalsh(whole).min())
        most = float((D * (1 + MU * c * smooth)).max())  # L_i = D_ii (1 + mu c_i L_i^loc)
        algorithm = ar.Coordinate(mu=MU, smoothness=smooth, confident=CONFIDENT)
        gaps = []
        for seed in range(seeds):
            rows = states(algorithm, data, linear(3), graph, DESCENT_ROUNDS, seed)
            away = torch.stack([x.flatten() - best for x in rows])
            gaps.append((away @ whole * away).sum(dim=1) / 2)
        mean = torch.stack(gaps).mean(dim=0)
        bound = float(np.exp(-sigma / most))  # of n wake-ups on average: Poisson
        found[name] = {"gap": (mean / mean[0]).tolist(), "rate": slope(mean), "bound": bound}
    return found


# -- model propagation -----------------------------------------------------------------------------


def propagation(seeds: int) -> dict[str, float]:
    """Mean squared error of 60 means in two groups, alone and smoothed."""
    errors: dict[str, list[float]] = {"alone": [], "propagated": [], "without confidences": []}
    for seed in range(seeds):
        draw = np.random.default_rng(seed)
        truth = np.repeat([-1.0, 1.0], 30)
        sizes = draw.integers(1, 20, 60)
        ys = [truth[k] + np.sqrt(10) * draw.standard_normal(sizes[k]) for k in range(60)]
        data = Federation.from_arrays(
            [torch.ones(n, 1, dtype=torch.float64) for n in sizes],
            [torch.from_numpy(y) for y in ys],
            test=0.0,
        )
        graph = weighted(
            ((truth[:, None] == truth) & ~np.eye(60, dtype=bool)) + 1e-3 * (truth[:, None] != truth)
        )
        for name, sure in (("propagated", 19), ("without confidences", 1)):
            algorithm = ar.Propagation(lr=1.0, alpha=0.9, alone=8, confident=sure, batch_size=None)
            own = states(algorithm, data, linear(1), graph, 160, seed)[-1]
            errors[name].append(float(((own.theta.flatten().numpy() - truth) ** 2).mean()))
        errors["alone"].append(float(((own.solitary.flatten().numpy() - truth) ** 2).mean()))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- tables and figures ----------------------------------------------------------------------------


def tables(found: dict[str, Any]) -> str:
    rows = [
        (
            name,
            f"{found['gossip'][name]['rate']:.3f}",
            f"{found['gossip'][name]['bound']:.3f}",
            f"{found['descent'][name]['rate']:.4f}",
            f"{found['descent'][name]['bound']:.4f}",
        )
        for name in GRAPHS
    ]
    header = ["a round leaves", "gossip", "its bound", "coordinate descent", "its bound"]
    error = found["propagation"]
    checks = [
        (
            f"{what}: at the bound's rate or better ({name})",
            f"{found[what][name]['rate']:.4f} <= {found[what][name]['bound']:.4f}",
            found[what][name]["rate"] <= 1.02 * found[what][name]["bound"],
        )
        for what in ("gossip", "descent")
        for name in GRAPHS
    ]
    checks.append(
        (
            "propagated means beat those alone and those without confidences",
            f"{error['propagated']:.3f}, {error['alone']:.3f}, {error['without confidences']:.3f}",
            error["propagated"] < min(error["alone"], error["without confidences"]),
        )
    )
    return "\n".join([table(header, rows), gates(checks)])


def picture(found: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    for axis, (what, key, title) in zip(
        figure.subplots(1, 2),
        (
            ("gossip", "error", "gossip: distance from the mean, squared"),
            ("descent", "gap", "coordinate descent: Q - Q*"),
        ),
        strict=True,
    ):
        for name, colour in GRAPHS.items():
            values = found[what][name][key]
            axis.semilogy(values, color=colour, linewidth=1.6, label=name)
            bound = found[what][name]["bound"] ** np.arange(len(values))
            axis.semilogy(bound, color=colour, linewidth=1, linestyle=":")
        axis.set_ylim(1e-13, 2)
        axis.set_xlabel("rounds: n wake-ups on average")
        axis.set_title(title)
    axis.plot([], [], color=GREY, linewidth=1, linestyle=":", label="the theorem's bound")
    axis.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    began = time.perf_counter()
    found = {
        "gossip": gossip(seeds),
        "descent": descent(seeds),
        "propagation": propagation(min(seeds, 3)),
    }
    results = {"seeds": seeds, "seconds": time.perf_counter() - began, "found": found}
    save(FOLDER, results, tables(found), {"plot.png": picture(found)})


if __name__ == "__main__":
    main()
