"""Decentralised SGD in both orders, box by box: parties that talk to their neighbours alone."""

import numpy as np
import pytest

import archipel as ar
from archipel.graphs import topology
from boxes.small import SEED, cases, least_squares, run, same


def ring(n):
    """Each weighs itself and both neighbours the same [Lian 2017]."""
    W = np.zeros((n, n))
    for i in range(n):
        W[i, [i - 1, i, (i + 1) % n]] = 1 / 3
    return W


def reweighed(W, present):
    """The weight of an edge that does not come about stays with both of its ends."""
    new = np.zeros_like(W)
    for i in present:
        for j in present:
            new[i, j] = W[i, j] if i != j else 0
    for i in range(len(W)):
        new[i, i] = 1 - new[i].sum()
    return new


def koloskova(P, cohorts, W, eta, B):
    """Koloskova et al. 2020, Algorithm 1: a step, then x_i = sum_j w_ij^(t) x_j^(t+1/2)."""
    x = np.tile(P.start, (P.parties, 1))
    for t, S in enumerate(cohorts):
        half = x.copy()
        for i in S:
            half[i] = x[i] - eta * P.grad(i, x[i], next(P.batches(i, t, B)))
        x = np.stack(
            [sum(W[t][i, j] * half[j] for j in range(P.parties)) for i in range(P.parties)]
        )
    return x


def lian(P, cohorts, W, gamma, B):
    """Lian et al. 2017, Algorithm 1: the gradient is at x_k,i, the model before mixing."""
    x = np.tile(P.start, (P.parties, 1))
    for t, S in enumerate(cohorts):
        mixed = [sum(W[t][i, j] * x[j] for j in range(P.parties)) for i in range(P.parties)]
        x = np.stack(
            [
                mixed[i] - gamma * P.grad(i, x[i], next(P.batches(i, t, B))) if i in S else mixed[i]
                for i in range(P.parties)
            ]
        )
    return x


@cases
@pytest.mark.parametrize("overlap", [False, True])
def test_dsgd_on_a_ring_is_its_box(problem, B, overlap):
    done = run(ar.DSGD(lr=0.2, batch_size=B, overlap=overlap), problem, sample=6, graph="ring")

    W = [ring(6)] * len(done.cohorts)
    x = (lian if overlap else koloskova)(problem, done.cohorts, W, 0.2, B)
    same(done.own[0][:6], x)
    same(done.w, x.mean(axis=0))


@pytest.mark.parametrize("overlap", [False, True])
def test_dsgd_on_a_graph_that_changes_is_its_box(overlap):
    P, graph = least_squares(), "matching"

    done = run(ar.DSGD(lr=0.2, batch_size=2, overlap=overlap), P, sample=6, graph=graph)

    W = [topology(graph, 6, SEED).weights(t).numpy() for t in range(len(done.cohorts))]
    assert len({one.tobytes() for one in W}) > 1
    same(done.own[0][:6], (lian if overlap else koloskova)(P, done.cohorts, W, 0.2, 2))


@pytest.mark.parametrize("overlap", [False, True])
def test_dsgd_where_some_are_away_is_its_box(overlap):
    P = least_squares()

    done = run(ar.DSGD(lr=0.2, batch_size=2, overlap=overlap), P, sample=4, graph="ring")

    W = [reweighed(ring(6), S) for S in done.cohorts]
    same(done.own[0][:6], (lian if overlap else koloskova)(P, done.cohorts, W, 0.2, 2))
