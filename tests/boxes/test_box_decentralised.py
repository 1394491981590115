"""Decentralised SGD in both orders, gradient tracking and CHOCO, box by box: no server."""

from dataclasses import dataclass
from typing import ClassVar

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


def tracked(P, cohorts, W, eta, B):
    """Koloskova et al. 2021, Algorithm 1; the y of a party's first gradient is that gradient."""
    x, y, g = np.tile(P.start, (P.parties, 1)), 0.0, np.zeros((P.parties, len(P.start)))
    for t, S in enumerate(cohorts):
        new = g.copy()
        for i in S:
            new[i] = P.grad(i, x[i], next(P.batches(i, t, B)))
        y, g = y + new - g, new
        half = np.stack([x[i] - eta * y[i] if i in S else x[i] for i in range(P.parties)])
        x, y = W[t] @ half, W[t] @ y
    return x, y, g


@cases
def test_gradient_tracking_on_a_ring_is_its_box(problem, B):
    algorithm = ar.GradientTracking(lr=0.2, batch_size=B)
    done = run(algorithm, problem, sample=6, graph="ring")

    box = tracked(problem, done.cohorts, [ring(6)] * len(done.cohorts), 0.2, B)
    for mine, theirs in zip(done.own, box, strict=True):
        same(mine[:6], theirs)


def test_gradient_tracking_where_some_are_away_is_its_box():
    P = least_squares()

    done = run(ar.GradientTracking(lr=0.2, batch_size=2), P, sample=4, graph="ring")

    W = [reweighed(ring(6), S) for S in done.cohorts]
    for mine, theirs in zip(done.own, tracked(P, done.cohorts, W, 0.2, 2), strict=True):
        same(mine[:6], theirs)


@dataclass(frozen=True)
class Half:
    """Q(v) = v / 2."""

    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    def init(self, form):
        return None

    def send(self, me, upload, own):
        return tuple(x / 2 for x in upload), own

    def receive(self, them, payload, form):
        return payload

    def bound(self, before):
        return before


def choco(P, cohorts, W, eta, gamma, B, steps, Q):
    """Koloskova et al. 2019, Algorithm 2, from x̂ = x; `steps` gradients between two messages."""
    x = np.tile(P.start, (P.parties, 1))
    xh = x.copy()
    for t, S in enumerate(cohorts):
        for i in S:
            batches = P.batches(i, t, B)
            for _ in range(steps):
                x[i] = x[i] - eta * P.grad(i, x[i], next(batches))
            xh[i] = xh[i] + Q(x[i] - xh[i])
        x = np.stack(
            [
                x[i] + gamma * sum(W[t][i, j] * (xh[j] - xh[i]) for j in range(P.parties))
                for i in range(P.parties)
            ]
        )
    return x, xh


@cases
@pytest.mark.parametrize(("gamma", "steps"), [(None, 1), (0.7, 2)])
def test_choco_on_a_ring_is_its_box(problem, B, gamma, steps):
    algorithm = ar.Choco(lr=0.2, consensus_lr=gamma, local_steps=steps, batch_size=B)
    done = run(algorithm, problem, sample=6, graph="ring")

    W = [ring(6)] * len(done.cohorts)
    how = (0.2, gamma or 1.0, B, steps, lambda v: v)
    for mine, theirs in zip(done.own, choco(problem, done.cohorts, W, *how), strict=True):
        same(mine[:6], theirs)


@pytest.mark.parametrize("gamma", [None, 0.3])
def test_choco_on_a_wire_is_its_box(gamma):
    P, cohorts = least_squares(), [range(6), range(6), [0, 1, 3, 4, 5], range(6)]
    how = {"seed": SEED, "plan": P.plan, "topology": topology("ring", 6, SEED)}
    algorithm = ar.Choco(lr=0.2, consensus_lr=gamma, batch_size=2)

    with ar.LocalEngine(algorithm, P.data, P.model, wire=ar.Wire(up=(Half(),)), **how) as engine:
        for t, cohort in enumerate(cohorts):
            engine.round(t, list(cohort))
        own = engine.own_states(range(6)).inner

    W = [reweighed(ring(6), S) for S in cohorts]
    box = choco(P, cohorts, W, 0.2, gamma or 0.75, 2, 1, lambda v: v / 2)  # of |v|², 3/4 is kept
    for mine, theirs in zip(own, box, strict=True):
        same(mine, theirs)
