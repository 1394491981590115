# SPDX-License-Identifier: Apache-2.0
"""What releases that are ε_t-private each cost together, by closed forms.

Kairouz, Oh, Viswanath, ICML 2015, https://arxiv.org/abs/1311.0776, Theorem 3.5: for any δ from 0,
all together are (ε, δ)-private with ε the least of

    Σ ε_t,
    Σ ε_t (e^ε_t - 1) / (e^ε_t + 1) + sqrt(2 Σ ε_t² log(e + sqrt(Σ ε_t²) / δ)),
    Σ ε_t (e^ε_t - 1) / (e^ε_t + 1) + sqrt(2 Σ ε_t² log(1 / δ)).

It is what Theorem 1 of Bellet et al., AISTATS 2018, https://arxiv.org/abs/1705.08435, counts T_i
wake-ups of a party by. Privacy-loss distributions (`accounting.py`) know that the noise is Laplace
noise and never say more, so they are what is counted here; the closed forms are told beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import e, fsum, inf, log, sqrt, tanh
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.privacy.release import DISTANCE, Laplace, Neighbours, Pure, Release


class Composed(NamedTuple):
    """ε of all releases at one δ, by each way to count; inf where δ = 0 and a way needs more."""

    sum: float  # basic composition: holds at δ = 0
    optimal: float  # by the theorem's form for a small δ
    kairouz: float  # by its other form
    pld: float  # by privacy-loss distributions; inf where they were not asked

    @property
    def least(self) -> float:
        return min(self)

    @property
    def by(self) -> str:
        """The way that says the least."""
        return self._fields[self.index(self.least)]


def kairouz(epsilons: Sequence[float], delta: float) -> Composed:
    """The three terms of the theorem, of releases that cost ε_t each.

    >>> round(kairouz([0.1] * 10, delta=0.0067).least, 4)
    0.9343
    >>> round(kairouz([0.1] * 200, delta=0.0067).least, 4)
    5.4738
    """
    if any(not each >= 0 for each in epsilons):
        raise ArchipelError(f"epsilons = {[*epsilons]}: give numbers from 0.")
    if not 0 <= delta < 1:
        raise ArchipelError(f"delta = {delta!r}: give a number from 0 and below 1.")
    total, squares = fsum(epsilons), fsum(each * each for each in epsilons)
    if delta == 0 or total == inf:
        return Composed(total, inf, inf, inf)
    drift = fsum(each * tanh(each / 2) for each in epsilons)  # (e^a - 1) / (e^a + 1) = tanh(a / 2)
    return Composed(
        total,
        drift + sqrt(2 * squares * log(e + sqrt(squares) / delta)),
        drift + sqrt(2 * squares * log(1 / delta)),
        inf,
    )


def composed(
    releases: Sequence[Release], delta: float, neighbours: Neighbours = "add_or_remove"
) -> Composed | None:
    """What Laplace noise that everybody's contribution gets costs, by each way; None of others."""
    from archipel.privacy.accounting import epsilon

    far, epsilons = DISTANCE[neighbours], list[float]()
    for each in releases:
        if each.rate < 1:
            return None
        match each.mechanism:
            case Laplace(noise):
                epsilons += [far / noise] * each.times if noise else [inf]
            case Pure(one):
                epsilons += [far * one] * each.times
            case _:
                return None
    return kairouz(epsilons, delta)._replace(
        pld=epsilon(releases, delta, neighbours=neighbours) if delta else inf
    )
