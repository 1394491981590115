"""Parties that do not wait for each other: identities, engines, and what stands around them."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import archipel as ar
from archipel.aggregation.gopa import Gopa
from archipel.aggregation.secure import SecureSum
from archipel.algorithms import FedAsync, FedBuff, FedOpt
from archipel.conformance import check_older_versions, check_own_models
from archipel.tree import leaves
from archipel.wire import PowerSGD, Quantise, RandomMask
from problems import classification, linear, network, regression

ONE = ar.Plan("one", 2, 1)
FAST_AND_SLOW = {"speed": 3.0, "speed_spread": 1.0}


def simulated(algorithm, data=None, model=None, **options):
    usual = {"rounds": 6, "sample": 5, "plan": ONE, "evaluate_every": 6, **FAST_AND_SLOW}
    data = regression(9, 3, 0) if data is None else data
    model = linear(3) if model is None else model
    return ar.simulate(algorithm, data, model, **{**usual, **options})


def late(run):
    return [tau for cohort in run.participation for tau in cohort.timing.staleness]


# -- identities ------------------------------------------------------------------------------------

federations = st.fixed_dictionaries(
    {
        "parties": st.integers(2, 9),
        "dims": st.integers(1, 4),
        "sample": st.integers(1, 9),
        "seed": st.integers(0, 99),
        "batch": st.sampled_from([None, 2, 10]),
    }
)


@settings(max_examples=8)
@given(federations, st.sampled_from([0.0, 0.5]), st.sampled_from([None, 2.0]))
def test_a_buffer_that_is_the_cohort_is_fedavg(shape, discount, speed):
    """To the last bit: with equal speeds nobody is late, so that the discount has no say."""
    data = regression(shape["parties"], shape["dims"], shape["seed"], equal=speed is not None)
    model, sample = linear(shape["dims"]), min(shape["sample"], shape["parties"])
    options = {"rounds": 3, "sample": sample, "seed": shape["seed"], "plan": ONE}
    work = {"lr": 0.05, "batch_size": shape["batch"], "local_epochs": 2}
    timed = {} if speed is None else {"speed": speed, "clock": True}

    rounds = ar.simulate(ar.FedAvg(**work), data, model, **options, **timed)
    buffered = FedBuff(**work, buffer=sample, discount=discount, by_examples=True)
    events = ar.simulate(buffered, data, model, **options, **timed)

    assert torch.equal(events.vector, rounds.vector)
    assert late(events) == [0] * 3 * sample
    assert [c.present.tolist() for c in events.participation] == [
        c.present.tolist() for c in rounds.participation
    ]
    assert events.spent == rounds.spent
    if speed is not None:
        assert events.simulated == rounds.simulated  # the same seconds on both clocks


def test_without_weights_of_examples_it_is_the_papers_mean():
    work = {"lr": 0.05, "batch_size": 3}
    mean = FedOpt(**work, server_optimiser="sgd", server_lr=0.7, by_examples=False)
    buffered = FedBuff(**work, buffer=5, server_lr=0.7)
    none = {"speed": None, "speed_spread": 0.0}

    assert torch.equal(simulated(buffered, **none).vector, simulated(mean, **none).vector)


def test_whoever_is_late_weighs_less():
    full, less = (simulated(FedBuff(lr=0.05, buffer=2, discount=a)) for a in (0.0, 0.5))

    assert max(late(full)) > 1 and late(full) == late(less)  # the clock knows nothing of weights
    assert not torch.equal(full.vector, less.vector)


def test_fedasync_that_takes_all_of_a_fresh_upload_forgets_the_rest():
    """With alpha = 1 and no discount the model is that of the party that sent last."""
    algorithm = FedAsync(lr=0.05, alpha=1.0, staleness="constant", rho=0.0)
    data, model = regression(3, 2, 1), linear(2)
    with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
        engine.step(0, [0], [0], held=[0])
        engine.step(1, [1], [0])
        found = engine.vector().clone()
    with ar.LocalEngine(ar.FedAvg(lr=0.05), data, model, plan=ONE) as engine:
        engine.round(0, [1])
        torch.testing.assert_close(found, engine.vector(), rtol=1e-12, atol=1e-12)


# -- engines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [FedBuff(lr=0.1, buffer=3, batch_size=3), FedAsync(lr=0.1)])
def test_ways_and_workers_agree(algorithm):
    data, model = classification(8, 3, 3, 0), network(3, 3)
    one = simulated(algorithm, data, model)
    assert max(late(one)) > 0

    for plan in (ar.Plan("stacked", 3, 1), ar.Plan("vmapped", 8, 2), ar.Plan("stacked", 1, 2)):
        other = simulated(algorithm, data, model, plan=plan)
        torch.testing.assert_close(other.vector, one.vector, rtol=1e-9, atol=1e-11)
        assert late(other) == late(one)


def test_a_sweep_is_several_runs():
    values = {"lr": [0.02, 0.05], "discount": [0.0, 0.5]}
    base = FedBuff(buffer=2)
    options = {"rounds": 5, "sample": 4, "plan": ONE, **FAST_AND_SLOW}
    swept = ar.sweep(base, regression(7, 3, 0), linear(3), values, **options)

    for lr, discount, run in zip(*values.values(), swept, strict=True):
        alone = simulated(
            FedBuff(buffer=2, lr=lr, discount=discount), regression(7, 3, 0), **options
        )
        torch.testing.assert_close(run.vector, alone.vector, rtol=1e-12, atol=1e-12)


def test_an_engine_keeps_the_versions_that_are_held_and_no_others():
    with ar.LocalEngine(FedBuff(), regression(4, 2, 0), linear(2), plan=ONE) as engine:
        engine.step(0, [0], [0], held=[0])
        engine.step(1, [1], [1], held=[0, 1])
        assert [name for name in engine.state() if "version" in name] == [
            "version.0.0",
            "version.1.0",
        ]
        engine.step(2, [2], [0], held=[1])

        with pytest.raises(ar.ArchipelError, match=r"began from version 0, which is gone"):
            engine.step(3, [3], [0])
        with pytest.raises(ar.ArchipelError, match="one upload of a party, once each"):
            engine.step(3, [3, 3], [1, 2])


@dataclass(frozen=True)
class Counted:
    """Counts a party's contributions in its own state, and remembers what it began from."""

    lr: float = 0.1
    buffer: int = 2
    asynchronous: ClassVar[bool] = True

    def init(self, w):
        return w, torch.zeros(2, dtype=w.dtype)

    def party(self, me, w, own):
        first = torch.full_like(own[..., :1], float(me.round))
        return me.grad(w), torch.cat([own[..., :1] + 1, first], dim=-1)

    def server(self, w, uploads):
        return w - self.lr * uploads.mean()

    def personal(self, me, w, own):
        return w - self.lr * own[..., :1]


