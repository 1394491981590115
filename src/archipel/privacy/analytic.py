# SPDX-License-Identifier: Apache-2.0
"""What Gaussian noise costs, exactly: delta of epsilon, epsilon of delta, the noise for both.

Balle, Wang, ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8. With mu = sensitivity / sigma,

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu).

Departures: the difference is taken where nothing cancels. With a = mu / 2 - epsilon / mu, phi the
normal density and R(x) = Phi(-x) / phi(x), which `erfcx` gives, e^epsilon phi(a - mu) = phi(a), so

    delta = phi(a) (R(-a) - R(mu - a)),   and for small mu   delta = phi(a) mu (1 - x R(x)),

since R' = x R - 1 at the midpoint x = epsilon / mu. Both are right to 1e-9 of delta, to 1e-300 and
less; what is returned is above delta by as much. Searches end at two numbers with none between,
of which the one on the safe side is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, exp, inf, nextafter, pi, sqrt

_SAFE = 1 + 2e-9


def delta_of(mu: float, epsilon: float) -> float:
    """Return delta of the Gaussian mechanism at epsilon >= 0, rounded up.

    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    """
    if mu == 0 or mu == inf:
        return 0.0 if mu == 0 else 1.0
    x, a = epsilon / mu, mu / 2 - epsilon / mu
    if mu < 1e-5:
        raw = _density(a) * mu * (1 - x * _mills(x))
    elif a < 0:
        raw = _density(a) * (_mills(-a) - _mills(mu - a))
    else:
        raw = erfc(-a / sqrt(2)) / 2 - _density(a) * _mills(mu - a)
    return min(1.0, max(0.0, raw) * _SAFE)


def _mills(x: float) -> float:
    from scipy.special import erfcx  # takes long to import

    return sqrt(pi / 2) * float(erfcx(x / sqrt(2)))


def _density(a: float) -> float:
    return exp(-a * a / 2) / sqrt(2 * pi)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 at which the mechanism has this delta, rounded up."""
    return smallest(lambda epsilon: delta_of(mu, epsilon) <= delta)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu that costs no more than (epsilon, delta), rounded down."""
    over = smallest(lambda mu: mu > 0 and delta_of(mu, epsilon) > delta)
    return nextafter(over, 0.0)


def smallest(holds: Callable[[float], bool]) -> float:
    """Return the smallest number >= 0 for which something holds that holds for all larger ones."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
        if high == inf:
            return inf
    while low == 0.0 and holds(high / 2):
        high /= 2
    low = max(low, high / 2)
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
