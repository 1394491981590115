"""Random-walk SGD: what a walk costs, against simulated views and the paper's recipes."""

from math import sqrt

import numpy as np
import pytest

from archipel.errors import ArchipelError
from archipel.privacy.curves import gaussian_delta
from archipel.privacy.walk import (
    contributions,
    cost,
    local_noise,
    noise_for,
    paper_local_noise,
    paper_noise,
    quiet,
    walk,
)

SETTINGS = [  # ε, δ, L, n, T
    (10, 1e-6, 0.4, 2000, 20000),
    (5, 1e-6, 0.4, 500, 10000),
    (3, 1e-5, 1.0, 100, 2000),
]
AUTHORS = [(5.871056, 1.227015), (15.278266, 3.434211), (53.078691, 15.837746)]  # their script's


@pytest.mark.parametrize(("setting", "found"), [*zip(SETTINGS, AUTHORS, strict=True)])
def test_the_recipes_of_the_papers_experiments(setting, found):
    """Theirs stops where both noises are within 5 %, one of them found in steps of 15 %."""
    local, network = found

    assert paper_local_noise(*setting) == pytest.approx(local, rel=1e-6)
    assert network / (1.05 * 1.15) < paper_noise(*setting) <= network * 1.001


@pytest.mark.parametrize("setting", SETTINGS)
def test_less_noise_than_local_dp_both_accounted_well(setting):
    network, local = noise_for(*setting), local_noise(*setting)
    epsilon, delta, L, n, T = setting

    assert network < local / 2
    assert local < paper_local_noise(*setting)
    assert network < paper_noise(*setting)
    assert cost(network, L, n, T, delta) <= epsilon < cost(network * 0.99, L, n, T, delta)


def test_the_cost_is_above_that_of_views_of_steps_that_only_add():
    """Gradients that do not depend on the model: v's view is Gaussian, given when it looks."""
    n, T, sigma, L = 50, 500, 1.0, 1.0
    epsilon = cost(sigma, L, n, T, delta=1e-3)
    rng = np.random.default_rng(2)
    found = []
    for _ in range(400):
        turns = rng.integers(n, size=T)
        mine, looks = np.flatnonzero(turns == 0), np.flatnonzero(turns == 1)
        mine = mine[mine < T - quiet(n)][: contributions(n, T)]
        gaps = np.searchsorted(looks, mine)
        # between two looks, the sum of all contributions since the first has all their noise
        squares = 0.0
        for look in [*set(gaps.tolist())]:
            here = mine[gaps == look]
            until = looks[look] if look < len(looks) else T
            since = looks[look - 1] if look else -1
            squares += len(here) ** 2 / (until - since - 1)
        found.append(float(gaussian_delta(L * sqrt(squares) / sigma, epsilon)))

    assert 0 < np.mean(found) < 1e-3


def test_those_who_look_together_learn_more():
    found = [cost(1.0, 1.0, 200, 2000, 1e-5, together) for together in (1, 5, 50)]

    assert found == sorted(found)
    with pytest.raises(ArchipelError, match="together = 200: there are 200 parties; give fewer"):
        cost(1.0, 1.0, 200, 2000, 1e-5, together=200)


def test_a_walk_learns_and_keeps_to_its_contributions():
    rng, n, T = np.random.default_rng(0), 40, 4000
    targets = rng.normal(size=(n, 3))
    asked = np.zeros(n, int)

    def gradient(w, k):
        asked[k] += 1
        return w - targets[k]

    went = walk(gradient, np.zeros(3), n, T, lr=0.02, clip=10.0, sigma=0.05, rng=rng, every=500)

    assert len(went.models) == 9
    assert asked.max() <= contributions(n, T) == 120
    assert went.used == asked.sum()
    np.testing.assert_allclose(went.models[-1], targets.mean(0), atol=0.3)
