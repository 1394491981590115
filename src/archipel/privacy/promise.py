# SPDX-License-Identifier: Apache-2.0
"""What a study promises: the unit that is protected, how much, and against whom.

A promise is kept by noise, and noise is enough only for what it was planned for: so much of each
party's data, so often. `Kept` is a promise with that plan, from which both the noise and, after any
number of rounds, the ε that was spent follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple, get_args

from archipel.errors import ArchipelError, unknown
from archipel.privacy.accounting import Gaussian, Neighbours, Poisson, Release, epsilon, noise_for

Unit = Literal["record", "party"]
Trust = Literal["server", "nobody"]


@dataclass(frozen=True)
class Privacy:
    """[privacy] of a study: (ε, δ) for every record, or for every party with all its records.

    >>> Privacy(unit="record", epsilon=2.0).noise is None
    True
    """

    unit: Unit
    epsilon: float | None = None  # ε: the noise is found for it
    noise: float | None = None  # z: noise over clip, in place of ε
    delta: float = 1e-5
    clip: float = 1.0  # C
    trust: Trust = "server"  # who may see what is not noised yet

    def __post_init__(self) -> None:
        for field, value, known in (
            ("unit", self.unit, get_args(Unit)),
            ("trust", self.trust, get_args(Trust)),
        ):
            if value not in known:
                raise unknown(f"privacy.{field}", str(value), known)
        if (self.epsilon is None) == (self.noise is None):
            raise ArchipelError(
                f"privacy.epsilon = {self.epsilon}, privacy.noise = {self.noise}: give one of the "
                "two, the budget or the noise."
            )
        for field, number in (
            ("epsilon", self.epsilon),
            ("noise", self.noise),
            ("clip", self.clip),
        ):
            if number is not None and not 0 < number < inf:
                raise ArchipelError(f"privacy.{field} = {number}: give a finite number above 0.")
        if not 0 < self.delta < 1:
            raise ArchipelError(f"privacy.delta = {self.delta}: give a number between 0 and 1.")


class Use(NamedTuple):
    """What one round asks of a party's records: samples at one rate, gradients on each."""

    rate: float  # q
    draws: int
    gradients: int  # on one sample, at most

    def release(self, noise: float, rounds: int) -> Release:
        """So many gradients with fresh noise on one sample are one with less noise."""
        mechanism = Gaussian(noise / self.gradients**0.5)
        sampling = None if self.rate >= 1 else Poisson(self.rate)
        return Release(mechanism, sampling, times=self.draws * rounds)


Uses = tuple[Use, ...]


@dataclass(frozen=True)
class Kept:
    """A promise with what it was planned for."""

    promise: Privacy
    uses: Mapping[int, Uses]  # of each party in a round
    rounds: int  # that a party takes part in, at most
    noise: Mapping[int, float]  # z of each party
    neighbours: Neighbours = "add_or_remove"

    @classmethod
    def planned(cls, promise: Privacy, uses: Mapping[int, Uses], rounds: int) -> Kept:
        """Find the noise of each party; parties alike have the same."""
        noise = {k: _noise(promise, each, rounds) for k, each in uses.items()}
        return cls(promise, uses, rounds, noise)

    def spent(self, taken: Mapping[int, int]) -> dict[int, float]:
        """ε of each party that took part in so many rounds."""
        return {
            k: epsilon(_releases(self.uses[k], self.noise[k], rounds), self.promise.delta)
            for k, rounds in taken.items()
        }


def _releases(uses: Sequence[Use], noise: float, rounds: int) -> list[Release]:
    return [use.release(noise, rounds) for use in uses if use.draws and use.gradients]


def _noise(promise: Privacy, uses: Uses, rounds: int) -> float:
    if promise.noise is not None:
        return promise.noise
    assert promise.epsilon is not None
    if not _releases(uses, 1.0, rounds):
        return 1.0  # nothing is asked of its records
    return noise_for(promise.epsilon, promise.delta, lambda z: _releases(uses, z, rounds))
