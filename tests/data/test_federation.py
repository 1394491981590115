# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archipel.data import Federation
from archipel.errors import ArchipelError

from .strategies import QUICK, federations, rows_of


def small(**changes: Any) -> Federation:
    fields: dict[str, Any] = {
        "x": torch.zeros(5, 2),
        "y": torch.tensor([0, 1, 0, 1, 1]),
        "offsets": torch.tensor([0, 3, 5]),
        "test_from": torch.tensor([2, 4]),
        "training": 2,
        "task": "classification",
        "classes": 2,
        "names": ("a", "b"),
    }
    return Federation(**{**fields, **changes})


def test_sizes_and_views() -> None:
    fed = small()
    x, y, x_test, y_test = fed.party("a")

    assert (fed.parties, len(fed), fed.shape) == (2, 2, (2,))
    assert fed.n.tolist() == [2, 1] and fed.n_test.tolist() == [1, 1]
    assert y.tolist() == [0, 1] and y_test.tolist() == [0]
    assert x.data_ptr() == fed.x.data_ptr() and len(x_test) == 1  # no copy
    assert fed.name(1) == "b" and replace(fed, names=None).name(1) == "1"
    assert "2 parties, 3 training and 2 test points" in repr(fed)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offsets": torch.tensor([0])}, "at least one party"),
        ({"offsets": torch.tensor([0.0, 3, 5])}, "int64"),
        ({"offsets": torch.tensor([0, 3, 4])}, "number of rows, 5"),
        ({"offsets": torch.tensor([1, 3, 5])}, "from 0"),
        ({"offsets": torch.tensor([0, 6, 5])}, "fall at party 1"),
        ({"test_from": torch.tensor([2])}, "one row per party"),
        ({"test_from": torch.tensor([4, 4])}, "outside the rows of party 0"),
        ({"training": 3}, "training=3"),
        ({"names": ("a",)}, "1 entries for 2 parties"),
        ({"names": ("a", "a")}, "'a' names two parties"),
        ({"task": "clasification"}, "did you mean 'classification'"),
        ({"classes": 0}, "number of classes"),
        ({"y": torch.zeros(4, dtype=torch.int64)}, "4 rows but x has 5"),
        ({"y": torch.zeros(5)}, "int64 classes"),
        ({"x": torch.zeros(5, 2).half()}, "float16"),
        ({"y": torch.tensor([0, 1, 0, 1, 2])}, "party 'b' has label 2, outside 0..1"),
        ({"y": torch.tensor([0, -1, 0, 1, 1])}, "party 'a' has label -1"),
        ({"x": torch.tensor([[0, 0]] * 4 + [[0, NAN]])}, "party 'b': x has nan in column 1"),
        ({"x": torch.tensor([[INF, 0.0]] * 5), "columns": ("age", "sex")}, "inf in column 'age'"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ArchipelError, match=words) as caught:
        small(**changes)

    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([[-1.0, 0]], "negative time"),
        ([[1.0, 2]], "not 0 or 1"),
        ([[NAN, 1]], "y has nan"),
    ],
)
def test_wrong_survival_targets_are_named(y: list[list[float]], words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        small(y=torch.tensor(y * 5), task="survival", classes=0)


def test_empty_parties_are_allowed() -> None:
    fed = small(offsets=torch.tensor([0, 0, 5]), test_from=torch.tensor([0, 4]))

    assert fed.n.tolist() == [0, 4]
    assert fed.owner(0) == 1
    assert fed.validation(0.5).n.tolist() == [0, 2]


@QUICK
@given(federations(), st.floats(0, 0.9), st.integers(0, 9))
def test_splits_keep_every_row_with_its_party(fed: Federation, share: float, seed: int) -> None:
    again, tuning = fed.split_test(share, seed), fed.validation(share, seed)

    for k in range(fed.parties):
        train, test = rows_of(fed, k)
        assert set.union(*rows_of(again, k)) == train | test
        assert set.union(*rows_of(tuning, k)) == train
    assert again.training == tuning.training == fed.training
    assert torch.equal(again.x, fed.split_test(share, seed).x)


@QUICK
@given(federations(), st.integers(0, 99))
def test_select_keeps_parties_whole(fed: Federation, seed: int) -> None:
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(fed.parties)[: rng.integers(1, fed.parties + 1)]

    part = fed.select(chosen)

    names = {fed.name(int(k)): int(k) for k in chosen}
    assert part.parties == len(chosen)
    assert part.training == (chosen < fed.training).sum()
    for k in range(part.parties):
        assert rows_of(part, k) == rows_of(fed, names[part.name(k)])
        assert (k < part.training) == (names[part.name(k)] < fed.training)


@QUICK
@given(federations(), st.integers(0, 9))
def test_with_new_moves_training_parties_to_the_end(fed: Federation, seed: int) -> None:
    count = fed.training - 1
    moved = fed.with_new(count, seed)

    assert (moved.training, moved.parties) == (1, fed.parties)
    assert {moved.name(k) for k in range(moved.parties)} == {
        fed.name(k) for k in range(fed.parties)
    }
    for k in range(moved.parties):
        assert rows_of(moved, k) == rows_of(fed, fed.index(moved.name(k)))


@QUICK
@given(federations())
def test_pooled_holds_all_training_parties(fed: Federation) -> None:
    pool = fed.pooled()
    parts = [rows_of(fed, k) for k in range(fed.training)]

    assert (pool.training, pool.parties) == (1, 1 + fed.parties - fed.training)
    assert rows_of(pool, 0) == (
        set().union(*(train for train, _ in parts)),
        set().union(*(test for _, test in parts)),
    )


@QUICK
@given(federations(least=2), st.sampled_from(["iid", "dirichlet:0.5", "similarity:50"]))
def test_repartition_keeps_train_and_test_apart(fed: Federation, spec: str) -> None:
    train, test = rows_of(fed.pooled(), 0)
    if not train:
        return
    parties = min(3, len(train))
    again = fed.repartition(spec, parties, seed=1)

    assert again.parties == again.training == parties
    assert rows_of(again.pooled(), 0) == (train, test)
    assert int(again.n.sum()) == len(train) and int(again.n_test.sum()) == len(test)


def test_standardised_by_training_points_of_training_parties_only() -> None:
    x = torch.randn(60, 3, dtype=torch.float64) * 4 + 7
    x[:, 2] = 5.0
    fed = Federation.from_rows(x, torch.randn(60).double(), np.arange(60) // 20, new=1)

    std = fed.standardised()

    seen = torch.cat([std.party(k)[0] for k in range(2)])
    assert torch.allclose(seen[:, :2].mean(0), torch.zeros(2).double(), atol=1e-12)
    assert torch.allclose(seen[:, :2].std(0, unbiased=False), torch.ones(2).double())
    assert (std.x[:, 2] == 0).all()
    assert std.party(2)[0][:, :2].mean(0).abs().min() > 1e-6  # a new party does not count


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda f: f.party(2), "0..1"),
        (lambda f: f.party("c"), "unknown party 'c'"),
        (lambda f: f.select([]), "at least one"),
        (lambda f: f.select([0, 0]), "twice"),
        (lambda f: f.select(np.array([5])), "0..1"),
        (lambda f: f.with_new(2), "at most 1"),
        (lambda f: f.with_new(1.0), "share below 1"),
        (lambda f: f.split_test(1.0), "below 1"),
        (lambda f: f.plot(max_parties=0), "at least one"),
    ],
)
def test_wrong_requests_are_refused(act: Any, words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        act(small())


def test_many_parties_cost_little() -> None:
    parties = 100_000
    party = np.repeat(np.arange(parties), 3)
    fed = Federation.from_rows(torch.zeros(3 * parties, 1), party % 2, party, test=0.4)

    assert fed.parties == parties and (fed.n == 2).all()
    assert fed.select(np.arange(0, parties, 2)).parties == parties // 2
    assert fed.with_new(0.25, seed=1).training == 3 * parties // 4
    assert "100000 parties" in repr(fed.validation(0.5))
