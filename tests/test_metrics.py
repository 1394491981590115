# SPDX-License-Identifier: Apache-2.0
"""Metrics: against scikit-learn party by party, against definitions, at the edges, in time."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.metrics import PRIMARY, groups, larger_is_better, pool, score
from archipel.models.losses import LOSSES, default_loss

SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=6)


def offsets_of(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int64)


def draw(task: str, n: int, seed: int, k: int = 4) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)

    def coarse(*shape: int) -> Tensor:
        """Return few distinct values, so that ties are frequent."""
        return torch.randint(-2, 3, shape, generator=rng).float() / 2

    if task == "classification":
        return coarse(n, k), torch.randint(k, (n,), generator=rng)
    if task == "text":
        return torch.randn(n, 3, k, generator=rng), torch.randint(k, (n, 3), generator=rng)
    if task == "survival":
        event = torch.randint(2, (n,), generator=rng).float()
        return coarse(n, 1), torch.stack([coarse(n) + 2, event], dim=-1)
    return coarse(n, 1), torch.randn(n, generator=rng)


def c_index_by_definition(risk: Tensor, target: Tensor) -> float:
    right = pairs = 0.0
    for i, (t, e) in enumerate(target.tolist()):
        for j, (u, f) in enumerate(target.tolist()):
            if e and (t < u or (t == u and not f)):
                pairs += 1
                right += float(risk[i] > risk[j]) + float(risk[i] == risk[j]) / 2
    return right / pairs if pairs else float("nan")


def reference(task: str, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """One party's metrics by scikit-learn, by definition, or NaN."""
    nan, n = float("nan"), len(targets)
    weights = torch.full((n,), 1 / max(n, 1))
    expected = {"loss": float(default_loss(task)(outputs, targets, weights)) if n else nan}
    if task in ("classification", "text"):
        guess = outputs.argmax(dim=-1).flatten()
        expected["accuracy"] = sk.accuracy_score(targets.flatten(), guess) if n else nan
    if task == "classification" and outputs.shape[-1] == 2:
        both = len(set(targets.tolist())) == 2
        difference = outputs[:, 1] - outputs[:, 0]
        expected["auc"] = sk.roc_auc_score(targets, difference) if both else nan
    if task == "regression":
        guess = outputs[:, 0]
        expected["rmse"] = sk.root_mean_squared_error(targets, guess) if n else nan
        expected["mae"] = sk.mean_absolute_error(targets, guess) if n else nan
        expected["r2"] = sk.r2_score(targets, guess) if n > 1 else nan
    if task == "survival":
        expected["c_index"] = c_index_by_definition(outputs[:, 0], targets)
    return expected


@pytest.mark.parametrize(
    ("task", "k"),
    [("classification", 2), ("classification", 4), ("regression", 1), ("survival", 1), ("text", 5)],
)
@given(sizes=SIZES, seed=st.integers(0, 2**31), block=st.sampled_from([1, 20, 4_000_000]))
@settings(max_examples=25, deadline=None)
def test_each_party_as_scikit_learn(
    task: str, k: int, sizes: list[int], seed: int, block: int
) -> None:
    outputs, targets = draw(task, sum(sizes), seed, k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_BLOCK", block)
        found = score(task, outputs, targets, offsets_of(sizes), default_loss(task))

    cuts = zip(torch.split(outputs, sizes), torch.split(targets, sizes), strict=True)
    for i, (out, y) in enumerate(cuts):
        expected = reference(task, out, y)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].shape == (len(sizes),)
            assert float(found[name][i]) == pytest.approx(value, rel=1e-4, abs=1e-5, nan_ok=True), (
                name
            )


@pytest.mark.parametrize("task", PRIMARY)
def test_all_points_together(task: str) -> None:
    outputs, targets = draw(task, 40, seed=1)

    found = pool(task, outputs, targets, default_loss(task))

    assert found == pytest.approx(reference(task, outputs, targets), rel=1e-5)
    assert PRIMARY[task] in found


def test_one_logit_scores_as_two_outputs() -> None:
    logit, labels = torch.randn(30, 1), torch.randint(2, (30,))
    two = torch.cat([torch.zeros(30, 1), logit], dim=-1)

    one_output = pool("classification", logit, labels, LOSSES["binary_cross_entropy"])

    assert one_output == pytest.approx(
        pool("classification", two, labels, LOSSES["cross_entropy"]), rel=1e-5
    )


def test_a_constant_target_has_no_r2() -> None:
    found = pool("regression", torch.randn(5, 1), torch.ones(5), LOSSES["squared_error"])

    assert np.isnan(found["r2"])
    assert found["rmse"] > 0


def test_a_diverged_model_is_not_ranked() -> None:
    outputs, targets = draw("survival", 12, seed=2)
    outputs[3] = torch.nan
    found = score("survival", outputs, targets, offsets_of([6, 6]), LOSSES["cox"])

    assert found["c_index"].isnan().tolist() == [True, False]

    labels = torch.arange(12) % 2
    found = score(
        "classification", outputs, labels, offsets_of([6, 6]), LOSSES["binary_cross_entropy"]
    )
    assert found["auc"].isnan().tolist() == [True, False]


def test_no_points_at_all() -> None:
    for task in PRIMARY:
        outputs, targets = draw(task, 0, seed=0, k=2)
        found = score(task, outputs, targets, offsets_of([0, 0]), default_loss(task))
        assert all(value.isnan().all() and value.shape == (2,) for value in found.values())


def test_a_million_parties_take_seconds_at_most() -> None:
    K = 1_000_000
    outputs, labels = torch.randn(K, 3), torch.randint(3, (K,))
    start = time.process_time()

    found = score("classification", outputs, labels, torch.arange(K + 1), LOSSES["cross_entropy"])

    assert time.process_time() - start < 10
    assert found["accuracy"].sum() == (outputs.argmax(dim=-1) == labels).sum()


def test_one_large_party_takes_no_square() -> None:
    n = 20_000
    time_of_event, risk = torch.rand(n), torch.randn(n, 1)
    targets = torch.stack([time_of_event, torch.ones(n)], dim=-1)

    found = pool("survival", -time_of_event[:, None], targets, LOSSES["cox"])

    assert found["c_index"] == 1
    assert pool("survival", risk, targets, LOSSES["cox"])["c_index"] == pytest.approx(0.5, abs=0.01)


def test_names() -> None:
    better = {"accuracy": True, "auc": True, "c_index": True, "r2": True}
    worse = {"loss": False, "rmse": False, "mae": False}
    for name, expected in (better | worse).items():
        assert larger_is_better(name) is expected
    with pytest.raises(ArchipelError, match="did you mean 'survival'"):
        pool("survivall", torch.zeros(1, 1), torch.zeros(1, 2), LOSSES["cox"])
