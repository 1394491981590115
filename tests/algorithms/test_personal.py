"""Models of parties' own: who gets which, and what they equal at the ends of their settings."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.party import LocalParty
from archipel.engines.plan import Plan
from archipel.runs.baselines import alone
from archipel.runs.parts import build_model

DATA = ar.load("heart_disease").with_new(1)
ROUNDS = {"rounds": 5, "metric": "auc"}
PLANS = [Plan("one", 1, 1), Plan("stacked", 2, 1), Plan("stacked", 4, 2)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("algorithm", [ar.FineTuned(lr=0.05), ar.Ditto(lr=0.05, lam=0.3)])
def test_own_models_do_not_depend_on_the_plan(algorithm, plan):
    first = ar.simulate(algorithm, DATA, "logistic", plan=PLANS[0], **ROUNDS)
    run = ar.simulate(algorithm, DATA, "logistic", plan=plan, **ROUNDS)

    for metric, values in first.parties.items():
        torch.testing.assert_close(run.parties[metric], values, rtol=1e-4, atol=1e-5)
    assert run.to_json()["personal"]["seen"].keys() == {"accuracy", "auc", "loss"}
    assert run.to_json()["personal"]["unseen"] is not None


def test_ditto_without_a_pull_is_every_party_alone():
    work = {"lr": 0.05, "batch_size": None}  # whole batches: the same steps whatever is drawn
    run = ar.simulate(ar.Ditto(lam=0.0, **work), DATA, "logistic", workers=1, **ROUNDS)
    local = alone(ar.FedAvg(**work), DATA, "logistic", rounds=5, workers=1).local

    seen = slice(0, DATA.training)
    torch.testing.assert_close(run.parties["loss"][seen], local.parties["loss"][seen])


def test_ditto_with_a_strong_pull_is_the_shared_model():
    run = ar.simulate(
        ar.Ditto(lr=0.001, lam=900.0, batch_size=None, local_steps=40), DATA, "logistic",
        workers=1, **ROUNDS,
    )  # fmt: skip
    shared = ar.simulate(
        ar.FedAvg(lr=0.001, batch_size=None, local_steps=40), DATA, "logistic", workers=1, **ROUNDS
    )
    torch.testing.assert_close(run.vector, shared.vector)
    torch.testing.assert_close(run.parties["loss"], shared.parties["loss"], rtol=0.02, atol=0.02)


def test_ditto_learns_the_shared_model_as_fedavg_does():
    run = ar.simulate(ar.Ditto(lr=0.05), DATA, "logistic", workers=1, sample=2, **ROUNDS)
    shared = ar.simulate(ar.FedAvg(lr=0.05), DATA, "logistic", workers=1, sample=2, **ROUNDS)

    torch.testing.assert_close(run.vector, shared.vector)


def test_fine_tuning_takes_no_step_that_is_not_the_party_s():
    run = ar.simulate(ar.FineTuned(lr=0.05, tune_epochs=3), DATA, "logistic", workers=1, **ROUNDS)
    shared = ar.simulate(ar.FedAvg(lr=0.05), DATA, "logistic", workers=1, **ROUNDS)

    torch.testing.assert_close(run.vector, shared.vector)
    other = replace(DATA, x=torch.where(torch.arange(len(DATA.x))[:, None] < 5, 0.0, DATA.x))
    model = ar.Model(run.model, "cross_entropy")
    for data in (DATA, other):  # party 0 differs: the others' own models do not
        with ar.LocalEngine(ar.FineTuned(lr=0.05), data, model, workers=1) as engine:
            scores = engine.evaluate(own=True)
        if data is DATA:
            kept = scores.parties["loss"][1:]
    assert torch.equal(scores.parties["loss"][1:], kept)


@pytest.mark.parametrize("kind", [ar.FineTuned, ar.PeFLL])
def test_own_models_are_tuned_at_a_rate_of_their_own(kind):
    """tune_epochs passes over the party's points at tune_lr, from the model it was given."""
    options = {"lr": 0.2, "batch_size": 4}
    data = DATA if kind is ar.FineTuned else DATA.select([0, 1, 2])
    model = build_model("logistic", data)
    none = 0.0 if kind is ar.FineTuned else None  # a rate of 0 is no tuning

    def own(**tuning):
        with ar.LocalEngine(kind(**options, **tuning), data, model, plan=PLANS[0]) as engine:
            engine.round(0, range(2))
            return engine.own_model(2)[0]

    before = own(tune_lr=none) if none is not None else own()
    me = LocalParty(data, model, model.one, np.array([2]), 0, 1, ())
    work = ar.FedAvg(0.03, 2, None, 4, kind(**options).optimiser)
    expected = me.descend(before, work).w

    torch.testing.assert_close(own(tune_epochs=2, tune_lr=0.03), expected)
    assert not torch.allclose(own(tune_epochs=2), expected)


@pytest.mark.parametrize("field", [{"tune_epochs": -1}, {"tune_lr": -0.1}, {"tune_epochs": 0.5}])
@pytest.mark.parametrize("kind", [ar.FineTuned, ar.PeFLL, ar.FedRep, ar.FedPer])
def test_tuning_that_cannot_work_is_refused(kind, field):
    with pytest.raises(ar.ArchipelError, match=f"{next(iter(field))} = "):
        ar.simulate(kind(**field), DATA, "mlp", rounds=1)


@dataclass(frozen=True)
class Asking(ar.FedAvg):
    """The server answers each party with the shared model times what the party says."""

    def personal(self, me, w, own):
        theta = yield me.n / 100
        more = yield theta.mean(dim=-1, keepdim=True)
        return theta + more

    def advise(self, w, uploads):
        return ar.Each(w * uploads.stack())


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_party_asks_the_server_and_gets_its_own_answers(plan):
    model = ar.Model(torch.nn.Linear(13, 2))
    with ar.LocalEngine(Asking(), DATA, model, plan=plan) as engine:
        scores = engine.evaluate(own=True)
        for k in range(DATA.parties):
            theta = model.w * float(DATA.n[k]) / 100
            expected = engine.evaluate(theta + model.w * theta.mean())
            assert scores.parties["loss"][k] == pytest.approx(float(expected.parties["loss"][k]))
