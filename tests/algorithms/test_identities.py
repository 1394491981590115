"""What the papers say must be equal, over random shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.data import optimum, quadratics
from archipel.graphs import topology
from problems import classification, learn, linear, network, regression

SHAPES = {
    "parties": st.integers(1, 7),
    "dims": st.integers(1, 5),
    "seed": st.integers(0, 10_000),
}
few = settings(max_examples=15, deadline=None)
STACKED = ar.Plan("stacked", 8, 1)


def gradient_descent(data, model, lr, rounds):
    w, (x, y, _, _) = model.w, data.pooled().party(0)
    for _ in range(rounds):
        w = w - lr * model.grad(w, x, y)
    return w


@few
@given(**SHAPES)
def test_fedavg_with_one_full_step_is_pooled_gradient_descent(parties, dims, seed):
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    alg = ar.FedAvg(lr=0.3, local_steps=1, batch_size=None)

    w = learn(alg, data, model)

    torch.testing.assert_close(w, gradient_descent(data, model, 0.3, 3))


@few
@given(**SHAPES)
def test_fedsgd_is_pooled_gradient_descent(parties, dims, seed):
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)

    w = learn(ar.FedSGD(lr=0.3), data, model, plan=ar.Plan("stacked", 3, 1))

    torch.testing.assert_close(w, gradient_descent(data, model, 0.3, 3))


@few
@given(**SHAPES)
def test_weighted_objective_is_the_pooled_objective(parties, dims, seed):
    from archipel.engines.party import LocalParty

    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    ids = torch.arange(data.parties).numpy()
    me = LocalParty(data, model, model.one, ids, 0, 0, (data.parties,))
    x, y, _, _ = data.pooled().party(0)

    weighted = (me.n / me.n.sum() * me.loss(model.w)).sum()

    torch.testing.assert_close(weighted, model.loss(model.w, x, y))


@few
@given(**SHAPES)
def test_fedprox_without_pull_is_fedavg(parties, dims, seed):
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    work = {"lr": 0.2, "local_epochs": 2, "batch_size": 3}

    prox = learn(ar.FedProx(mu=0.0, **work), data, model)

    assert torch.equal(prox, learn(ar.FedAvg(**work), data, model))


@few
@given(**SHAPES)
def test_server_sgd_at_rate_one_is_fedavg(parties, dims, seed):
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    work = {"lr": 0.2, "local_epochs": 2, "batch_size": 3}

    opt = learn(ar.FedOpt(server_optimiser="sgd", server_lr=1.0, **work), data, model)

    assert torch.equal(opt, learn(ar.FedAvg(**work), data, model))


@few
@given(**SHAPES)
def test_local_adam_and_momentum_equal_torch_at_one_party(parties, dims, seed):
    data, model = classification(1, dims, 3, seed), network(dims, 3, seed)
    pairs = [
        (ar.Adam(weight_decay=0.01), lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.01)),
        (
            ar.SGD(momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
        ),
        (
            ar.SGD(momentum=0.9, nesterov=True),
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
        ),
    ]
    x, y, _, _ = data.party(0)
    for ours, theirs in pairs:
        module = model.to_module(model.w)
        optimiser = theirs(module.parameters())
        for _ in range(4):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimiser.step()
        expected = torch.cat([p.detach().flatten() for p in module.parameters()])

        alg = ar.FedAvg(lr=0.05, local_steps=4, batch_size=None, optimiser=ours)
        w = learn(alg, data, model, rounds=1)

        torch.testing.assert_close(w, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("option", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_scaffold_reaches_the_optimum_where_fedavg_stalls(option):
    data, _ = quadratics(parties=6, dims=4, seed=1)
    best = optimum(data, uniform=True)
    model = linear(4)
    work = {"lr": 0.05, "local_steps": 10, "batch_size": None}

    scaffold = learn(ar.Scaffold(option=option, **work), data, model, rounds=600, plan=STACKED)
    fedavg = learn(ar.FedAvg(**work), data, model, rounds=600, plan=STACKED)

    assert (scaffold - best).norm() < 1e-8
    assert (fedavg - optimum(data)).norm() > 1e-3


@few
@given(**SHAPES)
def test_scaffold_keeps_c_the_mean_of_the_parties(parties, dims, seed):
    data, model = regression(parties, dims, seed), linear(dims)
    alg = ar.Scaffold(lr=0.05, local_epochs=2, batch_size=2)
    with ar.LocalEngine(alg, data, model, plan=ar.Plan("one", 4, 1)) as engine:
        for t in range(4):
            ids = [k for k in range(data.parties) if (k + t) % 3]
            engine.round(t, ids)

        c_i = engine.own_states(range(data.parties))
        torch.testing.assert_close(engine.shared.c, c_i.mean(dim=0))


def test_fedadam_by_hand():
    """Two rounds on one party whose update is the constant gradient step."""
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    data = ar.Federation.from_arrays([x + 1.0], [y], test=0.0)
    model = ar.Model(torch.nn.Linear(2, 1, bias=False).double(), lambda o, t: o.sum())
    alg = ar.FedOpt(lr=0.5, local_steps=1, server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)

    w = learn(alg, data, model, rounds=2)

    delta, m, v, expected = -0.5, 0.0, 1e-6, model.w.clone()
    for _ in range(2):
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta**2
        expected += 0.1 * m / (v**0.5 + 1e-3)
    torch.testing.assert_close(w, expected)


@pytest.mark.parametrize(("server", "beta1"), [("adagrad", 0.0), ("adam", 0.9), ("yogi", 0.9)])
def test_adagrad_has_no_momentum_unless_it_is_asked_for(server, beta1):
    data, model = regression(3, 2, 0), linear(2)
    options = {"lr": 0.1, "server_optimiser": server, "server_lr": 0.05}

    given, default = (learn(ar.FedOpt(**options, beta1=b), data, model) for b in (beta1, None))

    assert torch.equal(given, default)


@few
@given(**SHAPES)
def test_dsgd_on_the_complete_graph_is_parallel_sgd(parties, dims, seed):
    data, model = regression(parties, dims, seed, equal=True), linear(dims)
    graph = topology("complete", parties)

    peers = learn(ar.DSGD(lr=0.05, batch_size=2), data, model, topology=graph)

    torch.testing.assert_close(peers, learn(ar.FedSGD(lr=0.05, batch_size=2), data, model))


@few
@given(
    parties=st.integers(3, 9),
    dims=st.integers(1, 4),
    seed=st.integers(0, 1000),
    overlap=st.booleans(),
    spec=st.sampled_from(["ring", "star", "matching", "complete"]),
)
def test_doubly_stochastic_mixing_keeps_the_mean(parties, dims, seed, overlap, spec):
    data, model = regression(parties, dims, seed), linear(dims)
    graph = topology(spec, parties, seed)
    with ar.LocalEngine(
        ar.DSGD(lr=0.05, overlap=overlap), data, model, topology=graph, plan=ar.Plan("one", 4, 1)
    ) as engine:
        engine.round(0, range(parties))
        x = engine.own_models()
        before = x.mean(dim=0)
        from archipel.engines.party import LocalParty

        me = LocalParty(data, model, model.one, torch.arange(parties).numpy(), 0, 1, (parties,))
        step = 0.05 * me.grad(x, me.batch(10)).mean(dim=0)
        engine.round(1, range(parties))

        torch.testing.assert_close(engine.vector(), before - step)


def test_dsgd_consensus_shrinks_at_the_rate_of_the_gap():
    data, model = regression(8, 3, 0), linear(3)
    ring = topology("ring", 8)
    with ar.LocalEngine(
        ar.DSGD(lr=0.3), data, model, topology=ring, plan=ar.Plan("one", 8, 1)
    ) as engine:
        engine.round(0, range(8))
        spread = [(engine.own_models() - engine.vector()).norm()]
    quiet = learn_spread(ring, spread[0])
    rho = 1 - ring.spectral_gap
    for k, value in enumerate(quiet):
        assert value <= spread[0] * rho**k + 1e-12


def learn_spread(ring, start):
    """Consensus error of pure mixing from a start of that size."""
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x - x.mean(dim=0)
    x = x / x.norm() * start
    errors = []
    for t in range(6):
        errors.append(x.norm())
        x = ring.mix(x, t)
    return errors
