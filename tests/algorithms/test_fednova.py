"""FedNova: FedAvg where all take the same steps; the right objective where they do not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from problems import classification, learn, linear, network, regression

few = settings(max_examples=5, deadline=None)
SHAPES = {"parties": st.integers(2, 4), "dims": st.integers(1, 3), "seed": st.integers(0, 99)}


@few
@given(**SHAPES, steps=st.integers(1, 4), momentum=st.sampled_from([0.0, 0.5, 0.9]))
def test_with_equal_steps_it_is_fedavg(parties, dims, seed, steps, momentum):
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    work = {"lr": 0.1, "local_steps": steps, "batch_size": 2, "optimiser": ar.SGD(momentum)}
    torch.testing.assert_close(
        learn(ar.FedNova(**work), data, model), learn(ar.FedAvg(**work), data, model)
    )


@few
@given(**SHAPES, epochs=st.integers(1, 3), rho=st.sampled_from([0.0, 0.3, 0.9]))
def test_a_round_is_that_of_the_paper(parties, dims, seed, epochs, rho):
    """Full batches in NumPy, with a_i written out gradient by gradient."""
    data, model = regression(parties, dims, seed), linear(dims)
    w = model.w + 0.5
    model.w.copy_(w)
    # one batch per example makes tau_i = epochs n_i: shuffled, so one example repeated
    x0 = [data.party(k)[0][:1].expand(int(data.n[k]), -1) for k in range(parties)]
    y0 = [data.party(k)[1][:1].expand(int(data.n[k])) for k in range(parties)]
    alike = ar.Federation.from_arrays([x.clone() for x in x0], [y.clone() for y in y0], test=0.0)

    n, eta = np.array([float(k) for k in alike.n]), 0.02
    moves, weights = [], []
    for k in range(parties):
        x, y = x0[k][0].numpy(), float(y0[k][0])
        tau, at, gradients = int(epochs * n[k]), w.numpy().copy(), []
        velocity = np.zeros_like(at)
        for _ in range(tau):
            gradients.append(model.grad(torch.from_numpy(at), x0[k][:1], y0[k][:1]).numpy())
            velocity = rho * velocity + gradients[-1]
            at = at - eta * velocity
        a = [sum(rho**j for j in range(tau - i)) for i in range(tau)]
        summed = sum(weight * g for weight, g in zip(a, gradients, strict=True))
        np.testing.assert_allclose(at, w.numpy() - eta * summed, rtol=1e-9, atol=1e-12)
        assert np.isfinite(x).all() and np.isfinite(y)
        moves.append(eta * summed / sum(a))
        weights.append(sum(a))
    p = n / n.sum()
    expected = w.numpy() - (p @ np.array(weights)) * (p @ np.array(moves))

    nova = ar.FedNova(lr=eta, local_epochs=epochs, batch_size=1, optimiser=ar.SGD(rho))
    got = learn(nova, alike, model, rounds=1)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-8, atol=1e-10)


def test_unequal_steps_do_not_change_the_objective():
    """Two parties of one dimension that want 0 and 1; the second has nine times the points."""
    sizes, wants = (1, 9), (0.0, 1.0)
    xs = [torch.ones(n, 1, dtype=torch.float64) for n in sizes]
    ys = [torch.full((n,), w, dtype=torch.float64) for n, w in zip(sizes, wants, strict=True)]
    data, model = ar.Federation.from_arrays(xs, ys, test=0.0), linear(1)
    optimum = 9 / 10

    ends = {
        make: float(learn(make(lr=0.01, batch_size=1), data, model, rounds=60))
        for make in (ar.FedAvg, ar.FedNova)
    }
    assert abs(ends[ar.FedNova] - optimum) < 0.02
    assert abs(ends[ar.FedAvg] - optimum) > 0.05  # (9 * 9) / (9 * 9 + 1 * 1), about 0.99


@pytest.mark.parametrize("optimiser", [ar.Adam(), ar.SGD(momentum=0.9, nesterov=True)])
def test_other_solvers_are_refused(optimiser):
    with pytest.raises(ar.ArchipelError, match="fednova knows the weights of gradients in SGD"):
        learn(ar.FedNova(optimiser=optimiser), regression(2, 2, 0), linear(2))
