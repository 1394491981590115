"""GOPA's accountant: the paper's numbers, exact ones, and graphs that are not drawn yet."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.stats import norm

from archipel.errors import ArchipelError
from archipel.privacy import gopa, gopa_theorem
from archipel.privacy.analytic import delta_of, epsilon_of, mu_of
from archipel.privacy.linear import distances_from

MU = mu_of(1.0, 1e-5)


@pytest.mark.parametrize(
    ("graph", "honest", "neighbours", "expected"),
    [
        ("k-out", 10_000, 105, 44.72),
        ("k-out", 10_000, 203, 34.38),
        ("connected", 10_000, 0, 9391.97),
        ("connected", 5_000, 0, 6112.42),
    ],
)
def test_pairwise_noise_is_that_of_the_papers_table(graph, honest, neighbours, expected):
    delta = honest**-2
    made = gopa_theorem.corollary(graph, honest, 0.1, delta, 10 * delta, neighbours)

    assert made.pairwise == pytest.approx(expected, abs=0.01)


def test_the_theorems_conditions():
    assert gopa_theorem.fewest(10_000, 1.0, 1e-7 / 3.75) == pytest.approx(104.98, abs=0.005)
    assert gopa_theorem.conditions(10_000, 1.0, 105, 1e-7 / 3.75)
    assert not gopa_theorem.conditions(10_000, 1.0, 104, 1e-7 / 3.75)
    assert not gopa_theorem.conditions(80, 1.0, 79, 0.5)


def test_the_theorem_is_twice_as_large_as_what_is_exact():
    made = gopa_theorem.corollary("k-out", 1000, 0.1, 1e-6, 1e-5, neighbours=60)
    graph = gopa.k_out(1000, 60, np.random.default_rng(0))
    theta = 1 / (1000 * made.independent**2)
    theta += gopa_theorem.spread("k-out", 1000, 60) / made.pairwise**2
    exact = gopa.distance(graph, made.independent, made.pairwise)

    assert made.epsilon == pytest.approx(0.1046, abs=5e-5)
    assert epsilon_of(exact, 1e-5) == pytest.approx(0.0553, abs=5e-5)
    assert exact**2 < theta
    assert epsilon_of(exact, 1e-5) < gopa_theorem.epsilon_of(theta, 1e-5)


def needed(neighbours, share, seeds):
    """Pairwise noise for 5 % above the trusted curator, on graphs of 1000 parties."""
    h, found = int(1000 * share), []
    for seed in seeds:
        graph = gopa.k_out(1000, neighbours, np.random.default_rng(seed))[:h, :h]
        try:
            found.append(gopa.pairwise_on(graph, 1.05 / (MU * sqrt(h)), MU))
        except ArchipelError as no:
            assert "no pairwise noise is enough" in str(no)  # somebody has no honest neighbour
    return np.array(found)


@pytest.mark.parametrize(("k", "expected"), [(5, 5.80), (10, 3.62), (20, 2.48), (40, 1.55)])
def test_pairwise_noise_by_exact_accounting_where_all_are_honest(k, expected):
    assert needed(k, 1.0, [1]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("k", "expected", "seeds"),
    [(5, 14.6, range(24)), (10, 9.1, range(24)), (20, 3.8, [1]), (40, 2.4, [1])],
)
def test_pairwise_noise_by_exact_accounting_where_half_collude(k, expected, seeds):
    found = needed(k, 0.5, seeds)  # by draw: the least degree among the honest decides

    assert np.abs(found / expected - 1).min() < 0.05
    assert found.min() / 1.1 < expected < found.max() * 1.1


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(1, 11), st.floats(0.1, 3), st.floats(0, 5), st.integers(0))
def test_distances_are_those_of_linear_protocols(n, k, independent, pairwise, seed):
    graph = gopa.k_out(n, min(k, n - 1), np.random.default_rng(seed))
    covariance = independent**2 * np.eye(n) + pairwise**2 * gopa.laplacian(graph)

    assert gopa.distances(graph, independent, pairwise) == pytest.approx(
        distances_from(np.eye(n), covariance), rel=1e-6
    )


def test_distance_is_what_the_best_test_sees():
    """mu against the likelihood ratio itself, its ROC within the DKW band."""
    draw = np.random.default_rng(7)
    graph, independent, pairwise = gopa.k_out(12, 2, draw)[:8, :8], 0.6, 1.1
    mus = gopa.distances(graph, independent, pairwise)
    u, runs = int(mus.argmax()), 40_000
    covariance = independent**2 * np.eye(8) + pairwise**2 * gopa.laplacian(graph)
    edges = np.argwhere(np.triu(graph) > 0)
    scores = []
    for x_u in (0.0, 1.0):
        x = np.zeros(8)
        x[u] = x_u
        view = x + independent * draw.standard_normal((runs, 8))
        for (i, j), term in zip(
            edges, pairwise * draw.standard_normal((len(edges), runs)), strict=True
        ):
            view[:, i] += term
            view[:, j] -= term
        scores.append(view @ np.linalg.solve(covariance, np.eye(8)[u]) / mus[u])
    band = sqrt(np.log(2 / 1e-4) / (2 * runs))  # Dvoretzky, Kiefer, Wolfowitz
    cuts = np.linspace(-3, 4, 57)
    for score, mean in zip(scores, (0.0, mus[u]), strict=True):
        beyond = (score[:, None] > cuts).mean(axis=0)
        assert np.abs(beyond - norm.sf(cuts - mean)).max() < band


@pytest.mark.parametrize(("n", "h", "k"), [(12, 6, 2), (20, 10, 3), (40, 30, 2)])
def test_the_chance_of_honest_parties_apart_is_bounded_closely(n, h, k):
    draw, runs = np.random.default_rng(3), 4000
    apart = sum(
        connected_components(gopa.k_out(n, k, draw)[:h, :h], directed=False)[0] > 1
        for _ in range(runs)
    )
    bound = gopa.disconnected(n, h, k)

    assert apart / runs < bound + 4 * sqrt(bound / runs)
    assert apart / runs > bound / 3


@pytest.mark.parametrize(("n", "h", "k"), [(60, 40, 25), (200, 120, 30)])
def test_the_second_eigenvalue_is_hardly_ever_below_its_bound(n, h, k):
    draw, bound = np.random.default_rng(5), gopa.gap(n, h, k, 0.05)
    found = [
        np.linalg.eigvalsh(gopa.laplacian(gopa.k_out(n, k, draw)[:h, :h]))[1] for _ in range(200)
    ]

    assert bound > 0
    assert np.mean(np.array(found) < bound) <= 0.05


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 8),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
    st.integers(4, 3000),
    st.floats(0.5, 1),
    st.sampled_from(["modular", "gaussian"]),
    st.sampled_from([1, 50, 10**6]),
    st.floats(0.01, 1000),
)
def test_a_plan_keeps_its_promise(epsilon, delta, parties, honest, form, size, moved):
    made = gopa.planned(epsilon, delta, parties, honest=honest, form=form, moved=moved, size=size)
    curator = moved / (mu_of(epsilon, delta) * sqrt(made.honest))

    assert made.delta(epsilon, moved, size) <= delta * (1 + 1e-6)
    assert made.independent < 1.15 * curator  # and has hardly more noise than is needed


def test_a_gaussian_plan_holds_on_graphs_that_are_drawn():
    made = gopa.planned(1.0, 1e-5, 200, honest=0.6, form="gaussian")
    draw = np.random.default_rng(0)
    for _ in range(5):
        graph = gopa.k_out(200, made.neighbours, draw)[: made.honest, : made.honest]
        mu = gopa.distance(graph, made.independent, made.pairwise)
        assert delta_of(mu, 1.0) <= 1e-5


def test_error_within_five_percent_of_the_trusted_curator():
    curator = gopa.curator_error(1.0, 1e-5, 1000)

    assert 1 <= gopa.gopa_error(1.0, 1e-5, 1000) / curator < 1.05
    assert gopa.planned(1.0, 1e-5, 1000, form="gaussian", excess=0.03).error / curator < 1.05
    assert gopa.local_error(1.0, 1e-5, 1000) / curator == pytest.approx(sqrt(1000))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"honest": 0.05}, "a value hides among two or more"),
        ({"honest": 0.5, "dropouts": 0.5}, "a value hides among two or more"),
        ({"honest": 1.5}, "give shares of the parties"),
        ({"neighbours": 30}, "give 1 to 29, of 30 parties"),
        ({"neighbours": 1, "honest": 0.5}, "neighbours = 1: too few for 30 parties of which 15"),
        ({"neighbours": 3, "form": "gaussian"}, "neighbours = 3: too few for 30 parties"),
        ({"form": "plain"}, "form"),
    ],
)
def test_what_cannot_be_kept_is_refused(change, says):
    with pytest.raises(ArchipelError, match=says):
        gopa.planned(1.0, 1e-5, 30, **change)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (1.0, 0.0), (1.0, 1.0), (-1.0, 0.1)])
def test_promises_that_are_none_are_refused(epsilon, delta):
    with pytest.raises(ArchipelError, match="give an epsilon above 0"):
        gopa.planned(epsilon, delta, 30)
