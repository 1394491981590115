# SPDX-License-Identifier: Apache-2.0
"""What a study promises: the unit that is protected, how much, and against whom.

A promise is kept by noise, and noise is enough only for what it was planned for: so much of each
party's data, so often. `Kept` is a promise with that plan, from which both the noise and, after any
number of rounds, the ε that was spent follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from archipel.errors import ArchipelError, unknown
from archipel.privacy.release import (
    FixedSize,
    Gaussian,
    Kind,
    Neighbours,
    Poisson,
    Release,
    Sampling,
    Shuffled,
)

if TYPE_CHECKING:
    from archipel.privacy.encoding import Share

Unit = Literal["record", "party"]
Trust = Literal["server", "sum", "shuffler", "nobody"]


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
    honest: int | None = None  # with "sum": parties of every sum that keep their noise secret
    bits: int = 32  # with "sum": of the integers that are added up
    shares: Kind = "gaussian"  # with "sum": what noise each party adds

    def __post_init__(self) -> None:
        for field, value, known in (
            ("unit", self.unit, get_args(Unit)),
            ("trust", self.trust, get_args(Trust)),
            ("shares", self.shares, get_args(Kind)),
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
        self._check_sum()

    def _check_sum(self) -> None:
        """Refuse what only noise in shares has, and numbers that it cannot have."""
        for field, own in (("honest", None), ("bits", 32), ("shares", "gaussian")):
            if self.trust != "sum" and (value := getattr(self, field)) != own:
                raise ArchipelError(
                    f'privacy.{field} = {value!r}: is for trust = "sum", where every party adds a '
                    "share of the noise; leave it out."
                )
        if self.honest is not None and not (isinstance(self.honest, int) and self.honest > 0):
            raise ArchipelError(f"privacy.honest = {self.honest!r}: give a whole number from 1.")
        if not (isinstance(self.bits, int) and 8 <= self.bits <= 32):
            raise ArchipelError(f"privacy.bits = {self.bits!r}: give a whole number from 8 to 32.")


class Use(NamedTuple):
    """What one round releases of a unit: samples drawn alike, and what is noised on each."""

    sampling: Sampling | None  # None where the cohort is everybody, or known
    draws: int
    noised: int = 1  # vectors with noise of their own on one sample, at most
    share: Share | None = None  # of the noise, where each party adds one to integers
    reports: int | None = None  # that hide each other, where `noise` is 1 / ε0 of each

    def release(self, noise: float, rounds: int) -> Release:
        """Several vectors with fresh noise on one sample are one vector with less of it."""
        if self.share is not None:
            return Release(self.share.mechanism(noise), None, self.draws * rounds)
        if self.reports is not None:
            times = self.draws * self.noised * rounds
            return Release(Shuffled(1 / noise, self.reports), None, times)
        return Release(Gaussian(noise / self.noised**0.5), self.sampling, self.draws * rounds)


Uses = tuple[Use, ...]


@dataclass(frozen=True)
class Kept:
    """A promise with what it was planned for."""

    promise: Privacy
    neighbours: Neighbours
    uses: Mapping[int, Uses]  # of each party, in a round that counts for it
    rounds: int  # that count for a party, at most
    noise: Mapping[int, float]  # z of each party
    always: bool = False  # whether every round counts for everybody, not only those it took part in

    @classmethod
    def planned(
        cls,
        promise: Privacy,
        neighbours: Neighbours,
        uses: Mapping[int, Uses],
        rounds: int,
        always: bool = False,
    ) -> Kept:
        """Find the noise of each party; parties alike have the same."""
        noise = {each: _noise(promise, neighbours, each, rounds) for each in set(uses.values())}
        of = {k: noise[each] for k, each in uses.items()}
        return cls(promise, neighbours, uses, rounds, of, always)

    @cached_property
    def worst(self) -> int:
        """The party that spends the most where all rounds count."""
        spent = self.spent(dict.fromkeys(self.uses, self.rounds))
        return max(spent, key=lambda k: spent[k])

    @cached_property
    def _ahead(self) -> list[tuple[int, float]]:
        return self.curve(self.worst, self.rounds)

    def at_most(self, rounds: int) -> float:
        """A bound on ε after so many rounds that count, quickly: that after some more of them."""
        if rounds < 1:
            return 0.0
        return next((spent for t, spent in self._ahead if t >= rounds), self._ahead[-1][1])

    @property
    def counted(self) -> int | None:
        """Parties of every sum whose noise is counted on; None where it comes in no shares."""
        found = {use.share.counted for uses in self.uses.values() for use in uses if use.share}
        return min(found, default=None)

    def releases(self, k: int, rounds: int) -> list[Release]:
        """All that so many rounds release of party k."""
        return _releases(self.uses[k], self.noise[k], rounds)

    def sampling(self, k: int) -> str:
        """How what is released of party k was sampled, in words."""
        kinds = {_SAMPLED[type(use.sampling)] for use in self.uses[k]}
        return " and ".join(sorted(kinds)) or "nothing"

    def curve(self, k: int, rounds: int) -> list[tuple[int, float]]:
        """ε of party k after some of so many rounds."""
        from archipel.privacy.accounting import curve  # what computes is loaded where it does

        return curve(
            self.releases(k, 1), rounds, self.promise.delta, points=12, neighbours=self.neighbours
        )

    def spent(self, counted: Mapping[int, int]) -> dict[int, float]:
        """ε of each party for which so many rounds count."""
        from archipel.privacy.accounting import epsilon

        delta, neighbours = self.promise.delta, self.neighbours
        alike = {(self.uses[k], self.noise[k], rounds) for k, rounds in counted.items()}
        cost = {
            each: epsilon(_releases(*each), delta, neighbours=neighbours) if each[2] else 0.0
            for each in alike
        }
        return {k: cost[self.uses[k], self.noise[k], rounds] for k, rounds in counted.items()}


_SAMPLED: dict[type[object], str] = {
    type(None): "nobody is sampled",
    Poisson: "Poisson samples",
    FixedSize: "samples of a fixed size",
}


def _releases(uses: Sequence[Use], noise: float, rounds: int) -> list[Release]:
    return [use.release(noise, rounds) for use in uses if use.draws and use.noised]


def _noise(promise: Privacy, neighbours: Neighbours, uses: Uses, rounds: int) -> float:
    if promise.noise is not None:
        return promise.noise
    assert promise.epsilon is not None
    if not _releases(uses, 1.0, rounds):
        return 1.0  # nothing is released
    from archipel.privacy.accounting import noise_for

    return noise_for(
        promise.epsilon,
        promise.delta,
        lambda z: _releases(uses, z, rounds),
        neighbours=neighbours,
    )
