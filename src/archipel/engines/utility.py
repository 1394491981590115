# SPDX-License-Identifier: Apache-2.0
"""What noise costs a study of personalised models on a graph, by its theorem, before it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from archipel.algorithms.coordinate import Coordinate
from archipel.engines.party import LocalParty
from archipel.privacy.promise import Kept
from archipel.privacy.utility import Array, Bound, Objective, bound, gained, squares_of

if TYPE_CHECKING:
    from archipel.engines.local.engine import LocalEngine

_TRIED = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)  # wake-ups of a party


def bounded(engine: LocalEngine, rounds: int) -> dict[str, Any] | None:
    """The bound for so many rounds of coordinate descent, whose losses are convex; None for others.

    Nor is there one where parties first learn alone, or where the graph, and so Q, changes.
    """
    algorithm, kept, graph = engine.algorithm, engine.kept, engine.topology
    if not isinstance(algorithm, Coordinate) or kept is None or graph is None:
        return None
    if algorithm.warm_rounds or graph.period != 1:
        return None
    data, model, ids = engine.data, engine.model, np.arange(engine.data.training)
    n = data.n[ids].numpy().astype(np.float64)
    ridge: Array = algorithm.l2 / n
    confidence = np.minimum(n / algorithm.confident, 1)
    smooth = algorithm.smoothness + ridge
    found = Objective(graph.affinity().toarray(), confidence, algorithm.mu, smooth, ridge)
    me = LocalParty(data, model, model.one, ids, engine.seed, 0, (len(ids),))
    losses = me.loss(model.w.expand(len(ids), -1))[:, 0].double().numpy()
    start = losses + ridge / 2 * float(model.w.double().square().sum())
    gap = float((found.pull * start).sum())  # Q is 0 at least, and all begin alike

    def after(plan: Kept) -> Bound:
        scale = np.array([plan.noise[k] for k in ids.tolist()]) * plan.promise.first_clip / n
        squares = squares_of(scale, model.p, plan.promise.mechanism)
        return bound(found, gap, min(plan.rounds, rounds) * len(ids), squares)

    here, best = after(kept), None
    if kept.promise.epsilon is not None:
        plans = [_of(kept, wakes) for wakes in _TRIED if wakes < kept.rounds]
        least = min(plans, key=lambda plan: after(plan).total, default=kept)
        best = least.rounds if after(least).total < here.total else None
    at = [len(ids) * t for t in range(min(kept.rounds, rounds))]
    return {
        "start": here.start,
        "noise": here.noise,
        "gained": gained(found.rate, at, kept.promise.mechanism),
        "best": best,
    }


def _of(kept: Kept, wakes: int) -> Kept:
    """The same promise for so many wake-ups of a party."""
    promise = replace(kept.promise, wakes=wakes)
    return Kept.planned(promise, kept.neighbours, kept.uses, wakes, wakes=True)
