"""Baselines are done well: linear models are solved, others get a rate of their own."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV

import archipel as ar
from archipel.data.federation import Federation
from archipel.engines.plan import Plan
from archipel.runs.baselines import alone, pooled
from archipel.runs.parts import build_model
from archipel.runs.solving import PENALTIES, solvable, solve

PLAN = Plan("stacked", 16, 1)


def numbers(rows=90, far=0.0):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 6)) + far
    y = x @ np.arange(6.0) + rng.normal(size=rows)
    owner = np.arange(rows) % 3
    return Federation.from_rows(torch.from_numpy(x).float(), torch.from_numpy(y).float(), owner)


def test_classes_are_solved_as_scikit_learn_does():
    data = ar.load("heart_disease")
    x, y, x_test, y_test = data.pooled().party(0)
    theirs = LogisticRegression(tol=1e-8, max_iter=1000).fit(x, y)
    found = pooled(ar.FedAvg(lr=1e-6), data, rounds=1, tuned=True)

    assert found.how == "solved"
    assert found.scores.pooled["accuracy"] == pytest.approx(theirs.score(x_test, y_test))
    w = solve(build_model(None, data), x, y)[:26].view(2, 13)
    assert torch.allclose(w[1] - w[0], torch.from_numpy(theirs.coef_[0]).float(), atol=1e-3)


def test_numbers_are_solved_whatever_the_rate():
    data = numbers()
    x, y, x_test, y_test = (part.numpy() for part in data.pooled().party(0))
    theirs = RidgeCV(PENALTIES).fit(x, y).predict(x_test)
    found = pooled(ar.FedAvg(lr=1e9), data, rounds=1, tuned=True)

    rmse = float(np.sqrt(np.square(theirs - y_test).mean()))
    assert found.scores.pooled["rmse"] == pytest.approx(rmse, rel=1e-4)


@pytest.mark.parametrize("classes", [True, False])
def test_parties_alone_may_have_one_class_or_one_point(classes):
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    owner = np.array([0] * 14 + [1] * 15 + [2])
    y = torch.cat([(x[:14, 0] > 0).long(), torch.ones(16).long()])
    is_test = np.arange(30) % 5 == 1
    data = Federation.from_rows(x, y if classes else y.float(), owner, test=is_test)
    found = alone(ar.FedAvg(), data, rounds=5, plan=PLAN, tuned=True)

    assert found.how.startswith("lr " if classes else "each solved")
    if classes:
        assert float(found.local.parties["accuracy"][1]) == 1.0
    else:
        assert float(found.local.parties["rmse"][1]) < 1e-6
    assert found.local.parties["loss"][:2].isfinite().all()
    assert found.elsewhere["loss"].isfinite().all()


def test_what_is_not_linear_or_too_large_is_not_solved():
    data = ar.load("heart_disease")

    assert solvable(build_model("logistic", data), 488)
    assert not solvable(build_model("logistic", data), 10**9)
    assert not solvable(build_model("mlp", data), 488)
    assert not solvable(build_model("logistic", data, "huber"), 488)


def test_other_models_get_a_rate_of_their_own():
    """At a thousandth of a good rate nothing is learnt; three times that is better."""
    data, said = numbers(), []
    options = {"rounds": 10, "plan": PLAN}
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    slow = pooled(ar.FedAvg(lr=0.003), data, module, **options)
    tuned = pooled(ar.FedAvg(lr=0.003), data, module, **options, tuned=True, say=said.append)
    apart = alone(ar.FedAvg(lr=0.003), data, module, **options, tuned=True)

    assert tuned.scores.pooled["rmse"] < slow.scores.pooled["rmse"]
    assert tuned.how == "lr 0.009 and 10 of 10 rounds chosen of 3 rates"
    assert apart.how.startswith("lr 0.009 and 10 of 10 rounds")
    assert said[0] == "training on all data in one place, to compare with"


def test_a_run_says_how_its_baselines_were_made():
    run = ar.simulate(ar.FedAvg(), numbers(), rounds=2, plan=PLAN, baselines=True)

    assert "compared with every party alone: each solved." in run.notes
    assert "compared with all data in one place: solved." in run.notes
