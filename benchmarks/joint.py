# SPDX-License-Identifier: Apache-2.0
"""Models and the graph learned together: a round of wake-ups, against loops over parties.

On moons, `dada` learns linear models of the features and `dada_boosted` ensembles of 200 stumps.
Two plain sides, one party after another, each with its base models' answers computed once:

- `numpy`: what the paper's own code does, its formulas for the gradient, neighbours in a dict;
- `torch`: what a simulation party by party does, gradients by autograd, neighbours in a table.

All three sides give the same numbers (a test compares them). Microseconds of the processor per
wake-up, the least of several rounds, for each kind of round (parties alone, the graph, models) and
for the mean over a run of the default settings, at several numbers of parties K and of others
that are asked, kappa. One core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import archipel as ar
from archipel.algorithms import Dada, DadaBoosted
from archipel.data.federation import Federation
from archipel.engines import schedule
from archipel.engines.local.engine import LocalEngine
from archipel.models.model import Model
from archipel.runs.parts import build_model

RESULTS = Path(__file__).parent / "results"
KINDS = ("alone", "graph", "models")
NAMES = ("dada", "dada_boosted")
ROUNDS = 100  # of a run of the default settings
Floats = NDArray[np.float64]
BOUNDS = {"low": -2.0, "high": 2.0}


class Loop:
    """The parties of a federation, one after another."""

    def __init__(self, algorithm: Dada | DadaBoosted, data: Federation, model: Model) -> None:
        self.algorithm, self.n = algorithm, data.training
        self.boosted = isinstance(algorithm, DadaBoosted)

    def near(self) -> list[list[int]]:
        """The neighbours of each."""
        raise NotImplementedError

    def learn(self, k: int, t: int) -> None:
        """A wake-up of models."""
        raise NotImplementedError

    def choose(self, k: int, others: NDArray[np.int64]) -> None:
        """A wake-up of the graph."""
        raise NotImplementedError

    def round(self, seed: int, t: int) -> None:
        """The wake-ups of a round."""
        self.run(t, *self.turns(seed, t))

    def turns(self, seed: int, t: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Who wakes in a round, in the order that the engine has them in, and whom each asks."""
        everybody = np.arange(self.n)
        order, count = schedule.woken(seed, t, everybody), self.algorithm.asks(t)
        if count:
            others = schedule.asked(seed, t, order, everybody, count)
            touched = np.concatenate([order[:, None], others], axis=1)
            places = np.concatenate(schedule.disjoint(seed, t, touched))
            return order[places], others[places]
        return order[np.concatenate(schedule.independent(seed, t, order, self.near()))], None

    def run(
        self, t: int, order: NDArray[np.int64], others: NDArray[np.int64] | None = None
    ) -> None:
        """Have these parties their turns."""
        for i, k in enumerate(order.tolist()):
            if others is None:
                self.learn(k, t)
            else:
                self.choose(k, others[i])


class Plain(Loop):
    """In numpy; `[n_k, p]` of base models at each, times the label's sign."""

    def __init__(self, algorithm: Dada | DadaBoosted, data: Federation, model: Model) -> None:
        super().__init__(algorithm, data, model)
        self.A = []
        for k in range(self.n):
            x, y = data.party(k)[:2]
            h = model.module[:-1](x.to(model.dtype)).double().numpy()
            sign = 2.0 * y.double().numpy() - 1
            self.A.append(np.c_[h, np.ones(len(h))] * sign[:, None])
        sizes = np.array([len(A) for A in self.A])
        self.c = np.minimum(1, sizes / algorithm.confident)
        self.theta = np.zeros((self.n, model.p))
        self.loss = np.zeros(self.n)
        self.edges: list[dict[int, float]] = [{} for _ in range(self.n)]

    def near(self) -> list[list[int]]:
        return [list(near) for near in self.edges]

    def value(self, k: int) -> float:
        """L_k of the party's own model."""
        against = -self.A[k] @ self.theta[k]
        if self.boosted:
            most = against.max()
            return float(most + np.log(np.exp(against - most).mean()))
        return float(np.logaddexp(0, against).mean())

    def slope(self, k: int) -> Floats:
        against = -self.A[k] @ self.theta[k]
        if self.boosted:
            share = np.exp(against - against.max())
            share /= share.sum()
        else:
            share = 1 / (1 + np.exp(-against)) / len(against)
        found: Floats = -self.A[k].T @ share
        return found

    def learn(self, k: int, t: int) -> None:
        own, near, theta = self.algorithm, self.edges[k], self.theta
        g, pull, degree = self.c[k] * self.slope(k), 0.0, sum(near.values())
        if degree > 0:
            around = sum(w * theta[o] for o, w in near.items()) / degree
            pull = own.mu1
            g = g + pull * (theta[k] - around)
        elif isinstance(own, DadaBoosted):
            g = g + own.ridge * theta[k]
        if isinstance(own, DadaBoosted):
            j = int(np.abs(g).argmax())
            gamma = 2 / (2 + own._steps(t))
            theta[k] *= 1 - gamma
            theta[k, j] -= gamma * own.beta * np.sign(g[j])
        else:
            theta[k] -= g / (self.c[k] / own.lr + pull)
        self.loss[k] = self.c[k] * self.value(k)

    def choose(self, k: int, others: NDArray[np.int64]) -> None:
        own, mine = self.algorithm, self.edges[k]
        kappa, curve = len(others), 2 * own.mu2 * own.lam
        d_k, found = sum(mine.values()) + own.delta, []
        for o in others.tolist():
            d_l, w = sum(self.edges[o].values()) + own.delta, mine.get(o, 0.0)
            apart = ((self.theta[k] - self.theta[o]) ** 2).sum()
            a = self.loss[k] + self.loss[o] + own.mu1 / 2 * apart
            e = min(d_k / kappa, d_l)
            S, b = own.mu2 * e * (1 / d_k + 1 / d_l), a + curve * (w - e)
            root = (b * b + 4 * curve * S) ** 0.5
            u = 2 * S / (b + root) if b > 0 else (root - b) / (2 * curve)
            new = max(0.0, w + u - e)
            found.append((o, 0.0 if new < own.least * min(d_k, d_l) else new))
        for o, new in found:
            for one, other in ((k, o), (o, k)):
                self.edges[one].pop(other, None)
                if new > 0:
                    self.edges[one][other] = new


