"""Noise of public coins: what it costs, exactly, and that coins are fair whatever a party does."""

from math import comb, exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.privacy.accounting import Binomial, Gaussian, Release, epsilon
from archipel.privacy.curves import binomial_delta
from archipel.privacy.release import read, written
from archipel.verifiable.noise import Noise, coins_of, neighbours_for, planned, turned


def chances(noise, parties):
    """P(sum of noise = k), of so many parties, by convolution over every bit."""
    found = np.ones(1)
    for weight in noise.weights * parties:
        one = np.zeros(weight + 1)
        one[0] = one[weight] = 0.5
        found = np.convolve(found, one)
    return found


def brute(p, shift, epsilon):
    """Σ max(0, p(k) − e^ε p(k − shift))."""
    moved = np.concatenate([np.zeros(shift), p])
    return float(np.maximum(0, np.pad(p, (0, shift)) - exp(epsilon) * moved).sum())


@pytest.mark.parametrize("coins, shift", [(10, 1), (60, 3), (61, 7), (5, 5), (4, 9)])
def test_the_binomials_delta_is_the_sum_over_all_outcomes(coins, shift):
    p = np.array([comb(coins, k) for k in range(coins + 1)]) / 2.0**coins
    for t in (-0.5, 0.0, 0.3, 1.0, 2.5, 8.0):
        found = float(binomial_delta(coins, shift, t))
        assert found == pytest.approx(min(1.0, brute(p, shift, t)), rel=1e-7, abs=1e-15)


def test_many_coins_cost_what_gaussian_noise_of_their_deviation_does():
    coins = Release(Binomial(200_000, 50))
    noise = Release(Gaussian(sqrt(200_000) / 2 / 50))

    assert epsilon([coins], 1e-6) == pytest.approx(epsilon([noise], 1e-6), rel=1e-3)
    assert read(written(coins)) == coins


def test_coins_compose():
    once, ten = (epsilon([Release(Binomial(20_000, 16), times=t)], 1e-5) for t in (1, 10))
    exact = epsilon([Release(Gaussian(sqrt(20_000) / 2 / 16), times=10)], 1e-5)

    assert once < ten == pytest.approx(exact, rel=5e-3)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([1, 2, 4, 8]), st.integers(2, 9), st.integers(1, 3), st.integers(1, 20),
    st.sampled_from([0.0, 0.2, 1.0, 3.0]),
)  # fmt: skip
def test_bits_that_fill_up_a_unit_cost_what_is_said(unit, coins, parties, shift, t):
    """Never more than the binomial moved by whole units; just that where it is moved by such."""
    p = chances(Noise(1, unit, coins), parties)
    bound = float(binomial_delta(coins * parties, -(-shift // unit), t))
    found = brute(p, shift, t)

    assert found <= bound + 1e-9
    if shift % unit == 0 and parties == 1:
        assert found == pytest.approx(bound, abs=1e-7)


@pytest.mark.parametrize(
    "parties, honest, steps, moved",
    [(1000, 500, 65535, 1), (1000, 900, 65535, 1), (100, 70, 65535, 3), (5, 3, 65535, 1),
     (1000, 500, 1, 2), (50, 50, 1000, 1)],
)  # fmt: skip
def test_planned_noise_keeps_epsilon_and_is_hardly_more_than_a_curators(
    parties, honest, steps, moved
):
    noise = planned(1.0, 1e-5, steps, honest, parties, moved)
    spent = epsilon([noise.release(steps, honest, moved)], 1e-5)
    deviation = sqrt(honest * noise.variance) / noise.multiplier / steps
    curator = sqrt(moved) * 3.730632

    assert 0.9 < spent <= 1.0
    most = 1.05 if honest >= 50 else 1.08  # few parties have few coins to choose from
    assert curator * 0.99 < deviation < most * curator


def test_coins_are_fair_and_a_partys_own():
    coins = coins_of(b"beacon", b"session", "anna", 20_000)
    heads = sum(coins)

    assert abs(heads - 10_000) < 3.9 * sqrt(5000)  # alpha 1e-4
    assert coins != coins_of(b"beacon", b"session", "bert", 20_000)
    assert coins != coins_of(b"beacon", b"another", "anna", 20_000)
    assert coins[:8] == coins_of(b"beacon", b"session", "anna", 8)


@given(st.lists(st.tuples(st.integers(1, 64), st.booleans(), st.booleans()), max_size=20))
def test_turned_weights_are_those_of_bits_xor_coins(bits):
    weights, b, c = ([each[i] for each in bits] for i in range(3))
    signs, constant = turned(weights, [int(x) for x in c])
    found = constant + sum(w * x for w, x in zip(signs, b, strict=True))

    assert found == sum(w * (x ^ y) for w, x, y in bits)


def test_fair_coins_make_any_bits_fair():
    """A party that always takes the bit 1 has the noise of everybody."""
    noise = Noise(1, 4, 6)
    sums = []
    for run in range(3000):
        coins = coins_of(b"beacon", b"%d" % run, "liar", len(noise.weights))
        signs, constant = turned(noise.weights, coins)
        sums.append(constant + sum(signs))
    sums = np.array(sums)

    assert abs(sums.mean() - noise.mean) < 3.9 * sqrt(noise.variance / 3000)  # alpha 1e-4
    assert sums.var() == pytest.approx(noise.variance, rel=0.12)


def test_neighbours_connect_the_honest():
    assert neighbours_for(1000, 500, 1e-5) == 19
    assert neighbours_for(20, 10, 1e-5) == 19
