"""Wake-ups, meetings and walks, box by box: one turn after another, in the order that is drawn."""

import numpy as np
import pytest

import archipel as ar
from archipel import rng
from archipel.engines import schedule
from archipel.graphs import topology
from boxes.small import SEED, convex, least_squares, run, same

GRAPH = "edges:0-1*0.7,1-2,2-3*1.6,3-4*0.4,4-5*0.3,0-5*0.2,0-3*0.5,1-4*2"
N = 6


def edges():
    """Weights of the edges, and the neighbours of each."""
    W = topology(GRAPH, N, SEED).affinity().toarray()
    return W, [np.flatnonzero(row) for row in W]


def meetings(t):
    """Who wakes in round t, and whom it meets."""
    _, around = edges()
    number = np.full((N, max(map(len, around))), -1)
    for i, others in enumerate(around):
        number[i, : len(others)] = others
    order = schedule.woken(SEED, t, np.arange(N))
    other = schedule.partners(SEED, t, order, number, np.array(list(map(len, around))))
    pairs = np.stack([order, other], axis=1)
    return pairs[np.concatenate(schedule.disjoint(SEED, t, pairs))]


def confidence(P, i, most):
    return min(1.0, P.n(i) / most)


def coordinate(P, rounds, mu, L, most, l2, warm):
    """Bellet et al. 2018, equation (4), of the mean loss + l2 / 2 n_i |theta|^2."""
    W, around = edges()
    theta = np.tile(P.start, (N, 1))
    for t in range(rounds):
        order = schedule.woken(SEED, t, np.arange(N))
        for i in order[np.concatenate(schedule.independent(SEED, t, order, around))]:
            g, smooth = P.grad(i, theta[i]) + l2 / P.n(i) * theta[i], L + l2 / P.n(i)
            if t < warm:
                theta[i] = theta[i] - g / smooth
                continue
            c = confidence(P, i, most)
            alpha = 1 / (1 + mu * c * smooth)
            mean = sum(W[i, j] / W[i].sum() * theta[j] for j in around[i])
            theta[i] = (1 - alpha) * theta[i] + alpha * (mean - mu * c * g)
    return theta


@convex
@pytest.mark.parametrize("l2", [0.0, 3.0])
def test_coordinate_is_its_box(problem, l2):
    algorithm = ar.Coordinate(mu=0.6, smoothness=1.7, confident=8, l2=l2, warm_rounds=2)
    done = run(algorithm, problem, sample=N, graph=GRAPH)

    same(done.own[0][:N], coordinate(problem, len(done.cohorts), 0.6, 1.7, 8, l2, 2))


def local(P, k, x, eta, steps, pull=0.0, towards=0.0):
    eta = 1 / (1 / eta + pull)
    for _ in range(steps):
        x = x - eta * (P.grad(k, x) + pull * (x - towards))
    return x


def gossip(P, rounds, eta, steps, kind):
    """Both train; then x_i = x_j = (x_i + x_j) / 2, or one of them."""
    x = np.tile(P.start, (N, 1))
    for t in range(rounds):
        for i, j in meetings(t):
            x[i], x[j] = local(P, i, x[i], eta, steps), local(P, j, x[j], eta, steps)
            mean = (x[i] + x[j]) / 2
            if kind != "push":
                x[i] = mean
            if kind != "pull":
                x[j] = mean
    return x


@convex
@pytest.mark.parametrize("kind", ["push-pull", "push", "pull"])
def test_gossip_is_its_box(problem, kind):
    algorithm = ar.Gossip(lr=0.2, local_steps=2, batch_size=None, exchange=kind)
    done = run(algorithm, problem, sample=N, graph=GRAPH)

    same(done.own[0][:N], gossip(problem, len(done.cohorts), 0.2, 2, kind))


def propagation(P, rounds, eta, alpha, alone, most):
    """Vanhaesebrouck et al. 2017, section 3.2, with copies of what each last saw."""
    W, around = edges()
    theta = np.tile(P.start, (N, 1))
    learned = set()
    sol, copies = theta.copy(), {(i, j): P.start for i in range(N) for j in around[i]}
    for t in range(rounds):
        for pair in meetings(t):
            if t < alone:
                for i in pair:
                    learned.add(i)
                    sol[i] = theta[i] = local(P, i, sol[i], eta, 1)
                    copies |= {(i, j): sol[i].copy() for j in around[i]}
                continue
            i, j = pair
            copies[i, j], copies[j, i] = theta[j].copy(), theta[i].copy()
            for k in pair:
                c = max(0.01, confidence(P, k, most)) if k in learned else 0.01
                mean = sum(W[k, o] / W[k].sum() * copies[k, o] for o in around[k])
                theta[k] = (alpha * mean + (1 - alpha) * c * sol[k]) / (alpha + (1 - alpha) * c)
    return theta


@convex
@pytest.mark.parametrize("alone", [0, 1, 2])
def test_propagation_is_its_box(problem, alone):
    algorithm = ar.Propagation(lr=0.3, alpha=0.8, alone=alone, confident=8, batch_size=None)
    done = run(algorithm, problem, sample=N, graph=GRAPH)

    same(done.own[0][:N], propagation(problem, len(done.cohorts), 0.3, 0.8, alone, 8))