class Autograd(Loop):
    """In torch, with the model's own loss; `[n_k, p]` of base models at each."""

    def __init__(self, algorithm: Dada | DadaBoosted, data: Federation, model: Model) -> None:
        super().__init__(algorithm, data, model)
        self.loss_of, self.data = model.loss_function, []
        for k in range(self.n):
            x, y = data.party(k)[:2]
            h = model.module[:-1](x.to(model.dtype))
            ones = h.new_ones(len(h), 1)
            self.data.append((torch.cat([h, ones], dim=1), y, ones[:, 0] / len(h)))
        self.c = (data.n[: self.n].to(model.dtype) / algorithm.confident).clamp(max=1)
        self.theta = torch.zeros(self.n, model.p, dtype=model.dtype)
        self.loss = torch.zeros(self.n, dtype=model.dtype)
        self.W = torch.zeros(self.n, self.n, dtype=model.dtype)

    def near(self) -> list[list[int]]:
        return [row.nonzero().squeeze(-1).tolist() for row in self.W]

    def value(self, k: int, theta: Tensor) -> Tensor:
        h, y, weights = self.data[k]
        return self.loss_of((h @ theta).unsqueeze(-1), y, weights)

    def learn(self, k: int, t: int) -> None:
        own, theta = self.algorithm, self.theta[k].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.value(k, theta), theta)
        theta, pull = theta.detach(), 0.0
        g = self.c[k] * slope
        near = self.W[k].nonzero().squeeze(-1)
        if len(near):
            weights, pull = self.W[k, near], own.mu1
            g = g + pull * (theta - weights @ self.theta[near] / weights.sum())
        elif isinstance(own, DadaBoosted):
            g = g + own.ridge * theta
        if isinstance(own, DadaBoosted):
            j, gamma = g.abs().argmax(), 2 / (2 + own._steps(t))
            theta = (1 - gamma) * theta
            theta[j] -= gamma * own.beta * g[j].sign()
        else:
            theta = theta - g / (self.c[k] / own.lr + pull)
        self.theta[k] = theta
        with torch.no_grad():
            self.loss[k] = self.c[k] * self.value(k, theta)

    def choose(self, k: int, others: NDArray[np.int64]) -> None:
        own, at = self.algorithm, torch.from_numpy(others)
        kappa, curve, w = len(at), 2 * own.mu2 * own.lam, self.W[k, at]
        d_k, d_l = self.W[k].sum() + own.delta, self.W[at].sum(dim=1) + own.delta
        apart = (self.theta[k] - self.theta[at]).square().sum(dim=1)
        a = self.loss[k] + self.loss[at] + own.mu1 / 2 * apart
        e = torch.minimum(d_k / kappa, d_l)
        S, b = own.mu2 * e * (1 / d_k + 1 / d_l), a + curve * (w - e)
        root = (b.square() + 4 * curve * S).sqrt()
        u = torch.where(b > 0, 2 * S / (b + root), (root - b) / (2 * curve))
        new = (w + u - e).clamp(min=0)
        new = torch.where(new < own.least * torch.minimum(d_k, d_l), 0, new)
        self.W[k, at] = self.W[at, k] = new


