# SPDX-License-Identifier: Apache-2.0
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from archipel.data.rows import arrange, draw_own_test, draw_test, ranges

from .strategies import QUICK

ASSIGNMENTS = st.lists(st.integers(0, 5), min_size=1, max_size=60)


def test_ranges_concatenates() -> None:
    starts, stops = np.array([3, 9, 4]), np.array([5, 9, 7])

    assert ranges(starts, stops).tolist() == [3, 4, 4, 5, 6]


@QUICK
@given(ASSIGNMENTS, st.integers(0, 99))
def test_arrange_is_a_stable_permutation(owners: list[int], seed: int) -> None:
    party = np.array(owners)
    is_test = np.random.default_rng(seed).random(len(party)) < 0.4

    order, offsets, test_from = arrange(party, is_test, 6)

    assert sorted(order) == list(range(len(party)))
    for k in range(6):
        train, test = order[offsets[k] : test_from[k]], order[test_from[k] : offsets[k + 1]]
        assert train.tolist() == np.flatnonzero((party == k) & ~is_test).tolist()
        assert test.tolist() == np.flatnonzero((party == k) & is_test).tolist()


@QUICK
@given(ASSIGNMENTS, st.floats(0.01, 0.99), st.integers(0, 99))
def test_draw_test_keeps_shares_of_parties_and_classes(
    owners: list[int], fraction: float, seed: int
) -> None:
    party = np.array(owners)
    labels = np.random.default_rng(seed).integers(0, 3, len(party))

    mask = draw_test(party, labels, fraction, np.random.default_rng(seed))

    for k in np.unique(party):
        n, drawn = (party == k).sum(), mask[party == k].sum()
        wanted = np.floor(fraction * n + 0.5)
        assert drawn == (0 if n == 1 else np.clip(wanted, 1, n - 1))
        for c in range(3):
            of = (party == k) & (labels == c)
            assert abs(mask[of].sum() - drawn / n * of.sum()) <= 1


@QUICK
@given(ASSIGNMENTS, st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_party_alone_draws_what_it_draws_among_others(
    owners: list[int], fraction: float, seed: int
) -> None:
    party = np.array(owners)
    labels = np.random.default_rng(seed).integers(0, 3, len(party))

    mask = draw_own_test(party, labels, fraction, np.random.default_rng(seed))

    for k in np.unique(party):
        mine = labels[party == k]
        alone = draw_own_test(
            np.zeros(len(mine), np.int64), mine, fraction, np.random.default_rng(seed)
        )
        assert mask[party == k].tolist() == alone.tolist()
        assert len(mine) == 1 or 0 < alone.sum() < len(mine)
