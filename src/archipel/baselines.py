# SPDX-License-Identifier: Apache-2.0
"""What learning together is compared with: every party alone, and all data in one place.

Both get the budget of the federated run: a party alone trains as often as it was expected to be
sampled; pooled training passes over as many examples in all.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from archipel.algorithms.alone import Alone
from archipel.algorithms.fedavg import FedAvg
from archipel.core import LocalWork
from archipel.data.federation import Federation
from archipel.descent import Work, work_of
from archipel.engines.evaluation import Evaluation
from archipel.engines.local import LocalEngine
from archipel.engines.plan import Plan
from archipel.losses import Loss
from archipel.model import Model
from archipel.participation import Participation
from archipel.parts import build_model


class Apart(NamedTuple):
    """How parties' own models, each trained alone, do at home and everywhere."""

    local: Evaluation  # each on its own test points
    elsewhere: dict[str, Tensor]  # `[K]` each on the test points of all training parties


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
    plan: Plan | None = None,
    most: int = 20,  # parties: with more, a pass of each model over all points costs too much
) -> Apart:
    """Train every party, new ones too, on its own training points."""
    everyone = replace(data, training=data.parties, scan=False)
    ids = np.flatnonzero(((everyone.n > 0) & ~everyone.virtual).numpy())
    task_model = build_model(model, data, loss, seed)
    algorithm = Alone(*work_of(work))
    with LocalEngine(
        algorithm, everyone, task_model, seed=seed, workers=workers, plan=plan
    ) as engine:
        for t in range(ceil(rounds * _rate(data, sample))):
            ids = engine.round(t, ids).arrived  # without those that diverged
        local = engine.evaluate(own=True, training=data.training)
        if data.parties > most:
            return Apart(local, {})
        scores = [
            engine.evaluate(w, training=data.training).pooled
            for w in engine.own_models(range(data.parties))
        ]
        names = scores[0]
        return Apart(
            local,
            {name: torch.tensor([s[name] for s in scores], dtype=torch.float64) for name in names},
        )


def pooled(
    work: LocalWork,
    data: Federation,
    model: str | nn.Module | Model | None = None,
    *,
    rounds: int,
    sample: float | int = 1.0,
    seed: int = 0,
    loss: str | Loss | None = None,
    plan: Plan | None = None,
) -> Evaluation:
    """Train one model on all training parties' points in one place; test it at every party."""
    task_model = build_model(model, data, loss, seed)
    together = data.select(np.arange(data.training)).pooled()
    algorithm, times = _pooled_work(work_of(work), data, rounds, sample)
    single = None if plan is None else Plan(plan.way, 1, 1)
    with LocalEngine(algorithm, together, task_model, seed=seed, workers=1, plan=single) as engine:
        for t in range(times):
            engine.round(t, [0])
        w, single = engine.vector(), engine.plan
    with LocalEngine(algorithm, data, task_model, seed=seed, plan=single) as engine:
        return engine.evaluate(w)


def _rate(data: Federation, sample: float | int) -> float:
    """Share of the parties that a round samples."""
    eligible = int((data.n[: data.training] > 0).sum())
    return Participation(sample).count(eligible) / eligible


def _pooled_work(
    work: Work, data: Federation, rounds: int, sample: float | int
) -> tuple[FedAvg, int]:
    """Central training over as many examples as the federated run, and in how many rounds."""
    n = data.n[: data.training].double()
    rate, parties = _rate(data, sample), int((n > 0).sum())
    if work.batch_size is None:  # full batches: as many passes
        steps = work.local_steps or work.local_epochs
        algorithm = FedAvg(work.lr, 1, steps, None, work.optimiser)
        return algorithm, ceil(rounds * rate)
    size = work.batch_size
    if isinstance(size, float):
        size = max(1, round(size * float(n.sum()) / parties))
    if work.local_steps is not None:
        steps = ceil(work.local_steps * rate * parties)
    else:
        steps = ceil(work.local_epochs * rate * float(n.sum()) / size)
    return FedAvg(work.lr, 1, steps, size, work.optimiser), rounds
