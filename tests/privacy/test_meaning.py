# SPDX-License-Identifier: Apache-2.0
"""What a promise means is what known values say, and no attack that is drawn does better."""

from __future__ import annotations

from math import exp, inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from archipel.errors import ArchipelError
from archipel.privacy.accounting import Gaussian, Poisson, Pure, Release, delta, deltas, epsilon
from archipel.privacy.analytic import mu_of
from archipel.privacy.meaning import found_at_most, found_in, found_through_gaussian, in_words


@pytest.mark.parametrize(
    "cost, mu, found", [(1, 0.268, 0.020), (2, 0.502, 0.034), (4, 0.925, 0.081), (8, 1.666, 0.255)]
)
def test_known_values(cost, mu, found):
    assert mu_of(cost, 1e-5) == pytest.approx(mu, abs=5e-4)
    assert found_through_gaussian(mu_of(cost, 1e-5)) == pytest.approx(found, abs=5e-4)
    assert found_in([Release(Gaussian(1 / mu))]) == pytest.approx(found, abs=1e-3)


@given(st.floats(0, 12), st.floats(0, 0.5), st.floats(1e-4, 0.9))
def test_the_promise_alone_is_the_trade_off_of_its_worst_mechanism(cost, at, alarms):
    """Randomised response that gives itself away with probability δ: every test of it, counted."""
    P = np.array([at, (1 - at) * exp(cost) / (1 + exp(cost)), (1 - at) / (1 + exp(cost)), 0.0])
    Q = P[::-1]
    best, left = 0.0, alarms
    for p, q in zip(P, Q, strict=True):  # by likelihood ratio: the best test [Neyman, Pearson]
        part = 1.0 if q <= left else left / q
        best, left = best + part * p, max(left - part * q, 0.0)

    assert found_at_most(cost, at, alarms) == pytest.approx(best, abs=1e-9)


@given(st.floats(0.3, 10), st.floats(0.01, 1), st.integers(1, 100))
@settings(max_examples=15)
def test_releases_say_no_less_than_the_promise_about_them(z, q, times):
    releases = [Release(Gaussian(z), Poisson(q), times)]

    found = found_in(releases)
    assert 0.01 <= found <= found_at_most(epsilon(releases, 1e-5), 1e-5) * 1.01 + 1e-4


def test_an_attack_that_is_carried_out_finds_what_is_said():
    rng = np.random.default_rng(7)
    n, z, q, times = 200_000, 1.0, 0.3, 4
    there = rng.normal(size=(n, times)) * z + (rng.random((n, times)) < q)
    away = rng.normal(size=(n, times)) * z

    def score(x):
        return np.log(1 - q + q * np.exp((x - 0.5) / z**2)).sum(1)

    limit = np.quantile(score(away), 0.99)
    found = float(np.mean(score(there) > limit))

    expected = found_in([Release(Gaussian(z), Poisson(q), times)])
    spread = norm.isf(5e-5) * np.sqrt(2 * expected / n) + norm.isf(5e-5) * expected / np.sqrt(
        0.01 * n
    )
    assert abs(found - expected) < spread < expected / 3


def test_a_curve_is_its_points():
    releases = [Release(Gaussian(2.0), Poisson(0.2), 30), Release(Pure(0.1))]

    found = deltas(releases, [0.1, 1.0, 2.0])
    assert found == pytest.approx([delta(releases, each) for each in (0.1, 1.0, 2.0)], rel=1e-3)
    assert deltas([Release(Gaussian(0.0))], [1.0, 2.0]) == [1, 1]


def test_ends():
    assert found_at_most(0.0, 0.0) == found_in([]) == 0.01
    assert found_at_most(inf, 1e-5) == found_in([Release(Gaussian(0.0))]) == 1


def test_in_words():
    assert "accuses 1 in 100 parties" in in_words(2.0, 1e-5, unit="party")
    assert "at most 3.5 in 100" in in_words(2.0, 1e-5)
    assert "at most 2.6 in 100" in in_words(2.0, 1e-5, found=0.0257)
    assert "at most 100 in 100" in in_words(inf, 1e-5)
    assert "accuses 0.1 in 100" in in_words(1.0, 1e-5, false_alarms=0.001)


@pytest.mark.parametrize(
    "cost, at, alarms, says",
    [
        (-1.0, 1e-5, 0.01, "epsilon = -1.0"),
        (nan, 1e-5, 0.01, "epsilon = nan"),
        (1.0, 1.0, 0.01, "delta = 1.0"),
        (1.0, 1e-5, 0.0, "false_alarms = 0.0"),
    ],
)
def test_bad_input_is_one_sentence(cost, at, alarms, says):
    with pytest.raises(ArchipelError, match=says):
        found_at_most(cost, at, alarms)
