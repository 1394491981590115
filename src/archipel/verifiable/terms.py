# SPDX-License-Identifier: Apache-2.0
"""What a run is about, as its first announcement says it: values, noise, privacy, who takes part.

A number from `low` to `high` is measured in steps: `grain` of them are a `unit`, which is how far
it moves if a party, or one person of its, is another. What a party says is multiplier · steps +
noise, hidden by pairwise terms (`party.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from math import floor, inf, isfinite, sqrt
from typing import Any

from archipel.errors import ArchipelError
from archipel.privacy.accounting import Release, epsilon
from archipel.privacy.checks import check_delta_among
from archipel.privacy.gopa import disconnected
from archipel.verifiable.bits import padded
from archipel.verifiable.noise import Noise, neighbours_for, planned

MOST_PARTIES, MOST_NUMBERS, MOST_STEPS = 100_000, 1024, 1 << 32
MOST_COINS = 1 << 23  # of all parties: accounting lists every number of heads
_KINDS: dict[str, type] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": float,
    "Mapping[str, str]": dict,
    "Sequence[str]": list,
    "Sequence[float]": list,
}
_EACH: dict[str, type] = {"Mapping[str, str]": str, "Sequence[str]": str, "Sequence[float]": float}


@dataclass(frozen=True)
class Terms:
    """What all parties agree on before a run."""

    parties: Mapping[str, str]  # name: Ed25519 public key, in hexadecimal
    names: Sequence[str]  # of each party's numbers
    low: Sequence[float]  # of each number
    high: Sequence[float]
    unit: Sequence[float]  # how far each moves
    grain: int  # steps of a unit
    one_hot: bool  # whether exactly one of them is 1 and the others 0
    multiplier: int
    coin: int  # what a coin weighs, a power of two
    coins: int
    neighbours: int  # that each party picks
    epsilon: float
    delta: float
    honest: float  # share of the parties, at least
    data: str  # runs that name the same data must be on the same values
    nonce: str  # hexadecimal

    def __post_init__(self) -> None:
        d, coin = len(self.names), self.coin
        if not 2 <= len(self.parties) <= MOST_PARTIES:
            raise ArchipelError(f"{len(self.parties)} parties: ask 2 to {MOST_PARTIES}.")
        if len(set(self.parties.values())) < len(self.parties):
            raise ArchipelError("parties: two have the same key; give each its own.")
        for name, right, remedy in (
            ("names", 1 <= d <= MOST_NUMBERS and len(set(self.names)) == d, "names that differ"),
            ("low", len(self.low) == d and all(map(isfinite, self.low)), "one for each number"),
            ("unit", len(self.unit) == d and all(0 < u < inf for u in self.unit), "above 0"),
            ("high", len(self.high) == d and all(map(isfinite, self.high)), "one for each number"),
            ("grain", 1 <= self.grain <= MOST_STEPS, f"1 to {MOST_STEPS} steps"),
            ("coins", 1 <= self.coins <= MOST_COINS // len(self.parties), "1 to some thousands"),
            ("coin", coin > 0 and coin & (coin - 1) == 0 and coin <= 1 << 48, "a power of two"),
            ("multiplier", 1 <= self.multiplier <= 1 << 20, "at least 1"),
            ("honest", 0 < self.honest <= 1, "a share above 0, up to 1"),
            ("delta", 0 < self.delta < 1, "a number above 0 and below 1"),
            ("epsilon", 0 < self.epsilon < inf, "a number above 0"),
            ("neighbours", 1 <= self.neighbours < len(self.parties), "1 to all the others"),
        ):  # fmt: skip
            if not right:
                raise ArchipelError(f"{name} = {getattr(self, name)}: give {remedy}.")
        if not all(1 <= top <= MOST_STEPS for top in self.tops):
            raise ArchipelError(f"high = {self.high}: give at least a step more than low.")
        if self.one_hot and {self.grain, *self.tops} != {1}:
            raise ArchipelError("one_hot = True: give numbers that are 0 or 1.")

    @property
    def size(self) -> int:
        """Numbers of each party."""
        return len(self.names)

    @property
    def protected(self) -> str:
        """To whom the promise is."""
        whole = zip(self.low, self.high, self.unit, strict=True)
        return "party" if all(unit >= high - low for low, high, unit in whole) else "person"

    # -- values ------------------------------------------------------------------------------------

    def steps(self, values: Sequence[float]) -> list[int]:
        """Values in steps, rounded so that what moves by a unit moves by its grain at most."""
        if len(values) != self.size:
            raise ArchipelError(f"{len(values)} values: every party has {self.size}.")
        for value, low, high in zip(values, self.low, self.high, strict=True):
            if not low <= value <= high:
                raise ArchipelError(
                    f"value = {value!r}: it must lie from {low:g} to {high:g}; agree on a wider "
                    "range with all others, or clip it."
                )
        return self._in_steps(values)

    def _in_steps(self, values: Sequence[float]) -> list[int]:
        return [
            floor((Fraction(value) - Fraction(low)) / Fraction(unit) * self.grain + Fraction(1, 2))
            for value, low, unit in zip(values, self.low, self.unit, strict=True)
        ]

    @cached_property
    def tops(self) -> list[int]:
        """Steps of the whole range of each number."""
        return self._in_steps(self.high)

    @property
    def value_bits(self) -> int:
        return padded(sum(top.bit_length() for top in self.tops))

    # -- noise -------------------------------------------------------------------------------------

    @cached_property
    def noise(self) -> Noise:
        return Noise(self.multiplier, self.coin, self.coins)

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
        return self.noise.release(self.grain, honest, _moved(self.size, self.one_hot))

    def spent(self, there: int) -> float:
        """ε at delta of the sum over those that stayed."""
        release, left = self.release(there), self.delta - self.alone(there)
        return epsilon([release], left) if release is not None and left > 0 else inf

    def alone(self, there: int) -> float:
        """The probability that pairwise terms leave some honest parties alone: a part of delta."""
        return disconnected(len(self.parties), self.honest_among(there), self.neighbours)

    # -- results -----------------------------------------------------------------------------------

    def mean(self, sums: Sequence[int], there: int) -> list[float]:
        """The means that published sums stand for."""
        steps = [(each - there * self.noise.mean) / (self.multiplier * there) for each in sums]
        each = zip(self.low, self.unit, steps, strict=True)
        return [low + unit * step / self.grain for low, unit, step in each]

    def deviation(self, there: int) -> list[float]:
        """Of the noise in each of the means."""
        steps = sqrt(self.noise.variance / there) / self.multiplier
        return [unit * steps / self.grain for unit in self.unit]

    def written(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Terms:
        """Terms from what `written` made of them."""
        if set(values) != set(cls.__dataclass_fields__):
            raise ArchipelError("the terms of a run: there are other keys than a run has.")
        for name, declared in cls.__dataclass_fields__.items():
            value, kind = values[name], str(declared.type)
            inside = value.values() if isinstance(value, dict) else value
            each = _EACH.get(kind)
            right = type(value) is _KINDS[kind]
            if not right or (each is not None and any(type(one) is not each for one in inside)):
                raise ArchipelError(f"{name}: not what the terms of a run can be.")
        return cls(**values)


def agreed(
    parties: Mapping[str, str],
    nonce: str,
    *,
    names: Sequence[str] = ("value",),
    low: float | Sequence[float] = 0.0,
    high: float | Sequence[float] = 1.0,
    contribution: float | Sequence[float] | None = None,
    bits: int = 16,
    whole: bool = False,
    one_hot: bool = False,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    honest: float = 0.5,
    dropouts: float = 0.0,
    neighbours: int | None = None,
    data: str = "",
) -> Terms:
    """Terms whose noise and graph keep (ε, δ) if so many are honest and so many drop out.

    The promise is to every party, or with a `contribution`, which is how far one person moves each
    number at most, to every person. `bits` is how fine the widest range is; `whole` numbers are as
    they are.
    """
    n, d = len(parties), len(names)
    if not (0 < honest <= 1 and 0 <= dropouts < 1):
        raise ArchipelError(
            f"honest = {honest}, dropouts = {dropouts}: give shares, the first above 0, the second "
            "below 1."
        )
    if not 1 <= bits <= 32:
        raise ArchipelError(f"bits = {bits}: give 1 to 32.")
    staying = floor(honest * n + 1e-9) - floor(dropouts * n + 1e-9)
    if staying < 2:
        raise ArchipelError(
            f"honest = {honest:g} of {n} parties, dropouts = {dropouts:g}: fewer than 2 would be "
            "left; say a larger share, or ask more parties."
        )
    lows = [0.0] * d if one_hot else _each("low", low, d)
    highs = [1.0] * d if one_hot else _each("high", high, d)
    for least, most in zip(lows, highs, strict=True):
        if not (isfinite(least) and isfinite(most) and least < most):
            raise ArchipelError(f"low = {least}, high = {most}: give a range, low before high.")
    widths = [b - a for a, b in zip(lows, highs, strict=True)]
    given = widths if contribution is None or one_hot else _each("contribution", contribution, d)
    units = [min(each) for each in zip(given, widths, strict=True)]
    if not all(unit > 0 for unit in units):
        raise ArchipelError(f"contribution = {contribution}: give a number above 0.")
    grain = _grain(widths, units, bits, whole or one_hot)
    check_delta_among("delta", delta, n, "the mean", "parties")
    k = neighbours if neighbours is not None else neighbours_for(n, staying, delta)
    left = delta - disconnected(n, staying, k)
    if left <= 0:
        raise ArchipelError(
            f"neighbours = {k}: so few leave some of {staying} honest parties alone with a "
            f"probability above delta = {delta:g}; pick at least "
            f"{neighbours_for(n, staying, delta)}."
        )
    noise = planned(epsilon, left, grain, staying, n, _moved(d, one_hot))
    return Terms(
        parties, list(names), lows, highs, units, grain, one_hot, *noise, k, float(epsilon),
        float(delta), float(honest), data, nonce,
    )  # fmt: skip


def _moved(size: int, one_hot: bool) -> int:
    """How many numbers move if one party is another."""
    return min(2, size) if one_hot else size


def _each(name: str, given: float | Sequence[float], count: int) -> list[float]:
    """One for each number."""
    found = [float(g) for g in given] if isinstance(given, Sequence) else [float(given)] * count
    if len(found) != count:
        raise ArchipelError(f"{name} = {given}: give one for all, or one for each of {count}.")
    return found


def _grain(widths: Sequence[float], units: Sequence[float], bits: int, whole: bool) -> int:
    """Steps of a unit."""
    if not whole:
        widest = max(width / unit for width, unit in zip(widths, units, strict=True))
        return max(1, round(((1 << bits) - 1) / widest))
    if len(set(units)) > 1 or not all(float(each).is_integer() for each in (*units, *widths)):
        raise ArchipelError(
            f"whole: ranges of {[*widths]} that move by {[*units]} are not on one grid of whole "
            "numbers; give whole numbers, and one contribution for all."
        )
    return round(units[0])
