"""Ditto, Per-FedAvg, pFedMe, kNN-Per, fine-tuning, training alone: own models, box by box."""

import numpy as np
import pytest

import archipel as ar
from archipel.training.schedules import Decay
from boxes.small import (
    CLASSES,
    cases,
    convex,
    least_squares,
    logistic,
    network,
    run,
    same,
    split,
)
from boxes.test_box_averaging import client_update, fedavg

ROUNDS, SAMPLE = 3, 2  # so that some party never trains


def everybody(P):
    return range(P.data.parties)


def test_alone_is_every_party_by_itself():
    problem = network()

    done = run(ar.Alone(lr=0.2, local_epochs=2, batch_size=3), problem, ROUNDS, SAMPLE)

    w = np.tile(problem.start, (problem.data.parties, 1))
    for t, S in enumerate(done.cohorts):
        for k in S:
            w[k] = client_update(problem, k, t, w[k], 0.2, 2, 3)
    same(done.own[0], w)


@cases
def test_finetuned_is_fedavg_and_more_passes(problem, B):
    algorithm = ar.FineTuned(lr=0.2, local_epochs=2, batch_size=B, tune_epochs=3)

    done = run(algorithm, problem, ROUNDS, SAMPLE)

    w = fedavg(problem, done.cohorts, [0.2] * ROUNDS, 2, B)
    same(done.w, w)
    tuned = [client_update(problem, k, ROUNDS, w, 0.2, 3, B) for k in everybody(problem)]
    same(done.models, tuned)


def test_finetuned_passes_have_a_rate_of_their_own():
    P, work = network(), {"local_epochs": 2, "batch_size": 3}

    done = run(ar.FineTuned(lr=0.2, tune_epochs=3, tune_lr=0.05, **work), P, ROUNDS, SAMPLE)

    tuned = [client_update(P, k, ROUNDS, done.w, 0.05, 3, 3) for k in everybody(P)]
    same(done.models, tuned)


def ditto(P, cohorts, eta, lam, E, B):
    """Li et al. 2021, Algorithm 1: w as in FedAvg; v_k is pulled to the w^t that k was sent."""
    w, v = P.start, np.tile(P.start, (P.data.parties, 1))
    for t, S in enumerate(cohorts):
        local = []
        for k in S:
            w_k, b = w, P.batches(k, t, B)
            for _ in range(P.steps(k, B, E)):
                w_k = w_k - eta * P.grad(k, w_k, next(b))
            for _ in range(P.steps(k, B, E)):
                v[k] = v[k] - eta * (P.grad(k, v[k], next(b)) + lam * (v[k] - w))
            local.append(w_k)
        w = sum(p * w_k for p, w_k in zip(P.weights(S), local, strict=True))
    return w, v


@cases
def test_ditto_is_its_box(problem, B):
    algorithm = ar.Ditto(lr=0.2, lam=0.6, local_epochs=2, batch_size=B)

    done = run(algorithm, problem, ROUNDS, SAMPLE)

    w, v = ditto(problem, done.cohorts, 0.2, 0.6, 2, B)
    same(done.w, w)
    same(done.models[done.trained], v[done.trained])
    for k in done.untrained:  # one from the shared model, when it is needed
        v_k, b = w, problem.batches(k, ROUNDS, B)
        for _ in range(problem.steps(k, B, 2)):
            v_k = v_k - 0.2 * (problem.grad(k, v_k, next(b)) + 0.6 * (v_k - w))
        same(done.models[k], v_k)


def perfedavg(P, cohorts, beta, curvature, alpha, steps, B):
    """Fallah et al. 2020, Algorithm 1, with (I - alpha H(w; D'')) v, v = grad f(w~; D')."""
    w = P.start
    for t, S in enumerate(cohorts):
        local = []
        for i in S:
            w_i, b = w, P.batches(i, t, B)
            for _ in range(steps(i)):
                w_tilde = w_i - alpha * P.grad(i, w_i, next(b))  # D
                v = P.grad(i, w_tilde, next(b))  # D'
                w_i = w_i - beta * (v - alpha * curvature(P, i, w_i, v, b))  # D''
            local.append(w_i)
        w = np.mean(local, axis=0)
    return w


