# SPDX-License-Identifier: Apache-2.0
"""Models and the graph learned together: a round of wake-ups, against a loop over parties.

The plain side is what the paper's own code does, in numpy: one party after another, its base
models' answers computed once, its neighbours in a list. The two give the same numbers (a test
compares them). Microseconds per wake-up, for rounds of models and rounds of the graph, at several
numbers of parties K. One core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import archipel as ar
from archipel.algorithms import Dada, DadaBoosted
from archipel.data.federation import Federation
from archipel.engines import schedule
from archipel.engines.local.engine import LocalEngine
from archipel.models.model import Model
from archipel.runs.parts import build_model

RESULTS = Path(__file__).parent / "results"
Floats = NDArray[np.float64]
BOUNDS = {"low": -2.0, "high": 2.0}


class Plain:
    """The parties of a federation, one after another; `[n_k, p]` of base models at each."""

    def __init__(self, algorithm: Dada | DadaBoosted, data: Federation, model: Model) -> None:
        self.algorithm, self.n = algorithm, data.training
        self.boosted = isinstance(algorithm, DadaBoosted)
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
        """A wake-up of models."""
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
        """A wake-up of the graph."""
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

    def round(self, seed: int, t: int) -> int:
        """The wake-ups of a round, as the engine draws them; returns how many."""
        everybody = np.arange(self.n)
        order, count = schedule.woken(seed, t, everybody), self.algorithm.asks(t)
        others = schedule.asked(seed, t, order, everybody, count) if count else None
        for i, k in enumerate(order.tolist()):
            if others is None:
                self.learn(k, t)
            else:
                self.choose(k, others[i][others[i] >= 0])
        return len(order)


def problem(parties: int) -> tuple[Federation, Model]:
    data = ar.load("moons", parties=parties, clusters=True, dtype=torch.float64)
    return data, build_model("stumps", data, options={"count": 200, **BOUNDS})


def measure(parties: int, alone: int, graph: int, models: int) -> dict[str, float]:
    """Microseconds per wake-up on both sides, the least of the rounds of each kind."""
    data, model = problem(parties)
    algorithm = DadaBoosted(
        confident=14, alone=alone, graph_rounds=graph, model_rounds=models, mu1=2.0
    )
    plain, found = Plain(algorithm, data, model), {}
    rounds = alone + graph + models
    with LocalEngine(algorithm, data, model, workers=1) as engine:
        for side in ("ours", "plain"):
            times: dict[str, list[float]] = {"alone": [], "graph": [], "models": []}
            for t in range(rounds):
                start = time.perf_counter()
                if side == "plain":
                    plain.round(0, t)
                else:
                    engine.round(t, np.arange(parties))
                kind = "alone" if t < alone else "graph" if algorithm.asks(t) else "models"
                woken = len(schedule.woken(0, t, np.arange(parties)))
                times[kind].append((time.perf_counter() - start) / woken * 1e6)
            found |= {f"{side} {kind}": min(values) for kind, values in times.items()}
    return found


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--parties", type=int, nargs="+", default=[100, 1000, 4000])
    parse.add_argument("--rounds", type=int, default=5, help="of each kind")
    options = parse.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for parties in options.parties:
        found = measure(parties, *[options.rounds] * 3)
        rows[parties] = found
        ratios = {k: found[f"plain {k}"] / found[f"ours {k}"] for k in ("alone", "graph", "models")}
        print(parties, {k: round(v, 1) for k, v in found.items()}, end=" ")
        print({k: round(v, 1) for k, v in ratios.items()}, flush=True)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "joint.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
