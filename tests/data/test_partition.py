# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archipel.data.partition import assign, deal_test, parse_spec
from archipel.errors import ArchipelError

from .strategies import QUICK

SPECS = ("iid", "shards:1", "shards:2", "dirichlet:0.1", "dirichlet:5:2", "quantity:0.5",
         "similarity:0", "similarity:37.5", "similarity:100")  # fmt: skip


@QUICK
@given(st.sampled_from(SPECS), st.integers(1, 12), st.integers(30, 200), st.integers(0, 9))
def test_every_point_has_one_party_and_no_party_is_empty(
    spec: str, parties: int, points: int, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, 4, points)

    party = assign(labels, spec, parties, seed)

    assert party.shape == (points,) and party.dtype == np.int64
    assert np.bincount(party, minlength=parties).min() >= 1
    assert party.max() < parties
    assert np.array_equal(party, assign(labels, spec, parties, seed))


@QUICK
@given(st.sampled_from(SPECS[:3] + SPECS[6:]), st.integers(1, 12), st.integers(30, 200))
def test_sizes_are_even(spec: str, parties: int, points: int) -> None:
    labels = np.arange(points) % 5
    sizes = np.bincount(assign(labels, spec, parties), minlength=parties)

    spread = 2 if spec == "shards:2" else 1  # one a shard
    assert sizes.max() - sizes.min() <= spread


@QUICK
@given(st.integers(0, 99))
def test_shards_of_one_label_each(seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(10), 20))

    party = assign(labels, "shards:2", 10, seed)  # 20 shards of 10 points, two a label

    kinds = [len(np.unique(labels[party == k])) for k in range(10)]
    assert max(kinds) <= 2
    assert np.bincount(party).tolist() == [20] * 10


def test_seeds_differ() -> None:
    labels = np.arange(100) % 10
    for spec in SPECS:
        if spec != "similarity:0":  # nothing to draw
            assert not np.array_equal(assign(labels, spec, 5, 0), assign(labels, spec, 5, 1))


def test_similarity_shares_so_much() -> None:
    labels = np.repeat(np.arange(10), 100)

    sorted_only = assign(labels, "similarity:0", 10)
    tenth = assign(labels, "similarity:10", 10)

    assert sorted_only.tolist() == labels.tolist()
    at_home = (tenth == labels).mean()
    assert 0.85 < at_home < 0.97  # 90 % sorted, some of it displaced by the shuffled tenth


def test_dirichlet_concentration_sets_the_skew() -> None:
    labels = np.arange(10000) % 10

    def largest_share(spec: str) -> float:
        party = assign(labels, spec, 20)
        table = np.zeros((20, 10))
        np.add.at(table, (party, labels), 1)
        return float((table.max(axis=1) / table.sum(axis=1)).mean())

    assert largest_share("dirichlet:0.05") > 0.6
    assert largest_share("dirichlet:1000") < 0.15


def test_quantity_skews_sizes_not_labels() -> None:
    labels = np.arange(20000) % 2
    party = assign(labels, "quantity:0.5", 10)

    sizes = np.bincount(party)
    assert sizes.max() > 4 * sizes.min()
    big = sizes > 500
    assert np.abs(np.bincount(party, labels)[big] / sizes[big] - 0.5).max() < 0.1


def test_least_size_is_kept_with_many_parties() -> None:
    party = assign(np.arange(2000) % 10, "dirichlet:0.01:3", 500)

    assert np.bincount(party, minlength=500).min() >= 3


@QUICK
@given(st.integers(1, 9), st.integers(0, 99), st.integers(0, 80))
def test_test_points_follow_the_training_mix(parties: int, seed: int, points: int) -> None:
    rng = np.random.default_rng(seed)
    labels, party = rng.integers(0, 4, 60), rng.integers(0, parties, 60)
    test_labels = rng.integers(0, 6, points)  # classes 4 and 5 are in nobody's training points

    owner = deal_test(labels, party, test_labels, parties, seed)

    assert owner.shape == (points,)
    assert points == 0 or 0 <= owner.min() <= owner.max() < parties
    for c in range(6):
        base = party[labels == c] if c < 4 and (labels == c).any() else party
        quota = (test_labels == c).sum() * np.bincount(base, minlength=parties) / len(base)
        dealt = np.bincount(owner[test_labels == c], minlength=parties)
        assert np.abs(dealt - quota).max() < 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("dirichle:1", "did you mean 'dirichlet'"),
        ("shards", "shards per party"),
        ("shards:0", "1, 2, 3"),
        ("shards:1.5", "1, 2, 3"),
        ("shards:two", "'two' is not a number"),
        ("iid:3", "takes no number"),
        ("dirichlet:0", "above 0"),
        ("dirichlet:nan", "above 0"),
        ("dirichlet:1:-1", "least size"),
        ("similarity:101", "between 0 and 100"),
        ("by:hospital", "from_frame"),
    ],
)
def test_bad_specs_say_what_to_write(spec: str, words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "parties", "words"),
    [
        ("iid", 0, "at least one party"),
        ("iid", 11, "at most 10"),
        ("shards:3", 4, "ask for shards:2 or at most 3 parties"),
        ("shards:500", 4, "ask for shards:2.$"),
        ("dirichlet:1:4", 3, "at most 2 parties"),
    ],
)
def test_impossible_partitions_give_the_remedy(spec: str, parties: int, words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        assign(np.zeros(10, np.int64), spec, parties)


def test_dirichlet_needs_classes() -> None:
    with pytest.raises(ArchipelError, match="not classes"):
        assign(np.linspace(0, 1, 10), "dirichlet:1", 2)
