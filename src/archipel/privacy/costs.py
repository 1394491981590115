# SPDX-License-Identifier: Apache-2.0
"""What one use of a mechanism costs: delta of epsilon, epsilon of delta.

First of noise that is drawn without error, then with what samplers add (`grid.counted`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, exp, expm1, inf, isnan, log

import numpy as np
from numpy.typing import NDArray

from archipel.errors import ArchipelError
from archipel.privacy import grid
from archipel.privacy.analytic import smallest
from archipel.privacy.checks import check_count, check_delta
from archipel.privacy.noise import CLOSE, MISSED
from archipel.rng import Ints

_ORDERS = 1 + np.logspace(-3, 6, 451)  # of Renyi divergences that are converted

Floats = NDArray[np.float64]
Ideal = Callable[[float], float]  # epsilon -> delta, of noise that is drawn without error


def pure(own: float, epsilon: float) -> float:
    """Return delta of any mechanism that is (own, 0)-private."""
    return 0.0 if epsilon >= own else -expm1(epsilon - own) / (1 + exp(-own))


def summed(chances: Callable[[Ints], Floats], sigma: float, sensitivity: float) -> Ideal:
    """Delta of one integer: the sum of max(0, P(k) - e^epsilon P(k - shift)).

    `chances` need not add up to 1; they are log-concave, so the largest shift costs most.
    """
    reach, shift = ceil(13.5 * sigma) + 80, ceil(sensitivity - 1e-9)
    here = np.arange(-reach, reach + 1)
    p, q = chances(here), chances(here - shift)
    total = float(p.sum())

    def delta(epsilon: float) -> float:
        above = np.maximum(0.0, p - exp(min(epsilon, 700.0)) * q)
        return min(1.0, float(above.sum()) / total * (1 + 1e-9))

    return delta


def converted(rdp: Callable[[float], float]) -> Ideal:
    """Delta from Renyi divergences: the least of (1 - 1/a)^a e^((a-1) (rdp(a) - eps)) / (a - 1)."""
    a = _ORDERS
    divergences = np.array([rdp(float(order)) for order in a])
    fixed = a * np.log1p(-1 / a) - np.log(a - 1)

    def delta(epsilon: float) -> float:
        return exp(min(0.0, float(((a - 1) * (divergences - epsilon) + fixed).min())))

    return delta


def delta_at(ideal: Ideal, epsilon: float, numbers: int) -> float:
    """Return delta where noise is in so many numbers."""
    if isnan(epsilon) or epsilon < 0:
        raise ArchipelError(f"epsilon = {epsilon}: give a number from 0 on.")
    rest = epsilon - 2 * numbers * CLOSE
    if rest > 0:
        return grid.counted(rest, ideal(rest), numbers)[1]
    apart = expm1(numbers * CLOSE) + numbers * MISSED  # ours and the ideal, in total variation
    return min(1.0, ideal(epsilon) + (1 + exp(epsilon)) * apart)


def epsilon_at(ideal: Ideal, delta: float, numbers: int) -> float:
    """Return epsilon where noise is in so many numbers; inf where samplers add more than delta."""
    most = log(check_delta(delta) / numbers / MISSED) - 2  # from here on they add up to delta
    if most <= 0:
        return inf
    return smallest(lambda epsilon: delta_at(ideal, min(epsilon, most), numbers) <= delta)


def left(epsilon: float, delta: float, numbers: int) -> tuple[float, float]:
    """Return what is left of (epsilon, delta) for the ideal noise."""
    check_count("size", numbers)
    ours, missed = grid.counted(epsilon, 0.0, numbers)
    if missed >= delta:
        raise ArchipelError(
            f"delta = {delta}: at epsilon = {epsilon}, noise in {numbers} numbers is drawn to a "
            f"delta of {missed:.1e}; give a smaller epsilon."
        )
    if 2 * epsilon <= ours:
        raise too_many(numbers, epsilon)
    return 2 * epsilon - ours, (delta - missed) * exp(-numbers * CLOSE)


def too_many(numbers: int, epsilon: float) -> ArchipelError:
    """Return the error for more numbers than a small epsilon allows."""
    return ArchipelError(
        f"size = {numbers}: so many numbers cannot be rounded to a grid at epsilon = {epsilon}; "
        "release fewer of them, or give a larger epsilon."
    )
