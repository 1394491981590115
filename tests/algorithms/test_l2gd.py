"""L2GD: coins, communication, and the solution of its problem between local and global."""

import numpy as np
import pytest
import torch
from exact import Parties, Sent, run
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms.l2gd import L2GD
from archipel.conformance import check_algorithm
from archipel.engines.party import LocalParty
from problems import classification, learn, linear, network, regression

DATA = ar.load("heart_disease").with_new(1)
PLANS = [ar.Plan("one", 1, 1), ar.Plan("stacked", 2, 1), ar.Plan("stacked", 4, 2)]
SHAPES = {"parties": st.integers(1, 6), "dims": st.integers(1, 4), "seed": st.integers(0, 9999)}
few = settings(max_examples=15, deadline=None)


def iterates(algorithm, me, count):
    """The parties' x_i after each round and the aggregations that are due, `[count, n, d]`."""
    mean, x = algorithm.init(me.start)
    x, found = x.expand_as(me.b), []
    for t in range(count):
        me.round = t
        moved, x = algorithm.party(me, mean, x)
        mean, me.round = algorithm.server(mean, Sent(moved)), t + 1
        found.append(algorithm.aggregated(me, mean, x))
    return torch.stack(found)


@pytest.mark.slow  # with its defaults it is in test_conformance.py
def test_conformance():
    check_algorithm(L2GD(batch_size=3, p=0.6, lam=1.0, tune_steps=3))


@few
@given(p=st.floats(0.05, 0.95), coin_seed=st.integers(0, 100))
def test_a_communication_every_p_times_one_minus_p_iterations(p, coin_seed):
    count = 2000
    coins = [L2GD(p=p, coin_seed=coin_seed).coins(t) for t in range(count)]
    lengths = torch.tensor([float(sum(both)) for both in coins])
    expected, sd = 1 / (p * (1 - p)), (p / (1 - p) ** 2 + (1 - p) / p**2) ** 0.5
    assert abs(lengths.mean() - expected) < 5 * sd / count**0.5

    alone = [sum(each == 1 for each in runs) / count for runs in zip(*coins, strict=True)]
    assert alone == pytest.approx([1 - p, p], abs=5 * (p * (1 - p) / count) ** 0.5)


def test_coins_depend_on_the_round_alone_and_are_tossed_for_all():
    algorithm = L2GD(p=0.3)
    assert algorithm.coins(7) == L2GD(p=0.3).coins(7)
    assert len({tuple(map(int, algorithm.coins(t))) for t in range(50)}) > 5
    other = L2GD(p=0.3, coin_seed=1)
    assert [algorithm.coins(t) for t in range(20)] != [other.coins(t) for t in range(20)]


@few
@given(**SHAPES, p=st.floats(0.1, 0.9), lam=st.floats(0.0, 2.0))
def test_rounds_are_the_papers_iterations(parties, dims, seed, p, lam):
    """Coin by coin, with the paper's alpha, and a talk where an aggregation follows a step."""
    data, model = classification(parties, dims, 3, seed), network(dims, 3, seed)
    n, lr = parties, 0.9 * min(0.1, p / max(lam, 0.1))
    algorithm = L2GD(lr=lr, p=p, lam=lam)
    me = LocalParty(data, model, model.one, np.arange(n), 0, 0, (n,))
    alpha = lr * n
    coins = [algorithm.coins(t) for t in range(3)]
    tosses = [xi for a, steps in coins for xi in [1] * int(a) + [0] * int(steps)]
    x, before, talks = model.w.expand(n, -1), 0, 0
    for xi in tosses:
        if xi == 0:
            x = x - alpha / (n * (1 - p)) * me.grad(x)
        else:
            talks += before == 0
            x = (1 - alpha * lam / (n * p)) * x + alpha * lam / (n * p) * x.mean(dim=0)
        before = xi

    with ar.LocalEngine(algorithm, data, model, plan=ar.Plan("one", 4, 1)) as engine:
        for t in range(3):
            engine.round(t, range(n))
        torch.testing.assert_close(engine.own_states(range(n)), x)
        torch.testing.assert_close(engine.vector(), x.mean(dim=0))
    assert talks == 3