def collaborative(P, rounds, eta, mu, rho, steps):
    """Vanhaesebrouck et al. 2017, section 4.2; Z and Lam of edge e by whose model they are of."""
    W, around = edges()
    theta = np.tile(P.start, (N, 1))
    ends = [(i, j, k) for i in range(N) for j in around[i] for k in (i, j)]  # i's, on (i, j), of k
    Z, Lam = dict.fromkeys(ends, P.start), dict.fromkeys(ends, 0.0)
    held = {}
    for t in range(rounds):
        for pair in meetings(t):
            for i in pair:  # step 1: minimise over own model and copies, the copies put in
                centre, total = 0.0, 0.0
                for j in around[i]:
                    w = W[i, j] * rho / (W[i, j] + rho)
                    centre = centre + rho * (Z[i, j, i] - Lam[i, j, i] / rho)
                    centre = centre + w * (Z[i, j, j] - Lam[i, j, j] / rho)
                    total += rho + w
                pull = total / (mu * W[i].sum() * P.n(i))
                theta[i] = local(P, i, theta[i], eta, steps, pull, centre / total)
                for j in around[i]:
                    held[i, j] = (W[i, j] * theta[i] + rho * Z[i, j, j] - Lam[i, j, j]) / (
                        W[i, j] + rho
                    )
            i, j = pair
            for k, at, copy in ((i, i, held[j, i]), (j, j, held[i, j])):  # steps 2 and 3
                other = j if at == i else i
                new = ((Lam[at, other, k] + Lam[other, at, k]) / rho + theta[k] + copy) / 2
                Z[at, other, k] = Z[other, at, k] = new
                Lam[at, other, k] = Lam[at, other, k] + rho * (theta[k] - new)
                Lam[other, at, k] = Lam[other, at, k] + rho * (copy - new)
    return theta


@convex
def test_collaborative_is_its_box(problem):
    algorithm = ar.Collaborative(lr=0.1, mu=0.1, rho=1.3, local_steps=3)
    done = run(algorithm, problem, sample=N, graph=GRAPH)

    same(done.own[0][:N], collaborative(problem, len(done.cohorts), 0.1, 0.1, 1.3, 3))


def path(t, at, tokens):
    """Who holds each token in round t, hop by hop, from where they are."""
    W = topology(GRAPH, N, SEED).weights().numpy()
    for hop in range(max(1, N // tokens)):
        yield list(at)
        keys = rng.keys(rng.key(SEED, t, "walk", hop), np.arange(tokens))
        for k, chance in enumerate(rng.uniform(keys)):
            at[k] = int(np.searchsorted(np.cumsum(W[at[k]]), chance, "right"))


def walk(P, rounds, eta, steps, tokens):
    """Ram et al. 2009: x <- x - eta grad f_i(x) at whoever holds it."""
    x, own = np.tile(P.start, (tokens, 1)), np.tile(P.start, (N, 1))
    at = [k * N // tokens for k in range(tokens)]
    for t in range(rounds):
        for holders in path(t, at, tokens):
            for k, i in enumerate(holders):
                x[k] = own[i] = local(P, i, x[k], eta, steps)
    return own


@convex
@pytest.mark.parametrize("tokens", [1, 2])
def test_walk_is_its_box(problem, tokens):
    algorithm = ar.Walk(lr=0.2, local_steps=2, batch_size=None, tokens=tokens)
    done = run(algorithm, problem, sample=N, graph=GRAPH)

    same(done.own[0][:N], walk(problem, len(done.cohorts), 0.2, 2, tokens))


def walkman(P, rounds, eta, beta, l1, form, steps):
    """Mao et al. 2020, algorithm 1; the mean is added up anew for every hop."""
    x, y, z = (np.tile(P.start, (N, 1)) for _ in range(3))
    z[:] = 0
    at = [0]
    for t in range(rounds):
        for (i,) in path(t, at, 1):
            u = (y - z / beta).mean(axis=0)
            x[i] = np.sign(u) * np.maximum(np.abs(u) - l1 / beta, 0)
            centre = x[i] + z[i] / beta
            if form == "proximal":
                y[i] = local(P, i, y[i], eta, steps, beta, centre)
            else:
                y[i] = centre - P.grad(i, y[i]) / beta
            z[i] = z[i] + beta * (x[i] - y[i])
    return x, y, z


@pytest.mark.parametrize("form", ["proximal", "gradient"])
@pytest.mark.parametrize("l1", [0.0, 0.2])
def test_walkman_is_its_box(form, l1):
    P = least_squares()
    algorithm = ar.Walkman(lr=0.1, beta=2.5, l1=l1, form=form, local_steps=3)
    done = run(algorithm, P, sample=N, graph=GRAPH)

    for found, expected in zip(
        done.own, walkman(P, len(done.cohorts), 0.1, 2.5, l1, form, 3), strict=True
    ):
        same(found[:N], expected)
