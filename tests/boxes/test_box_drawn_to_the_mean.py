"""L2GD, APGD1 and APGD2: models drawn to their mean, box by box."""

from itertools import chain

import numpy as np
import pytest

import archipel as ar
from boxes.small import cases, convex, least_squares, run, same


def l2gd(P, cohorts, coins, alpha, lam, p, B):
    """Hanzely & Richtarik 2020, Algorithm 1, toss by toss; 1 is an aggregation.

    Who is not in a round's cohort stands still, and the mean that others move to is that of all.
    """
    n = P.parties
    x = np.tile(P.start, (n, 1))
    for t, (S, tosses) in enumerate(zip(cohorts, coins, strict=True)):
        xbar, b = x.mean(axis=0), {i: P.batches(i, t, B) for i in S}
        for xi in tosses:
            for i in S:
                if xi:
                    x[i] = (1 - alpha * lam / (n * p)) * x[i] + alpha * lam / (n * p) * xbar
                else:
                    x[i] = x[i] - alpha / (n * (1 - p)) * P.grad(i, x[i], next(b[i]))
    return x


def tosses(algorithm, rounds):
    """The coins of each round: aggregations in a row, then local steps."""
    counts = [[int(count) for count in algorithm.coins(t)] for t in range(rounds)]
    return [[1] * a + [0] * steps for a, steps in counts]


@cases
@pytest.mark.parametrize("sample", [6, 3])
def test_l2gd_is_its_box(problem, B, sample):
    algorithm = ar.L2GD(lr=0.1, p=0.4, lam=0.8, batch_size=B, coin_seed=5)

    done = run(algorithm, problem, 5, sample)

    coins = tosses(algorithm, 5)
    assert max(map(sum, coins)) > 1  # some aggregations follow one another
    x = l2gd(problem, done.cohorts, coins, 0.1 * problem.parties, 0.8, 0.4, B)
    same(done.own[0][: problem.parties], x)
    same(done.w, x.mean(axis=0))


def test_l2gd_aggregations_leave_the_mean_as_it_is():
    """So a round may know one mean only: the box with xbar anew at every toss is the same."""
    P, algorithm = least_squares(), ar.L2GD(lr=0.1, p=0.4, lam=0.8, coin_seed=5)
    done, n, x = run(algorithm, P, 5, 6), 6, np.tile(P.start, (6, 1))

    for xi in chain(*tosses(algorithm, 5)):
        if xi:
            x = (1 - 0.1 * 0.8 / 0.4) * x + 0.1 * 0.8 / 0.4 * x.mean(axis=0)
        else:
            x = np.stack([x[i] - 0.1 / 0.6 * P.grad(i, x[i]) for i in range(n)])

    same(done.own[0][:6], x)


@convex
def test_l2gd_own_models_are_the_proximal_minimisers(problem):
    """What x_i is at the minimum, given xbar: argmin f_i + lambda/2 ||. - xbar||^2."""
    algorithm = ar.L2GD(lr=0.1, p=0.4, lam=2.0, tune_steps=80, tune_lr=0.2)

    done = run(algorithm, problem, 3, 2)

    expected = [problem.proximal(k, done.w, 2.0) for k in range(problem.data.parties)]
    same(done.models, expected, 1e-10)  # what 80 steps leave


def apgd1(P, cohorts, gamma, lam, mu, B):
    """Hanzely et al. 2020, APGD1: x = prox of lambda psi at y - gamma grad f(y).

    kappa = 1 / (gamma mu). z_i is what goes into the prox; who is away has the z_i that it had.
    """
    n, kappa = P.parties, 1 / (gamma * mu)
    beta = (np.sqrt(kappa) - 1) / (np.sqrt(kappa) + 1)
    x, z = np.tile(P.start, (n, 1)), np.tile(P.start, (n, 1))

    def prox(i, zbar):
        return zbar + (z[i] - zbar) / (1 + gamma * lam)

    for t, S in enumerate(cohorts):
        zbar = z.mean(axis=0)
        for i in S:
            x_old, x[i] = x[i].copy(), prox(i, zbar)
            y = x[i] + beta * (x[i] - x_old)
            z[i] = y - gamma * P.grad(i, y, next(P.batches(i, t, B)))
    zbar = z.mean(axis=0)
    return z, np.stack([prox(i, zbar) for i in range(n)])


