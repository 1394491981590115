# SPDX-License-Identifier: Apache-2.0
"""Turns that run together give what they give one by one, so none may touch what another does."""

from __future__ import annotations

from itertools import combinations

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
def test_turns_of_a_block_read_nothing_that_another_writes(order: np.ndarray, seed: int) -> None:
    graph = erdos_renyi(12, 0.35, seed)
    near = [list(graph.neighbours(i)) for i in range(12)]
    blocks = schedule.independent(seed, 4, order, near)
    placed(blocks, len(order))

    for block in blocks:
        for a, b in combinations(order[block].tolist(), 2):
            assert a != b and a not in near[b]


@given(st.lists(st.lists(st.integers(-1, 8), min_size=3, max_size=3), max_size=25))
def test_turns_of_a_block_share_no_party(found: list[list[int]]) -> None:
    touched = np.array(found, np.int64).reshape(-1, 3)
    blocks = schedule.disjoint(0, 4, touched)
    placed(blocks, len(touched))

    for block in blocks:
        for a, b in combinations(touched[block].tolist(), 2):
            assert not set(a) & set(b) - {-1}


def test_of_two_turns_that_touch_each_other_either_is_first() -> None:
    chain = np.array([[0, 1], [1, 2], [2, 3], [3, 0]])
    first = np.zeros((4, 4))
    for t in range(400):
        where = placed(schedule.disjoint(0, t, chain), 4)
        first += where[:, None] < where

    for a, b in ((0, 1), (1, 2), (2, 3), (3, 0)):
        assert abs(first[a, b] - 200) < 4 * 10  # four standard deviations of 400 coins


@given(orders)
def test_turns_that_follow_each_other_keep_their_order(order: np.ndarray) -> None:
    where = placed(schedule.following(order), len(order))

    assert where.tolist() == [int((order[:at] == party).sum()) for at, party in enumerate(order)]


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
