# SPDX-License-Identifier: Apache-2.0
"""Coefficients of a banded Toeplitz C with the least error, and which kind of noise is the best.

McKenna, https://arxiv.org/abs/2405.15913: the error of all prefix sums at equal ε is
sens(C)² · Σ_t (T − t) g_t², with g = C⁻¹ w and w the workload, and both factors have a gradient in
c that costs as much as they do. L-BFGS from the square root of the workload of prefix sums,
c_j = (2j choose j) / 4^j, which is the best there is for the largest error
(Fichtenberger, Henzinger, Upadhyay, ICML 2023, https://arxiv.org/abs/2202.11205).

Gradients: C g = w, and Toeplitz matrices commute, so ∂g_t/∂c_i = −h_(t−i) with h = C⁻¹ g.
sens² = |s|² with s the sum of C's columns 0, b, 2b …, so ∂/∂c_i = 2 Σ_j s_(i+jb).

Departures: the search is among falling c alone, c_i = Σ_(l>=i) d_l with d >= 0. Their sensitivity
is exact for all participations, and C⁻¹ does not grow [Eneström, Kakeya].
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from archipel.errors import ArchipelError
from archipel.privacy.correlated import (
    Participation,
    Strategy,
    Toeplitz,
    Tree,
    column_sum,
    error,
    independent,
    inverse,
    workload,
)
from archipel.privacy.curves import Array

_WIDEST = 16  # coefficients, unless a study says how many: each but one keeps a vector


class Choice(NamedTuple):
    """A kind of noise, and its error at mu = 1 beside that of others."""

    name: str
    strategy: Strategy
    errors: dict[str, float]


def square_root(band: int) -> Array:
    """c_j = (2j choose j) / 4^j: C² is the matrix of prefix sums.

    >>> square_root(4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    j = np.arange(1, band)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])


def banded(who: Participation, band: int, momentum: float = 0.0) -> Toeplitz:
    """The Toeplitz C of `band` coefficients with the least error."""
    from scipy.optimize import minimize

    if not 1 <= band <= who.rounds:
        raise ArchipelError(
            f"band = {band!r}: give a whole number from 1 to the number of rounds, {who.rounds}."
        )
    if band == 1:
        return independent()
    w, begin = workload(who.rounds, momentum), square_root(band)

    def loss(d: Array) -> tuple[float, Array]:
        value, gradient = _log_error(_falling(d), who, w)
        return value, np.cumsum(gradient)

    found = minimize(
        loss,
        begin - np.append(begin[1:], 0.0),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (band - 1) + [(1e-9, None)],
        options={"maxiter": 1000, "maxfun": 5000, "ftol": 1e-12, "gtol": 1e-8},
    )
    c = _falling(found.x)
    return Toeplitz(tuple(float(each) for each in c / c[0]))


def _falling(d: Array) -> Array:
    return np.asarray(np.cumsum(d[::-1])[::-1])


def _log_error(c: Array, who: Participation, w: Array) -> tuple[float, Array]:
    """ln(sens² Σ (T − t) g²), and its gradient in c."""
    T, b = who.rounds, who.separation
    s = column_sum(c, who)
    g = inverse(tuple(c), w)
    h = inverse(tuple(c), g)
    left = np.arange(T, 0, -1) * g
    square, total = float(s @ s), float(left @ g)
    of_square = np.array([s[i : i + b * who.times : b].sum() for i in range(len(c))])
    of_total = -np.array([left[i:] @ h[: T - i] for i in range(len(c))])
    return float(np.log(square) + np.log(total)), 2 * of_square / square + 2 * of_total / total


def best(who: Participation, rows: int = 32, momentum: float = 0.0) -> Choice:
    """The noise with the least error for these participations that keeps at most so many rows.

    >>> choice = best(Participation(rounds=64, most=1))
    >>> choice.name
    'banded 33'
    """
    if rows < 0:
        raise ArchipelError(f"rows = {rows!r}: give a whole number from 0.")
    widths = {2**i for i in range(1, 20)} | {who.separation, rows + 1}
    bands = sorted(band for band in widths if 2 <= band <= min(rows + 1, who.rounds))
    found: dict[str, Strategy] = {"independent": independent()}
    if who.rounds.bit_length() <= rows:
        found["tree"] = Tree(who.rounds)
    found |= {f"banded {band}": banded(who, band, momentum) for band in bands}
    errors = {name: error(each, who, momentum) for name, each in found.items()}
    name = min(errors, key=errors.__getitem__)
    return Choice(name, found[name], errors)


@lru_cache(maxsize=4096)
def strategy_of(kind: str, who: Participation) -> Strategy:
    """What `privacy.correlated` names, for these participations.

    "banded" is the best of up to 16 coefficients, "banded:8" has 8, or one for every round.

    >>> strategy_of("tree", Participation(100))
    Tree(rounds=100)
    """
    name, _, band = kind.partition(":")
    if name == "tree":
        return Tree(who.rounds)
    if band:
        return banded(who, min(int(band), who.rounds))
    widths = {2**i for i in range(_WIDEST.bit_length())} | {who.separation}
    tried = [banded(who, each) for each in sorted(widths) if each <= min(_WIDEST, who.rounds)]
    return min(tried, key=lambda each: error(each, who))


def called(strategy: Strategy) -> str:
    """The name of a strategy, as `privacy.correlated` has it.

    >>> called(independent())
    'banded:1'
    """
    return f"banded:{len(strategy.coefficients)}" if isinstance(strategy, Toeplitz) else "tree"
