# SPDX-License-Identifier: Apache-2.0
"""A number that is forecast: what it is most likely, between what and what, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ends = Sequence[float]  # value, low, high
Unit = Literal["s", "B", "Wh", "FLOP", "epsilon", ""]

DRIFT = 0.1  # of a time, at the least: what else a machine does changes
_ONE = 0.5  # the same where one measurement is all there is
_BATCHES = 4  # of measurements that follow each other: what is near in time is alike


@dataclass(frozen=True)
class Figure:
    """A number between two others; those are itself where it is known exactly."""

    value: float
    low: float
    high: float
    unit: Unit
    basis: str  # what it was measured or counted from

    @property
    def exact(self) -> bool:
        return self.low == self.high

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exact": self.exact}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Figure:
        return cls(**{name: told[name] for name in cls.__dataclass_fields__})


def exactly(value: float, unit: Unit, basis: str) -> Figure:
    """A number that is counted.

    >>> exactly(3, "", "counted").exact
    True
    """
    return Figure(value, value, value, unit, basis)


def between(ends: Ends, unit: Unit, basis: str) -> Figure:
    """A number between two others."""
    value, low, high = ends
    return Figure(value, low, high, unit, basis)


def within(value: float, share: float, unit: Unit, basis: str) -> Figure:
    """A number, and a share of it less or more."""
    return Figure(value, value * max(0.0, 1 - share), value * (1 + share), unit, basis)


def added(parts: Sequence[Figure], basis: str) -> Figure:
    """The sum of figures of one unit; what is unsure of each adds up.

    >>> added([exactly(1, "s", ""), Figure(2, 1, 4, "s", "")], "both").high
    5
    """
    ends = [sum(getattr(part, name) for part in parts) for name in ("value", "low", "high")]
    return between(ends, parts[0].unit, basis)


@dataclass(frozen=True)
class Law:
    """How a round's time depends on its work: `constant + slope * work`."""

    constant: float
    slope: float
    shares: tuple[float, float]  # of its sum over rounds, at least and at most
    known: bool  # whether the two were told apart

    def over(self, work: Floats) -> tuple[float, float, float]:
        """The time of rounds with so much work each: value, low, high."""
        value = self.constant * len(work) + self.slope * float(work.sum())
        return value, value * self.shares[0], value * self.shares[1]


def law(seconds: Sequence[float], work: Sequence[float], ahead: Floats) -> Law:
    """Fit the time of measured rounds to their work, to tell that of rounds ahead.

    Where the work of measured rounds differs too little to tell a constant from a slope, the
    interval holds both: all of the time is constant, or all of it is work.

    >>> found = law([1.0, 2.0, 3.0, 4.0], [10, 20, 30, 40], np.full(5, 50.0))
    >>> round(found.over(np.full(5, 50.0))[0], 9)
    25.0
    """
    y, x = np.array(seconds, np.float64), np.array(work, np.float64)
    n, mean, per_work = len(y), float(y.mean()), _ratio(float(y.sum()), float(x.sum()))
    spread = float(x.std())
    centre = float(ahead.mean()) if len(ahead) else float(x.mean())
    constant, slope, known, unsure = 0.0, per_work, False, 0.0
    if n >= 4 and spread > 0.02 * float(x.mean()):
        slope = max(0.0, float(((x - x.mean()) * (y - mean)).mean()) / spread**2)
        constant = mean - slope * float(x.mean())
        if constant < 0:
            constant, slope = 0.0, per_work
        rest = y - constant - slope * x
        error = sqrt(float((rest**2).sum()) / max(1, n - 2))
        unsure = 2 * error * sqrt(1 / n + (centre - float(x.mean())) ** 2 / (n * spread**2))
        known = True
    expected = constant + slope * centre
    low = high = expected
    if not known:
        low, high = min(mean, per_work * centre), max(mean, per_work * centre)
        expected = (low + high) / 2
        slope *= _ratio(expected, slope * centre, 1.0)
    if expected <= 0:
        return Law(constant, slope, (1.0, 1.0), known)
    noise = _noise(y, constant + slope * x) + unsure / expected
    return Law(constant, slope, (max(0.0, low / expected - noise), high / expected + noise), known)


def noise_of(seconds: Sequence[float]) -> float:
    """How far the mean of so many times may be from that of times ahead, as a share of it."""
    y = np.array(seconds, np.float64)
    return _noise(y, np.full_like(y, y.mean()))


def _noise(y: Floats, fitted: Floats) -> float:
    """By how much the means of measurements that follow each other differ."""
    if len(y) == 1:
        return _ONE
    ratios = np.divide(y, fitted, out=np.ones_like(y), where=fitted > 0)
    parts = np.array([part.mean() for part in np.array_split(ratios, min(_BATCHES, len(y)))])
    return DRIFT + 2 * float(parts.std(ddof=1)) / sqrt(len(parts))


def _ratio(a: float, b: float, otherwise: float = 0.0) -> float:
    return a / b if b > 0 else otherwise
