# SPDX-License-Identifier: Apache-2.0
"""Closed forms of Bellet et al. 2018: what wake-ups cost together, and what noise costs."""

from math import e, exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError
from archipel.privacy.accounting import Gaussian, Laplace, Poisson, Pure, Release
from archipel.privacy.composition import composed, kairouz
from archipel.privacy.utility import Objective, allocation, bound, gained, squares_of

DELTA = exp(-5)  # of the paper's experiments

# -- composition -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "step"), [(1, 0.5), (10, 0.1), (200, 0.1), (1000, 0.01)])
def test_equal_steps_cost_the_printed_closed_form(times, step):
    drift = times * step * (exp(step) - 1) / (exp(step) + 1)
    found = kairouz([step] * times, DELTA)
    assert found.sum == pytest.approx(times * step)
    assert found.kairouz == pytest.approx(drift + sqrt(2 * times * step**2 * log(1 / DELTA)))
    assert found.optimal == pytest.approx(
        drift + sqrt(2 * times * step**2 * log(e + sqrt(times * step**2) / DELTA))
    )
    assert found.least == min(found.sum, found.optimal, found.kairouz)


def test_golden_values():
    """T wake-ups of ε = 1 / T at δ = e^-5: what the sum, the theorem and the distributions say."""
    golden = {1: 1.0, 10: 0.93370, 30: 0.49241, 100: 0.24440}
    for times, expected in golden.items():
        assert kairouz([1 / times] * times, DELTA).least == pytest.approx(expected, abs=1e-4)
    found = composed([Release(Laplace(10.0), None, 10)], DELTA)
    assert found.pld == pytest.approx(0.53542, abs=1e-4)
    assert found.by == "pld"


def test_without_delta_costs_add_up():
    found = kairouz([0.1, 0.2], 0.0)
    assert found.least == pytest.approx(0.3)
    assert found.by == "sum"


@settings(max_examples=15, deadline=None)
@given(
    step=st.floats(0.01, 1.0),
    times=st.integers(1, 60),
    delta=st.sampled_from([1e-6, 1e-3, DELTA]),
    neighbours=st.sampled_from(["add_or_remove", "replace"]),
)
def test_distributions_never_say_more_than_the_theorem(step, times, delta, neighbours):
    for mechanism in (Laplace(1 / step), Pure(step)):
        found = composed([Release(mechanism, None, times)], delta, neighbours)
        assert found.pld <= min(found.sum, found.optimal, found.kairouz) * (1 + 1e-9)


def test_the_theorem_is_of_releases_that_are_pure():
    assert composed([Release(Gaussian(1.0))], DELTA) is None
    assert composed([Release(Laplace(1.0), Poisson(0.1), 3)], DELTA) is None
    for bad in ([-0.1], [float("nan")]):
        with pytest.raises(ArchipelError, match="epsilons"):
            kairouz(bad, DELTA)
    with pytest.raises(ArchipelError, match="delta"):
        kairouz([0.1], 1.0)


# -- the bound -------------------------------------------------------------------------------------


class Quadratic:
    """L_i(θ) = 1/2 (θ - b_i)' A_i (θ - b_i), of which all is known."""

    def __init__(self, n=8, p=3, mu=0.7, seed=0):
        random = np.random.default_rng(seed)
        self.random, self.n, self.p, self.mu = random, n, p, mu
        roots = random.standard_normal((n, p, p))
        self.a = roots @ roots.transpose(0, 2, 1) / p + 0.2 * np.eye(p)
        self.b = random.standard_normal((n, p))
        w = np.triu(random.random((n, n)), 1)
        self.w = w + w.T
        self.c = random.uniform(0.1, 1.0, n)
        curved = np.linalg.eigvalsh(self.a)
        self.objective = Objective(self.w, self.c, mu, curved[:, -1], curved[:, 0])
        pull = self.objective.pull
        laplacian = np.diag(self.objective.degree) - self.w
        whole = np.kron(laplacian, np.eye(p))
        for i in range(n):
            at = slice(i * p, i * p + p)
            whole[at, at] += pull[i] * self.a[i]
        right = (pull[:, None] * np.einsum("ijk,ik->ij", self.a, self.b)).ravel()
        self.best = np.linalg.solve(whole, right).reshape(n, p)
        self.whole = whole

    def gap(self, theta):
        d = (theta - self.best).reshape(len(theta), -1)
        return np.einsum("si,ij,sj->s", d, self.whole, d) / 2

    def descend(self, wakes, scale, seeds, mechanism):
        """Q - Q* after so many wake-ups, of each seed."""
        theta = np.zeros((seeds, self.n, self.p))
        draw = self.random.laplace if mechanism == "laplace" else self.random.normal
        o, rows = self.objective, np.arange(seeds)
        for _ in range(wakes):
            i = self.random.integers(self.n, size=seeds)
            own = theta[rows, i]
            gradient = np.einsum("sjk,sk->sj", self.a[i], own - self.b[i])
            gradient += draw(0.0, scale[i][:, None], (seeds, self.p))
            near = np.einsum("sj,sjp->sp", self.w[i], theta) / o.degree[i][:, None]
            a = 1 / (1 + self.mu * self.c[i] * o.smooth[i])[:, None]
            step = near - self.mu * self.c[i][:, None] * gradient
            theta[rows, i] = (1 - a) * own + a * step
        return self.gap(theta)


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
@pytest.mark.parametrize("wakes", [0, 5, 40, 400])
@pytest.mark.parametrize("size", [0.0, 0.3, 3.0])
def test_the_bound_holds_on_average_over_many_seeds(mechanism, wakes, size):
    problem = Quadratic()
    scale = np.full(problem.n, size) * np.random.default_rng(1).uniform(0.5, 1.5, problem.n)
    found = problem.descend(wakes, scale, 2000, mechanism)
    start = problem.gap(np.zeros((1, problem.n, problem.p)))[0]
    most = bound(problem.objective, start, wakes, squares_of(scale, problem.p, mechanism))

    assert found.mean() - 4 * found.std() / sqrt(len(found)) <= most.total
    if wakes == 0:
        assert most.total == pytest.approx(start)
    if wakes == 400 and size:  # and is not far: L_i and σ of the worst party
        assert most.total < 60 * found.mean()


