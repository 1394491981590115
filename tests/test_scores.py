# SPDX-License-Identifier: Apache-2.0
"""Own and further metrics in studies, and weights of classes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import archipel as ar
from archipel.engines.plan import Plan
from archipel.federation import approval
from archipel.models.losses import LOSSES, Weighted, balanced
from archipel.runs import parts
from archipel.study.file import Study

ONE = Plan("one", 1, 1)

# -- class weights --------------------------------------------------------------------------------


def uneven():
    random = np.random.default_rng(0)
    x = random.standard_normal((240, 3))
    y = (x @ [1.0, -0.5, 0.2] + random.standard_normal(240) > 1.1).astype(int)
    cuts = [0, 50, 110, 240]
    shares = [slice(a, b) for a, b in pairwise(cuts)]
    data = ar.Federation.from_arrays(
        [torch.from_numpy(x[part]) for part in shares],
        [torch.from_numpy(y[part]) for part in shares],
        test=0.0,
    )
    return data, x, y


@pytest.mark.parametrize("weights", ["balanced", [1.0, 5.0]])
def test_weights_are_those_of_scikit_learn(weights):
    """FedSGD over all points goes to the minimum of scikit-learn's weighted logistic regression."""
    data, x, y = uneven()
    module = nn.Linear(3, 1).double()

    run = ar.simulate(
        ar.FedSGD(lr=1.5, batch_size=None), data, module, rounds=400, plan=ONE, evaluate_every=400,
        loss="binary_cross_entropy", class_weights=weights,
    )  # fmt: skip

    given = weights if weights == "balanced" else dict(enumerate(weights))
    fit = LogisticRegression(C=1e10, class_weight=given, tol=1e-10, max_iter=10_000).fit(x, y)
    expected = torch.from_numpy(np.concatenate([fit.coef_[0], fit.intercept_]))
    torch.testing.assert_close(run.vector, expected, atol=1e-4, rtol=1e-4)
    assert "class weights" in run.task_model.loss_function.name


@pytest.mark.parametrize("name", ["cross_entropy", "binary_cross_entropy"])
def test_a_weighted_loss_and_its_gradient(name):
    random = torch.Generator().manual_seed(0)
    width = 3 if name == "cross_entropy" else 1
    outputs = torch.randn(2, 5, width, generator=random, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, min(width + 1, 3) if width == 1 else 3, (2, 5), generator=random)
    weights = torch.full((2, 5), 0.2, dtype=torch.float64)
    classes = (0.5, 2.0, 3.0)[: 3 if width == 3 else 2]
    loss = Weighted(LOSSES[name], classes)

    value = loss(outputs, targets, weights)

    each = [
        [float(LOSSES[name](o[None], y[None], torch.ones(1).double())) * classes[int(y)]
         for o, y in zip(outputs[i].detach(), targets[i], strict=True)]
        for i in range(2)
    ]  # fmt: skip
    torch.testing.assert_close(value.detach(), torch.tensor(each).double().mean(dim=1))
    (grad,) = torch.autograd.grad(value.sum(), outputs)
    torch.testing.assert_close(loss.output_grad(outputs, targets, weights), grad)


def test_every_way_to_compute_has_the_weights():
    data, _, _ = uneven()
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    vectors = [
        ar.simulate(
            ar.FedAvg(batch_size=8), data, module, rounds=2, plan=plan, class_weights=[1, 4]
        ).vector
        for plan in (ONE, Plan("stacked", 3, 1), Plan("vmapped", 3, 2))
    ]
    plain = ar.simulate(ar.FedAvg(batch_size=8), data, module, rounds=2, plan=ONE).vector

    torch.testing.assert_close(vectors[0], vectors[1])
    torch.testing.assert_close(vectors[0], vectors[2])
    assert not torch.allclose(vectors[0], plain)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0], "give a number from 0 for each of the 2 classes"),
        ([1.0, -1.0], "give a number from 0"),
        ([0, 0], "give at least one class a weight"),
        ("even", 'class_weights = "even": say "balanced"'),
    ],
)
def test_weights_that_cannot_be(given, said):
    with pytest.raises(ar.ArchipelError, match=said):
        ar.simulate(ar.FedAvg(), uneven()[0], rounds=1, class_weights=given)


