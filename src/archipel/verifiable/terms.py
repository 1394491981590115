# SPDX-License-Identifier: Apache-2.0
"""What a run is about, as its first announcement says it: values, noise, privacy, who takes part.

A number from `low` to `high` is one of `steps` + 1 points of a grid; what a party says is
multiplier · point + noise, hidden by pairwise terms (`party.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import floor, inf, isfinite, sqrt
from typing import Any

from archipel.errors import ArchipelError
from archipel.privacy.accounting import Release, epsilon
from archipel.verifiable.bits import padded
from archipel.verifiable.noise import Noise, disconnected, neighbours_for, planned

MOST_PARTIES, MOST_NUMBERS, MOST_STEPS = 100_000, 1024, 1 << 32


@dataclass(frozen=True)
class Terms:
    """What all parties agree on before a run."""

    parties: Mapping[str, str]  # name: Ed25519 public key, in hexadecimal
    low: float
    high: float
    steps: int
    size: int  # numbers of each party
    one_hot: bool  # whether exactly one of them is 1 and the others 0
    multiplier: int
    unit: int
    coins: int
    neighbours: int  # that each party picks
    epsilon: float
    delta: float
    honest: float  # share of the parties, at least
    data: str  # runs that name the same data must be on the same values
    nonce: str  # hexadecimal

    def __post_init__(self) -> None:
        for name, right, remedy in (
            ("parties", 2 <= len(self.parties) <= MOST_PARTIES, f"2 to {MOST_PARTIES}"),
            ("size", 1 <= self.size <= MOST_NUMBERS, f"1 to {MOST_NUMBERS} numbers"),
            ("steps", 1 <= self.steps <= MOST_STEPS, f"1 to {MOST_STEPS}"),
            ("high", isfinite(self.low) and self.low < self.high < inf, "more than low"),
            ("coins", 1 <= self.coins <= 1 << 20, "at least one coin"),
            ("unit", self.unit > 0 and self.unit & (self.unit - 1) == 0, "a power of two"),
            ("multiplier", 1 <= self.multiplier <= 1 << 20, "at least 1"),
            ("honest", 0 < self.honest <= 1, "a share above 0, up to 1"),
            ("delta", 0 < self.delta < 1, "a number above 0 and below 1"),
            ("epsilon", self.epsilon > 0, "a number above 0"),
            ("neighbours", 1 <= self.neighbours < len(self.parties), "1 to all the others"),
            ("one_hot", not self.one_hot or self.steps == 1, "a histogram's numbers are 0 or 1"),
        ):
            if not right:
                said = len(self.parties) if name == "parties" else getattr(self, name)
                raise ArchipelError(f"{name} = {said}: give {remedy}.")

    # -- values ------------------------------------------------------------------------------------

    def points(self, values: Sequence[float]) -> list[int]:
        """Values as points of the grid."""
        if len(values) != self.size:
            raise ArchipelError(f"{len(values)} values: every party has {self.size}.")
        for value in values:
            if not self.low <= value <= self.high:
                raise ArchipelError(
                    f"value = {value!r}: it must lie from {self.low:g} to {self.high:g}; widen the "
                    "range for all, or clip it."
                )
        span = self.high - self.low
        return [round((value - self.low) / span * self.steps) for value in values]

    @property
    def value_bits(self) -> int:
        return padded(self.size * self.steps.bit_length())

    # -- noise -------------------------------------------------------------------------------------

    @cached_property
    def noise(self) -> Noise:
        return Noise(self.multiplier, self.unit, self.coins)

    @property
    def noise_bits(self) -> int:
        return padded(self.size * len(self.noise.weights))

    # -- privacy -----------------------------------------------------------------------------------

    def honest_among(self, there: int) -> int:
        """How many of those that stayed are honest at least: all who are not, stayed."""
        return there - (len(self.parties) - floor(self.honest * len(self.parties) + 1e-9))

    def release(self, there: int) -> Release | None:
        """The sum over those that stayed, as accountants see it; None if it has no noise."""
        honest = self.honest_among(there)
        if honest < 1:
            return None
        return self.noise.release(self.steps, honest, 2 if self.one_hot else self.size)

    def spent(self, there: int) -> float:
        """ε at delta of the sum over those that stayed."""
        release, left = self.release(there), self.delta - self.alone(there)
        return epsilon([release], left) if release is not None and left > 0 else inf

    def alone(self, there: int) -> float:
        """The probability that pairwise terms leave some honest parties alone: a part of delta."""
        return disconnected(len(self.parties), self.honest_among(there), self.neighbours)

    # -- results -----------------------------------------------------------------------------------

    def mean(self, sums: Sequence[int], there: int) -> list[float]:
        """The mean that published sums stand for."""
        scale = (self.high - self.low) / (self.multiplier * self.steps * there)
        return [self.low + (each - there * self.noise.mean) * scale for each in sums]

    def deviation(self, there: int) -> float:
        """Of the noise in each number of the mean."""
        scale = (self.high - self.low) / (self.multiplier * self.steps * there)
        return sqrt(there * self.noise.variance) * scale

    def written(self) -> dict[str, Any]:
        return {**asdict(self), "parties": dict(self.parties)}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Terms:
        """Terms from what `written` made of them."""
        kinds = {"str": str, "int": int, "bool": bool, "float": (int, float)}
        for name, declared in cls.__dataclass_fields__.items():
            kind = kinds.get(str(declared.type), dict)
            value = values.get(name)
            wrong = isinstance(value, bool) != (kind is bool)
            if not isinstance(value, kind) or wrong:  # type: ignore[arg-type]
                raise ArchipelError(f"{name} = {value!r}: not what the terms of a run can be.")
        if len(values) != len(cls.__dataclass_fields__):
            raise ArchipelError("the terms of a run: there are keys that no run has.")
        return cls(**values)


def agreed(
    parties: Mapping[str, str],
    nonce: str,
    *,
    low: float = 0.0,
    high: float = 1.0,
    bits: int = 16,
    size: int = 1,
    counts: bool = False,
    one_hot: bool = False,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    honest: float = 0.5,
    dropouts: float = 0.0,
    neighbours: int | None = None,
    data: str = "",
) -> Terms:
    """Terms whose noise and graph keep (ε, δ) if so many are honest and so many drop out."""
    n = len(parties)
    if not (0 < honest <= 1 and 0 <= dropouts < 1):
        raise ArchipelError(
            f"honest = {honest}, dropouts = {dropouts}: give shares, the first above 0, the second "
            "below 1."
        )
    staying = floor(honest * n + 1e-9) - floor(dropouts * n + 1e-9)
    if staying < 2:
        raise ArchipelError(
            f"honest = {honest:g} of {n} parties: less than 2 of them would be left; say a larger "
            "share, or ask more parties."
        )
    if counts and not (float(low).is_integer() and float(high).is_integer()):
        raise ArchipelError(f"low = {low}, high = {high}: counts lie between whole numbers.")
    if one_hot:
        low, high = 0.0, 1.0
    steps = round(high - low) if counts or one_hot else (1 << bits) - 1
    k = neighbours if neighbours is not None else neighbours_for(n, staying, delta)
    left = delta - disconnected(n, staying, min(k, n - 1))
    if left <= 0:
        raise ArchipelError(
            f"neighbours = {k}: so few leave some of {staying} honest parties alone with a "
            f"probability above delta = {delta:g}; pick at least "
            f"{neighbours_for(n, staying, delta)}."
        )
    noise = planned(epsilon, left, steps, staying, n, 2 if one_hot else size)
    return Terms(
        parties, float(low), float(high), steps, size, one_hot, *noise, k,
        float(epsilon), float(delta), float(honest), data, nonce,
    )  # fmt: skip
