"""Per-FedAvg: its two steps, by hand and by autograd, and the batches that they use."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from exact import Parties
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms.perfedavg import PerFedAvg
from archipel.conformance import check_algorithm
from archipel.engines.party import LocalParty
from problems import classification, learn, network

DATA = ar.load("heart_disease").with_new(1)
PLANS = [ar.Plan("one", 1, 1), ar.Plan("stacked", 2, 1), ar.Plan("stacked", 4, 2)]
SHAPES = {"parties": st.integers(1, 6), "dims": st.integers(1, 4), "seed": st.integers(0, 9999)}
few = settings(max_examples=15, deadline=None)
WHOLE = {"lr": 0.3, "inner_lr": 0.2, "local_steps": 1, "batch_size": None}


def party(data, model, k):
    return LocalParty(data, model, model.one, np.array([k]), 0, 0, ())


@pytest.mark.slow  # with its defaults it is in test_conformance.py
@pytest.mark.parametrize("variant", ["hessian-free", "first-order"])
def test_conformance(variant):
    check_algorithm(PerFedAvg(variant=variant, batch_size=5))


@few
@given(**SHAPES)
def test_first_order_step_by_hand(parties, dims, seed):
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    ends = []
    for k in range(parties):
        x, y, _, _ = data.party(k)
        w_tilde = model.w - 0.2 * model.grad(model.w, x, y)
        ends.append(model.w - 0.3 * model.grad(w_tilde, x, y))

    w = learn(PerFedAvg(variant="first-order", **WHOLE), data, model, rounds=1)

    torch.testing.assert_close(w, torch.stack(ends).mean(dim=0))


@few
@given(**SHAPES)
def test_hessian_free_step_is_the_gradient_of_the_meta_objective(parties, dims, seed):
    """With whole batches it descends f_i(w - alpha grad f_i(w)), which autograd knows exactly."""
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed, hidden=4)
    module = torch.nn.Sequential(
        torch.nn.Linear(dims, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)
    ).double()
    model = ar.Model(module)
    gradients = []
    for k in range(parties):
        x, y, _, _ = data.party(k)

        def loss(w, x=x, y=y):
            out = torch.func.functional_call(module, model.spec.views(w), (x,))
            return torch.nn.functional.cross_entropy(out, y)

        def meta(w, loss=loss):
            return loss(w - 0.2 * torch.func.grad(loss)(w))

        gradients.append(torch.func.grad(meta)(model.w))

    w = learn(PerFedAvg(delta=1e-4, **WHOLE), data, model, rounds=1)

    expected = model.w - 0.3 * torch.stack(gradients).mean(dim=0)
    torch.testing.assert_close(w, expected, rtol=1e-5, atol=1e-6)


@few
@given(
    **SHAPES,
    delta=st.sampled_from([1e-3, 1e-2]),
    size=st.sampled_from([1e-6, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_finite_difference_is_the_hessian_on_a_quadratic(parties, dims, seed, delta, size, dtype):
    """To 1e-4 in single precision too, whatever the gradient's size."""
    me = Parties(parties, dims, seed, dtype=dtype)
    v = size * torch.randn(parties, dims, generator=torch.Generator().manual_seed(seed)).to(dtype)

    got = PerFedAvg(delta=delta).curvature(me, me.start, v, None)

    exact = (me.H @ v[..., None])[..., 0]
    error = (got - exact).norm(dim=-1) / exact.norm(dim=-1)
    rounding = 8 * torch.finfo(dtype).eps / delta  # of gradients whose difference is delta long
    assert float(error.max()) < max(1e-4, rounding)


def test_curvature_along_nothing_is_nothing():
    me = Parties(3, 2)
    v = torch.zeros(3, 2, dtype=torch.float64)
    assert torch.equal(PerFedAvg().curvature(me, me.start, v, None), v)


class Watched:
    """A party that writes down the points of the batches that its gradients use."""

    def __init__(self, me):
        self._me, self.used = me, []

    def __getattr__(self, name):
        return getattr(self._me, name)

    def grad(self, w, batch=None):
        self.used.append(tuple(sorted(batch.rows.flatten().tolist())))
        return self._me.grad(w, batch)


