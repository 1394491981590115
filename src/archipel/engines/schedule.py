# SPDX-License-Identifier: Apache-2.0
"""Who has a turn in a round, where parties do not run all at once, and which turns run together.

Every party has a clock of its own that rings at random, once a round on average [Boyd 2006]. Those
clocks together are one that rings n times a round on average, each time for a party drawn at
random. Turns that do not touch each other change nothing of one another, so they run together, in
a block, to the same result as one by one.

Blocks are few and large: turn by turn, as the clocks ring, each goes into the first block where it
touches nobody; then the blocks are put into a random order. So who wakes how often is as the clocks
say, and of two turns that touch each other either is first with the same chance, as by the clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from archipel import rng
from archipel.rng import Ints


def woken(seed: int, t: int, present: Ints) -> Ints:
    """The parties that wake in round t, in this order: some of them more than once.

    >>> woken(0, 3, np.array([4, 7])).tolist() == woken(0, 3, np.array([4, 7])).tolist()
    True
    """
    draw = rng.generator(seed, t, "wakes")
    rings = int(draw.poisson(len(present)))
    return present[draw.integers(len(present), size=rings)] if rings else present[:0]


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
    """Whom each that wakes asks: `count` others that are present, or all, where they are fewer.

    >>> bool((asked(0, 1, np.array([3, 4]), np.arange(9), 4) != [[3], [4]]).all())
    True
    """
    draw = rng.generator(seed, t, "asked")
    many = len(present)
    if many <= 4 * (count + 1):
        ranked = present[np.argsort(draw.random((len(order), many)), axis=1)]
        others: Ints = ranked[ranked != order[:, None]].reshape(len(order), many - 1)[:, :count]
        return others
    found, again = np.zeros((len(order), count), np.int64), np.arange(len(order))
    while len(again):  # who asks one twice, or itself, draws anew
        found[again] = present[draw.integers(many, size=(len(again), count))]
        row = np.sort(np.concatenate([order[again, None], found[again]], axis=1), axis=1)
        again = again[(row[:, 1:] == row[:, :-1]).any(axis=1)]
    return found


def disjoint(seed: int, t: int, touched: Ints) -> list[Ints]:
    """Blocks of turns that touch these parties `[w, s]`: in a block, each touches others.

    -1 touches nobody.

    >>> sorted(b.tolist() for b in disjoint(0, 3, np.array([[0, 1], [2, 3], [1, 2], [4, 5]])))
    [[0, 1, 3], [2]]
    """
    turns = ((row, row) for row in touched.tolist())
    return _blocks(seed, t, turns, int(touched.max(initial=-1)) + 1)


def independent(seed: int, t: int, order: Ints, near: Sequence[Sequence[int]]) -> list[Ints]:
    """Blocks of turns of parties that read what their neighbours told.

    In a block, nobody has two turns, nor has a turn beside one of a neighbour.

    >>> ring = [[(k - 1) % 6, (k + 1) % 6] for k in range(6)]
    >>> sorted(block.tolist() for block in independent(0, 3, np.array([0, 3, 1, 5, 3]), ring))
    [[0, 1], [2, 3, 4]]
    """
    turns = (((k, *near[k]), (k,)) for k in order.tolist())
    return _blocks(seed, t, turns, len(near))


def following(order: Ints) -> list[Ints]:
    """Blocks of turns of these parties that keep their order: in a block, nobody has two.

    >>> [block.tolist() for block in following(np.array([5, 2, 5, 5, 2]))]
    [[0, 1], [2, 4], [3]]
    """
    by_party = np.argsort(order, kind="stable")
    first = np.r_[True, np.diff(order[by_party]) != 0]
    starts = np.flatnonzero(first)
    before = np.empty(len(order), np.int64)  # turns of the same party
    before[by_party] = np.arange(len(order)) - starts[np.cumsum(first) - 1]
    return [np.flatnonzero(before == turn) for turn in range(int(before.max(initial=-1)) + 1)]


def _blocks(
    seed: int, t: int, turns: Iterable[tuple[Sequence[int], Sequence[int]]], n: int
) -> list[Ints]:
    """Blocks of turns, each of which reads what is of some of n parties and marks what is of some.

    Where a turn reads what another marks, that one reads what this one marks, too.
    """
    marks = [0] * (n + 1)  # of each party, a bit for every block with a turn that marks it; of -1
    found: list[int] = []
    for read, marked in turns:
        taken = 0
        for party in read:
            taken |= marks[party]
        free = ~taken & (taken + 1)  # the lowest bit that is 0
        for party in marked:
            marks[party] |= free
        marks[n] = 0
        found.append(free.bit_length() - 1)
    if not found:
        return []
    block = np.array(found, np.int64)
    blocks = np.split(np.argsort(block, kind="stable"), np.cumsum(np.bincount(block))[:-1])
    return [blocks[i] for i in rng.generator(seed, t, "blocks").permutation(len(blocks))]
