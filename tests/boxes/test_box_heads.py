"""FedRep, FedPer, FedBN: some layers for all and some for each party, box by box."""

import numpy as np
import pytest

import archipel as ar
from archipel.algorithms import ALGORITHMS
from boxes.small import BODY, DIMS, HIDDEN, network, normalised, run, same

ROUNDS, SAMPLE = 3, 2
sizes = pytest.mark.parametrize("B", [None, 3])


def descend(P, k, batches, w, eta, steps, moving):
    """Gradient steps on some of the parameters."""
    for _ in range(steps):
        w = w - eta * np.where(moving, P.grad(k, w, next(batches)), 0.0)
    return w


def fedrep(P, cohorts, alpha, tau, E, B):
    """Collins et al. 2021, Algorithm 1: tau passes on the head, then passes on the body phi."""
    phi, h = P.start, np.tile(P.start, (P.data.parties, 1))  # the head's numbers of h count
    for t, S in enumerate(cohorts):
        local = []
        for i in S:
            b = P.batches(i, t, B)
            w = np.where(BODY, phi, h[i])
            w = h[i] = descend(P, i, b, w, alpha, P.steps(i, B, tau), ~BODY)
            local.append(descend(P, i, b, w, alpha, P.steps(i, B, E), BODY))
        mean = sum(p * w for p, w in zip(P.weights(S), local, strict=True))
        phi = np.where(BODY, mean, phi)
    return phi, h


@sizes
def test_fedrep_is_its_box(B):
    P, tune = network(), {"tune_epochs": 4, "tune_lr": 0.1}
    algorithm = ar.FedRep(lr=0.3, head_epochs=3, local_epochs=2, batch_size=B, **tune)

    done = run(algorithm, P, ROUNDS, SAMPLE)

    phi, h = fedrep(P, done.cohorts, 0.3, 3, 2, B)
    same(done.w[BODY], phi[BODY])
    for k in range(P.data.parties):  # heads are trained on the last body before they are used
        w = np.where(BODY, phi, h[k])
        used = descend(P, k, P.batches(k, ROUNDS, B), w, 0.1, P.steps(k, B, 4), ~BODY)
        same(done.models[k], used)


def fedper(P, cohorts, eta, e, B):
    """Arivazhagan et al. 2019, Algorithms 1 and 2: both parts together, then the mean of W_B."""
    W_B, W_P = P.start, np.tile(P.start, (P.data.parties, 1))
    for t, S in enumerate(cohorts):
        local = []
        for j in S:
            w, b = np.where(BODY, W_B, W_P[j]), P.batches(j, t, B)
            for _ in range(P.steps(j, B, e)):
                w = w - eta * P.grad(j, w, next(b))
            W_P[j] = w
            local.append(w)
        mean = sum(gamma * w for gamma, w in zip(P.weights(S), local, strict=True))
        W_B = np.where(BODY, mean, W_B)
    return W_B, W_P


@sizes
def test_fedper_is_its_box(B):
    P = network()

    done = run(ar.FedPer(lr=0.3, local_epochs=2, batch_size=B, tune_epochs=4), P, ROUNDS, SAMPLE)

    W_B, W_P = fedper(P, done.cohorts, 0.3, 2, B)
    same(done.w[BODY], W_B[BODY])
    same(done.models[done.trained], np.where(BODY, W_B, W_P[done.trained]))
    for k in done.untrained:
        b = P.batches(k, ROUNDS, B)
        w = np.where(BODY, W_B, P.start)
        same(done.models[k], descend(P, k, b, w, 0.3, P.steps(k, B, 4), ~BODY))


NORM = np.zeros(normalised().model.p, bool)
NORM[HIDDEN * (DIMS + 1) :][: 2 * HIDDEN] = True  # gamma and beta of BatchNorm


def fedbn(P, cohorts, eta, E, B):
    """Li et al. 2021, Algorithm 1: the mean of all layers but BatchNorm's."""
    w = np.tile(P.start, (P.data.parties, 1))
    for t, S in enumerate(cohorts):
        for k in S:
            b = P.batches(k, t, B)
            for _ in range(P.steps(k, B, E)):
                w[k] = w[k] - eta * P.grad(k, w[k], next(b))
        w[:, ~NORM] = np.mean([w[k, ~NORM] for k in S], axis=0)
    return w


def test_fedbn_is_its_box():
    P = normalised()

    done = run(ALGORITHMS["fedbn"](lr=0.3, local_epochs=3, batch_size=None), P, ROUNDS, SAMPLE)

    w = fedbn(P, done.cohorts, 0.3, 3, None)
    same(done.w[~NORM], w[0, ~NORM])
    same(done.models, w)
