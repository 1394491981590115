# SPDX-License-Identifier: Apache-2.0
"""The exact accountant of linear protocols is what likelihoods say, and what known cases say."""

from __future__ import annotations

from itertools import combinations
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError
from archipel.graphs import ring
from archipel.privacy.analytic import epsilon_of, mu_of
from archipel.privacy.curves import gaussian_delta
from archipel.privacy.linear import distances, distances_from


def incidence(n, edges):
    """A column for each edge: what the one adds, the other takes away."""
    out = np.zeros((n, len(edges)))
    for column, (u, v) in enumerate(edges):
        out[u, column], out[v, column] = 1.0, -1.0
    return out


def gopa(n, edges, own, pair):
    """What everybody publishes: x + own noise + noise that cancels along each edge."""
    return distances(np.eye(n), np.full(n, own), pair * incidence(n, edges))


def k_out(n, k, seed):
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(n - 1, k, replace=False) for _ in range(n)]
    return sorted({tuple(sorted((u, int(v) + (v >= u)))) for u in range(n) for v in chosen[u]})


# -- known cases -----------------------------------------------------------------------------------


@given(st.integers(2, 12), st.floats(0.1, 5))
@settings(max_examples=20)
def test_all_pairs_with_much_noise_are_a_trusted_curator(n, own):
    found = gopa(n, list(combinations(range(n), 2)), own, pair=1e5 * own)

    assert found == pytest.approx(np.full(n, 1 / (own * sqrt(n))), rel=1e-6)


@given(st.integers(2, 10), st.integers(0, 99), st.floats(0.1, 3), st.floats(0, 3))
@settings(max_examples=30)
def test_pairwise_noise_is_the_inverse_of_its_covariance(n, seed, own, pair):
    edges = k_out(n, 1, seed)
    B = incidence(n, edges)
    covariance = own**2 * np.eye(n) + pair**2 * (B @ B.T)

    expected = np.sqrt(np.diag(np.linalg.inv(covariance)))
    assert gopa(n, edges, own, pair) == pytest.approx(expected, rel=1e-9)


def test_pairwise_noise_that_is_known_to_be_needed():
    """n = 1000, k = 20, ε = 1, δ = 1e-5, own noise 5 % above the curator's: deviation 2.48."""
    n, target = 1000, mu_of(1.0, 1e-5)
    own = 1.05 / (target * sqrt(n))
    edges = k_out(n, 20, seed=0)

    L = np.zeros((n, n))
    for u, v in edges:
        L[[u, v], [u, v]] += 1
        L[[u, v], [v, u]] -= 1
    enough, little = (
        distances_from(np.eye(n), own**2 * np.eye(n) + pair**2 * L).max()
        for pair in (2.48 * 1.03, 2.48 * 0.97)
    )
    assert own == pytest.approx(0.124, abs=1e-3)
    assert enough < target < little


def ring_view(n, rounds, at, own_rows=True):
    """All that `at` receives, and its own values, in so many rounds of gossip on a ring."""
    W = ring(n).weights().double().numpy()
    power, rows = np.eye(n), []
    for _ in range(rounds):
        rows += [power[(at + 1) % n], power[(at - 1) % n]]
        rows += [power[at]] if own_rows else []
        power = W @ power
    return np.array(rows)


def test_gossip_on_a_ring_hides_nothing_in_the_end():
    """n = 16: after 8 rounds all x + η can be solved for, so each has the local loss."""
    sigma = 2.0

    found = distances(ring_view(16, 8, at=0), np.full(16, sigma))
    assert found == pytest.approx(np.full(16, 1 / sigma), rel=1e-6)

    early = distances(ring_view(16, 3, at=0), np.full(16, sigma))
    assert early[8] == 0 and early[1] == pytest.approx(1 / sigma)


def test_an_attack_on_gossip_does_as_well_as_is_said():
    """Least squares from all that one node of the ring saw, of the node opposite to it."""
    M, n, u = ring_view(16, 8, at=0), 16, 8
    rng = np.random.default_rng(3)
    runs = 20_000
    seen = M @ (rng.normal(size=(n, runs)) + (np.arange(n) == u)[:, None])
    guess = (np.linalg.pinv(M) @ seen)[u]

    mu = float(guess.mean() / guess.std())
    assert abs(mu - distances(M, np.ones(n))[u]) < 4 / sqrt(runs) * 1.3


# -- likelihoods -----------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 999), st.booleans())
@settings(max_examples=30)
def test_the_best_test_by_likelihood_does_as_well_as_is_said(k, n, seed, with_added):
    rng = np.random.default_rng(seed)
    M, own = rng.normal(size=(k, n)), rng.uniform(0.5, 2, n)
    added = rng.normal(size=(k, k)) if with_added else None
    V = M @ np.diag(own**2) @ M.T + (0 if added is None else added @ added.T)
    assume(np.linalg.cond(V) < 1e8)  # as many sources of noise as numbers seen
    inverse = np.linalg.inv(V)

    for u, mu in enumerate(distances(M, own, added)):
        moved = M[:, u]
        slope = inverse @ moved  # ln ratio of the densities: slope'y − moved'slope/2
        deviation = sqrt(slope @ V @ slope)
        assert moved @ slope / deviation == pytest.approx(mu, rel=1e-6)


