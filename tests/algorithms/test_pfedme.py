"""pFedMe: the Moreau envelope, its steps by hand, and its limits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact import Parties, run
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms.pfedme import PFedMe
from archipel.conformance import check_algorithm
from archipel.engines.party import LocalParty
from problems import classification, learn, network

DATA = ar.load("heart_disease").with_new(1)
PLANS = [ar.Plan("one", 1, 1), ar.Plan("stacked", 2, 1), ar.Plan("stacked", 4, 2)]
SHAPES = {"parties": st.integers(1, 6), "dims": st.integers(1, 4), "seed": st.integers(0, 9999)}
few = settings(max_examples=15, deadline=None)


def exactly(lam, **fields):
    """pFedMe whose inner problem is solved, for curvatures up to 1."""
    return PFedMe(inner_lr=1 / (1 + lam), lam=lam, inner_steps=200, **fields)


@pytest.mark.slow  # with its defaults it is in test_conformance.py
def test_conformance():
    check_algorithm(PFedMe(batch_size=5, inner_steps=2))


@few
@given(**SHAPES, lam=st.floats(0.5, 10.0))
def test_gradient_of_the_moreau_envelope(parties, dims, seed, lam):
    """lam (w - theta^(w)) against differences of F_i(w) = min f_i(theta) + lam/2 |theta - w|^2."""
    me, algorithm, step = Parties(parties, dims, seed), exactly(lam), 1e-4

    def envelope(w):
        theta = algorithm.solve(me, w, w, None)
        return me.loss(theta) + lam / 2 * ((theta - w) ** 2).sum(dim=-1, keepdim=True)

    w = me.start.expand(parties, dims)
    moves = step * torch.eye(dims, dtype=torch.float64)
    differences = [(envelope(w + e) - envelope(w - e)) / (2 * step) for e in moves]

    gradient = lam * (w - algorithm.solve(me, w, w, None))
    torch.testing.assert_close(gradient, torch.cat(differences, dim=-1), rtol=1e-5, atol=1e-6)


@few
@given(**SHAPES, lam=st.floats(0.5, 10.0))
def test_one_local_round_is_a_gradient_step_on_the_mean_envelope(parties, dims, seed, lam):
    me = Parties(parties, dims, seed)

    w, _ = run(exactly(lam, lr=0.7 / lam, local_steps=1), me, 1)

    expected = me.start - 0.7 * (me.start - me.proximal(me.start, lam)).mean(dim=0)
    torch.testing.assert_close(w, expected)


@few
@given(**SHAPES)
def test_the_round_by_hand(parties, dims, seed):
    """R batches, K steps on each, theta warm from step to step, beta at the server."""
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    algorithm = PFedMe(
        lr=0.02, inner_lr=0.04, lam=9.0, local_steps=3, inner_steps=2, batch_size=2, server_lr=1.7
    )
    ends = []
    for k in range(parties):
        me = LocalParty(data, model, model.one, np.array([k]), 0, 0, ())
        w_i = theta = model.w
        for _ in range(3):
            batch = me.batch(2)
            for _ in range(2):
                theta = theta - 0.04 * (me.grad(theta, batch) + 9.0 * (theta - w_i))
            w_i = w_i - 0.02 * 9.0 * (w_i - theta)
        ends.append(w_i)

    with ar.LocalEngine(algorithm, data, model, plan=ar.Plan("stacked", 3, 1)) as engine:
        engine.round(0, range(parties))
        mean = torch.stack(ends).mean(dim=0)
        torch.testing.assert_close(engine.vector(), (1 - 1.7) * model.w + 1.7 * mean)


@few
@given(**SHAPES)
def test_a_weak_spring_is_every_party_alone(parties, dims, seed):
    me = Parties(parties, dims, seed)
    _, own = run(exactly(1e-5, lr=1.0, local_steps=2), me, 3)
    torch.testing.assert_close(own, me.alone(), rtol=1e-3, atol=1e-3)


@few
@given(**SHAPES)
def test_a_strong_spring_is_the_common_optimum(parties, dims, seed):
    me = Parties(parties, dims, seed)
    lam = 5000.0  # so stiff that a step of lr is short; the server's makes up for it
    algorithm = PFedMe(
        lr=1 / lam, inner_lr=1 / lam, lam=lam, inner_steps=2, local_steps=1, server_lr=lam / 2
    )

    shared, own = run(algorithm, me, 150)

    torch.testing.assert_close(own, me.common().expand_as(own), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(shared, me.common(), rtol=1e-3, atol=1e-3)


@few
@given(**SHAPES, lam=st.floats(0.5, 10.0), rounds=st.integers(0, 3))
def test_a_party_s_own_model_solves_its_problem_around_w(parties, dims, seed, lam, rounds):
    """Whether it trained or not, and however little it did: the paper's theta^(w)."""
    me = Parties(parties, dims, seed)
    algorithm = PFedMe(lr=0.5 / lam, lam=lam, inner_lr=1 / (1 + lam), inner_steps=1)
    w = run(algorithm, me, rounds)[0] if rounds else me.start

    own = algorithm.personal(me, w, None)

    torch.testing.assert_close(own, me.proximal(w, lam))