def test_weights_of_what_has_no_classes_or_is_elsewhere():
    with pytest.raises(ar.ArchipelError, match="class 1 has no training point"):
        balanced([3, 0])
    random = np.random.default_rng(0)
    numbers = ar.Federation.from_arrays([random.random((9, 2))], [random.random(9)])
    with pytest.raises(ar.ArchipelError, match="have no classes to weigh"):
        ar.simulate(ar.FedAvg(), numbers, rounds=1, class_weights="balanced")
    data, _, _ = uneven()
    away = replace(data, about=replace(data.about, elsewhere=True), scan=False)
    with pytest.raises(ar.ArchipelError, match="is known to the sites alone"):
        parts.build_model(None, away, class_weights="balanced")


# -- metrics in studies ---------------------------------------------------------------------------

MINE = """
def sure(outputs, targets):
    return float(outputs.softmax(-1).max(-1).values.mean())
"""


def test_own_metrics_are_measured_and_belong_to_the_study(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    content = {
        "study": {"rounds": 2, "metrics": ["auc", "f1", "mine.py:sure"], "metric": "mine.py:sure"},
        "data": {"name": "heart_disease"},
    }
    study = Study.parse(content, tmp_path)
    before = study.hash

    run = study.run(tmp_path / "runs", baselines=False, workers=1)

    assert [*run.metrics] == ["accuracy", "auc", "f1", "sure", "loss"] and run.metric == "sure"
    assert run.parties["sure"].shape == (4,)
    assert (run.folder / "code" / "mine.py").read_text() == MINE
    again = ar.open_run(run.folder)
    assert again.metrics == run.metrics
    assert "sure" in again.report(tmp_path / "r.html").read_text()
    (tmp_path / "mine.py").write_text(MINE.replace("max", "min"))
    assert Study.parse(content, tmp_path).hash != before


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (["auk"], "unknown study.metric 'auk': did you mean 'auc'"),
        (["nobody.py:score"], r"metric '.*nobody.py': cannot be read"),
        (["mine.py:other"], "unknown metric in mine.py 'other'"),
        (["rmse"], "unknown metric of classification with 2 classes 'rmse'"),
    ],
)
def test_metrics_that_a_study_cannot_have(tmp_path, metrics, said):
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(ar.ArchipelError, match=said):
        Study.parse(
            {"study": {"rounds": 1, "metrics": metrics}, "data": {"name": "heart_disease"}},
            tmp_path,
        ).run(tmp_path / "runs", baselines=False, workers=1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("(y, p):\n    return p[:, 1]", r"IndexError: .* \(mine.py, line 2\); it gets outputs \["),
        ("(p):\n    return 1", "takes 1 positional argument but 2 were given; it gets outputs"),
    ],
)
def test_an_own_metric_that_fails_is_named_with_its_line(tmp_path, body, said):
    (tmp_path / "mine.py").write_text(f"def own{body}\n")
    content = {"study": {"metrics": ["mine.py:own"]}, "data": {"name": "heart_disease"}}

    with pytest.raises(ar.ArchipelError, match=r"metric 'own' fails, .*" + said):
        Study.parse(content, tmp_path).run(tmp_path / "runs", baselines=False, workers=1)


def test_between_sites_there_are_no_metrics_of_anybodys_own(tmp_path):
    text = '[study]\nmetrics = ["auc", "mine.py:sure"]\n[data]\ntarget = "y"\n'
    text += '[data.schema]\nx = "number"\ny = [0, 1]\n'
    with pytest.raises(ar.ArchipelError, match=r"'mine.py:sure': a study between institutions"):
        approval.read(text.encode())
    assert approval.read(text.replace("mine.py:sure", "brier").encode()).chosen.names
