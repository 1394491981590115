# SPDX-License-Identifier: Apache-2.0
"""What learning together is compared with: every party alone, and all data in one place.

A comparison is fair if either side is done well. Where the model is linear, pooled data are solved
(`runs.solving`), and of numbers each party's, too: what a statistician would do with all tables
or one at hand. Classes at a party alone are trained: with few points, training that stops in time
is better than the solution. What is not solved gets the budget of the federated run - a party alone
trains as often as it was expected to be sampled, pooled training passes over as many examples in
all - and a rate of its own: the algorithm's times a third, one or three, and how many rounds, by
the loss on a tenth of the training points, which is held out for that; then all points are trained
on. The rate is one for all parties alone, since a tenth of a small party says little. Large models,
of which a trial would take longer than some seconds, keep the algorithm's rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from archipel.algorithms.alone import Alone
from archipel.algorithms.fedavg import FedAvg
from archipel.core import LocalWork, Vector
from archipel.data.federation import Federation
from archipel.engines.engine import Evaluation
from archipel.engines.local.engine import LocalEngine, Pools
from archipel.engines.plan import Plan
from archipel.errors import RunFailed
from archipel.models.losses import Loss
from archipel.models.model import Model
from archipel.runs.participation import Participation
from archipel.runs.parts import build_model
from archipel.runs.solving import solvable, solve
from archipel.training.descent import Work, work_of
from archipel.training.schedules import Rate

Say = Callable[[str], None]

FACTORS = (1 / 3, 1.0, 3.0)  # of the rates tried
HELD_OUT = 0.1  # of the training points, to choose by
LOOKS = 10  # evaluations to choose a round by
_EVERY = 2.0  # seconds between two words of progress
_WORK = 1e10  # weights times points times rounds: beyond, other rates would take too long to try
_MANY = 2000  # parties, above which none is solved for itself
ELSEWHERE = 20  # parties: with more, a pass of each model over all points costs too much


class Apart(NamedTuple):
    """How parties' own models, each trained alone, do at home and everywhere."""

    local: Evaluation  # each on its own test points
    elsewhere: dict[str, Tensor]  # `[K]` each on the test points of all training parties
    how: str = ""  # they were trained


class Pooled(NamedTuple):
    """How a model of all data in one place does."""

    scores: Evaluation
    how: str = ""  # it was trained


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
    most: int = ELSEWHERE,
    tuned: bool = False,
    say: Say = lambda _: None,
    pools: Pools | None = None,  # makes the workers: on this machine unless given
) -> Apart:
    """Train every party, new ones too, on its own training points; `tuned`: as well as can be."""
    everyone = replace(data, training=data.parties, scan=False)
    task_model = build_model(model, data, loss, seed)
    times = ceil(rounds * share_sampled(data, sample))
    parts: dict[str, Any] = {"seed": seed, "workers": workers, "plan": plan, "pools": pools}
    how = ""
    told = _Progress(say, "training every party alone, to compare with")
    solved = tuned and solves_each(data, task_model)
    algorithm: Any = Alone(*work_of(work))
    if tuned and not solved:
        algorithm, times, how = _choose(algorithm, everyone, task_model, times, parts, told)
    with LocalEngine(algorithm, everyone, task_model, **parts) as engine:
        if solved:
            how = _solve_each(engine, everyone, task_model, told)
        else:
            for _ in _rounds(engine, everyone, times, told):
                pass
        local = engine.evaluate(own=True, training=data.training)
        if data.parties > most:
            return Apart(local, {}, how)
        scores = []
        for k in range(data.parties):
            w, buffers = engine.own_model(k)
            scores.append(engine.evaluate(w, training=data.training, buffers=buffers).pooled)
        names = scores[0]
        return Apart(
            local,
            {name: torch.tensor([s[name] for s in scores], dtype=torch.float64) for name in names},
            how,
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
    tuned: bool = False,
    say: Say = lambda _: None,
) -> Pooled:
    """Train one model on all training parties' points in one place; test it at every party."""
    task_model = build_model(model, data, loss, seed)
    together = data.select(np.arange(data.training)).pooled()
    algorithm, times = pooled_work(work_of(work), data, rounds, sample)
    single = None if plan is None else Plan(plan.way, 1, 1)
    told = _Progress(say, "training on all data in one place, to compare with")
    if tuned and solvable(task_model, int(together.n[0])):
        told("solving")
        x, y, _, _ = together.as_trained().party(0)
        w, buffers, how = solve(task_model, x, y), None, "solved"
    else:
        parts: dict[str, Any] = {"seed": seed, "workers": 1, "plan": single}
        how = ""
        if tuned:
            algorithm, times, how = _choose(algorithm, together, task_model, times, parts, told)
        with LocalEngine(algorithm, together, task_model, **parts) as engine:
            for _ in _rounds(engine, together, times, told):
                pass
            w, buffers, single = engine.vector(), engine.buffers(), engine.plan
    with LocalEngine(algorithm, data, task_model, seed=seed, plan=single) as engine:
        return Pooled(engine.evaluate(w, buffers=buffers), how)


