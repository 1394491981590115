# SPDX-License-Identifier: Apache-2.0
"""One question under every model of trust: how far off is the mean of n numbers at (ε, δ)?

Each party has a number in [0, 1], and neighbours differ in one party's. A `Model` has the error by
its formula, and makes the mean as its protocol does, with noise of a seed: the formula's error is
measured, not assumed. All but local DP are meant to come near the trusted curator; what they trust
instead is in `trusts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch

from archipel.privacy import grid
from archipel.privacy.analytic import mu_of
from archipel.privacy.curves import Array
from archipel.privacy.network import RingSum
from archipel.privacy.noise import discrete_gaussian
from archipel.privacy.randomisers import Levels, best_levels
from archipel.privacy.sources import Simulated
from archipel.privacy.uniform import permutation

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # at which errors are measured
_LEVELS = (2, 3, 4, 6, 8, 12, 16, 24, 32)


class Budget(NamedTuple):
    """What is promised to each of n parties."""

    epsilon: float
    delta: float
    parties: int


@dataclass(frozen=True)
class Model:
    """A model of trust: who is trusted, the error by its formula, and the mean that it makes."""

    name: str
    trusts: str
    error: Callable[[Array, Budget], float]  # the root mean square error, for these numbers
    mean: Callable[[Array, Budget, int], float]  # of numbers, in repetition i


class Measured(NamedTuple):
    """An error that was measured, with 95 % of what it may be."""

    epsilon: float
    error: float
    low: float
    high: float


def _source(parties: int, budget: Budget, run: int, purpose: str) -> Simulated:
    return Simulated(17, run, range(parties), f"{purpose} {budget.epsilon}")


def _noised(value: Array, budget: Budget, run: int, purpose: str) -> Array:
    """Numbers, each of a party, with Gaussian noise on a grid."""
    source = _source(len(value), budget, run, purpose)
    noisy = grid.gaussian(torch.from_numpy(value)[:, None], _sigma(budget), source)
    found: Array = noisy.numpy()[:, 0]
    return found


def _sigma(budget: Budget) -> float:
    return _sigma_of(budget.epsilon, budget.delta)


@cache
def _sigma_of(epsilon: float, delta: float) -> float:
    return 1 / mu_of(epsilon, delta)


# -- the models ------------------------------------------------------------------------------------


def _central(x: Array, budget: Budget, run: int) -> float:
    return float(_noised(x.sum(keepdims=True), budget, run, "central")[0]) / len(x)


def _local(x: Array, budget: Budget, run: int) -> float:
    return float(_noised(x, budget, run, "local").mean())


@cache
def _by_levels(epsilon: float) -> Levels:
    return min((Levels(epsilon, levels=k) for k in _LEVELS), key=lambda way: way.deviation)


def _response(x: Array, budget: Budget, run: int) -> float:
    way = _by_levels(budget.epsilon)
    return way.estimate(way.report(x, _source(len(x), budget, run, "response")))


@cache
def _reported(budget: Budget) -> Levels:
    return best_levels(budget.epsilon, budget.parties, budget.delta)


def _shuffled(x: Array, budget: Budget, run: int) -> float:
    way = _reported(budget)
    reports = way.report(x, _source(len(x), budget, run, "reports"))
    return way.estimate(reports[permutation(_source(1, budget, run, "order"), len(x))])


def _ring(budget: Budget) -> RingSum:
    """One round; what each other party sees of a value has one noise in it (`distances`)."""
    return RingSum(budget.parties, 1, _sigma(budget), published=True)


def _network(x: Array, budget: Budget, run: int) -> float:
    ring = _ring(budget)
    scale = 2.0**32  # steps in a deviation
    source = _source(len(ring.noisy), budget, run, "ring")
    return ring.run(x[None], discrete_gaussian(source, scale, 1)[:, 0] / scale) / len(x)


MODELS = (
    Model(
        "trusted curator",
        "one server with everything",
        lambda _, b: _sigma(b) / b.parties,
        _central,
    ),
    Model(
        "local, Gaussian noise",
        "nobody",
        lambda _, b: _sigma(b) / sqrt(b.parties),
        _local,
    ),
    Model(
        "local, randomised response",
        "nobody",
        lambda x, b: sqrt(_by_levels(b.epsilon).variance(x)),
        _response,
    ),
    Model(
        "shuffled",
        "a shuffler that does not work with the server",
        lambda x, b: sqrt(_reported(b).variance(x)),
        _shuffled,
    ),
    Model(
        "network DP, on a ring",
        "no two others work together",
        lambda _, b: _ring(b).deviation / b.parties,
        _network,
    ),
)


# -- measuring -------------------------------------------------------------------------------------


def numbers(parties: int) -> Array:
    """The numbers that are averaged: skewed, as counts of hospitals are."""
    return np.random.default_rng(5).beta(1.5, 4.0, parties)


def measured(model: Model, budget: Budget, repetitions: int) -> Measured:
    """The root mean square error over repetitions, with its 95 % interval by chi-squared."""
    from scipy.stats import chi2  # takes long to import

    x = numbers(budget.parties)
    errors = [model.mean(x, budget, run) - x.mean() for run in range(repetitions)]
    total = float(np.sum(np.square(errors)))
    low, high = (sqrt(total / float(chi2.isf(p, repetitions))) for p in (0.025, 0.975))
    return Measured(budget.epsilon, sqrt(total / repetitions), low, high)


class Line(NamedTuple):
    """A model's error by its formula, and as it was measured."""

    model: Model
    epsilons: list[float]
    errors: list[float]
    points: list[Measured]


def lines(
    parties: int, delta: float, repetitions: int, epsilons: tuple[float, ...] = EPSILONS
) -> Iterator[Line]:
    """Every model's error against ε."""
    smooth = sorted({*np.geomspace(min(epsilons), max(epsilons), 19).tolist(), *epsilons})
    x = numbers(parties)
    for model in MODELS:
        formula = [model.error(x, Budget(epsilon, delta, parties)) for epsilon in smooth]
        points = [measured(model, Budget(e, delta, parties), repetitions) for e in epsilons]
        yield Line(model, smooth, formula, points)
