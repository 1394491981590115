# SPDX-License-Identifier: Apache-2.0
"""Shapley values of a game: exact for few players, else by permutations that are broken off.

Shapley 1953; truncated Monte Carlo: Ghorbani, Zou, ICML 2019, https://arxiv.org/abs/1904.02868,
Algorithm 1; of the rounds of a federation: Liu et al. (GTG-Shapley), ACM TIST 2022,
https://arxiv.org/abs/2109.02053.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel.errors import ArchipelError

Floats = NDArray[np.float64]
Value = Callable[[frozenset[int]], float]  # of a coalition of players

EXACT = 8  # players up to which all coalitions are looked at: 2^m


class Values(NamedTuple):
    """What each player is worth, and how sure that is."""

    shapley: Floats  # [m]
    variance: Floats  # [m] of the estimate; 0 where it is exact
    alone: Floats  # [m] leave-one-out: v(all) - v(all but one)
    evaluated: int  # coalitions
    total: float  # v(all) - v(nobody)


def values(
    value: Value,
    m: int,
    draw: np.random.Generator,
    permutations: int = 50,
    tolerance: float = 0.01,
) -> Values:
    """Shapley and leave-one-out values of a game of m players.

    A permutation is broken off once what is left can change less than `tolerance` of the whole.

    >>> found = values(lambda who: float(len(who)), 3, np.random.default_rng(0))
    >>> found.shapley.tolist(), found.evaluated
    ([1.0, 1.0, 1.0], 8)
    """
    known: dict[frozenset[int], float] = {}

    def of(who: frozenset[int]) -> float:
        if who not in known:
            known[who] = value(who)
        return known[who]

    if permutations < 2:
        raise ArchipelError(f"permutations = {permutations}: give 2 or more, to know their spread.")
    everybody = frozenset(range(m))
    alone = np.array([of(everybody) - of(everybody - {i}) for i in range(m)])
    whole, nothing = of(everybody), of(frozenset())
    if m <= EXACT:
        return Values(_exact(of, m), np.zeros(m), alone, len(known), whole - nothing)
    close = tolerance * abs(whole - nothing)
    marginals = np.zeros((permutations, m))
    for row in marginals:
        before, who = nothing, frozenset[int]()
        for i in draw.permutation(m).tolist():
            if abs(whole - before) <= close:
                break
            who |= {i}
            row[i] = of(who) - before
            before = of(who)
    variance = marginals.var(axis=0, ddof=1) / permutations
    return Values(marginals.mean(axis=0), variance, alone, len(known), whole - nothing)


def _exact(of: Value, m: int) -> Floats:
    """sum over S without i of |S|! (m - |S| - 1)! / m! (v(S and i) - v(S))."""
    found = np.zeros(m)
    for code in range(2**m):
        who = frozenset(i for i in range(m) if code >> i & 1)
        for i in set(range(m)) - who:
            found[i] += (of(who | {i}) - of(who)) / (m * comb(m - 1, len(who)))
    return found
