"""Network DP: views of a ring and of gossip, against brute force, attacks and the theorem."""

from math import ceil, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from archipel.errors import ArchipelError
from archipel.privacy.analytic import epsilon_of
from archipel.privacy.network import (
    RingHistogram,
    RingSum,
    gossip_distances,
    gossip_view,
    local_epsilon,
    perturbing,
)
from archipel.privacy.randomisers import Response
from archipel.privacy.sources import Simulated

ALPHA = 1e-4


def ring(n):
    """Metropolis's weights of a ring."""
    W = np.zeros((n, n))
    for i in range(n):
        W[i, [i - 1, i, (i + 1) % n]] = 1 / 3
    return W


# -- sums on a ring --------------------------------------------------------------------------------


@given(st.integers(3, 40), st.integers(1, 12))
def test_noise_enters_every_k_minus_one_hops(K, M):
    """The algorithm as it is printed, hop by hop."""
    a, hops = 0, []
    for hop in range(M * K):
        if a == 0:
            hops.append(hop)
            a = K - 2
        else:
            a -= 1

    assert RingSum(K, M, 1.0).noisy == hops
    assert len(hops) == ceil(M * K / (K - 1))


def brute(K, M, sigma, published, watcher):
    """mu of each party from every token that v sees, what it adds subtracted; joint covariance."""
    hops = K * M
    token, noise = np.zeros(hops), np.zeros(hops)
    rows = []
    for hop in range(hops):
        if hop % K == watcher:
            rows.append((token.copy(), noise.copy()))
        elif hop % (K - 1) == 0 or (published and hop == hops - 1):
            noise[hop] = sigma
        if hop % K != watcher:
            token[hop] = 1.0
    if published:
        rows.append((token.copy(), noise.copy()))
    values, factor = (np.array(each) for each in zip(*rows, strict=True))
    V = np.linalg.pinv(factor @ factor.T, rcond=1e-10)
    out = np.zeros(K)
    for u in set(range(K)) - {watcher}:
        mine = values[:, u::K]
        G = mine.T @ V @ mine
        signs = np.array(np.meshgrid(*[[-1, 1]] * M)).reshape(M, -1)
        out[u] = sqrt(max(np.einsum("ij,ik,kj->j", signs, G, signs)))
    return out


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize(("K", "M"), [(3, 2), (5, 3), (8, 1), (12, 4)])
def test_each_partys_view_is_the_covariance_of_all_it_sees(K, M, published):
    found = RingSum(K, M, 0.7, published)
    for v in range(K):
        np.testing.assert_allclose(
            found.distances((v,)), brute(K, M, 0.7, published, v), rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("published", [False, True])
def test_a_ring_of_100_parties_and_10_rounds(published):
    """The deviation and (ε, δ) of the theorem, and √K less noise than local DP at the same ε."""
    K, M, delta = 100, 10, 1e-6
    sigma = perturbing(0.1, delta / (2 * M))
    found = RingSum(K, M, sigma, published)
    epsilon, total = found.theorem(delta / (2 * M), delta / 2)

    assert found.deviation == pytest.approx(sigma * sqrt(ceil(M * K / (K - 1)) + published))
    assert total == pytest.approx(delta)
    assert max(found.distances((v,)).max() for v in range(K)) == pytest.approx(sqrt(M) / sigma)
    assert found.epsilon(delta) == pytest.approx(epsilon_of(sqrt(M) / sigma, delta), rel=1e-6)
    assert found.epsilon(delta) < epsilon / 4  # the theorem is far from tight
    assert found.epsilon(delta) == pytest.approx(local_epsilon(sigma, M, delta), rel=1e-6)
    assert 8.5 < sigma * sqrt(M * K) / found.deviation < 10.0


def test_the_sum_has_the_deviation_that_is_said():
    found = RingSum(10, 3, 2.0)
    values = np.random.default_rng(0).uniform(size=(3, 10))
    noise = np.random.default_rng(1).standard_normal((4000, len(found.noisy)))
    errors = np.array([found.run(values, each) for each in noise]) - values.sum()
    statistic = float((errors**2).sum()) / found.deviation**2

    assert len(found.noisy) == 4
    assert min(chi2.sf(statistic, 4000), chi2.cdf(statistic, 4000)) > ALPHA
    assert abs(errors.mean()) < norm.isf(ALPHA) * found.deviation / sqrt(4000)


def test_two_neighbours_of_a_party_see_all_of_it():
    found = RingSum(100, 10, 50.0)

    assert found.distances((41, 43))[42] == np.inf
    far = found.distances((10, 60))
    assert (far[11:60] >= found.distances((10,))[11:60] - 1e-12).all()  # collusion never hides more


def test_a_sum_that_is_told_needs_one_noise_more():
    """Without it, party K - 2 would see exactly what the last party added."""
    K, M = 10, 2
    silent = RingSum(K, M, 1.0)
    last = K * M - 1
    after = [hop for hop in silent.noisy if hop > last - 1]

    assert after == []  # nothing hides the last hop
    assert RingSum(K, M, 1.0, published=True).distances((K - 2,)).max() < np.inf


# -- histograms on a ring --------------------------------------------------------------------------


@pytest.mark.parametrize("published", [False, True])
def test_a_histogram_on_a_ring_is_unbiased_with_its_variance(published):
    way = RingHistogram(30, Response(1.5, 3), rounds=2, published=published)
    held = np.repeat([0, 1, 2], [30, 20, 10]).reshape(2, 30)
    runs = 1500
    found = np.array(
        [
            way.run(held, Simulated(3, run, range(30), "ring"), Simulated(3, run, [99], "token"))
            for run in range(runs)
        ]
    )
    variance = way.variance([30, 20, 10])
    z = (found.mean(0) - [30, 20, 10]) / np.sqrt(variance / runs)
    statistic = runs * ((found - [30, 20, 10]) ** 2).mean(0) / variance

    assert (2 * norm.sf(np.abs(z)) > ALPHA / 3).all()
    assert (np.minimum(chi2.sf(statistic, runs), chi2.cdf(statistic, runs)) > ALPHA / 6).all()


def test_reports_on_a_ring_are_hidden_among_as_many_as_shuffled_ones():
    way = RingHistogram(100, Response(2.0, 5))

    assert way.hidden_among(0) == []  # it sees fillers, and nothing of anybody
    assert way.hidden_among(7) == [107]
    assert RingHistogram(100, Response(2.0, 5), rounds=3).hidden_among(0) == [99, 99]
    assert RingHistogram(100, Response(2.0, 5), published=True).hidden_among(98) == [198, 101]
    assert RingHistogram(100, Response(2.0, 5), rounds=3).reports == 99
    assert way.epsilon(1e-6) < 2.0


# -- gossip ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(3, 12), st.integers(1, 8), st.integers(0, 10**6))
def test_gossip_is_accounted_as_the_covariance_of_all_messages(n, T, seed):
    rng = np.random.default_rng(seed)
    A = np.triu(rng.uniform(size=(n, n)) < 0.4, 1)
    A = A + A.T
    W = np.where(A, 1 / (1 + np.maximum.outer(A.sum(0), A.sum(0))), 0.0)
    W += np.diag(1 - W.sum(1))
    view = gossip_view([W] * T, 0)
    noise = 0.8 * np.eye(n)[:, 1:]  # party 0 knows its own
    seen = np.linalg.svd(view @ noise)  # projector on the rows seen, of the others' coordinates
    rank = int((seen[1] > 1e-9).sum())
    P = seen[2][:rank].T @ seen[2][:rank]

    found = gossip_distances([W] * T, 0, 0.8)

    np.testing.assert_allclose(found[1:] * 0.8, np.sqrt(np.diag(P).clip(0)), atol=1e-5)
    assert found.max() <= 1 / 0.8 + 1e-12


def sum_of_messages(W, T, watcher):
    """Σ_t Σ_{w ~ v} (W^t)_wu² / |(W^t)_w|², the loss of every message by itself, in 1 / (2 σ²)."""
    power, total = np.eye(len(W)), np.zeros(len(W))
    for _ in range(T):
        for w in set(np.flatnonzero(W[watcher]).tolist()) - {watcher}:
            total += power[w] ** 2 / (power[w] ** 2).sum()
        power = W @ power
    return total


def test_losses_of_single_messages_do_not_add_up_to_a_bound():
    """Ring of 16, 8 steps: least squares on what v saw beats the sum formula five hundredfold."""
    n, T, runs = 16, 8, 20_000
    W, u = ring(n), 8  # the party opposite to v = 0
    view = gossip_view([W] * T, 0)
    formula = sqrt(sum_of_messages(W, T, 0)[u])
    exact = gossip_distances([W] * T, 0, 1.0)
    rng = np.random.default_rng(5)
    noise = rng.standard_normal((runs, n))
    noise[:, 0] = 0.0  # its own, which it knows
    x = np.zeros((runs, n))
    x[runs // 2 :, u] = 1.0
    # least squares: the estimate of x_u + noise_u from all rows
    guess = (x + noise) @ view.T @ np.linalg.pinv(view, rcond=1e-12)[u]
    without, with_ = guess[: runs // 2], guess[runs // 2 :]
    mu = (with_.mean() - without.mean()) / np.concatenate([without, with_ - 1]).std()

    assert exact[u] == pytest.approx(1.0)  # no amplification at all
    assert abs(mu - exact[u]) < 3 * 2 / sqrt(runs) * 1.5
    assert formula < 0.05
    assert exact[1:] == pytest.approx(1.0)


def test_few_steps_on_a_large_sparse_graph_do_amplify():
    rng = np.random.default_rng(1)
    n = 100
    A = np.triu(rng.uniform(size=(n, n)) < 0.08, 1)
    A = A + A.T
    W = np.where(A, 1 / (1 + np.maximum.outer(A.sum(0), A.sum(0))), 0.0)
    W += np.diag(1 - W.sum(1))
    few, many = (gossip_distances([W] * T, 0, 1.0) for T in (3, 30))

    assert (few**2).mean() < 0.4
    assert (many >= few - 1e-9).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RingSum(2, 1, 1.0), "parties = 2: a ring has 3 parties or more"),
        (lambda: RingSum(5, 0, 1.0), "rounds = 0: give an integer from 1 on"),
        (lambda: RingSum(5, 1, 0.0), r"sigma = 0\.0: give a finite number above 0"),
        (lambda: RingSum(5, 1, 1.0).run(np.zeros((1, 5)), [0.0]), "2 numbers of it enter"),
        (lambda: gossip_view([np.ones((2, 3))], 0), "give square matrices"),
    ],
)
def test_what_is_no_ring_is_refused(make, said):
    with pytest.raises(ArchipelError, match=said):
        make()