@few
@given(**SHAPES)
def test_without_a_pull_every_party_finds_its_own_optimum(parties, dims, seed):
    me = Parties(parties, dims, seed)

    own = iterates(L2GD(lr=0.5, p=0.2, lam=0.0), me, 150)[-1]

    torch.testing.assert_close(own, me.alone(), rtol=1e-3, atol=1e-3)


@few
@given(**SHAPES)
def test_with_a_strong_pull_all_parties_find_the_common_optimum(parties, dims, seed):
    me = Parties(parties, dims, seed, low=0.5)
    p, lam = 0.99, 2000.0

    own = iterates(L2GD(lr=0.8 * p / lam, p=p, lam=lam), me, 500)[-1]

    torch.testing.assert_close(own, me.common().expand_as(own), rtol=1e-3, atol=1e-3)


def test_a_smaller_step_stops_nearer_to_the_solution():
    me = Parties(10, 3, seed=2)
    exact = me.mean_regularised(0.5)
    distances = []
    for lr, count in ((0.3, 100), (0.03, 1000)):
        own = iterates(L2GD(lr=lr, p=1 / 3, lam=0.5), me, count)
        distances.append(float((own[count // 2 :] - exact).norm(dim=(1, 2)).mean()))
    assert distances[1] < 0.5 * distances[0] < 0.5 * exact.norm()


@few
@given(**SHAPES)
def test_the_mean_is_of_all_parties_when_some_are_sampled(parties, dims, seed):
    data, model = regression(parties, dims, seed), linear(dims)
    with ar.LocalEngine(L2GD(lr=0.05), data, model, plan=ar.Plan("one", 4, 1)) as engine:
        for t in range(4):
            engine.round(t, [k for k in range(parties) if (k + t) % 3])
        x = engine.own_states(range(parties))
        torch.testing.assert_close(engine.vector(), x.mean(dim=0))


@few
@given(**SHAPES, lam=st.floats(0.0, 3.0), trained=st.booleans())
def test_a_party_s_own_model_solves_its_problem_around_the_mean(parties, dims, seed, lam, trained):
    me = Parties(parties, dims, seed)
    algorithm = L2GD(lr=0.2, p=0.7, lam=lam, tune_steps=400, tune_lr=0.4)
    mean = run(algorithm, me, 2)[0] if trained else me.start

    x = algorithm.personal(me, mean, me.start)

    torch.testing.assert_close(x, me.proximal(mean, lam), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_own_models_do_not_depend_on_the_plan(plan):
    options = {"rounds": 4, "metric": "auc", "sample": 2}
    first = ar.simulate(L2GD(lam=0.3), DATA, "logistic", plan=PLANS[0], **options)
    run = ar.simulate(L2GD(lam=0.3), DATA, "logistic", plan=plan, **options)
    for metric, values in first.parties.items():
        torch.testing.assert_close(run.parties[metric], values, rtol=1e-4, atol=1e-5)
    assert run.to_json()["personal"]["unseen"] is not None


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"p": 0.0}, "p = 0.0"),
        ({"p": 1.0}, "p = 1.0"),
        ({"p": 5e-4}, r"p = 0\.0005: .* from 0\.001"),
        ({"p": float("nan")}, "p = nan"),
        ({"lam": -1.0}, "lam = -1.0"),
        ({"lam": float("inf")}, "lam = inf"),
        ({"coin_seed": -1}, "coin_seed = -1: give a whole number from 0"),
        ({"coin_seed": 0.5}, "coin_seed = 0.5: give a whole number from 0"),
        ({"tune_steps": -1}, "tune_steps = -1"),
        ({"tune_lr": -1.0}, "tune_lr = -1.0"),
        ({"tune_lr": 2.5, "lam": 0.9, "lr": 0.1}, r"tune_lr \* lam is below 2"),
        ({"lr": 0.5, "lam": 1.0, "p": 0.2}, r"lr \* lam / p is at most 1"),
        ({"lr": ar.Decay(0.5), "lam": 1.0, "p": 0.2}, r"lr \* lam / p is at most 1"),
        ({"lr": ar.Cosine(0.5, 20, warmup=9), "lam": 1.0}, r"lr \* lam / p is at most 1"),
        ({"lr": ar.Cosine(0.1, 20, end=0.5), "lam": 1.0}, r"lr \* lam / p is at most 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields, says):
    with pytest.raises(ar.ArchipelError, match=says):
        learn(L2GD(**fields), regression(2, 2, 0), linear(2), rounds=1)
