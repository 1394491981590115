# SPDX-License-Identifier: Apache-2.0
"""What learning together is compared with: every party alone, and all data in one place.

Both get the budget of the federated run: a party alone trains as often as it was expected to be
sampled; pooled training passes over as many examples in all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import nn

from archipel.algorithms.alone import Alone
from archipel.algorithms.fedavg import FedAvg
from archipel.core import LocalWork
from archipel.data.federation import Federation
from archipel.engines.local import Evaluation, LocalEngine
from archipel.engines.plan import Plan
from archipel.losses import Loss
from archipel.model import Model
from archipel.participation import Participation
from archipel.simulate import build_model


def budget(fed: Federation, rounds: int, sample: float | int) -> int:
    """Rounds of local work that a party is expected to do in a run."""
    eligible = int((fed.n[: fed.training] > 0).sum())
    return max(1, round(rounds * Participation(sample).count(eligible) / eligible))


def alone(
    work: LocalWork,
    data: Federation,
    model: str | nn.Module | Model | None = None,
    *,
    rounds: int,
    sample: float | int = 1.0,
    seed: int = 0,
    loss: str | Loss | None = None,
    workers: int | None = None,
) -> Evaluation:
    """Train every party, new ones too, on its own training points; each on its own test points."""
    everyone = replace(data, training=data.parties, scan=False)
    algorithm = Alone(work.lr, work.local_epochs, work.local_steps, work.batch_size, work.optimiser)
    ids = np.flatnonzero(everyone.n.numpy() > 0)
    task_model = build_model(model, data, loss, seed)
    with LocalEngine(algorithm, everyone, task_model, seed=seed, workers=workers) as engine:
        for t in range(budget(data, rounds, sample)):
            engine.round(t, ids)
        return engine.evaluate(own=True)


def pooled(
    work: LocalWork,
    data: Federation,
    model: str | nn.Module | Model | None = None,
    *,
    rounds: int,
    sample: float | int = 1.0,
    seed: int = 0,
    loss: str | Loss | None = None,
) -> Evaluation:
    """Train one model on all training parties' points in one place; test it at every party."""
    algorithm = FedAvg(
        work.lr, work.local_epochs, work.local_steps, work.batch_size, work.optimiser
    )
    task_model = build_model(model, data, loss, seed)
    together = data.select(np.arange(data.training)).pooled()
    with LocalEngine(algorithm, together, task_model, seed=seed, plan=Plan("one", 1, 1)) as engine:
        for t in range(budget(data, rounds, sample)):
            engine.round(t, [0])
        w = engine.vector()
    with LocalEngine(algorithm, data, task_model, seed=seed, plan=Plan("one", 1, 1)) as engine:
        return engine.evaluate(w)