def problem(name: str, parties: int, double: bool) -> tuple[Federation, Model]:
    dtype = torch.float64 if double else torch.float32
    data = ar.load("moons", parties=parties, clusters=True, dtype=dtype)
    if name == "dada":
        return data, build_model("linear_score", data)
    return data, build_model("stumps", data, options={"count": 200, **BOUNDS})


def algorithm_of(name: str, rounds: int, **options: int) -> Dada | DadaBoosted:
    """So many rounds of each kind."""
    turns: Any = {"alone": rounds, "graph_rounds": rounds, "model_rounds": rounds, **options}
    terms: Any = {"mu2": 0.3, "lam": 0.1, "confident": 14, **turns}
    return Dada(lr=0.3, **terms) if name == "dada" else DadaBoosted(mu1=2.0, **terms)


def measure(
    name: str, parties: int, kappa: int, rounds: int, double: bool
) -> dict[str, dict[str, float]]:
    """Microseconds of the processor per wake-up, the least of so many rounds of each kind."""
    data, model = problem(name, parties, double)
    algorithm = algorithm_of(name, rounds, kappa=kappa)
    loops = {"numpy": Plain(algorithm, data, model), "torch": Autograd(algorithm, data, model)}
    everybody = np.arange(parties)
    found = {side: dict.fromkeys(KINDS, float("inf")) for side in ("ours", *loops)}
    with LocalEngine(algorithm, data, model, workers=1) as engine:
        for (i, kind), (side, best) in product(enumerate(KINDS), found.items()):
            for t in range(i * rounds, (i + 1) * rounds):
                woken = len(schedule.woken(0, t, everybody))
                turns = () if side == "ours" else loops[side].turns(0, t)
                start = time.process_time()
                if side == "ours":
                    engine.round(t, everybody)
                else:
                    loops[side].run(t, *turns)
                best[kind] = min(best[kind], (time.process_time() - start) / woken * 1e6)
    for best in found.values():
        best["a run"] = sum(best[kind] * share for kind, share in shares().items())
    return found


def shares() -> dict[str, float]:
    """Of each kind of round, how many there are in a run of the default settings."""
    usual = DadaBoosted()
    kinds = [
        "alone" if t < usual.alone else "graph" if usual.asks(t) else "models"
        for t in range(ROUNDS)
    ]
    return {kind: kinds.count(kind) / ROUNDS for kind in KINDS}


def table(rows: list[dict[str, Any]], command: str, rounds: int, double: bool) -> str:
    """The figures in Markdown."""
    lines = [
        "# Models and the graph, learned together",
        "",
        f"`{command}`: on moons, in {'double' if double else 'single'} precision",
        "(numpy in double), `dada` with linear models of 20 features, `dada_boosted` with 200",
        "stumps. K parties, of which one that wakes asks kappa in rounds of the graph.",
        "Microseconds of the processor per wake-up, the least of",
        f"{rounds} rounds of a kind, here and in two loops over parties; `a run` is the mean over "
        f"{ROUNDS} rounds of the default settings.",
        "",
        "| algorithm | K | kappa | rounds | here | numpy loop | times | torch loop | times |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        for kind in (*KINDS, "a run"):
            ours, numpy, torch_ = (row[side][kind] for side in ("ours", "numpy", "torch"))
            what = f"| {row['algorithm']} | {row['parties']:,} | {row['kappa']} | {kind} | "
            lines.append(
                f"{what}{ours:.1f} | {numpy:.1f} | {numpy / ours:.1f} | {torch_:.1f} | "
                f"{torch_ / ours:.1f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--algorithms", nargs="+", choices=NAMES, default=NAMES)
    parse.add_argument("--parties", type=int, nargs="+", default=[100, 1000, 5000])
    parse.add_argument("--kappa", type=int, nargs="+", default=[10], help="others that are asked")
    parse.add_argument("--rounds", type=int, default=5, help="of each kind")
    parse.add_argument("--double", action="store_true", help="in double precision")
    parse.add_argument("--keep", action="store_true", help="write the results")
    options = parse.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, parties, kappa in product(options.algorithms, options.parties, options.kappa):
        found = measure(name, parties, kappa, options.rounds, options.double)
        rows.append({"algorithm": name, "parties": parties, "kappa": kappa, **found})
    words = " ".join(word for word in sys.argv[1:] if word != "--keep")
    command = f"OMP_NUM_THREADS=1 python benchmarks/joint.py {words}".strip()
    text = table(rows, command, options.rounds, options.double)
    print(text)
    if options.keep:
        (RESULTS / "joint.json").write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "joint.md").write_text(text)


if __name__ == "__main__":
    main()
