# SPDX-License-Identifier: Apache-2.0
"""Metrics of classes and of predicted chances: each party's, and all points', by scikit-learn."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression

from archipel.errors import ArchipelError
from archipel.metrics import Chosen, choose, guarded, larger_is_better, may_leave, pool, score
from archipel.models.losses import LOSSES

CROSS = LOSSES["cross_entropy"]
NAMES = ["accuracy", "auc", "average_precision", "balanced_accuracy", "brier", "ece", "f1"]
NAMES += ["f1_macro"]


def drawn(n, k, seed):
    """Few distinct outputs, so that ties are frequent."""
    random = np.random.default_rng(seed)
    outputs = torch.from_numpy(random.integers(-2, 3, (n, k)) / 2)
    return outputs, torch.from_numpy(random.integers(0, k, n))


def by_bins(chances, y):
    """Guo et al. 2017: bins ((m - 1) / 10, m / 10] of the largest chance."""
    sure, right = chances.max(axis=1), chances.argmax(axis=1) == y
    error = 0.0
    for m in range(10):
        inside = (sure > m / 10) & (sure <= (m + 1) / 10)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    return error


def reference(outputs, targets):
    """One party's metrics by scikit-learn, NaN where it has none."""
    nan, n, k = float("nan"), len(targets), outputs.shape[1]
    if n == 0:
        return dict.fromkeys(NAMES, nan)
    y, chances = targets.numpy(), torch.softmax(outputs, dim=1).numpy()
    guess = outputs.numpy().argmax(axis=1)
    found = {
        "accuracy": sk.accuracy_score(y, guess),
        "balanced_accuracy": sk.balanced_accuracy_score(y, guess),
        "f1_macro": sk.f1_score(y, guess, average="macro", zero_division=nan),
        "brier": sk.brier_score_loss(y, chances[:, 1])
        if k == 2
        else ((chances - np.eye(k)[y]) ** 2).sum(axis=1).mean(),
        "ece": by_bins(chances, y),
    }
    whole = len(set(y)) == k
    if k == 2:
        margin = (outputs[:, 1] - outputs[:, 0]).numpy()
        found["f1"] = sk.f1_score(y, guess, zero_division=nan) if (y + guess).any() else nan
        found["auc"] = sk.roc_auc_score(y, margin) if whole else nan
        found["average_precision"] = sk.average_precision_score(y, margin) if y.any() else nan
        return found
    found["f1"] = found["f1_macro"]
    found["auc"] = sk.roc_auc_score(y, chances, multi_class="ovr") if whole else nan
    found["average_precision"] = sk.average_precision_score(np.eye(k)[y], chances) if whole else nan
    return found


