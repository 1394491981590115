# SPDX-License-Identifier: Apache-2.0
"""What a promise means to a person: how often the best attack finds out who took part.

An attacker tests whether one record, or one party, was among the data. Of those that were not, it
accuses a part (false positives); of those that were, it finds a part (true positives).

- Whatever it does, (ε, δ) bounds the second by the first: TPR <= e^ε FPR + δ, and with the roles
  exchanged 1 − FPR <= e^ε (1 − TPR) + δ (Kairouz, Oh, Viswanath, ICML 2015,
  https://arxiv.org/abs/1311.0776).
- A promise about Gaussian noise says more: TPR <= Φ(Φ⁻¹(FPR) + mu) (Dong, Roth, Su, JRSS-B 2022,
  https://arxiv.org/abs/1905.02383).
- The releases themselves say most, by their whole curve: TPR <= min over ε of e^ε FPR + δ(ε).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log

import numpy as np
from scipy.special import ndtr, ndtri

from archipel.errors import ArchipelError
from archipel.privacy.accounting import Accountant, deltas
from archipel.privacy.analytic import mu_of
from archipel.privacy.release import Neighbours, Release

FALSE_ALARMS = 0.01  # the part of those who were not there that is accused


def found_at_most(epsilon: float, delta: float, false_alarms: float = FALSE_ALARMS) -> float:
    """The largest part of those who were there that any attack finds, by (ε, δ) alone.

    >>> round(found_at_most(1.0, 1e-5), 4)
    0.0272
    """
    _check(epsilon, delta, false_alarms)
    if epsilon > 700:
        return 1.0
    straight = exp(epsilon) * false_alarms + delta
    turned = 1 - exp(-epsilon) * (1 - delta - false_alarms)
    return min(straight, turned, 1.0)


def found_through_gaussian(mu: float, false_alarms: float = FALSE_ALARMS) -> float:
    """The largest part that is found through Gaussian noise: mu deviations between neighbours.

    >>> round(found_through_gaussian(0.5), 4)
    0.0339
    """
    return float(ndtr(ndtri(false_alarms) + mu))


def found_in(
    releases: Sequence[Release],
    false_alarms: float = FALSE_ALARMS,
    accountant: Accountant = "pld",
    neighbours: Neighbours = "add_or_remove",
) -> float:
    """The largest part that is found through these releases, by their whole curve."""
    _check(0.0, 0.5, false_alarms)
    at = np.linspace(0.0, -log(false_alarms), 256)
    found = np.exp(at) * false_alarms + np.array(deltas(releases, at, accountant, neighbours))
    return min(float(found.min()), 1.0)


def in_words(
    epsilon: float,
    delta: float,
    unit: str = "record",
    found: float | None = None,
    false_alarms: float = FALSE_ALARMS,
) -> str:
    """One sentence on what (ε, δ) means; `found` as the releases say it, else as Gaussian noise.

    >>> print(in_words(2.0, 1e-5))
    An attacker who knows all other data, and accuses 1 in 100 records that were not used, finds \
at most 3.5 in 100 that were; by guessing it finds 1 in 100.
    """
    most = found_at_most(epsilon, delta, false_alarms)
    if epsilon == inf:
        most = 1.0
    elif found is None:
        most = min(most, found_through_gaussian(mu_of(epsilon, delta), false_alarms))
    else:
        most = min(most, found)
    few = _of_hundred(false_alarms)
    return (
        f"An attacker who knows all other data, and accuses {few} in 100 {several(unit)} that "
        f"were not used, finds at most {_of_hundred(most)} in 100 that were; by guessing it finds "
        f"{few} in 100."
    )


def several(unit: str) -> str:
    """More than one of what is protected."""
    return "parties" if unit == "party" else f"{unit}s"


def _of_hundred(part: float) -> str:
    """A part as a number of 100, rounded up at the tenths.

    >>> _of_hundred(0.0301), _of_hundred(0.99991), _of_hundred(0.01)
    ('3.1', '100', '1')
    """
    return f"{min(np.ceil(round(part * 1000, 6)) / 10, 100):g}"


def _check(epsilon: float, delta: float, false_alarms: float) -> None:
    if not epsilon >= 0:
        raise ArchipelError(f"epsilon = {epsilon!r}: give a number from 0.")
    if not 0 <= delta < 1:
        raise ArchipelError(f"delta = {delta!r}: give a number from 0 and below 1.")
    if not 0 < false_alarms < 1:
        raise ArchipelError(f"false_alarms = {false_alarms!r}: give a number between 0 and 1.")
