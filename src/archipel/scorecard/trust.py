# SPDX-License-Identifier: Apache-2.0
"""One question under every model of trust: how far off is the mean of n numbers at (ε, δ)?

Each party has a number in [0, 1], and neighbours differ in one party's. A `Model` has the error by
its formula, and makes the mean as its protocol does, with noise of a seed: the formula's error is
measured, not assumed. What is left out of a protocol changes no estimate: masks and pairwise terms,
which cancel to the last bit, and the order of reports. All but local DP are meant to come near the
trusted curator; what they trust instead is in `trusts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import floor, sqrt
from typing import NamedTuple

import numpy as np
import torch

from archipel.aggregation import averaging
from archipel.exchange.sender import Sender
from archipel.privacy import gopa
from archipel.privacy.accounting import noise_for
from archipel.privacy.curves import Array
from archipel.privacy.encoding import Share, counted, secure_sum_error
from archipel.privacy.network import RingSum
from archipel.privacy.noise import discrete_gaussian
from archipel.privacy.noisy_sum import drawn as drawn_share
from archipel.privacy.randomisers import Levels, best_levels
from archipel.privacy.release import Release
from archipel.privacy.shuffling import honest as counted_reports
from archipel.privacy.sources import Simulated
from archipel.privacy.uniform import permutation
from archipel.wire.integers import decode, encode, wrapped

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # at which errors are measured
_LEVELS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_FINE = 2.0**32  # steps of noise on a grid


class Budget(NamedTuple):
    """What is promised to each of n parties, of whom a share does not collude."""

    epsilon: float
    delta: float
    parties: int
    honest: float = 1.0


@dataclass(frozen=True)
class Model:
    """A model of trust: who is trusted, the error by its formula, and the means that it makes."""

    name: str
    trusts: str
    error: Callable[[Array, Budget], float]  # the root mean square error, for these numbers
    means: Callable[[Array, Budget, int], Array]  # of these numbers, so many times


class Measured(NamedTuple):
    """An error that was measured, with 95 % of what it may be."""

    epsilon: float
    error: float
    low: float
    high: float


def _source(parties: int, budget: Budget, purpose: str, run: int = 0) -> Simulated:
    return Simulated(17, run, range(parties), f"{purpose} {budget.epsilon}")


def _noise(parties: int, deviation: float, budget: Budget, purpose: str, count: int) -> Array:
    """Gaussian noise on a grid, of each party `[m, count]`."""
    drawn = discrete_gaussian(_source(parties, budget, purpose), deviation * _FINE, count)
    return np.asarray(drawn / _FINE)


@cache
def _sigma(epsilon: float, delta: float) -> float:
    return gopa.curator_error(epsilon, delta, 1)


# -- the models ------------------------------------------------------------------------------------


def _central(x: Array, budget: Budget, times: int) -> Array:
    sigma = _sigma(budget.epsilon, budget.delta)
    return np.asarray((x.sum() + _noise(1, sigma, budget, "central", times)[0]) / len(x))


def _local(x: Array, budget: Budget, times: int) -> Array:
    sigma = _sigma(budget.epsilon, budget.delta)
    return np.asarray((x[:, None] + _noise(len(x), sigma, budget, "local", times)).mean(axis=0))


@cache
def _alone(epsilon: float) -> Levels:
    return min((Levels(epsilon, levels=k) for k in _LEVELS), key=lambda way: way.deviation)


@cache
def _together(budget: Budget) -> Levels:
    reports = counted_reports(budget.parties, budget.honest)
    return best_levels(budget.epsilon, reports, budget.delta)


def _response(x: Array, budget: Budget, times: int) -> Array:
    way = _alone(budget.epsilon)
    sources = (_source(len(x), budget, "response", run) for run in range(times))
    return np.array([way.estimate(way.report(x, source)) for source in sources])


def _shuffled(x: Array, budget: Budget, times: int) -> Array:
    way, found = _together(budget), []
    for run in range(times):
        reports = way.report(x, _source(len(x), budget, "reports", run))
        order = permutation(_source(1, budget, "order", run), len(x))
        found.append(way.estimate(reports[order]))
    return np.array(found)


def _question(budget: Budget) -> averaging.Question:
    return averaging.Question(
        ("number",), (0.0,), (1.0,), budget.epsilon, budget.delta, honest=budget.honest
    )


def _gopa(x: Array, budget: Budget, times: int) -> Array:
    question = _question(budget)
    source = _source(len(x), budget, "gopa")
    plan = question.plan(len(x))
    return averaging.simulated(question, plan, x[:, None], source, times)[:, 0]


def _secure(x: Array, budget: Budget, times: int) -> Array:
    n = len(x)
    share = Share("gaussian", 0.5, 1, n, counted(n, n - floor(budget.honest * n + 1e-9)), 32)
    z = noise_for(
        budget.epsilon, budget.delta, lambda z: [Release(share.mechanism(z))], neighbours="replace"
    )
    code, values, found = share.encoding(z), torch.from_numpy(x - 0.5)[:, None], []
    for run in range(times):
        sent = encode(code, Sender(17, run, 0, np.arange(n), (n,)), values)
        noise = drawn_share(share, z, _source(n, budget, "secure", run))
        total = wrapped(code, wrapped(code, sent + torch.from_numpy(noise)).sum(dim=0))
        sums = decode(code, Sender(17, run, 0, np.array([-1])), total)
        found.append(float(sums[0]) / n + 0.5)
    return np.array(found)


def _ring(budget: Budget) -> RingSum:
    """One round; what each other party sees of a value has one noise in it (`distances`)."""
    return RingSum(budget.parties, 1, _sigma(budget.epsilon, budget.delta), published=True)


def _network(x: Array, budget: Budget, times: int) -> Array:
    ring = _ring(budget)
    noise = _noise(len(ring.noisy), 1.0, budget, "ring", times)
    return np.array([ring.run(x[None], each) for each in noise.T]) / len(x)


MODELS = (
    Model(
        "trusted curator", "one server, with every number",
        lambda _, b: gopa.curator_error(b.epsilon, b.delta, b.parties), _central,
    ),
    Model(
        "secure sum, noise in shares", "cryptography, and noise of the others",
        lambda _, b: secure_sum_error(b.epsilon, b.delta, b.parties, honest=b.honest), _secure,
    ),
    Model(
        "GOPA", "cryptography, and noise of the others; no server",
        lambda _, b: gopa.gopa_error(b.epsilon, b.delta, b.parties, honest=b.honest), _gopa,
    ),
    Model(
        "network DP, on a ring", "that no two others work together",
        lambda _, b: _ring(b).deviation / b.parties, _network,
    ),
    Model(
        "shuffled", "a shuffler that does not work with the server",
        lambda x, b: sqrt(_together(b).variance(x)), _shuffled,
    ),
    Model(
        "local, randomised response", "nobody",
        lambda x, b: sqrt(_alone(b.epsilon).variance(x)), _response,
    ),
    Model(
        "local, Gaussian noise", "nobody",
        lambda _, b: gopa.local_error(b.epsilon, b.delta, b.parties), _local,
    ),
)  # fmt: skip


# -- measuring -------------------------------------------------------------------------------------


def numbers(parties: int) -> Array:
    """The numbers that are averaged: skewed, as counts of hospitals are."""
    return np.random.default_rng(5).beta(1.5, 4.0, parties)


def measured(model: Model, budget: Budget, repetitions: int) -> Measured:
    """The root mean square error over repetitions, with its 95 % interval by chi-squared."""
    from scipy.stats import chi2  # takes long to import

    x = numbers(budget.parties)
    total = float(np.sum((model.means(x, budget, repetitions) - x.mean()) ** 2))
    low, high = (sqrt(total / float(chi2.isf(p, repetitions))) for p in (0.025, 0.975))
    return Measured(budget.epsilon, sqrt(total / repetitions), low, high)


class Line(NamedTuple):
    """A model's error by its formula, and as it was measured."""

    model: Model
    epsilons: list[float]
    errors: list[float]
    points: list[Measured]


def lines(
    parties: int,
    delta: float,
    repetitions: int,
    honest: float = 1.0,
    epsilons: tuple[float, ...] = EPSILONS,
) -> Iterator[Line]:
    """Every model's error against ε."""
    smooth = sorted({*np.geomspace(min(epsilons), max(epsilons), 19).tolist(), *epsilons})
    x = numbers(parties)
    for model in MODELS:
        formula = [model.error(x, Budget(e, delta, parties, honest)) for e in smooth]
        points = [measured(model, Budget(e, delta, parties, honest), repetitions) for e in epsilons]
        yield Line(model, smooth, formula, points)
