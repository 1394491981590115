"""The scorecard's numbers are those one computes by hand."""

import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import archipel as ar
from archipel.engines.engine import Cause, Evaluation
from archipel.models.flops import flops_of_one_gradient
from archipel.models.recorded import _Operations
from archipel.runs.participation import Cohort
from archipel.scorecard import scorecard
from archipel.scorecard.card import KWH_PER_GB
from archipel.scorecard.measure import energy
from problems import classification, linear, network, regression

PLAN = ar.Plan("one", 4, 1)


@pytest.fixture
def run():
    """Three parties, two rounds, nobody missing."""
    data = regression(parties=3, dims=4, seed=0, equal=True).split_test(0.5)
    return ar.simulate(
        ar.FedAvg(lr=0.01, batch_size=None), data, linear(4), rounds=2, seed=0, plan=PLAN
    )


def cohort(sampled, missing=(), cause="away", counted=True, waited=0):
    present = np.setdiff1d(sampled, list(missing))
    gone = dict.fromkeys(missing, Cause.read(cause))
    return Cohort(np.array(sampled), present, np.ones(len(present)), gone, counted, waited)


# -- efficiency ------------------------------------------------------------------------------------


def test_bytes_gradients_and_flops_of_a_linear_model(run):
    e = scorecard(run).efficiency

    assert e.parameters == 4
    assert e.bytes_up == e.bytes_down == 2 * 3 * 4 * 8  # rounds, parties, parameters, bytes
    assert e.bytes_up_per_party_round == e.bytes_down_per_party_round == 4 * 8
    assert e.gradients == 2 * int(run.data.n.sum())
    assert e.flops_per_gradient == 4 * 4  # x w forward, x g backward: 2 d each
    assert e.flops == e.gradients * 16
    assert e.seconds_per_round == pytest.approx(e.seconds / 2)


@pytest.mark.parametrize(
    ("module", "x", "flops"),
    [
        (nn.Linear(13, 2), torch.ones(1, 13), 4 * 13 * 2),
        # the second layer also passes its gradient on to the first
        (nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), torch.ones(1, 5), 266),
        # 2 k^2 c_out h w, forward and for the weights
        (nn.Conv2d(1, 8, 3), torch.ones(1, 1, 10, 10), 2 * 2 * 9 * 8 * 8 * 8),
    ],
)
def test_flops_by_the_layers_formulas(module, x, flops):
    counted, note = flops_of_one_gradient(ar.Model(module), x)

    assert counted == flops
    assert "counted" in note


def test_counting_and_recording_go_without_torchs_compiler(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # cannot be imported
    linear = nn.Linear(13, 2)

    _, note = flops_of_one_gradient(ar.Model(linear), torch.ones(1, 13))
    with _Operations():
        linear(torch.ones(1, 13))

    assert "counted" in note


def test_flops_of_recurrent_layers_are_counted_too():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(5, 7, batch_first=True)

        def forward(self, x):
            return self.lstm(x)[0][:, -1]

    forward = 3 * 2 * 4 * 7 * (5 + 7)  # steps, two per product, gates
    assert 2 * forward < flops_of_one_gradient(ar.Model(Last()), torch.ones(1, 3, 5))[0]


def test_a_model_that_cannot_be_counted_gets_the_rule_of_thumb():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x * self.w

    counted, note = flops_of_one_gradient(ar.Model(Scale()), torch.ones(1, 6))

    assert counted == 36
    assert "rule of thumb" in note


def test_counting_leaves_the_model_alone():
    model = ar.Model(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)))
    before = model.buffers.clone()

    flops_of_one_gradient(model, torch.ones(1, 3))

    assert model.module.training
    assert torch.equal(model.buffers, before)
    assert all(parameter.grad is None for parameter in model.module.parameters())


def test_energy_is_a_range_between_its_assumptions():
    e = energy(flops=3.6e15, carried=1e9)

    assert (e.compute_low, e.compute_high) == pytest.approx((20, 1000))
    assert (e.network_low, e.network_high) == pytest.approx((10.6066, 120))
    assert (e.low, e.high) == pytest.approx((30.6066, 1120))
    assert any("0.011 to 0.12 kWh per GB: fixed lines in 2020" in each for each in e.assumptions)