def solves_each(data: Federation, model: Model) -> bool:
    """Whether every party's own model is solved rather than trained."""
    numbers = data.task == "regression" and data.parties <= _MANY
    return numbers and solvable(model, int(data.n.sum()))


def tries(data: Federation, model: Model, times: int, seed: int) -> int:
    """How many rates are tried before so many rounds on these points."""
    held = data.validation(HELD_OUT, seed)
    return len(FACTORS) if _affordable(held, model, times) else 0


def _affordable(held: Federation, model: Model, times: int) -> bool:
    """Whether there is something to choose a rate by, and time to try some."""
    return int(held.n_test.sum()) > 0 and model.p * int(held.n.sum()) * times <= _WORK


def _solve_each(engine: LocalEngine, data: Federation, model: Model, told: _Progress) -> str:
    """Put every party's solution where its own model is."""
    seen, ids = data.as_trained(), torch.nonzero((data.n > 0) & ~data.virtual)[:, 0]
    found: list[Vector] = []
    for k in ids.tolist():
        told(f"party {k + 1} of {data.parties}")
        x, y, _, _ = seen.party(k)
        found.append(solve(model, x, y))
    engine.restore(engine.state() | {"visited": ids, "own.0": torch.stack(found)})
    return "each solved"


def _rounds(engine: LocalEngine, data: Federation, times: int, told: _Progress) -> Iterator[int]:
    """Train everybody, round by round, without those that diverge."""
    ids = np.flatnonzero(((data.n > 0) & ~data.virtual)[: data.training].numpy())
    for t in range(times):
        told(f"round {t + 1} of {times}")
        ids = engine.round(t, ids).arrived
        yield t + 1


class Choice(NamedTuple):
    """A rate and a number of rounds, and the loss on the points that were held out."""

    loss: float
    factor: float
    times: int


def _choose(
    algorithm: Any,
    data: Federation,
    model: Model,
    times: int,
    parts: dict[str, Any],
    told: _Progress,
) -> tuple[Any, int, str]:
    """The rate, and how many rounds, with the least loss on points that were held out."""
    held = data.validation(HELD_OUT, parts["seed"])
    if not _affordable(held, model, times):
        return algorithm, times, "at the algorithm's rate"
    looks = sorted({ceil(times * (i + 1) / LOOKS) for i in range(LOOKS)})
    found = [Choice(inf, 1.0, times)]
    own = isinstance(algorithm, Alone)
    for factor in FACTORS:
        tried = replace(algorithm, lr=_scaled(algorithm.lr, factor))
        trial = told.of(f"rate {factor:.2g} of the algorithm's")
        try:
            with LocalEngine(tried, held, model, **parts) as engine:
                for done in _rounds(engine, held, times, trial):
                    if done in looks:
                        scores = engine.evaluate(own=True) if own else engine.evaluate()
                        loss = float(scores.parties["loss"].nanmean())
                        found.append(Choice(loss if isfinite(loss) else inf, factor, done))
        except RunFailed:  # it diverged
            continue
    best = min(found, key=lambda choice: choice.loss)
    rate = _scaled(algorithm.lr, best.factor)
    words = f"lr {rate:.3g}" if isinstance(rate, float) else f"{best.factor:.2g} times its lr"
    how = f"{words} and {best.times} of {times} rounds chosen of {len(FACTORS)} rates"
    return replace(algorithm, lr=rate), best.times, how


def _scaled(lr: Rate, factor: float) -> Rate:
    if isinstance(lr, int | float | Tensor):
        return lr * factor
    return replace(lr, start=lr.start * factor)


class _Progress:
    """Says how far it is, now and then."""

    def __init__(self, say: Say, what: str) -> None:
        self._say, self._what, self._next = say, what, 0.0
        say(what)
        self._next = time.monotonic() + _EVERY

    def __call__(self, where: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self._say(f"{self._what}: {where}")

    def of(self, part: str) -> _Progress:
        """The same, of a part of it."""
        inner = _Progress(lambda _: None, f"{self._what}, {part}")
        inner._say, inner._next = self._say, self._next
        return inner


def share_sampled(data: Federation, sample: float | int) -> float:
    """Share of the parties that a round samples."""
    eligible = int((data.n[: data.training] > 0).sum())
    return Participation(sample).count(eligible) / eligible


def pooled_work(
    work: Work, data: Federation, rounds: int, sample: float | int
) -> tuple[FedAvg, int]:
    """Central training over as many examples as the federated run, and in how many rounds."""
    n = data.n[: data.training].double()
    rate, parties = share_sampled(data, sample), int((n > 0).sum())
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