@cases
@pytest.mark.parametrize("sample", [6, 2])
def test_apgd1_is_its_box(problem, B, sample):
    algorithm = ar.APGD1(lr=0.2, lam=1.3, strong_convexity=0.05, batch_size=B, tune_steps=6)

    done = run(algorithm, problem, 3, sample)

    z, x = apgd1(problem, done.cohorts, 0.2, 1.3, 0.05, B)
    same(done.w, z.mean(axis=0))
    same(done.models[done.trained], x[done.trained])
    for k in done.untrained:
        w, b = z.mean(axis=0), problem.batches(k, 3, B)
        for _ in range(6):  # of length 1 / (L + lambda)
            slope = problem.grad(k, w, next(b)) + 1.3 * (w - z.mean(axis=0))
            w = w - slope / (1 / 0.2 + 1.3)
        same(done.models[k], w)


@convex
def test_apgd1_gives_a_new_party_the_minimiser(problem):
    done = run(ar.APGD1(lr=0.3, lam=1.3, tune_steps=80), problem, 2, 2)

    expected = [problem.proximal(k, done.w, 1.3) for k in done.untrained]
    same(done.models[done.untrained], expected, 1e-10)


def test_apgd1_is_the_papers_iteration_where_all_take_part():
    P, gamma, lam, mu = least_squares(), 0.2, 1.3, 0.05
    done = run(ar.APGD1(lr=gamma, lam=lam, strong_convexity=mu), P, 6, 6)
    root = np.sqrt(1 / (gamma * mu))
    x = y = np.tile(P.start, (6, 1))

    for _ in range(6):
        z = y - gamma * np.stack([P.grad(i, y[i]) for i in range(6)])
        x_new = (z + gamma * lam * z.mean(axis=0)) / (1 + gamma * lam)
        x, y = x_new, x_new + (root - 1) / (root + 1) * (x_new - x)

    same(done.models[:6], x)


def apgd2(P, cohorts, eta, lam, mu, K, B):
    """Hanzely et al. 2020, APGD2: x_i = argmin f_i + lambda/2 ||. - ybar||^2, by K steps."""
    n, q = P.parties, mu / (lam + mu)  # tau mu / (1 + tau mu) with tau = 1 / lambda
    beta = (1 - np.sqrt(q)) / (1 + np.sqrt(q))
    x, y = np.tile(P.start, (n, 1)), np.tile(P.start, (n, 1))
    for t, S in enumerate(cohorts):
        ybar = y.mean(axis=0)
        for i in S:
            x_i, b = x[i], P.batches(i, t, B)
            for _ in range(K):
                x_i = x_i - eta * (P.grad(i, x_i, next(b)) + lam * (x_i - ybar))
            y[i] = x_i + beta * (x_i - x[i])
            x[i] = x_i
    return x, y


@cases
@pytest.mark.parametrize("sample", [6, 2])
def test_apgd2_is_its_box(problem, B, sample):
    algorithm = ar.APGD2(lr=0.2, lam=0.6, strong_convexity=0.05, local_steps=4, batch_size=B)

    done = run(algorithm, problem, 3, sample)

    x, y = apgd2(problem, done.cohorts, 0.2, 0.6, 0.05, 4, B)
    same(done.w, y.mean(axis=0))
    same(done.models[done.trained], x[done.trained])
    for k in done.untrained:
        w, b = y.mean(axis=0), problem.batches(k, 3, B)
        for _ in range(4):
            w = w - 0.2 * (problem.grad(k, w, next(b)) + 0.6 * (w - y.mean(axis=0)))
        same(done.models[k], w)


@convex
def test_apgd2_gives_a_new_party_the_minimiser(problem):
    algorithm = ar.APGD2(lr=0.2, lam=1.3, local_steps=90, batch_size=None)

    done = run(algorithm, problem, 2, 2)

    expected = [problem.proximal(k, done.w, 1.3) for k in done.untrained]
    same(done.models[done.untrained], expected, 1e-10)
