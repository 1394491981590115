"""pFedHN against autograd through its hyper-network, and what a new party does for its model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_personal import DATA, PLANS
from torch import nn
from torch.func import functional_call

import archipel as ar
from archipel.algorithms.pfedhn import PFedHN
from archipel.engines.party import LocalParty
from archipel.engines.plan import Plan
from archipel.models.networks import Perceptron
from archipel.tree import leaves
from problems import classification, network

ONE = Plan("one", 3, 1)
SMALL = {"size": 4, "hidden": 7}
ONE_STEP = {
    "lr": 1.0, "local_steps": 1, "optimiser": ar.SGD(), "server_lr": 1.0,
    "server_optimiser": ar.SGD(), "clip_at": 1e9, **SMALL,
}  # fmt: skip
WORK = {"lr": 0.05, "local_steps": 5, "batch_size": 8, **SMALL}


def hyper_network(algorithm, model):
    return Perceptron((algorithm.size, *[algorithm.hidden] * 3, model.p))


def first_descriptor(algorithm, data, model, k, seed=0):
    me = LocalParty(data, model, model.one, np.array([k]), seed, 0, ())
    return me.normal(model.w[: algorithm.size])


# -- a round ---------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    parties=st.integers(1, 5),
    seed=st.integers(0, 99),
    batch_size=st.sampled_from([None, 1, 3]),
    plan=st.sampled_from([ONE, Plan("stacked", 2, 1), Plan("vmapped", 5, 1)]),
)
def test_a_round_is_a_step_against_autograds_gradient(parties, seed, batch_size, plan):
    data, model = classification(parties, 3, 3, seed), network(3, 3, seed)
    algorithm = PFedHN(batch_size=batch_size, descriptor_lr=0.5, **ONE_STEP)
    h = hyper_network(algorithm, model)
    with ar.LocalEngine(algorithm, data, model, plan=plan, seed=seed) as engine:
        phi = engine.shared.phi.clone().requires_grad_()
        engine.round(0, range(parties))
        after, own = engine.shared.phi, engine.own_states(range(parties))
    vs = [
        first_descriptor(algorithm, data, model, k, seed).requires_grad_() for k in range(parties)
    ]
    losses = []
    for k, v in enumerate(vs):
        me = LocalParty(data, model, model.one, np.array([k]), seed, 0, ())
        points = me.examples(me.batch(batch_size))
        theta = h(phi, v[None])[0]
        outputs = functional_call(model.module, model.spec.views(theta), (points.x,))
        each = nn.functional.cross_entropy(outputs, points.y, reduction="none")
        losses.append((points.weights * each).sum())
    total = torch.stack(losses)
    (d_phi,) = torch.autograd.grad(total.mean(), phi, retain_graph=True)
    d_vs = torch.autograd.grad(total.sum(), vs)

    torch.testing.assert_close(after, phi.detach() - d_phi, rtol=1e-8, atol=1e-10)
    for k, (v, d_v) in enumerate(zip(vs, d_vs, strict=True)):
        torch.testing.assert_close(own.v[k], v.detach() - 0.5 * d_v, rtol=1e-8, atol=1e-10)
        assert float(own.trained[k]) == 1


@pytest.mark.parametrize("share", [0.2, 5.0])
def test_the_servers_gradient_is_clipped_and_goes_through_its_optimiser(share):
    data, model = classification(3, 3, 3, 0), network(3, 3)

    def moved(**fields):
        with ar.LocalEngine(PFedHN(**{**ONE_STEP, **fields}), data, model, plan=ONE) as engine:
            start = engine.shared.phi
            engine.round(0, range(3))
            return start, start - engine.shared.phi

    start, g = moved()
    _, clipped = moved(clip_at=share * float(g.norm()))
    _, decayed = moved(server_optimiser=ar.SGD(weight_decay=0.3))
    torch.testing.assert_close(clipped, g * min(1.0, share))
    torch.testing.assert_close(decayed, g + 0.3 * start)


def test_a_descriptor_is_drawn_once_and_then_kept_by_its_party():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    algorithm = PFedHN(descriptor_lr=0.0, **WORK)
    with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
        engine.round(0, [0, 1])
        first = engine.own_states([0, 1, 2])
        engine.round(1, [1, 2])
        second = engine.own_states([0, 1, 2])

    assert torch.equal(first.v[0], first_descriptor(algorithm, data, model, 0))
    assert torch.equal(second.v[:2], first.v[:2])
    assert not first.v[2].any() and bool(second.v[2].any())
    assert first.trained[:, 0].tolist() == [1, 1, 0]
    assert not torch.equal(first.v[0], first.v[1])


def test_messages_are_descriptor_model_difference_and_gradient():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    algorithm = PFedHN(new_steps=2, **SMALL)
    e, p = 4, model.p
    with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
        anatomy = engine.anatomy
        outcome = engine.round(0, range(3))
        traffic = (outcome.up, outcome.down)

    shapes = [[tuple(leaf.shape) for leaf in leaves(m.upload)] for m in anatomy.messages]
    replies = [[tuple(leaf.shape) for leaf in leaves(m.reply)] for m in anatomy.messages]
    assert shapes == [[(e,)], [(p,)], []]
    assert replies == [[(p,)], [(e,)], []]
    assert leaves(anatomy.sent) == []
    assert traffic == (3 * 8 * (e + p), 3 * 8 * (p + e))
    assert len(anatomy.personal) == 3  # a model, and one after each step


# -- models of parties' own ------------------------------------------------------------------------


def test_a_new_partys_steps_lower_its_loss_and_touch_nobody_elses():
    torch.manual_seed(0)
    model, losses, states = ar.Model(nn.Linear(13, 2)), [], []
    for new_steps in (0, 3, 30):
        algorithm = PFedHN(new_steps=new_steps, descriptor_lr=3.0, server_lr=0.1, **WORK)
        with ar.LocalEngine(algorithm, DATA, model, plan=ONE) as engine:
            for t in range(20):
                engine.round(t, range(DATA.training))
            before = engine.state()
            losses.append(engine.evaluate(own=True, split="train").parties["loss"])
            states.append((before, engine.state()))

    seen, new = slice(0, DATA.training), slice(DATA.training, None)
    assert torch.equal(losses[0][seen], losses[1][seen])
    assert torch.equal(losses[0][seen], losses[2][seen])
    assert float(losses[2][new]) < float(losses[1][new]) < float(losses[0][new])
    for before, after in states:
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_seen_partys_model_is_made_of_its_descriptor():
    model, algorithm = ar.Model(nn.Linear(13, 2)), PFedHN(**WORK)
    h = hyper_network(algorithm, model)
    with ar.LocalEngine(algorithm, DATA, model, plan=PLANS[1]) as engine:
        for t in range(3):
            engine.round(t, range(DATA.training))
        scores, own = engine.evaluate(own=True), engine.own_states(range(DATA.parties))
        for k in range(DATA.training):
            theta = h(engine.shared.phi, own.v[k][None])[0]
            expected = float(engine.evaluate(theta).parties["loss"][k])
            assert float(scores.parties["loss"][k]) == pytest.approx(expected, rel=1e-5)


def test_a_new_party_pays_for_its_steps_and_seen_parties_pay_nothing():
    algorithm = PFedHN(new_steps=2, **{**WORK, "batch_size": None})
    run = ar.simulate(algorithm, DATA, "logistic", rounds=2, plan=PLANS[0])

    assert run.joining.messages == 2 * 3  # nothing is broadcast
    assert run.joining.gradients == 2 * 5 * int(DATA.n[-1])
    assert not run.making["gradients"][: DATA.training].any()


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_own_models_do_not_depend_on_the_plan(plan):
    runs = [
        ar.simulate(PFedHN(**WORK), DATA, "logistic", rounds=5, plan=each)
        for each in (PLANS[0], plan)
    ]

    for metric, values in runs[0].parties.items():
        torch.testing.assert_close(runs[1].parties[metric], values, rtol=1e-4, atol=1e-5)


# -- what cannot be --------------------------------------------------------------------------------


def test_a_party_that_diverges_is_left_out():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    x = data.x.clone()
    x[data.offsets[1] : data.offsets[2]] *= 1e200
    with ar.LocalEngine(PFedHN(lr=1.0, **SMALL), replace(data, x=x), model, plan=ONE) as engine:
        outcome = engine.round(0, range(4))

        assert outcome.diverged.tolist() == [1] and len(outcome.arrived) == 3
        assert all(bool(leaf.isfinite().all()) for leaf in leaves(engine.shared))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0),
        ("hidden", 0),
        ("clip_at", -1.0),
        ("server_lr", -0.01),
        ("descriptor_lr", -0.01),
        ("new_steps", -1),
        ("server_optimiser", 3),
        ("server_optimiser", ar.Adam),
    ],
)
def test_bad_settings_are_told_in_a_sentence(field, value):
    data, model = classification(3, 3, 3, 0), network(3, 3)
    with pytest.raises(ar.ArchipelError, match=f"{field} = "):
        ar.LocalEngine(replace(PFedHN(), **{field: value}), data, model, plan=ONE)