@pytest.mark.parametrize("variant", ["hessian-free", "first-order"])
def test_every_gradient_of_a_step_has_its_own_points(variant):
    data, model = classification(1, 3, 3, 0), network(3, 3)
    data = ar.Federation.from_arrays([data.x.repeat(12, 1)], [data.y.repeat(12)], test=0.0)
    algorithm = PerFedAvg(variant=variant, local_steps=4, batch_size=2)
    me = Watched(party(data, model, 0))

    algorithm.party(me, model.w, None)

    per_step = 4 if variant == "hessian-free" else 2
    assert len(me.used) == 4 * per_step
    for step in range(4):
        used = me.used[step * per_step : (step + 1) * per_step]
        assert used[2:] in ([], [used[-1]] * 2)  # both ends of the difference: one batch
        batches = dict.fromkeys(used)
        assert len(batches) == (3 if variant == "hessian-free" else 2)
        assert len({point for batch in batches for point in batch}) == 2 * len(batches)


def test_without_an_inner_step_it_is_plain_averaging():
    data, model = classification(4, 3, 3, 5), network(3, 3, 5)
    work = {"lr": 0.3, "local_steps": 3, "batch_size": None}
    sizes = {int(n) for n in data.n}
    assert len(sizes) > 1  # the paper's mean is uniform, FedAvg's is not
    ends = [learn(ar.FedAvg(**work), data, model, rounds=1, ids=[k]) for k in range(4)]
    for variant in ("hessian-free", "first-order"):
        w = learn(PerFedAvg(inner_lr=0.0, variant=variant, **work), data, model, rounds=1)
        torch.testing.assert_close(w, torch.stack(ends).mean(dim=0))


@few
@given(**SHAPES, tune_steps=st.integers(0, 3))
def test_own_model_takes_its_steps_on_training_points_alone(parties, dims, seed, tune_steps):
    whole = classification(parties, dims, 3, seed)
    rows = [whole.party(k)[:2] for k in range(parties)]
    data = ar.Federation.from_arrays(*map(list, zip(*rows, strict=True)), test=0.5, seed=seed)
    model = network(dims, 3, seed)
    algorithm = PerFedAvg(inner_lr=0.4, tune_steps=tune_steps)
    for k in np.flatnonzero(data.n.numpy()):
        x, y, _, _ = data.party(int(k))
        expected = model.w
        for _ in range(tune_steps):
            expected = expected - 0.4 * model.grad(expected, x, y)

        w = algorithm.personal(party(data, model, k), model.w, None)

        torch.testing.assert_close(w, expected)


@pytest.mark.parametrize("plan", PLANS[1:], ids=str)
@pytest.mark.parametrize("variant", ["hessian-free", "first-order"])
def test_own_models_do_not_depend_on_the_plan(variant, plan):
    options = {"rounds": 4, "metric": "auc", "sample": 2}
    algorithm = PerFedAvg(variant=variant)
    one = ar.simulate(algorithm, DATA, "logistic", plan=PLANS[0], **options)
    run = ar.simulate(algorithm, DATA, "logistic", plan=plan, **options)
    for metric, values in one.parties.items():
        torch.testing.assert_close(run.parties[metric], values, rtol=1e-3, atol=1e-4)
    assert run.to_json()["personal"]["unseen"] is not None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"variant": "hessian"}, "did you mean 'hessian-free'"),
        ({"inner_lr": -0.1}, "inner_lr = -0.1"),
        ({"inner_lr": float("nan")}, "inner_lr = nan"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"delta": float("inf")}, "delta = inf"),
        ({"tune_steps": -1}, "tune_steps = -1"),
        ({"tune_steps": 1.5}, "tune_steps = 1.5: give a whole number"),
        ({"variant": 3}, "unknown variant '3'"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, says):
    with pytest.raises(ar.ArchipelError, match=says):
        learn(replace(PerFedAvg(), **fields), classification(2, 2, 3, 0), network(2, 3), rounds=1)