def test_the_bound_is_not_above_the_theorem_s():
    problem, scale, wakes = Quadratic(), np.full(8, 0.5), 50
    o, gap = problem.objective, 1.0
    sigma = (o.pull * o.convex).min()
    rho = 1 - sigma / (problem.n * o.blocks.max())
    noise = problem.p * (o.pull * scale) ** 2  # (μ D_ii c_i s_i)² in each of p numbers
    printed = rho**wakes * gap + sum(
        rho**t * noise.sum() / (problem.n * o.blocks.min()) for t in range(wakes)
    )
    assert bound(o, gap, wakes, squares_of(scale, problem.p, "laplace")).total <= printed


def test_strong_convexity_is_that_of_the_whole():
    problem = Quadratic()
    assert problem.objective.strong <= np.linalg.eigvalsh(problem.whole)[0] + 1e-12
    assert problem.objective.strong >= (problem.objective.pull * problem.objective.convex).min()


# -- allocation ------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    rate=st.floats(0.5, 0.999),
    at=st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True),
    mechanism=st.sampled_from(["laplace", "gaussian"]),
    seed=st.integers(0, 99),
)
def test_no_other_shares_are_better(rate, at, mechanism, seed):
    power = 2 if mechanism == "laplace" else 1
    counts = rate ** (max(at) - np.array(at, float))
    best = allocation(rate, at, mechanism)
    other = np.random.default_rng(seed).dirichlet(np.ones(len(at)))
    near = best * np.exp(0.1 * np.random.default_rng(seed).standard_normal(len(at)))

    def cost(shares):
        return (counts / shares**power).sum()

    assert best.sum() == pytest.approx(1.0)
    assert cost(best) <= cost(other) * (1 + 1e-9)
    assert cost(best) <= cost(near / near.sum()) * (1 + 1e-9)
    even = np.full(len(at), 1 / len(at))
    assert gained(rate, at, mechanism) == pytest.approx(cost(even) / cost(best))
    assert gained(rate, at, mechanism) >= 1 - 1e-12


def test_the_proposition_s_closed_form():
    """ε(t) = (C^(1/3) - 1) / (C^(T/3) - 1) C^(t/3) ε̄, C = 1 / ρ, of a party that always wakes."""
    rho, wakes = 0.9, 12
    c = (1 / rho) ** (1 / 3)
    printed = [(c - 1) / (c**wakes - 1) * c**t for t in range(wakes)]
    np.testing.assert_allclose(allocation(rho, range(wakes)), printed)


def test_what_cannot_be_is_refused():
    with pytest.raises(ArchipelError, match="no neighbour"):
        Objective(np.zeros((2, 2)), np.ones(2), 1.0, np.ones(2), np.ones(2))
    with pytest.raises(ArchipelError, match="symmetric"):
        Objective(np.triu(np.ones((2, 2))), np.ones(2), 1.0, np.ones(2), np.ones(2))
    with pytest.raises(ArchipelError, match="wakes = -1"):
        bound(Quadratic().objective, 1.0, -1, np.ones(8))
    with pytest.raises(ArchipelError, match="rate = 0"):
        allocation(0.0, [1])
