# SPDX-License-Identifier: Apache-2.0
"""What privacy cannot be made of: each is one sentence with the field, the value and the remedy."""

from __future__ import annotations

from math import isfinite

from archipel.errors import ArchipelError


def positive(field: str, value: float) -> float:
    """Return what a scale, an epsilon, a sensitivity or a clip can be."""
    if not (isfinite(value) and 1e-200 <= value <= 1e200):
        raise ArchipelError(f"{field} = {value}: give a finite number above 0.")
    return float(value)


def check_delta(delta: float) -> float:
    """Return what a delta can be."""
    if not 0 < delta < 1:
        raise ArchipelError(f"delta = {delta}: give a number in (0, 1), such as 1e-5.")
    return float(delta)


def check_delta_among(field: str, delta: float, count: int, whose: str, units: str) -> None:
    """Refuse a δ that could be kept by publishing one of so many units."""
    if delta * count >= 1:
        raise ArchipelError(
            f"{field} = {delta:g}: {whose} has {count} {units}, and to publish one of them "
            f"would keep it; give less than {1 / count:.1g}, such as {0.1 / count:.1g}."
        )


def check_order(alpha: float) -> float:
    """Return what the order of a Renyi divergence can be."""
    if not alpha > 1:
        raise ArchipelError(f"alpha = {alpha}: give an order above 1.")
    return float(alpha)


def check_count(field: str, count: int) -> int:
    """Return what a number of numbers, or of shares, can be."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArchipelError(f"{field} = {count}: give an integer from 1 on.")
    return count