@pytest.mark.parametrize("k", [2, 3, 4])
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=3), seed=st.integers(0, 2**31))
@settings(max_examples=10, deadline=None)
def test_each_party_and_all_points_as_scikit_learn(k, sizes, seed):
    outputs, targets = drawn(sum(sizes), k, seed)
    offsets = torch.tensor([0, *np.cumsum(sizes)])

    found = score("classification", outputs, targets, offsets, CROSS, choose(NAMES))
    together = pool("classification", outputs, targets, CROSS, choose(NAMES))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, (out, y) in enumerate(zip(outputs.split(sizes), targets.split(sizes), strict=True)):
            for name, value in reference(out, y).items():
                got = float(found[name][i])
                assert got == pytest.approx(value, abs=1e-9, nan_ok=True), name
        for name, value in reference(outputs, targets).items():
            assert together[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


@given(seed=st.integers(0, 2**31))
@settings(max_examples=6, deadline=None)
def test_slope_and_intercept_are_those_of_a_logistic_regression(seed):
    random = np.random.default_rng(seed)
    margin = random.normal(0, 2, 300)
    y = (random.random(300) < 1 / (1 + np.exp(-0.3 - 0.6 * margin))).astype(int)
    names = ["calibration_slope", "calibration_intercept"]

    found = pool(
        "classification", torch.from_numpy(margin)[:, None], torch.from_numpy(y),
        LOSSES["binary_cross_entropy"], choose(names),
    )  # fmt: skip

    fit = LogisticRegression(C=1e12, tol=1e-12, max_iter=10_000).fit(margin[:, None], y)
    assert found["calibration_slope"] == pytest.approx(fit.coef_[0, 0], abs=1e-4)
    a = found["calibration_intercept"]  # where what is predicted sums up to what happened
    assert (1 / (1 + np.exp(-a - margin))).sum() == pytest.approx(y.sum(), abs=1e-7)


def test_calibration_is_undefined_where_no_fit_is_best():
    margin, y = torch.tensor([-2.0, -1.0, 1.0, 2.0])[:, None], torch.tensor([0, 0, 1, 1])
    binary = LOSSES["binary_cross_entropy"]
    chosen = choose(["calibration_slope", "calibration_intercept"])

    assert np.isnan(pool("classification", margin, y, binary, chosen)["calibration_slope"])
    alike = pool("classification", margin, y * 0, binary, chosen)
    assert np.isnan(alike["calibration_intercept"])


def test_metrics_are_measured_that_were_asked_for():
    outputs, targets = drawn(30, 2, 0)

    assert [*pool("classification", outputs, targets, CROSS)] == ["accuracy", "auc", "loss"]
    found = pool("classification", outputs, targets, CROSS, choose(["f1", "brier"]))
    assert [*found] == ["accuracy", "f1", "brier", "loss"]
    judged = pool("classification", outputs, targets, CROSS, choose(None, "f1"))
    assert [*judged] == ["accuracy", "auc", "f1", "loss"]
    assert not larger_is_better("brier") and larger_is_better("f1") and larger_is_better("mine")


def test_an_own_metric_is_a_function_of_some_points():
    outputs, targets = drawn(20, 3, 0)
    offsets = torch.tensor([0, 5, 5, 20])

    def first_right(outputs, targets):
        outputs[:] = 0  # what it does to them is its own affair
        return float(targets[0] == 1)

    found = score("classification", outputs, targets, offsets, CROSS, choose([first_right]))

    expected = [float(targets[0] == 1), float("nan"), float(targets[5] == 1)]
    assert found["first_right"].tolist() == pytest.approx(expected, nan_ok=True)
    assert float(outputs.abs().sum()) > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["gini"], "unknown metric 'gini'"),
        (["rmse"], "metric of classification with 3 classes 'rmse'"),
        (["calibration_slope"], "metric of classification with 3 classes 'calibration_slope'"),
        ([lambda outputs, targets: outputs], "metric '<lambda>': returns a Tensor"),
        ([lambda outputs, targets: "good"], "metric '<lambda>': returns a str"),
    ],
)
def test_metrics_that_cannot_be_are_one_sentence(given, said):
    outputs, targets = drawn(9, 3, 0)

    with pytest.raises(ArchipelError, match=said):
        pool("classification", outputs, targets, CROSS, choose(given))


def test_names_and_directions_that_cannot_be():
    def auc(outputs, targets):
        return 0.0

    with pytest.raises(ArchipelError, match="metric 'auc': there is another one of that name"):
        choose([auc])
    with pytest.raises(ArchipelError, match="neither better nor worse"):
        choose(None, "calibration_slope")


@given(seed=st.integers(0, 2**31), k=st.sampled_from([2, 3]))
@settings(max_examples=30, deadline=None)
def test_no_point_moves_what_may_leave_by_more_than_is_said(seed, k):
    outputs, targets = drawn(24, k, seed)
    names = ["auc", "balanced_accuracy", "brier", "f1", "f1_macro", "ece"]
    found = guarded("classification", outputs, targets, CROSS, choose(names))
    changed = outputs.clone()
    row = seed % 24
    changed[row] = torch.from_numpy(np.random.default_rng(seed + 1).normal(0, 50, k))
    after = guarded("classification", changed, targets, CROSS, choose(names))

    assert not {"f1_macro", "ece"} & found.keys()
    assert ("f1" in found) <= (k == 2) and may_leave("classification", k, "brier")
    for name in found.keys() & after.keys():
        assert abs(found[name].value - after[name].value) <= found[name].moved + 1e-12, name


def test_own_metrics_never_leave():
    outputs, targets = drawn(30, 2, 0)

    def cost(outputs, targets):
        raise AssertionError("not run")

    assert "cost" not in guarded("classification", outputs, targets, CROSS, choose([cost]))
    assert isinstance(choose([cost]), Chosen)