def test_peers_send_each_byte_once():
    data = classification(parties=4, dims=3, classes=2, seed=1)
    run = ar.simulate(
        ar.DSGD(lr=0.1), data, network(3, 2), rounds=3, topology="ring", seed=0, plan=PLAN
    )
    e, p = scorecard(run).efficiency, run.task_model.p

    assert e.bytes_up == e.bytes_down == 3 * 4 * 2 * p * 8  # rounds, parties, neighbours
    assert e.energy.network_low == pytest.approx(1000 * KWH_PER_GB[0] * e.bytes_up / 1e9)


def test_rounds_after_the_last_evaluation_count_too(run):
    del run.history[-1]

    e = scorecard(run).efficiency

    assert e.rounds == 2
    assert e.bytes_up == 2 * 3 * 4 * 8
    assert e.gradients == 2 * int(run.data.n.sum())


def test_target_in_rounds_and_bytes(run):
    run.target = (run.history[0]["metrics"]["rmse"] + run.history[1]["metrics"]["rmse"]) / 2

    card = scorecard(run)

    assert card.efficiency.rounds_to_target == pytest.approx(1.5)
    assert card.efficiency.bytes_to_target == pytest.approx(1.5 * 2 * 3 * 4 * 8)
    assert (card.robustness.below_target, card.robustness.fell_back) == (1, 0)


def test_a_target_that_is_lost_again_or_never_reached(run):
    values = [3.0, 1.0, 3.0, 1.0]
    run.history = [
        {**run.history[0], "round": t + 1, "metrics": {"rmse": value}}
        for t, value in enumerate(values)
    ]
    run.target = 2.0
    assert scorecard(run).robustness.below_target == 2
    assert scorecard(run).robustness.fell_back == 1

    run.target = 0.5
    assert scorecard(run).efficiency.rounds_to_target is None
    assert scorecard(run).robustness.below_target == 4


# -- robustness ------------------------------------------------------------------------------------


def test_who_was_missing_and_for_how_long(run):
    run.participation = [
        cohort([0, 1, 2]),
        cohort([0, 1, 2], missing=[1]),
        cohort([0, 2], missing=[0], cause="too slow"),  # 1 not sampled: its absence goes on
        cohort([0, 1, 2], missing=[1], waited=2),
        cohort([0, 1, 2], missing=[0, 2], cause="dropped out", counted=False),
        cohort([0, 1, 2], missing=[2], cause="not needed"),
    ]

    r = scorecard(run).robustness

    assert r.party_rounds == 16  # without the one that was not needed
    assert r.missing == {"away": 2, "dropped out": 2, "too slow": 1}
    assert (r.arrived, r.spare) == (11, 1)
    assert r.share_arrived == 11 / 16
    assert (r.below_quorum, r.waited) == (1, 2)
    assert (r.longest_absence, r.longest_absent) == (2, "1")
    assert r.below_target is None


def test_dropouts_of_a_simulation_are_all_told():
    run = ar.simulate(
        ar.FedAvg(lr=0.1), "heart_disease", rounds=10, dropouts=0.4, quorum=2, seed=1, plan=PLAN
    )
    r = scorecard(run).robustness

    assert sum(r.missing.values()) == sum(len(each.missing) for each in run.participation) > 0
    assert r.arrived + sum(r.missing.values()) == 40


# -- efficacy --------------------------------------------------------------------------------------


def test_gain_and_gap_are_positive_where_smaller_is_better(run):
    run.parties = {"rmse": torch.tensor([1.0, 2.0, 3.0]).double()}
    worse = Evaluation({"rmse": torch.tensor([1.5, 2.5, 2.75]).double()}, {}, {})
    better = Evaluation({"rmse": torch.tensor([1.0, 1.0, 1.0]).double()}, {}, {})
    run.baselines = {"local": worse, "central": better}

    e = scorecard(run).efficacy

    assert (e.metric, e.unit, e.larger_is_better) == ("rmse", "rmse", False)
    assert (e.parties.mean, e.parties.worst_tenth, e.parties.best) == (2.0, 3.0, 1.0)
    assert e.gain_over_local == pytest.approx(0.25)
    assert e.gap_to_central == pytest.approx(1.0)
    assert e.parties_that_gain == 2