def test_own_models_fit_their_parties_better_than_the_shared_one():
    """A theta of the last mini-batch alone does not."""
    algorithm = PFedMe(lr=0.05, inner_lr=0.5, lam=1.0, inner_steps=5, batch_size=2)
    data, model = classification(5, 3, 3, seed=1), network(3, 3, seed=1)
    with ar.LocalEngine(algorithm, data, model, plan=ar.Plan("stacked", 3, 1)) as engine:
        for t in range(5):
            engine.round(t, range(5))
        own = engine.evaluate(own=True, split="train").parties["loss"]
        shared = engine.evaluate(split="train").parties["loss"]

    assert (own < shared).all()


def test_the_inner_rate_may_fall():
    data, model = classification(3, 2, 3, 0), network(2, 3)
    falling = PFedMe(inner_lr=ar.Decay(0.08, factor=0.5), tune_steps=3)
    with ar.LocalEngine(falling, data, model, plan=ar.Plan("one", 4, 1)) as engine:
        first = engine.round(0, range(3)) and engine.vector().clone()
        engine.round(1, range(3))
        second = engine.vector().clone()

    constant = [learn(PFedMe(inner_lr=0.08), data, model, rounds=n) for n in (1, 2)]
    torch.testing.assert_close(first, constant[0])
    assert not torch.allclose(second, constant[1])
    assert (second - first).norm() < (constant[1] - constant[0]).norm()


@pytest.mark.parametrize("plan", PLANS[1:], ids=str)
def test_own_models_do_not_depend_on_the_plan(plan):
    options = {"rounds": 4, "metric": "auc", "sample": 2}
    one = ar.simulate(PFedMe(), DATA, "logistic", plan=PLANS[0], **options)
    run = ar.simulate(PFedMe(), DATA, "logistic", plan=plan, **options)
    for metric, values in one.parties.items():
        torch.testing.assert_close(run.parties[metric], values, rtol=1e-4, atol=1e-5)
    assert run.to_json()["personal"]["unseen"] is not None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lam": 0.0}, "lam = 0.0"),
        ({"lr": 0.1, "lam": 15.0}, r"lr \* lam is at most 1"),
        ({"lr": ar.Cosine(0.1, 20, warmup=9)}, r"lr \* lam is at most 1"),
        ({"inner_steps": 0}, "inner_steps = 0"),
        ({"inner_steps": 2.5}, "inner_steps = 2.5: give a whole number"),
        ({"inner_lr": -0.1}, "inner_lr = -0.1"),
        ({"inner_lr": 0.2, "lam": 10.0}, r"inner_lr \* lam is below 2"),
        ({"inner_lr": ar.Decay(0.2), "lam": 10.0}, r"inner_lr \* lam is below 2"),
        ({"tune_lr": 0.2, "lam": 10.0}, r"tune_lr \* lam is below 2"),
        ({"tune_lr": -0.2}, "tune_lr = -0.2"),
        ({"tune_steps": -1}, "tune_steps = -1"),
        ({"server_lr": 0.0}, "server_lr = 0.0"),
        ({"server_lr": float("inf")}, "server_lr = inf"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, says):
    with pytest.raises(ar.ArchipelError, match=says):
        learn(replace(PFedMe(), **fields), classification(2, 2, 3, 0), network(2, 3), rounds=1)
