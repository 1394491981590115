# SPDX-License-Identifier: Apache-2.0
"""Who has a turn in a round, where parties do not run all at once, and which turns run together.

Every party has a clock of its own that rings at random, once a round on average [Boyd 2006]. Those
clocks together are one that rings n times a round on average, each time for a party drawn at
random. Turns that do not touch each other change nothing of one another, so they run together to
the same result as one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from archipel import rng
from archipel.rng import Ints

_NEVER = np.iinfo(np.int64).max


def woken(seed: int, t: int, present: Ints) -> Ints:
    """The parties that wake in round t, in this order: some of them more than once.

    >>> woken(0, 3, np.array([4, 7])).tolist() == woken(0, 3, np.array([4, 7])).tolist()
    True
    """
    draw = rng.generator(seed, t, "wakes")
    rings = int(draw.poisson(len(present)))
    return present[draw.integers(len(present), size=rings)] if rings else present[:0]


def turns(order: Ints) -> Ints:
    """How often the party of each turn had one before, in this order.

    >>> turns(np.array([5, 2, 5, 5, 2])).tolist()
    [0, 0, 1, 2, 1]
    """
    by_party = np.argsort(order, kind="stable")
    sorted_order = order[by_party]
    starts = np.flatnonzero(np.r_[True, sorted_order[1:] != sorted_order[:-1]])
    lengths = np.diff(np.r_[starts, len(order)])
    before = np.empty(len(order), np.int64)
    before[by_party] = np.arange(len(order)) - np.repeat(starts, lengths)
    return before


def partners(seed: int, t: int, order: Ints, number: Ints, count: Ints) -> Ints:
    """Whom each that wakes meets: one of its neighbours, all as likely; -1 where it has none.

    `number` `[n, d]` has the neighbours of each party, `count` `[n]` how many.
    """
    if not len(order) or not number.shape[1]:
        return np.full(len(order), -1)
    chance = rng.generator(seed, t, "partners").random(len(order))
    place = (chance * count[order]).astype(np.int64)
    return np.where(count[order] > 0, number[order, place], -1)


def asked(seed: int, t: int, order: Ints, present: Ints, count: int) -> Ints:
    """Whom each that wakes asks: `count` others that are present, `[w, count]`; -1 where too few.

    >>> bool((asked(0, 1, np.array([3, 4]), np.arange(9), 4) != [[3], [4]]).all())
    True
    """
    draw = rng.generator(seed, t, "asked")
    many = len(present)
    if many <= 4 * (count + 1):
        ranks = np.argsort(draw.random((len(order), many)), axis=1)
        found = present[ranks]
        found = np.where(found == order[:, None], -1, found)
    else:  # more than are needed, of which the first that are new are taken
        found = present[draw.integers(many, size=(len(order), 2 * count + 16))]
        found = np.where(found == order[:, None], -1, found)
        for j in range(1, found.shape[1]):
            again = (found[:, :j] == found[:, j : j + 1]).any(axis=1)
            found[again, j] = -1
    empty_last = np.argsort(found < 0, axis=1, kind="stable")[:, :count]
    taken = np.take_along_axis(found, empty_last, axis=1)
    short = np.full((len(order), max(0, count - taken.shape[1])), -1)
    return np.concatenate([taken, short], axis=1)


def disjoint(touched: Ints) -> Iterator[Ints]:
    """Turns that touch other parties each, `[w, s]`, as blocks: each after all that it must follow.

    A turn is in the first block in which all that it touches is free. -1 touches nobody.

    >>> [block.tolist() for block in disjoint(np.array([[0, 1], [2, 3], [1, 2], [4, 5]]))]
    [[0, 1, 3], [2]]
    """
    left = np.arange(len(touched))
    first = np.full(int(touched.max(initial=-1)) + 2, _NEVER)  # the last place is for -1
    while len(left):
        rows = touched[left]
        first[:] = _NEVER
        np.minimum.at(first, rows.ravel(), np.repeat(left, rows.shape[1]))
        ready = ((first[rows] == left[:, None]) | (rows < 0)).all(axis=1)
        yield left[ready]
        left = left[~ready]


def independent(order: Ints, number: Ints) -> Iterator[Ints]:
    """Turns of parties that read what their neighbours `[n, d]` told, as blocks.

    A turn waits for those before it of the party itself and of its neighbours.

    >>> ring = (np.arange(6)[:, None] + [1, -1]) % 6
    >>> [block.tolist() for block in independent(np.array([0, 3, 1, 5, 3]), ring)]
    [[0, 1], [2, 3, 4]]
    """
    n = len(number)
    again = turns(order)
    rows = [np.full(n + 1, _NEVER) for _ in range(int(again.max(initial=-1)) + 2)]
    for turn in range(len(rows) - 1):
        those = np.flatnonzero(again == turn)
        rows[turn][order[those]] = those
    queue: NDArray[np.int64] = np.stack(rows)  # [turn, party]: the places of its turns, in order
    at, waits = np.zeros(n, np.int64), np.unique(order)
    head = queue[0].copy()  # of each party's next turn; the last place is for -1
    while len(waits):
        ready = head[waits] < head[number[waits]].min(axis=1, initial=_NEVER)
        found = waits[ready]
        yield np.sort(head[found])
        at[found] += 1
        head[found] = queue[at[found], found]
        waits = waits[head[waits] < _NEVER]
