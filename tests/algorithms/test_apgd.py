"""APGD: the exact solution, at the square root of the condition number."""

import pytest
import torch
from exact import Parties, rounds_until, run
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms.apgd import APGD1, APGD2
from archipel.conformance import check_algorithm
from problems import learn, linear, regression

DATA = ar.load("heart_disease").with_new(1)
PLANS = [ar.Plan("one", 1, 1), ar.Plan("stacked", 2, 1), ar.Plan("stacked", 4, 2)]
SHAPES = {"parties": st.integers(1, 6), "dims": st.integers(1, 4), "seed": st.integers(0, 9999)}
few = settings(max_examples=15, deadline=None)


def first(lam, mu=0.2):
    """APGD1 for curvatures between mu and 1."""
    return APGD1(lr=1.0, lam=lam, strong_convexity=mu)


def second(lam, mu=0.2, local_steps=20):
    """APGD2 likewise, with local problems solved well."""
    return APGD2(
        lr=1 / (1 + lam),
        lam=lam,
        strong_convexity=mu,
        local_steps=local_steps,
        batch_size=None,
    )


@pytest.mark.slow  # with their defaults they are in test_conformance.py
@pytest.mark.parametrize(
    "algorithm", [APGD1(batch_size=3, tune_steps=3), APGD2(batch_size=3)], ids=str
)
def test_conformance(algorithm):
    check_algorithm(algorithm)


@few
@given(**SHAPES, lam=st.floats(0.05, 5.0), method=st.sampled_from([first, second]))
def test_the_solution_of_the_block_linear_system_is_reached(parties, dims, seed, lam, method):
    me = Parties(parties, dims, seed)

    shared, own = run(method(lam), me, 200)

    exact = me.mean_regularised(lam)
    torch.testing.assert_close(own, exact, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(shared, exact.mean(dim=0), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("method", [first, second])
def test_the_pull_leads_from_local_to_common_optima(method):
    me = Parties(5, 3, seed=1)

    _, own = run(method(1e-5), me, 200)
    torch.testing.assert_close(own, me.alone(), rtol=1e-3, atol=1e-3)

    if method is first:  # the other's rounds grow as the root of the pull
        _, own = run(method(1e5), me, 300)
        torch.testing.assert_close(own, me.common().expand_as(own), rtol=1e-3, atol=1e-3)


def test_rounds_double_when_the_condition_number_is_fourfold():
    """kappa is L / mu for APGD1 and lambda / mu for APGD2."""
    for method in (first, second):
        counts = []
        for kappa in (100, 400, 1600):
            mu = 1 / kappa
            me = Parties(5, 8, seed=3, low=mu, alike=True)
            lam = 5.0 if method is first else 1.0
            counts.append(rounds_until(method(lam, mu), me, me.mean_regularised(lam), 1e-6))
        ratios = [counts[1] / counts[0], counts[2] / counts[1]]
        assert all(1.7 < ratio < 2.3 for ratio in ratios), (method, counts)


def test_acceleration_is_what_does_it():
    mu = 1 / 400
    me = Parties(5, 8, seed=3, low=mu, alike=True)
    exact = me.mean_regularised(5.0)
    plain = first(5.0, mu=1.0)  # momentum 0
    assert rounds_until(plain, me, exact, 1e-4) > 4 * rounds_until(first(5.0, mu), me, exact, 1e-4)


@few
@given(**SHAPES, lam=st.floats(0.05, 5.0), method=st.sampled_from([first, second]))
def test_a_party_that_never_trained_solves_its_problem_around_the_mean(
    parties, dims, seed, lam, method
):
    me = Parties(parties, dims, seed)
    algorithm = first(lam) if method is first else second(lam, local_steps=60)
    mean, own = algorithm.init(me.start)

    x = algorithm.personal(me, mean, own)

    torch.testing.assert_close(x, me.proximal(mean, lam), rtol=1e-3, atol=1e-3)


@few
@given(**SHAPES, algorithm=st.sampled_from([APGD1(lr=0.05), APGD2(lr=0.05)]))
def test_the_mean_is_of_all_parties_when_some_are_sampled(parties, dims, seed, algorithm):
    data, model = regression(parties, dims, seed), linear(dims)
    with ar.LocalEngine(algorithm, data, model, plan=ar.Plan("one", 4, 1)) as engine:
        for t in range(4):
            engine.round(t, [k for k in range(parties) if (k + t) % 3])
        sent = engine.own_states(range(parties)).sent
        torch.testing.assert_close(engine.vector(), sent.mean(dim=0))


@pytest.mark.parametrize("plan", PLANS[1:], ids=str)
@pytest.mark.parametrize("algorithm", [APGD1(lam=0.3), APGD2(lam=0.3)], ids=["1", "2"])
def test_own_models_do_not_depend_on_the_plan(algorithm, plan):
    options = {"rounds": 4, "metric": "auc", "sample": 2}
    one = ar.simulate(algorithm, DATA, "logistic", plan=PLANS[0], **options)
    run = ar.simulate(algorithm, DATA, "logistic", plan=plan, **options)
    for metric, values in one.parties.items():
        torch.testing.assert_close(run.parties[metric], values, rtol=1e-4, atol=1e-5)
    assert run.to_json()["personal"]["unseen"] is not None


WARMING = ar.Cosine(20.0, rounds=30, warmup=10)  # 2 in the first round


@pytest.mark.parametrize(
    ("make", "fields", "says"),
    [
        *[
            (make, {field: value}, f"{field} = {value}: give a finite number")
            for make in (APGD1, APGD2)
            for field in ("lam", "strong_convexity")
            for value in (-1.0, float("inf"), float("nan"))
        ],
        (APGD1, {"tune_steps": -1}, "tune_steps = -1"),
        (APGD1, {"lr": 2.0, "strong_convexity": 0.6}, "their product is at most 1"),
        (APGD1, {"lr": WARMING, "strong_convexity": 0.1}, "their product is at most 1"),
        (APGD2, {"lr": 0.5, "lam": 4.0}, r"lr \* lam is below 2"),
        (APGD2, {"lr": WARMING, "lam": 0.1}, r"lr \* lam is below 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, fields, says):
    with pytest.raises(ar.ArchipelError, match=says):
        learn(make(**fields), regression(2, 2, 0), linear(2), rounds=1)


def test_steps_of_adam_do_not_grow_with_the_pull():
    """So a pull that plain SGD is refused for passes: each step is at most about lr long."""
    data, model = regression(2, 2, 0), linear(2)
    for lam in (1.0, 100.0, 1e4):
        algorithm = APGD2(lr=0.5, lam=lam, local_steps=3, batch_size=None, optimiser=ar.Adam())
        with ar.LocalEngine(algorithm, data, model, plan=ar.Plan("one", 1, 1)) as engine:
            engine.round(0, range(2))
            moved = (engine.own_states(range(2)).x - model.w).abs().max()
        assert 0 < float(moved) <= 3 * 0.5 * 1.001