def first_order(P, i, w, v, b):
    return np.zeros_like(w)


def differences(delta):
    """H v by a central difference along v, over a length of delta (1 + ||w||)."""

    def curvature(P, i, w, v, b):
        batch = next(b)
        d = delta * (1 + np.linalg.norm(w)) / np.linalg.norm(v)
        return (P.grad(i, w + d * v, batch) - P.grad(i, w - d * v, batch)) / (2 * d)

    return curvature


def of_squares(P, i, w, v, b):
    """H = X'X / n: exact."""
    x = P.points(i)[0][next(b)]
    return x.T @ (x @ v) / len(x)


def of_softmax(P, i, w, v, b):
    """H of mean -log softmax(Wx + b)_y, example by example: exact."""
    x, H = P.points(i)[0][next(b)], np.zeros((len(w), len(w)))
    for row in x:
        W, bias = w[: CLASSES * len(row)].reshape(CLASSES, -1), w[CLASSES * len(row) :]
        s = np.exp(W @ row + bias) / np.exp(W @ row + bias).sum()
        J = np.hstack([np.kron(np.eye(CLASSES), row), np.eye(CLASSES)])  # d logits / d w
        H += J.T @ (np.diag(s) - np.outer(s, s)) @ J / len(x)
    return H @ v


VARIANTS = {"first-order": first_order, "hessian-free": differences(1e-3)}


@cases
@pytest.mark.parametrize("variant", VARIANTS)
def test_perfedavg_is_its_box(problem, B, variant):
    algorithm = ar.PerFedAvg(lr=0.2, inner_lr=0.3, local_epochs=2, batch_size=B, variant=variant)

    done = run(algorithm, problem, ROUNDS, SAMPLE)

    steps = lambda i: problem.steps(i, B, 2)  # noqa: E731
    w = perfedavg(problem, done.cohorts, 0.2, VARIANTS[variant], 0.3, steps, B)
    same(done.w, w, 1e-11)  # a difference over 1e-3 loses three digits
    same(done.models, [w - 0.3 * problem.grad(k, w) for k in everybody(problem)], 1e-11)


@pytest.mark.parametrize(
    ("problem", "exact", "within"),
    [(least_squares(), of_squares, 1e-11), (logistic(), of_softmax, 1e-6)],
    ids=["squares", "softmax"],
)
def test_perfedavg_without_hessians_is_the_box_with_them(problem, exact, within):
    """To rounding where the loss is quadratic, else to what a difference of length 1e-3 leaves."""
    algorithm = ar.PerFedAvg(lr=0.2, inner_lr=0.3, local_steps=4, batch_size=3, delta=1e-3)

    done = run(algorithm, problem, ROUNDS, SAMPLE)

    w = perfedavg(problem, done.cohorts, 0.2, exact, 0.3, lambda i: 4, 3)
    same(done.w, w, within)


def pfedme(P, cohorts, eta, inner, lam, R, K, beta, B):
    """Dinh et al. 2020, Algorithm 1; theta~ by K gradient steps from the last one of the round."""
    w = P.start
    for t, S in enumerate(cohorts):
        local = []
        for i in S:
            w_i, theta, b = w, w, P.batches(i, t, B)
            for _ in range(P.steps(i, B, R)):
                D = next(b)
                for _ in range(K):
                    theta = theta - inner[t] * (P.grad(i, theta, D) + lam * (theta - w_i))
                w_i = w_i - eta * lam * (w_i - theta)  # line 8
            local.append(w_i)
        w = (1 - beta) * w + beta * np.mean(local, axis=0)  # line 12
    return w