def test_gain_in_points_skips_parties_without_a_value():
    run = ar.simulate(ar.FedAvg(lr=0.1), "heart_disease", rounds=1, plan=PLAN, metric="auc")
    run.parties = {"auc": torch.tensor([0.9, 0.8, torch.nan, 0.7]).double()}
    run.baselines = {
        "local": Evaluation({"auc": torch.tensor([0.8, 0.8, torch.nan, 0.5]).double()}, {}, {})
    }

    e = scorecard(run).efficacy

    assert e.unit == "points"
    assert e.gain_over_local == pytest.approx(10.0)
    assert (e.parties.parties, e.parties_that_gain) == (3, 2)
    assert e.central is None and e.gap_to_central is None


def test_new_parties_are_told_apart():
    data = ar.load("heart_disease").with_new(1)
    run = ar.simulate(ar.FedAvg(lr=0.1), data, rounds=1, plan=PLAN)

    e = scorecard(run).efficacy

    assert (e.parties.parties, e.new_parties.parties) == (3, 1)
    assert e.new_parties.mean == pytest.approx(float(run.parties["accuracy"][3]))


# -- privacy ---------------------------------------------------------------------------------------


def test_what_leaves_a_party_is_what_the_algorithm_sends():
    run = ar.simulate(ar.Scaffold(lr=0.1), "heart_disease", rounds=1, plan=PLAN)
    privacy = scorecard(run).privacy

    assert [(m.way, m.name, m.shape, m.bytes) for m in privacy.messages] == [
        ("down", "x", (28,), 112),
        ("down", "c", (28,), 112),
        ("up", "dy", (28,), 112),
        ("up", "dc", (28,), 112),
    ]
    assert privacy.server == "sums"
    assert privacy.guarantee.startswith("none: [privacy] names no unit, so no noise is added")
    assert "was asked for" not in privacy.sees  # of what does not exist yet


def test_an_algorithm_that_looks_at_individuals_is_named_so(run):
    (message,) = run.anatomy.messages
    run.anatomy = run.anatomy._replace(messages=(message._replace(asks=frozenset({"stack"})),))

    privacy = scorecard(run).privacy

    assert privacy.server == "individuals"
    assert "every party's upload" in privacy.sees


@pytest.mark.parametrize(("topology", "sees"), [("ring", "neighbours"), (None, "trains alone")])
def test_peers_have_no_server(topology, sees):
    algorithm = ar.DSGD(lr=0.1) if topology else ar.Alone(lr=0.1)
    options = {"topology": topology} if topology else {}
    run = ar.simulate(algorithm, "heart_disease", rounds=1, plan=PLAN, **options)
    privacy = scorecard(run).privacy

    assert privacy.server == "none"
    assert sees in privacy.sees
    assert len(privacy.messages) == bool(topology)


# -- out -------------------------------------------------------------------------------------------


def test_json_has_no_nan_and_rows_tell_the_same(run):
    run.parties = {"rmse": torch.full((3,), torch.nan).double()}
    run.history[-1]["metrics"] = {"rmse": float("nan")}
    card = scorecard(run)

    text = json.dumps(card.to_json(), allow_nan=False)

    assert json.loads(text)["efficacy"]["points"] is None
    assert json.loads(text)["efficacy"]["parties"] is None
    assert {row.section for row in card.rows()} == {
        "Efficacy", "Efficiency", "Robustness", "Privacy",
    }  # fmt: skip
    assert card.table().row_count == len(card.rows()) + 4


def test_a_run_before_its_first_round_has_a_scorecard(run):
    run.history, run.participation, run.parties = [], [], {}
    run.spent, run.seconds = type(run.spent)(0, 0, 0), 0.0
    card = scorecard(run)

    assert card.efficiency.rounds == 0
    assert card.efficiency.seconds_per_round is None
    assert card.robustness.share_arrived is None
    assert json.dumps(card.to_json(), allow_nan=False)
    assert card.table().row_count > 4


def test_names_from_outside_are_no_markup(run):
    run.data = replace(run.data, names=["[bold]a", "b[/]\x1b[2J", "c"])
    run.participation = [cohort([0, 1, 2], missing=[1], cause="[link=x]gone")]

    printed = io.StringIO()
    Console(file=printed, width=200).print(scorecard(run).table())

    assert "b[/] [2J" in printed.getvalue() and "[link=x]gone" not in printed.getvalue()
    assert scorecard(run).robustness.missing == {"away": 1}  # a site's own words are no cause
    assert "\x1b" not in printed.getvalue()
