"""A round whose parties diverge may fall below the quorum: in a simulation and on a wire."""

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.engine import Cause
from archipel.engines.network.in_process import play
from archipel.engines.network.opened import Patience
from archipel.errors import BelowQuorum
from problems import linear

PLANS = [ar.Plan("one", 1, 1), ar.Plan("one", 2, 2)]


class Kept(NamedTuple):
    rounds: torch.Tensor
    last: torch.Tensor


@dataclass(frozen=True)
class Explodes:
    """FedSGD with something kept at each party; parties of so many points diverge in round `at`."""

    lr: float = 0.01
    points: int = 7
    at: int = 1

    def init(self, w):
        return w, Kept(torch.zeros_like(w[..., :1]), torch.zeros_like(w))

    def party(self, me, w, own):
        g = me.grad(w)
        if me.round == self.at:
            g = torch.where(me.n == self.points, float("nan"), g)
        return -self.lr * g, Kept(own.rounds + 1, g)

    def server(self, w, uploads):
        return w + uploads.mean()


@dataclass(frozen=True)
class ExplodesLater(Explodes):
    """The same in two messages; parties diverge in the second."""

    def party(self, me, w, own):
        mean = yield w * 0
        upload, own = Explodes.party(self, me, w + mean, own)
        return upload, own

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        return w + uploads.mean()


def federation():
    random = np.random.default_rng(0)
    xs = [torch.from_numpy(random.standard_normal((n, 2))) for n in (7, 4, 5)]
    return ar.Federation.from_arrays(xs, [x.sum(dim=1) for x in xs], test=0.0)


@pytest.mark.parametrize("make", [Explodes, ExplodesLater])
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_round_below_the_quorum_changes_nothing(plan, make):
    with ar.LocalEngine(make(), federation(), linear(2), plan=plan) as engine:
        engine.round(0, range(3), needed=3)
        before = engine.state()
        outcome = engine.round(1, range(3), needed=3)
        after = engine.state()
        assert outcome.arrived.tolist() == [] and outcome.diverged.tolist() == [0]
        assert outcome.gradients > 0
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)

        outcome = engine.round(1, range(3), needed=2)
        assert outcome.arrived.tolist() == [1, 2]
        assert engine.own_states([0, 1, 2]).rounds[:, 0].tolist() == [1, 2, 2]


@pytest.mark.parametrize("make", [Explodes, ExplodesLater])
def test_the_wire_leaves_the_same_states_behind(make):
    data, model, everybody = federation(), linear(2), [0, 1, 2]
    with ar.LocalEngine(make(), data, model, plan=PLANS[0]) as engine:
        arrived = [engine.round(t, everybody, needed=3).arrived.tolist() for t in range(3)]
        shared, own = engine.shared, engine.own_states(everybody)
    assert arrived == [everybody, [], everybody]

    played = asyncio.run(play(make(), data, model, [everybody] * 3, patience=Patience(needed=3)))

    assert [outcome.arrived.tolist() for outcome in played.outcomes] == arrived
    assert [outcome.missing for outcome in played.outcomes] == [{}, {0: Cause("diverged")}, {}]
    torch.testing.assert_close(played.engine.shared, shared)
    for k, party_state in enumerate(played.party_states):
        torch.testing.assert_close(party_state.own.state, Kept(*(leaf[k] for leaf in own)))


def simulate(on_missing, quorum=3, **options):
    return ar.simulate(
        Explodes(), federation(), "linear", loss="squared_error", rounds=3, quorum=quorum,
        on_missing=on_missing, plan=PLANS[0], **options,
    )  # fmt: skip


def test_abort_aborts():
    with pytest.raises(BelowQuorum, match=r"round 2: 2 of 3 parties answer \(diverged\), below"):
        simulate("abort")


def test_continue_does_not_count_the_round():
    models = []
    run = simulate("continue", on_round=lambda run: models.append(run.vector.clone()))
    assert [cohort.counted for cohort in run.participation] == [True, False, True]
    assert run.participation[1].missing == {0: Cause("diverged")}
    assert "round 2: below the quorum, not counted." in run.notes
    assert "round 2: party 0 diverged and was left out: lower lr." in run.notes
    assert torch.equal(models[0], models[1]) and not torch.equal(models[1], models[2])
    counted = simulate("continue", quorum=2)
    assert all(cohort.counted for cohort in counted.participation)


def test_who_waits_for_parties_that_diverge_again_is_told_so():
    with pytest.raises(BelowQuorum, match=r"\(diverged\).* also after waiting 1000 rounds"):
        simulate("wait")


def test_waiting_helps_where_others_come():
    """Party 0 diverges in the second round; once it is away, the two others are enough."""
    away = {"0": "3-9"}  # the clock moves on while the round is waited for
    run = simulate("wait", quorum=2, away=away, sample=2, seed=4)
    assert all(cohort.counted for cohort in run.participation)
    assert run.participation[1].waited == 1
    assert run.participation[1].blocked == {0: Cause("diverged")}
    assert run.participation[1].present.tolist() == [1, 2]
