# SPDX-License-Identifier: Apache-2.0
"""What a study promises: the unit that is protected, how much, and against whom.

A promise is kept by noise, and noise is enough only for what it was planned for: so much of each
party's data, so often. `Kept` is a promise with that plan, from which both the noise and, after any
number of rounds, the ε that was spent follow.
"""

from __future__ import annotations

import re
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
    Laplace,
    Neighbours,
    Poisson,
    Release,
    Sampling,
    Shuffled,
)

if TYPE_CHECKING:
    from archipel.privacy.correlated import Participation, Strategy
    from archipel.privacy.encoding import Share

Unit = Literal["record", "party"]
Trust = Literal["server", "sum", "shuffler", "nobody"]
Adaptive = Literal["adaptive"]
Noise = Literal["gaussian", "laplace"]
Afterwards = Literal["rest", "propagate"]


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
    clip: float | Adaptive = 1.0  # C
    trust: Trust = "server"  # who may see what is not noised yet
    honest: int | None = None  # with "sum": parties of every sum that keep their noise secret
    bits: int = 32  # with "sum": of the integers that are added up
    shares: Kind = "gaussian"  # with "sum": what noise each party adds
    correlated: str | None = None  # "banded", "banded:8" or "tree": noise over rounds; independent
    clip_start: float = 1.0  # C before the first round, where it is adaptive
    clip_quantile: float = 0.5  # gamma: the share of uploads that it shall not shorten
    clip_rate: float = 0.2  # eta_C: how fast it moves
    mechanism: Noise = "gaussian"  # by record: on gradients clipped in L2; "laplace": in L1
    neighbours: Neighbours = "add_or_remove"  # by record: what tables differ in; or "replace" one
    wakes: int | None = None  # T: of a party at most, where parties wake; as many as rounds
    spent: Afterwards = "rest"  # what it does then; "propagate": goes on with what it released

    def __post_init__(self) -> None:
        for field, value, known in (
            ("unit", self.unit, get_args(Unit)),
            ("trust", self.trust, get_args(Trust)),
            ("shares", self.shares, get_args(Kind)),
            ("mechanism", self.mechanism, get_args(Noise)),
            ("neighbours", self.neighbours, get_args(Neighbours)),
            ("spent", self.spent, get_args(Afterwards)),
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
            ("clip", None if self.clip == "adaptive" else self.clip),
            ("clip_start", self.clip_start),
            ("clip_rate", self.clip_rate),
        ):
            if number is not None and not (_is_number(number) and 0 < number < inf):
                also = ', or "adaptive"' if field == "clip" else ""
                raise ArchipelError(
                    f"privacy.{field} = {number!r}: give a finite number above 0{also}."
                )
        for field, share in (("delta", self.delta), ("clip_quantile", self.clip_quantile)):
            if not 0 < share < 1:
                raise ArchipelError(f"privacy.{field} = {share}: give a number between 0 and 1.")
        if self.correlated is not None:
            self._check_correlated(self.correlated)
        if self.adaptive and (self.unit, self.trust) != ("party", "server"):
            raise ArchipelError(
                'privacy.clip = "adaptive": how many uploads it shortens is counted by a server '
                'that is trusted; say unit = "party" and trust = "server", or give a number.'
            )
        self._check_shares()
        self._check_by_record()

    def _check_by_record(self) -> None:
        """Refuse what only the private door has, and what it has not with Laplace noise."""
        for field, own in (("mechanism", "gaussian"), ("neighbours", "add_or_remove")):
            if self.unit != "record" and (value := getattr(self, field)) != own:
                raise ArchipelError(
                    f'privacy.{field} = "{value}": is for unit = "record", where every gradient '
                    "gets noise; leave it out."
                )
        if self.wakes is not None:
            whole = isinstance(self.wakes, int) and not isinstance(self.wakes, bool)
            if not whole or self.wakes < 1:
                raise ArchipelError(f"privacy.wakes = {self.wakes!r}: give a whole number from 1.")
        if self.mechanism == "laplace" and self.correlated is not None:
            raise ArchipelError(
                f'privacy.mechanism = "laplace", privacy.correlated = "{self.correlated}": noise '
                "that is correlated over rounds is Gaussian; leave one of the two out."
            )

    def _check_shares(self) -> None:
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

    def _check_correlated(self, kind: str) -> None:
        if not re.fullmatch(r"banded(:[1-9]\d{0,2})?|tree", kind):
            raise ArchipelError(
                f'privacy.correlated = "{kind}": give "banded", "banded:8" with a number of '
                'coefficients up to 999, or "tree".'
            )
        if self.unit == "party" and self.trust != "server":
            raise ArchipelError(
                f'privacy.correlated = "{kind}", privacy.trust = "{self.trust}": noise that each '
                'party adds is independent; say trust = "server", or leave correlated out.'
            )
        if self.adaptive:
            raise ArchipelError(
                f'privacy.correlated = "{kind}", privacy.clip = "adaptive": what is counted to '
                "adapt the clip has independent noise; give the clip as a number."
            )

    @property
    def adaptive(self) -> bool:
        """Whether the clip follows the uploads."""
        return self.clip == "adaptive"

    @property
    def clip_in_words(self) -> str:
        """Such as "the clip of 1"."""
        if self.clip == "adaptive":
            return f"a clip that leaves {self.clip_quantile:.0%} of the uploads whole"
        return f"the clip of {self.clip:g}" + " in L1" * (self.mechanism == "laplace")

    @property
    def first_clip(self) -> float:
        """C in the first round."""
        return self.clip_start if self.clip == "adaptive" else self.clip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Correlation(NamedTuple):
    """Noise that is correlated over all that is released of a unit."""

    strategy: Strategy
    separation: int  # from one release that a unit is in to the next, at least
    most: int | None = None  # releases that it is in, at most

    def sensitivity(self, rounds: int, most: int | None = None) -> float:
        """How far one unit moves what the first so many releases measure, at most."""
        from archipel.privacy.correlated import Participation, sensitivity

        if rounds < 1 or most == 0:
            return 0.0
        times = [each for each in (self.most, most) if each is not None]
        who = Participation(rounds, self.separation, min(times, default=None))
        return sensitivity(self.strategy, who)


