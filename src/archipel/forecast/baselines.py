# SPDX-License-Identifier: Apache-2.0
"""What training the baselines will take, from some of their rounds.

How many rounds they have is known from the study (`runs.baselines`): those of three rates that are
tried, and then as many as the best needs, which is anything up to all of them.
"""

from __future__ import annotations

import time
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from archipel.algorithms.alone import Alone
from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines.local.engine import LocalEngine, Pools
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError, RunFailed
from archipel.forecast.figure import Figure, added, exactly, noise_of, within
from archipel.models.model import Model
from archipel.runs import baselines
from archipel.runs.loop import Watch
from archipel.runs.solving import solvable
from archipel.training.descent import work_of

_LEAST = 2  # rounds of each that are measured, after one that is not


class Timed(NamedTuple):
    """Seconds of the parts of a baseline."""

    start: float
    rounds: list[float]
    evaluation: float


def forecast_baselines(
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    *,
    rounds: int,
    sample: float | int,
    seed: int,
    plan: Plan,
    seconds: float,
    watch: Watch,
    pools: Pools | None = None,
) -> Figure:
    """Seconds of every party alone and of all data in one place, together.

    `pools` makes the workers of the former, on this machine unless given.
    """
    try:
        work_of(algorithm)
    except ArchipelError:
        return exactly(0.0, "s", "the algorithm has no lr to train a party alone with")
    if data.lazy:
        return exactly(0.0, "s", "nobody has all points of such a population at once")
    watch.say("measuring what the run is compared with")
    parts: dict[str, Any] = {"seed": seed, "plan": plan}
    return added(
        [
            _alone(algorithm, data, model, rounds, sample, {**parts, "pools": pools}, seconds),
            _pooled(algorithm, data, model, rounds, sample, parts, seconds),
        ],
        "some rounds of each, times how many there are",
    )


def _alone(
    given: Any,
    data: Federation,
    model: Model,
    rounds: int,
    sample: float | int,
    parts: dict[str, Any],
    seconds: float,
) -> Figure:
    everyone = replace(data, training=data.parties, scan=False)
    if baselines.solves_each(data, model):
        began = time.perf_counter()
        baselines.alone(given, data, model, rounds=1, sample=sample, tuned=True, **parts)
        return within(time.perf_counter() - began, 0.2, "s", "solved once, as the run does")
    times = ceil(rounds * baselines.share_sampled(data, sample))
    taken = _timed(Alone(*work_of(given)), everyone, model, parts, seconds, own=True)
    elsewhere = data.parties if data.parties <= baselines.ELSEWHERE else 0
    return _whole(taken, times, baselines.tries(everyone, model, times, parts["seed"]), elsewhere)


def _pooled(
    given: Any,
    data: Federation,
    model: Model,
    rounds: int,
    sample: float | int,
    parts: dict[str, Any],
    seconds: float,
) -> Figure:
    together = data.select(np.arange(data.training)).pooled()
    if solvable(model, int(together.n[0])):
        began = time.perf_counter()
        baselines.pooled(given, data, model, rounds=1, sample=sample, tuned=True, **parts)
        return within(time.perf_counter() - began, 0.2, "s", "solved once, as the run does")
    algorithm, times = baselines.pooled_work(work_of(given), data, rounds, sample)
    single = {**parts, "plan": Plan(parts["plan"].way, 1, 1)}
    taken = _timed(algorithm, together, model, single, seconds, own=False)
    return _whole(taken, times, baselines.tries(together, model, times, parts["seed"]), 1)


def _timed(
    algorithm: Any,
    data: Federation,
    model: Model,
    parts: dict[str, Any],
    seconds: float,
    own: bool,
) -> Timed:
    """Do some rounds of a baseline; none where it diverges."""
    began = time.perf_counter()
    laps: list[float] = []
    with LocalEngine(algorithm, data, model, **parts) as engine:
        start = time.perf_counter() - began
        ids = np.flatnonzero(((data.n > 0) & ~data.virtual)[: data.training].numpy())
        until, t = time.perf_counter() + seconds, 0
        while t <= _LEAST or time.perf_counter() < until:
            lap = time.perf_counter()
            try:
                ids = engine.round(t, ids).arrived
            except RunFailed:  # the run then has no such baseline, and says so
                break
            laps.append(time.perf_counter() - lap)
            t += 1
        lap = time.perf_counter()
        engine.evaluate(own=own)
        return Timed(start, laps[1:] or laps or [0.0], time.perf_counter() - lap)


def _whole(taken: Timed, times: int, tries: int, evaluations: int) -> Figure:
    """The time of all of a baseline: rates that are tried, the best, and what is evaluated."""
    each = sum(taken.rounds) / len(taken.rounds)
    looks = tries * min(baselines.LOOKS, times) + 1 + evaluations
    fixed = (tries + 1) * taken.start + looks * taken.evaluation
    least, most = (tries * times + 1, (tries + 1) * times) if tries else (times, times)
    noise, middle = noise_of(taken.rounds), (least + most) / 2
    return Figure(
        fixed + middle * each, (fixed + least * each) * (1 - min(1.0, noise)),
        (fixed + most * each) * (1 + noise), "s", "some of its rounds",
    )  # fmt: skip
