"""A run that went wrong says so, everywhere; one that is fine or noisy says nothing."""

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.data.federation import Federation
from archipel.engines.plan import Plan
from archipel.report.html import render

PLAN = Plan("stacked", 16, 1)


def heart(lr, rounds=12, **options):
    return ar.simulate(ar.FedAvg(lr=lr), "heart_disease", rounds=rounds, plan=PLAN, **options)


def numbers(noise=1.0, rows=200, scale=1.0):
    """Two parties' least squares, with as much noise as asked for."""
    rng = np.random.default_rng(2)
    x = scale * rng.normal(size=(rows, 4))
    y = x @ np.array([1.0, -1, 0.5, 0]) / scale + noise * rng.normal(size=rows)
    return Federation.from_rows(
        torch.from_numpy(x).float(), torch.from_numpy(y).float(), np.arange(rows) % 2
    )


def test_a_huge_rate_is_said_though_the_accuracy_looks_fine():
    """The accuracy is 0.75, the loss is beyond all measure."""
    run = heart(1e9)
    (said,) = run.warnings

    assert run.metrics["accuracy"] > 0.6
    assert "the training diverged; lower algorithm.lr (1e+09 now)." in said
    assert said in run.notes and run.to_json()["warnings"] == [said]
    assert any(said == row.note for row in run.scorecard.rows() if row.name == "warning")
    assert run.scorecard.to_json()["efficacy"]["warnings"] == [said]
    assert "Warning." in render(run).split("<main")[0]


def test_least_squares_that_diverge_are_said_and_the_scale_is_a_remedy():
    run = ar.simulate(ar.FedAvg(lr=0.02), numbers(scale=10.0), rounds=6, plan=PLAN)

    assert "the loss rose over the run" in run.warnings[0]
    assert "or say data.standardise = true" in run.warnings[0]


def test_a_model_that_learnt_nothing_is_said():
    data = numbers(noise=0.01)
    far = Federation.from_rows(
        data.x, data.y + 100.0, np.arange(len(data.x)) % 2, task="regression"
    )
    run = ar.simulate(ar.FedAvg(lr=1e-6), far, rounds=3, plan=PLAN)

    assert "worse than predicting the mean of the targets (R² -" in run.warnings[0]
    assert "more study.rounds, or change algorithm.lr (1e-06 now)" in run.warnings[0]


def test_an_accuracy_below_the_commonest_class_is_said():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(400, 2))).float()
    y = torch.from_numpy((rng.random(400) < 0.1).astype(int))
    torch.manual_seed(0)
    module = torch.nn.Linear(2, 2)
    with torch.no_grad():
        module.bias.copy_(torch.tensor([-0.6, 0.6]))
    fed = Federation.from_rows(x, y, np.arange(400) % 4)
    run = ar.simulate(ar.FedAvg(lr=1e-9), fed, module, rounds=1, plan=PLAN)

    assert "is below that of always saying the commonest class" in run.warnings[0]


def test_parties_that_were_left_out_are_counted():
    data = numbers()
    data.x[data.offsets[1] :] *= 1e18
    run = ar.simulate(ar.FedAvg(lr=0.05), data, rounds=3, plan=PLAN)

    assert any("in 3 of 3 rounds a party's training diverged" in said for said in run.warnings)


def test_a_run_of_noise_alone_is_fine():
    fed = numbers(noise=10.0)
    run = ar.simulate(ar.FedAvg(lr=0.01), fed, rounds=25, plan=PLAN)

    assert run.warnings == [] and run.metrics["r2"] < 0.1


def test_one_round_and_no_test_point_are_fine():
    assert heart(0.05, rounds=1).warnings == []
    data = ar.load("quadratics")
    assert ar.simulate(ar.FedAvg(), data, rounds=6, plan=PLAN).warnings == []


@pytest.mark.parametrize("name", ["heart_disease", "tcga_brca", "moons", "synthetic", "school"])
def test_defaults_raise_no_alarm(name):
    run = ar.simulate(ar.FedAvg(), name, rounds=12, plan=PLAN)

    assert run.warnings == []


def test_the_remedy_is_a_field_that_the_algorithm_has():
    steps = ar.Coordinate(smoothness=1e-3)
    run = ar.simulate(steps, numbers(), rounds=5, topology="ring", plan=PLAN, baselines=False)

    assert "the training diverged; raise algorithm.smoothness (0.001 now)" in run.warnings[0]