def correlation(kind: str, who: Participation) -> Correlation:
    """The noise that `privacy.correlated` names, the best for these participations."""
    from archipel.privacy.banded import strategy_of

    return Correlation(strategy_of(kind, who), who.separation, who.most)


class Use(NamedTuple):
    """What one round releases of a unit: samples drawn alike, and what is noised on each."""

    sampling: Sampling | None  # None where the cohort is everybody, or known
    draws: int
    noised: int = 1  # vectors with noise of their own on one sample, at most
    correlation: Correlation | None = None  # None where noise is independent
    share: Share | None = None  # of the noise, where each party adds one to integers
    reports: int | None = None  # that hide each other, where `noise` is 1 / ε0 of each
    mechanism: Noise = "gaussian"

    def release(self, noise: float, rounds: int) -> Release:
        """Several vectors with fresh noise on one sample are one vector with less of it.

        Laplace noise on all records: L1 norms would add up, and several releases cost less.
        """
        if self.share is not None:
            return Release(self.share.mechanism(noise), None, self.draws * rounds)
        if self.reports is not None:
            times = self.draws * self.noised * rounds
            return Release(Shuffled(1 / noise, self.reports), None, times)
        if self.mechanism == "laplace" and self.sampling is None:
            return Release(Laplace(noise), None, self.draws * self.noised * rounds)
        if self.mechanism == "laplace":
            return Release(Laplace(noise / self.noised), self.sampling, self.draws * rounds)
        z = noise / self.noised**0.5
        if self.correlation is None:
            return Release(Gaussian(z), self.sampling, self.draws * rounds)
        moved = self.correlation.sensitivity(self.draws * rounds)
        return Release(Gaussian(z / moved if moved else inf))

    @property
    def rate(self) -> float:
        """The share of a party's records that a sample has, on average."""
        if self.correlation is not None:
            return 1 / self.correlation.separation
        return 1.0 if self.sampling is None else self.sampling.rate


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
    wakes: bool = False  # whether rounds are wake-ups of a party's own

    @classmethod
    def planned(
        cls,
        promise: Privacy,
        neighbours: Neighbours,
        uses: Mapping[int, Uses],
        rounds: int,
        always: bool = False,
        wakes: bool = False,
    ) -> Kept:
        """Find the noise of each party; parties alike have the same."""
        noise = {each: _noise(promise, neighbours, each, rounds) for each in set(uses.values())}
        of = {k: noise[each] for k, each in uses.items()}
        return cls(promise, neighbours, uses, rounds, of, always, wakes)

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

    def charged(self, k: int, before: int) -> list[Release]:
        """What one more round costs party k, after so many that it took part in.

        Where noise is correlated, squares of sensitivities add up: the round has what is new.
        """
        noise, found = self.noise[k], list[Release]()
        for use in self.uses[k]:
            if use.correlation is None:
                found += _releases([use], noise, 1)
                continue
            past, now = (self._moved(use, use.correlation, t) for t in (before, before + 1))
            if now > past:
                new = (now**2 - past**2) ** 0.5
                found.append(Release(Gaussian(noise / use.noised**0.5 / new)))
        return found

    def _moved(self, use: Use, correlation: Correlation, rounds: int) -> float:
        """How far a unit that took part in so many rounds moves what is measured, at most.

        Where every round counts, that is what it moves in all rounds, whichever it was in.
        """
        if self.always:
            return correlation.sensitivity(use.draws * self.rounds, rounds)
        return correlation.sensitivity(use.draws * rounds)

    def correlated(self, k: int) -> str | None:
        """How noise is correlated in what is released of party k; None where it is independent."""
        from archipel.privacy.banded import called

        for use in self.uses[k]:
            if use.correlation is not None:
                return called(use.correlation.strategy)
        return None

    def sampling(self, k: int) -> str:
        """How what is released of party k was sampled, in words."""
        kinds = {_sampled(use) for use in self.uses[k]}
        return " and ".join(sorted(kinds)) or "nothing"

    def curve(self, k: int, rounds: int) -> list[tuple[int, float]]:
        """ε of party k after some of so many rounds."""
        from archipel.privacy.accounting import curve  # what computes is loaded where it does

        return curve(
            lambda t: self.releases(k, t), rounds, self.promise.delta, points=12,
            neighbours=self.neighbours,
        )  # fmt: skip

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


def _sampled(use: Use) -> str:
    if use.correlation is None:
        return _SAMPLED[type(use.sampling)]
    _, apart, most = use.correlation
    once = f"once in {apart} that follow each other" if apart > 1 else "in all of them"
    often = "" if most is None else f", {most} times in all"
    return f"nobody is sampled: of the releases everybody is {once} at most{often}"


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