@cases
def test_pfedme_is_its_box(problem, B, beta=0.7):
    work = {"local_epochs": 2, "inner_steps": 4, "batch_size": B, "server_lr": beta}
    algorithm = ar.PFedMe(lr=0.1, inner_lr=0.15, lam=2.0, **work)

    done = run(algorithm, problem, ROUNDS, 3)

    same(done.w, pfedme(problem, done.cohorts, 0.1, [0.15] * ROUNDS, 2.0, 2, 4, beta, B))


@convex
def test_pfedme_own_models_are_the_proximal_minimisers(problem):
    """theta^(w) = argmin f_i + lambda/2 ||. - w||^2 of the last w, on all of a party's points."""
    work = {"local_steps": 3, "inner_steps": 4, "batch_size": 3}
    algorithm = ar.PFedMe(lr=0.1, inner_lr=0.2, lam=2.0, tune_steps=80, **work)

    done = run(algorithm, problem, ROUNDS, SAMPLE)

    expected = [problem.proximal(k, done.w, 2.0) for k in everybody(problem)]
    same(done.models, expected, 1e-10)  # what 80 steps leave


def test_pfedme_with_falling_rates_is_its_box():
    P, rates = logistic(), [0.2, 0.1, 0.05]
    work = {"local_epochs": 2, "inner_steps": 4, "batch_size": 3, "tune_steps": 5}
    algorithm = ar.PFedMe(0.1, Decay(0.2, 0.5), lam=2.0, tune_lr=Decay(0.4, 0.5), **work)

    done = run(algorithm, P, ROUNDS, SAMPLE)

    same(done.w, pfedme(P, done.cohorts, 0.1, rates, 2.0, 2, 4, 1.0, 3))
    for k in everybody(P):
        theta = done.w
        for _ in range(5):
            theta = theta - 0.05 * (P.grad(k, theta) + 2.0 * (theta - done.w))  # 0.4 / 2^3
        same(done.models[k], theta)


def knn(P, k, w, x, neighbours, scale, lam, leave_out=None):
    """Marfoq et al. 2022, section 3.2: lambda p_kNN + (1 - lambda) p_w, log of it, for one point x.

    The kernel is the authors' code's: exp(-||phi - phi_j||^2 / (dim scale)), over the k nearest.
    """
    W1, b1, W2, b2 = split(w)
    X, Y = P.points(k)
    phi, stored = np.tanh(W1 @ x + b1), np.tanh(X @ W1.T + b1)
    z = W2 @ phi + b2
    p_w = np.exp(z) / np.exp(z).sum()
    d = ((stored - phi) ** 2).sum(axis=1)
    near = [j for j in np.argsort(d, kind="stable") if j != leave_out][:neighbours]
    votes = np.zeros(CLASSES)
    if not near:
        return np.log(p_w)
    for j in near:
        votes[Y[j]] += np.exp(-d[j] / (len(phi) * scale))
    return np.log(lam * votes / votes.sum() + (1 - lam) * p_w)


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_knnper_is_its_box(scale):
    P, lam = network(), 0.4
    algorithm = ar.KNNPer(lr=0.2, local_epochs=2, batch_size=3, lam=lam, neighbours=3, scale=scale)

    done = run(algorithm, P, ROUNDS, SAMPLE, losses=True)

    w = fedavg(P, done.cohorts, [0.2] * ROUNDS, 2, 3)
    same(done.w, w)
    for k in everybody(P):
        X, Y, x, y = (part.numpy() for part in P.data.party(k))
        logs = [knn(P, k, w, one, 3, scale, lam)[label] for one, label in zip(x, y, strict=True)]
        same(done.losses[1][k], -np.mean(logs))
        # a training point is not its own neighbour
        logs = [knn(P, k, w, X[j], 3, scale, lam, leave_out=j)[Y[j]] for j in range(len(X))]
        same(done.losses[0][k], -np.mean(logs))
