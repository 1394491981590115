# SPDX-License-Identifier: Apache-2.0
"""Turns that run together give what they give one by one, so their order must be kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from archipel.engines import schedule
from archipel.graphs import erdos_renyi, topology

orders = st.lists(st.integers(0, 11), max_size=40).map(lambda found: np.array(found, np.int64))


def placed(blocks: list[np.ndarray], count: int) -> np.ndarray:
    """In which block each turn is: every turn in one."""
    where = np.full(count, -1)
    for at, block in enumerate(blocks):
        assert (where[block] == -1).all()
        where[block] = at
    assert (where >= 0).all()
    return where


@given(orders, st.integers(0, 5))
def test_turns_that_read_neighbours_keep_their_order(order: np.ndarray, seed: int) -> None:
    graph = erdos_renyi(12, 0.35, seed)
    rows = [graph.neighbours(i) for i in range(12)]
    number = np.full((12, max(map(len, rows))), -1)
    for i, row in enumerate(rows):
        number[i, : len(row)] = row
    where = placed(list(schedule.independent(order, number)), len(order))

    for b, later in enumerate(order):
        for a, earlier in enumerate(order[:b]):
            if earlier == later or earlier in rows[later]:
                assert where[a] < where[b]


@given(st.lists(st.lists(st.integers(-1, 8), min_size=3, max_size=3), max_size=25))
def test_turns_that_share_a_party_keep_their_order(found: list[list[int]]) -> None:
    touched = np.array(found, np.int64).reshape(-1, 3)
    where = placed(list(schedule.disjoint(touched)), len(touched))

    for b in range(len(touched)):
        for a in range(b):
            if set(touched[a]) & set(touched[b]) - {-1}:
                assert where[a] < where[b]


@given(orders)
def test_turns_are_counted(order: np.ndarray) -> None:
    expected = [int((order[:at] == party).sum()) for at, party in enumerate(order)]

    assert schedule.turns(order).tolist() == expected


@given(st.integers(2, 60), st.integers(1, 8), st.integers(0, 3))
def test_those_that_are_asked_are_others_and_differ(n: int, count: int, seed: int) -> None:
    present = np.arange(0, 2 * n, 2)
    order = schedule.woken(seed, 1, present)
    found = schedule.asked(seed, 1, order, present, count)

    for party, row in zip(order, found, strict=True):
        there = row[row >= 0]
        assert len(set(there)) == len(there) == min(count, n - 1)
        assert party not in there
        assert set(there) <= set(present)


def test_clocks_ring_once_a_round_on_average_and_alike_for_all() -> None:
    rings = np.concatenate([schedule.woken(0, t, np.arange(20)) for t in range(500)])
    counts = np.bincount(rings, minlength=20)

    assert abs(len(rings) - 10_000) < 4 * 100  # four standard deviations of Poisson(10,000)
    assert np.abs(counts - 500).max() < 4.5 * 500**0.5


def test_partners_are_neighbours() -> None:
    ring = topology("ring", 6)
    number = np.array([ring.neighbours(i) for i in range(6)])
    order = np.tile(np.arange(6), 200)
    found = schedule.partners(0, 0, order, number, np.full(6, 2))

    assert all(other in ring.neighbours(party) for party, other in zip(order, found, strict=True))
    assert abs((found == number[order, 0]).mean() - 0.5) < 0.06