def test_own_states_go_on_with_every_contribution():
    check_older_versions(Counted())
    check_own_models(Counted())
    run = simulated(Counted(), rounds=10)
    data, model = regression(9, 3, 0), linear(3)
    with ar.LocalEngine(Counted(), data, model, plan=ONE) as engine:
        for t, cohort in enumerate(run.participation):
            versions = t - np.array(cohort.timing.staleness)
            ahead = run.participation[t + 1 :]
            needed = {u - tau for u, c in enumerate(ahead, t + 1) for tau in c.timing.staleness}
            engine.step(t, cohort.present, versions, {v for v in needed if v <= t})
        own = engine.own_states(range(9))
        assert torch.equal(engine.vector(), run.vector)

    took = [int(sum(k in cohort.present for cohort in run.participation)) for k in range(9)]
    assert own[:, 0].tolist() == took and sum(took) == 20
    assert run.history[-1]["own"] is not None  # parties' own models are scored as ever


# -- what stands around ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocols", [False, True])
@pytest.mark.parametrize("how", [SecureSum(), Gopa()], ids=["secure", "gopa"])
def test_uploads_of_several_versions_are_summed_unseen(how, protocols):
    algorithm = FedBuff(lr=0.05, buffer=3)
    plain = simulated(algorithm)
    summed = simulated(algorithm, wire=ar.Wire(sum=how), protocols=protocols)

    assert max(late(summed)) > 0 and summed.anatomy.sums_only
    torch.testing.assert_close(summed.vector, plain.vector, rtol=0, atol=1e-6)


