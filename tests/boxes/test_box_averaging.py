"""FedSGD, FedAvg, FedProx, SCAFFOLD, FedOpt, FedNova, FedDyn: one model for all, box by box.

Each box follows its paper's pseudo-code, one party after another; comments give its lines.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.training.schedules import Decay
from boxes.small import ROUNDS, cases, logistic, network, run, same


def fedsgd(P, cohorts, eta, B):
    """McMahan et al. 2017, section 2: w <- w - eta sum_k n_k / n g_k."""
    w = P.start
    for t, S in enumerate(cohorts):
        g = [P.grad(k, w, next(P.batches(k, t, B))) for k in S]
        w = w - eta * sum(p * g_k for p, g_k in zip(P.weights(S), g, strict=True))
    return w


@cases
def test_fedsgd_is_its_box(problem, B):
    done = run(ar.FedSGD(lr=0.2, batch_size=B), problem)

    same(done.w, fedsgd(problem, done.cohorts, 0.2, B))


def client_update(P, k, t, w, eta, E, B, momentum=0.0, decay=0.0):
    """McMahan et al. 2017, Algorithm 1, ClientUpdate(k, w); momentum starts anew."""
    b, v = P.batches(k, t, B), 0
    for _ in range(P.steps(k, B, E)):  # each local epoch i from 1 to E, batch b of it
        v = momentum * v + P.grad(k, w, next(b)) + decay * w
        w = w - eta * v
    return w


def fedavg(P, cohorts, rates, E, B, **sgd):
    """McMahan et al. 2017, Algorithm 1: w_{t+1} <- sum_k n_k / n w^k_{t+1}, over the sampled k."""
    w = P.start
    for t, S in enumerate(cohorts):
        local = [client_update(P, k, t, w, rates[t], E, B, **sgd) for k in S]
        w = sum(p * w_k for p, w_k in zip(P.weights(S), local, strict=True))
    return w


@cases
def test_fedavg_is_its_box(problem, B):
    done = run(ar.FedAvg(lr=0.2, local_epochs=3, batch_size=B), problem)

    same(done.w, fedavg(problem, done.cohorts, [0.2] * ROUNDS, 3, B))


def test_fedavg_with_momentum_decay_and_falling_rate_is_its_box():
    sgd = ar.SGD(momentum=0.8, weight_decay=0.05)
    algorithm = ar.FedAvg(Decay(0.2, 0.5), local_epochs=2, batch_size=4, optimiser=sgd)

    done = run(algorithm, network())

    rates = [0.2 * 0.5**t for t in range(ROUNDS)]
    same(done.w, fedavg(network(), done.cohorts, rates, 2, 4, momentum=0.8, decay=0.05))


@settings(max_examples=5)
@given(E=st.integers(1, 3), B=st.sampled_from([None, 1, 2, 5, 20]), sample=st.integers(1, 6))
def test_fedavg_is_its_box_whatever_the_batches(E, B, sample):
    done = run(ar.FedAvg(lr=0.1, local_epochs=E, batch_size=B), logistic(), 2, sample)

    same(done.w, fedavg(logistic(), done.cohorts, [0.1] * 2, E, B))


def fedprox(P, cohorts, eta, mu, steps, B):
    """Li et al. 2020, Algorithm 2: w_k minimises F_k(w) + mu/2 ||w - w_t||^2, by SGD."""
    w = P.start
    for t, S in enumerate(cohorts):
        local = []
        for k in S:
            w_k, b = w, P.batches(k, t, B)
            for _ in range(steps(t, k)):
                w_k = w_k - eta * (P.grad(k, w_k, next(b)) + mu * (w_k - w))
            local.append(w_k)
        w = sum(p * w_k for p, w_k in zip(P.weights(S), local, strict=True))
    return w


@cases
def test_fedprox_is_its_box(problem, B):
    done = run(ar.FedProx(lr=0.2, mu=0.7, local_epochs=3, batch_size=B), problem)

    steps = lambda t, k: problem.steps(k, B, 3)  # noqa: E731
    same(done.w, fedprox(problem, done.cohorts, 0.2, 0.7, steps, B))


def finished(done, E):
    """How many of E epochs each party of each round got through."""
    found = [
        {k: E if e == 1 else int(1 + e * (E - 1)) for k, e in zip(S, efforts, strict=True)}
        for S, efforts in zip(done.cohorts, done.efforts, strict=True)
    ]
    assert all(any(epochs < E for epochs in one.values()) for one in found)
    return found


def test_fedprox_keeps_the_epochs_that_stragglers_finish():
    P = logistic()

    done = run(ar.FedProx(lr=0.2, mu=0.7, local_epochs=5, batch_size=3), P, stragglers=0.5)

    E = finished(done, 5)
    same(done.w, fedprox(P, done.cohorts, 0.2, 0.7, lambda t, k: P.steps(k, 3, E[t][k]), 3))


def scaffold(P, cohorts, eta_l, eta_g, steps, B, option):
    """Karimireddy et al. 2020, Algorithm 1; N parties, S sampled."""
    x, c, N = P.start, np.zeros_like(P.start), P.parties
    c_i = np.zeros((N, len(x)))
    for t, S in enumerate(cohorts):
        dy, dc = [], []
        for i in S:
            y, b, K = x, P.batches(i, t, B), steps(i)
            for _ in range(K):
                y = y - eta_l * (P.grad(i, y, next(b)) - c_i[i] + c)  # line 10
            if option == 1:
                c_plus = P.grad(i, x)  # line 12 (i)
            else:
                c_plus = c_i[i] - c + (x - y) / (K * eta_l)  # line 12 (ii)
            dy.append(y - x)
            dc.append(c_plus - c_i[i])  # line 13
            c_i[i] = c_plus  # line 14
        x = x + eta_g * np.mean(dy, axis=0)  # lines 16, 17
        c = c + len(S) / N * np.mean(dc, axis=0)
    return x, c, c_i


@cases
@pytest.mark.parametrize(("option", "K"), [(1, None), (2, 3), (2, None)])
def test_scaffold_is_its_box(problem, B, option, K):
    work = {"local_steps": K} if K else {"local_epochs": 2}
    algorithm = ar.Scaffold(lr=0.15, server_lr=0.8, batch_size=B, option=option, **work)

    done = run(algorithm, problem)

    steps = lambda i: K or problem.steps(i, B, 2)  # noqa: E731
    x, c, c_i = scaffold(problem, done.cohorts, 0.15, 0.8, steps, B, option)
    same(done.w, x)
    same(done.shared[1], c)
    same(done.own[0][: problem.parties], c_i)


def fedopt(P, cohorts, rule, eta_l, eta, b1, b2, tau, K, B, uniform):
    """Reddi et al. 2021, Algorithm 2 (1 for SGD); FedAvgM: m = b1 m + Delta [Hsu 2019]."""
    x = P.start
    m, v = np.zeros_like(x), np.full_like(x, tau**2)  # v_{-1} >= tau^2
    for t, S in enumerate(cohorts):
        deltas = []
        for i in S:
            x_i, b = x, P.batches(i, t, B)
            for _ in range(K):
                x_i = x_i - eta_l * P.grad(i, x_i, next(b))
            deltas.append(x_i - x)
        weights = [1 / len(S)] * len(S) if uniform else P.weights(S)
        Delta = sum(p * d for p, d in zip(weights, deltas, strict=True))
        if rule == "sgd":
            x = x + eta * Delta
            continue
        if rule == "momentum":
            m = b1 * m + Delta
            x = x + eta * m
            continue
        m = b1 * m + (1 - b1) * Delta
        if rule == "adagrad":
            v = v + Delta**2
        elif rule == "yogi":
            v = v - (1 - b2) * Delta**2 * np.sign(v - Delta**2)
        elif rule == "adam":
            v = b2 * v + (1 - b2) * Delta**2
        x = x + eta * m / (np.sqrt(v) + tau)
    return x


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad", "adam", "yogi"])
@pytest.mark.parametrize(
    ("problem", "uniform"), [(network(), True), (logistic(), False)], ids=["uniform", "by examples"]
)
def test_fedopt_is_its_box(problem, rule, uniform):
    own = {"server_lr": 0.3, "beta1": 0.7, "beta2": 0.95, "tau": 0.02, "by_examples": not uniform}
    algorithm = ar.FedOpt(lr=0.2, local_steps=4, batch_size=3, server_optimiser=rule, **own)

    done = run(algorithm, problem)

    same(done.w, fedopt(problem, done.cohorts, rule, 0.2, 0.3, 0.7, 0.95, 0.02, 4, 3, uniform))


def fednova(P, cohorts, eta, rho, E, B):
    """Wang et al. 2020, section 4: x <- x - tau_eff sum_i p_i eta d_i.

    d_i = G_i a_i / ||a_i||_1 is the change over eta ||a_i||_1, and tau_eff = sum_i p_i ||a_i||_1;
    with momentum rho and tau_i steps,
    ||a_i||_1 = (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho).
    """
    x = P.start
    for t, S in enumerate(cohorts):
        d, a = [], []
        for i in S:
            tau = P.steps(i, B, E(t, i))
            a.append((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
            d.append((x - client_update(P, i, t, x, eta, E(t, i), B, momentum=rho)) / (eta * a[-1]))
        p = P.weights(S)
        tau_eff = sum(p_i * a_i for p_i, a_i in zip(p, a, strict=True))
        x = x - tau_eff * sum(p_i * eta * d_i for p_i, d_i in zip(p, d, strict=True))
    return x


def feddyn(P, cohorts, eta, alpha, steps, B):
    """Acar et al. 2021, Algorithm 1; m parties; the inner problem by SGD from theta."""
    theta, m = P.start, P.parties
    h, g = np.zeros_like(theta), np.zeros((m, len(theta)))  # g_k = grad L_k(theta_k^{t-1})
    for t, P_t in enumerate(cohorts):
        local = []
        for k in P_t:
            theta_k, b = theta, P.batches(k, t, B)
            for _ in range(steps(k)):
                slope = P.grad(k, theta_k, next(b)) - g[k] + alpha * (theta_k - theta)
                theta_k = theta_k - eta * slope
            g[k] = g[k] - alpha * (theta_k - theta)
            local.append(theta_k)
        h = h - alpha / m * sum(theta_k - theta for theta_k in local)
        theta = np.mean(local, axis=0) - h / alpha
    return theta, h, g


@cases
@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_fednova_is_its_box(problem, B, rho):
    work = {"lr": 0.1, "local_epochs": 2, "batch_size": B, "optimiser": ar.SGD(momentum=rho)}

    done = run(ALGORITHMS["fednova"](**work), problem)

    same(done.w, fednova(problem, done.cohorts, 0.1, rho, lambda t, i: 2, B))


def test_fednova_weighs_stragglers_by_the_steps_that_they_took():
    P, work = logistic(), {"local_epochs": 5, "batch_size": 3, "optimiser": ar.SGD(momentum=0.8)}

    done = run(ALGORITHMS["fednova"](lr=0.1, **work), P, stragglers=0.5)

    E = finished(done, 5)
    same(done.w, fednova(P, done.cohorts, 0.1, 0.8, lambda t, i: E[t][i], 3))


@cases
def test_feddyn_is_its_box(problem, B):
    done = run(ALGORITHMS["feddyn"](lr=0.1, alpha=0.6, local_epochs=2, batch_size=B), problem)

    steps = lambda k: problem.steps(k, B, 2)  # noqa: E731
    theta, h, g = feddyn(problem, done.cohorts, 0.1, 0.6, steps, B)
    same(done.w, theta)
    same(done.shared[1], h / 0.6)  # it keeps h / alpha
    same(done.own[0][: problem.parties], g)
