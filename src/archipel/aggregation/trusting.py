# SPDX-License-Identifier: Apache-2.0
"""The same private mean where others are trusted than the sum: simulated, to compare.

`server`    somebody sees every number, and adds noise to the mean
`shuffler`  every number becomes a randomised report, and somebody mixes the reports of all before
            anybody reads them (`privacy/shuffling.py`, `privacy/randomisers.py`)
`nobody`    every party adds to its numbers all the noise that they need alone
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil, sqrt
from typing import Literal, NamedTuple

import numpy as np

from archipel.aggregation.averaging import Numbers, Question
from archipel.errors import ArchipelError
from archipel.privacy import gopa
from archipel.privacy.accounting import Release, noise_for
from archipel.privacy.randomisers import Levels, best_levels
from archipel.privacy.release import Shuffled
from archipel.privacy.shuffling import honest
from archipel.privacy.sources import Simulated
from archipel.privacy.uniform import permutation
from archipel.rng import generator

Trusted = Literal["server", "shuffler", "nobody"]


class Mean(NamedTuple):
    """What came of it."""

    estimate: Numbers
    deviation: Numbers  # of the noise, at most
    reports: Levels | None = None  # what each report is, of numbers from 0 to 1


def mean(trust: Trusted, question: Question, values: Numbers, seed: int) -> Mean:
    """The mean of values `[n, d]`, private with this trust; all noise is of the seed."""
    if trust == "shuffler":
        return _shuffled(question, values, seed)
    n, d = values.shape
    error = gopa.curator_error if trust == "server" else gopa.local_error
    deviation = question.unit * error(question.epsilon, question.delta, n, question.moved)
    draws = generator(seed, "trusting", trust)
    shares = 1 if trust == "server" else n  # of the noise, which add up
    noise = draws.standard_normal((shares, d)).sum(axis=0) / sqrt(shares)
    return Mean(np.asarray(values.mean(axis=0) + deviation * noise), np.asarray(deviation))


def _shuffled(question: Question, values: Numbers, seed: int) -> Mean:
    n = len(values)
    way = levels(question, n)
    found = []
    for j, (low, high) in enumerate(zip(question.low, question.high, strict=True)):
        told = replace(way, low=low, high=high)
        reports = told.report(values[:, j], Simulated(seed, j, range(n), "reports"))
        mixed = reports[permutation(Simulated(seed, j, [0], "shuffler"), n)]
        found.append((told.estimate(mixed), told.deviation / sqrt(n)))
    estimates, deviations = (np.array(each) for each in zip(*found, strict=True))
    return Mean(estimates, deviations, way)


@lru_cache(64)
def levels(question: Question, parties: int) -> Levels:
    """Reports of numbers in [0, 1] that keep the promise once they are mixed.

    Each party makes one of each number, so what they tell is composed. Those of who may collude, or
    vanish, hide nobody.
    """
    if question.contribution is not None:
        raise ArchipelError(
            "average.contribution: a report hides all of a party's number, and not one person in "
            'it; leave it out, or trust "sum".'
        )
    d, epsilon, delta = len(question.names), question.epsilon, question.delta
    hiding = honest(parties, question.honest) - ceil(question.dropouts * parties - 1e-9)
    if hiding < 1:
        raise ArchipelError(
            f"honest = {question.honest}, dropouts = {question.dropouts}: no report of {parties} "
            "parties is left that hides another; give a larger share, or more parties."
        )
    found = best_levels(epsilon / sqrt(d), hiding, delta)
    if d == 1:
        return found
    k = found.levels

    def releases(z: float) -> list[Release]:
        return [Release(Shuffled(1 / z, hiding, k), None, d)]

    return Levels(1 / noise_for(epsilon, delta, releases, neighbours="replace"), levels=k)