@pytest.mark.parametrize("step", [Quantise(8), PowerSGD(1)], ids=repr)
def test_steps_of_the_wire_know_the_round_a_party_began_in(step):
    algorithm, data = FedBuff(lr=0.1, buffer=3, batch_size=3), classification(8, 3, 3, 0)
    wire = ar.Wire(up=(step,), down=(Quantise(8, dither=True),))
    one = simulated(algorithm, data, network(3, 3), wire=wire)
    two = simulated(algorithm, data, network(3, 3), wire=wire, plan=ar.Plan("vmapped", 3, 2))

    assert max(late(one)) > 0
    torch.testing.assert_close(two.vector, one.vector, rtol=1e-7, atol=1e-9)


def test_statistics_of_batchnorm_are_averaged_over_a_buffer():
    layers = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
    model = ar.Model(nn.Sequential(*layers).double())
    run = simulated(FedBuff(lr=0.1, buffer=3), classification(8, 3, 3, 0), model)

    assert max(late(run)) > 0
    assert all(torch.isfinite(leaf).all() for leaf in leaves(run.buffers))
    with pytest.raises(ar.ArchipelError, match="would be those of the one party that sent last"):
        simulated(FedAsync(lr=0.1), classification(8, 3, 3, 0), model)


@pytest.mark.parametrize("unit", ["party", "record"])
def test_privacy_counts_every_contribution(unit):
    """Who is fast takes part more often, so that no chance to be drawn is counted on."""
    promise = ar.Privacy(unit=unit, epsilon=5.0, delta=1e-3, clip=1.0)
    data = regression(12, 3, 0, equal=True)
    run = simulated(FedBuff(lr=0.05, buffer=3), data, privacy=promise)
    rounds = simulated(ar.FedAvg(lr=0.05), data, privacy=promise, speed=None)

    took = {k: sum(k in c.sampled for c in run.participation) for k in range(12)}
    assert run.kept is not None and max(took.values()) > 1
    assert all(run.counted[k] >= count for k, count in took.items() if count)
    spent = run.scorecard.to_json()["privacy"]["promise"]
    assert 0 < spent["epsilon"] <= spent["planned"] <= 5.0
    if unit == "party":  # noise for all the steps, where rounds of a drawn cohort need less
        assert min(run.kept.noise.values()) > min(rounds.kept.noise.values())


# -- refusals --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asks(Counted):
    def party(self, me, w, own):
        yield me.grad(w)
        return me.grad(w), own


@pytest.mark.parametrize(
    ("algorithm", "options", "sentence"),
    [
        (FedBuff(buffer=10), {}, "algorithm.buffer = 10: a buffer has an upload of a party once"),
        (FedBuff(buffer=4), {"separation": 3, "sample": 2}, r"lower it to 3\."),
        (FedBuff(), {"quorum": 2}, r"round.quorum = 2: in FedBuff a step takes a full buffer"),
        (FedBuff(), {"over_select": 0.3}, r"round.over_select = 0.3: in FedBuff nobody is asked"),
        (FedBuff(), {"on_missing": "wait"}, r"round.on_missing = 'wait'"),
        (FedBuff(), {"stragglers": 0.5}, r"simulate.stragglers = 0.5: in FedBuff who is slow"),
        (FedBuff(), {"lost": 0.5}, r"simulate.lost = 0.5"),
        (FedBuff(), {"pace": True}, r"simulate.pace = True"),
        (Asks(), {}, r"Asks is asynchronous and its parties wait for a reply \(yield\)"),
        (
            FedBuff(buffer=3),
            {"wire": ar.Wire(up=(RandomMask(0.5, common=True),), sum=SecureSum())},
            "each with its own draws, and a sum of them cannot be undone",
        ),
        (FedAsync(), {"wire": ar.Wire(sum=SecureSum())}, "a round has 1 party"),
    ],
)
def test_what_cannot_be_is_said(algorithm, options, sentence):
    with pytest.raises(ar.ArchipelError, match=sentence):
        simulated(algorithm, **options)


def test_rounds_and_events_in_one_table():
    found = ar.compare(
        ["fedavg", "fedbuff:buffer=2"],
        data="heart_disease",
        rounds=6,
        seeds=1,
        out=None,
        workers=1,
        sections={"simulate": {"speed": 50.0, "speed_spread": 1.0, "clock": True}},
        baselines=False,
    )

    times = [row.figures["simulated_to_target"].mean for row in found.rows]
    assert all(row.figures["rounds_to_target"].known for row in found.rows) and any(times)
    assert "simulated time to" in found.table()
