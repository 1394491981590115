"""FedDyn: the fixed point is the optimum of the mean loss, and a round that of the paper's box."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from problems import learn, linear, regression

few = settings(max_examples=5, deadline=None)
SHAPES = {"parties": st.integers(2, 5), "dims": st.integers(1, 3), "seed": st.integers(0, 99)}


def optimum(data):
    """Where the parties' mean losses, each counting once, have their least mean."""
    left = right = 0.0
    for k in range(data.training):
        x, y = data.party(k)[0].numpy(), data.party(k)[1].numpy()
        left, right = left + x.T @ x / len(x), right + x.T @ y / len(x)
    return np.linalg.solve(left, right)


def heterogeneous(seed=0, parties=4, dims=2):
    random = np.random.default_rng(seed)
    xs = [random.standard_normal((12, dims)) for _ in range(parties)]
    ys = [x @ (3 * random.standard_normal(dims)) for x in xs]
    return ar.Federation.from_arrays([*map(torch.from_numpy, xs)], [*map(torch.from_numpy, ys)],
                                     test=0.0)  # fmt: skip


def test_it_ends_at_the_optimum_where_fedavg_does_not():
    data, model = heterogeneous(), linear(2)
    work = {"lr": 0.05, "local_steps": 10, "batch_size": None}
    dyn = learn(ar.FedDyn(alpha=1.0, **work), data, model, rounds=60)
    avg = learn(ar.FedAvg(**work), data, model, rounds=60)
    np.testing.assert_allclose(dyn.numpy(), optimum(data), atol=1e-3)
    assert np.abs(avg.numpy() - optimum(data)).max() > 1e-2


def test_so_it_does_when_some_take_part():
    data, model = heterogeneous(), linear(2)
    algorithm = ar.FedDyn(alpha=1.0, lr=0.05, local_steps=10, batch_size=None)
    with ar.LocalEngine(algorithm, data, model, plan=ar.Plan("one", 4, 1)) as engine:
        for t in range(160):
            engine.round(t, [[0, 1], [2, 3], [1, 2], [0, 3]][t % 4])
        np.testing.assert_allclose(engine.vector().numpy(), optimum(data), atol=1e-2)


@few
@given(**SHAPES, alpha=st.floats(0.05, 2.0), steps=st.integers(1, 4))
def test_three_rounds_are_those_of_the_paper(parties, dims, seed, alpha, steps):
    """Algorithm 1 in NumPy: gradients g_k and h, all parties in the first round, then the first."""
    data, model = regression(parties, dims, seed), linear(dims)
    eta, theta = 0.02, model.w.numpy().copy()
    g, h = np.zeros((parties, dims)), np.zeros(dims)
    cohorts = [list(range(parties)), [0], list(range(parties))]
    for cohort in cohorts:
        found = []
        for k in cohort:
            x, y = data.party(k)[:2]
            at = theta.copy()
            for _ in range(steps):
                slope = model.grad(torch.from_numpy(at), x, y).numpy()
                at = at - eta * (slope - g[k] + alpha * (at - theta))
            g[k] = g[k] - alpha * (at - theta)
            found.append(at)
        h = h - alpha / parties * (np.array(found) - theta).sum(axis=0)
        theta = np.mean(found, axis=0) - h / alpha

    algorithm = ar.FedDyn(lr=eta, alpha=alpha, local_steps=steps, batch_size=None)
    with ar.LocalEngine(algorithm, data, model, plan=ar.Plan("one", 1, 1)) as engine:
        for t, cohort in enumerate(cohorts):
            engine.round(t, cohort)
        np.testing.assert_allclose(engine.vector().numpy(), theta, rtol=1e-8, atol=1e-10)


def test_without_alpha_parties_send_what_they_send_in_fedavg():
    """The server adds the mean change once more in the first round: h / alpha is minus that."""
    data, model = heterogeneous(), linear(2)
    work = {"lr": 0.05, "local_steps": 5, "batch_size": None}
    dyn = learn(ar.FedDyn(alpha=1e-9, **work), data, model, rounds=1)
    avg = learn(ar.FedAvg(**work), data, model, rounds=1)  # parties of equal size
    torch.testing.assert_close(dyn - model.w, 2 * (avg - model.w), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"alpha": 0.0}, "alpha = 0.0: give a finite number above 0"),
        ({"alpha": float("nan")}, "alpha = nan"),
        ({"alpha": 30.0, "lr": 0.1}, r"lr \* alpha is below 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, says):
    with pytest.raises(ar.ArchipelError, match=says):
        learn(ar.FedDyn(**fields), regression(2, 2, 0), linear(2), rounds=1)
