# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic over rows that belong to parties; nothing here loops over parties."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Layout(NamedTuple):
    """Where rows go so that parties are contiguous, training points before test points."""

    order: Ints  # [N] row of the source for each row of the result
    offsets: Ints  # [K+1]
    test_from: Ints  # [K]


def ranges(starts: Ints, stops: Ints) -> Ints:
    """Return starts[0]..stops[0]-1, starts[1]..stops[1]-1, and so on, as one array."""
    sizes = stops - starts
    ends = np.cumsum(sizes)
    shift: Ints = np.repeat(starts - ends + sizes, sizes)
    return shift + np.arange(len(shift))


def arrange(party: Ints, is_test: Bools, parties: int) -> Layout:
    """Lay rows out by party; rows of one party keep their order, training points come first."""
    order = np.lexsort((is_test, party))
    offsets = np.zeros(parties + 1, np.int64)
    np.cumsum(np.bincount(party, minlength=parties), out=offsets[1:])
    train = np.bincount(party[~is_test], minlength=parties)
    return Layout(order.astype(np.int64), offsets, offsets[:-1] + train)


def draw_test(
    party: Ints, strata: npt.NDArray[np.generic], fraction: float, rng: np.random.Generator
) -> Bools:
    """Draw a share of every party's rows, in proportion over its strata; return the mask [N].

    Systematic sampling along the party's rows sorted by stratum, ties at random: a party of n rows
    gives round(fraction n) of them, each stratum its share to within one row. A party with two
    rows or more keeps at least one row on each side.
    """
    ties = rng.random(len(party))
    return _systematic(party, strata, fraction, ties, rng.random(np.bincount(party).size))


def draw_own_test(
    party: Ints, strata: npt.NDArray[np.generic], fraction: float, rng: np.random.Generator
) -> Bools:
    """Draw as `draw_test` does, each party's rows as if they were the only ones.

    A party that has nothing but its own rows, in their order, draws the same ones.
    """
    sizes = np.bincount(party)
    start = np.full(len(sizes), rng.random())
    ties = np.empty(len(party))
    ties[np.argsort(party, kind="stable")] = rng.random(sizes.max(initial=0))[
        ranges(np.zeros_like(sizes), sizes)
    ]
    return _systematic(party, strata, fraction, ties, start)


def _systematic(
    party: Ints,
    strata: npt.NDArray[np.generic],
    fraction: float,
    ties: npt.NDArray[np.float64],
    start: npt.NDArray[np.float64],
) -> Bools:
    order = np.lexsort((ties, strata, party))
    sizes = np.bincount(party)
    take = np.floor(fraction * sizes + 0.5).astype(np.int64)
    if fraction > 0:
        take = np.where(sizes > 1, np.clip(take, 1, sizes - 1), 0)
    shift = np.floor(start * sizes).astype(np.int64)
    place = ranges(np.zeros_like(sizes), sizes)
    n, t, r = (np.repeat(v, sizes) for v in (sizes, take, shift))
    drawn = ((place + 1) * t + r) // n > (place * t + r) // n
    mask = np.zeros(len(party), np.bool_)
    mask[order] = drawn
    return mask