def test_the_exact_curve_is_that_of_drawn_views():
    """δ(ε) as a mean over drawn views of (1 − e^(ε − loss))_+, within 4 of its deviations."""
    rng = np.random.default_rng(11)
    M, own, added = rng.normal(size=(5, 4)), np.array([0.7, 1.0, 1.5, 0.9]), rng.normal(size=(5, 2))
    V = M @ np.diag(own**2) @ M.T + added @ added.T
    mu = distances(M, own, added)[2]
    y = rng.multivariate_normal(M[:, 2], V, size=100_000)
    slope = np.linalg.pinv(V) @ M[:, 2]
    loss = y @ slope - M[:, 2] @ slope / 2

    for t in (0.0, 0.3, 1.0):
        terms = np.maximum(1 - np.exp(t - loss), 0)
        off = 4 * terms.std() / sqrt(len(terms))
        assert abs(terms.mean() - gaussian_delta(mu, t)) < off


# -- where noise is missing ------------------------------------------------------------------------


def test_a_direction_without_noise_tells_everything_of_those_in_it():
    M = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])

    assert distances(M, [0.0, 1.0, 0.0]).tolist() == [inf, 1, 1]
    assert distances(M, [0.0, 0.0, 0.0]).tolist() == [inf] * 3
    assert distances(np.zeros((2, 3)), np.zeros(3)).tolist() == [0, 0, 0]


@given(st.integers(2, 6), st.integers(0, 999))
@settings(max_examples=30)
def test_a_difference_in_which_noise_cancels_tells_everything(n, seed):
    """The same noise on two numbers: their difference has none."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    M = np.stack([a, a + b, 3 * a - b])
    added = np.array([[1.0], [1.0], [1.0]])

    assert np.all(np.isinf(distances(M, np.zeros(n), added)))
    same = np.stack([a, a, a])
    assert distances(same, np.zeros(n), added) == pytest.approx(np.abs(a), rel=1e-9)


@given(st.integers(2, 6), st.integers(0, 999), st.floats(1e-3, 1e3))
@settings(max_examples=30)
def test_seeing_a_number_twice_or_in_other_units_tells_nothing_more(n, seed, unit):
    rng = np.random.default_rng(seed)
    M, own = rng.normal(size=(n, n)), rng.uniform(0.5, 2, n)
    once = distances(M, own)

    assert distances(np.vstack([M, unit * M[:1], M[0] - M[1]]), own) == pytest.approx(
        once, rel=1e-6
    )
    assert np.all(distances(M[:-1], own) <= once * (1 + 1e-9))


def test_noise_of_very_different_sizes():
    """Own noise of 1e-3 beside pairwise noise of 1e6: nine orders of magnitude."""
    found = gopa(6, [(i, (i + 1) % 6) for i in range(6)], 1e-3, 1e6)

    assert found == pytest.approx(np.full(6, 1e3 / sqrt(6)), rel=1e-3)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.integers(0, 999))
@settings(max_examples=30)
def test_a_factor_and_its_covariance_say_the_same(k, n, r, seed):
    rng = np.random.default_rng(seed)
    M, own, added = rng.normal(size=(k, n)), rng.normal(size=(n, n)), rng.normal(size=(k, r))

    V = M @ own @ own.T @ M.T + added @ added.T
    assert distances(M, own, added) == pytest.approx(distances_from(M, V), rel=1e-4)
    assert np.all(np.isinf(distances_from(np.ones((k, n)), np.zeros((k, k)))))


def test_noise_that_the_adversary_drew_protects_nobody():
    alone = distances(np.ones((1, 5)), [1.0, 0.0, 0.0, 0.0, 0.0])
    together = distances(np.ones((1, 5)), np.ones(5))

    assert alone[0] == 1 and together[0] == pytest.approx(1 / sqrt(5))
    assert epsilon_of(float(alone[0]), 1e-5) > epsilon_of(float(together[0]), 1e-5)


@pytest.mark.parametrize(
    "view, own, added, says",
    [
        (np.ones(3), np.ones(3), None, r"view = an array of shape \(3,\)"),
        (np.ones((1, 3)), np.ones(2), None, "own = noise of 2 participants"),
        (np.ones((1, 3)), np.ones(3), np.ones((2, 1)), "added = noise in 2 numbers"),
        (np.full((1, 3), np.nan), np.ones(3), None, "view"),
        (np.ones((1, 3)), [1.0, inf, 1.0], None, "own"),
    ],
)
def test_bad_input_is_one_sentence(view, own, added, says):
    with pytest.raises(ArchipelError, match=says):
        distances(view, own, added)
