# SPDX-License-Identifier: Apache-2.0
"""Accountants reproduce known values, never fall below what is exact, and refuse what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import exp, expm1, inf, log, nan, sqrt

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from archipel.errors import ArchipelError
from archipel.privacy import accounting, remembered
from archipel.privacy.accounting import (
    DiscreteGaussian,
    FixedSize,
    Gaussian,
    Laplace,
    Poisson,
    Pure,
    Release,
    curve,
    delta,
    epsilon,
    noise_for,
)
from archipel.privacy.analytic import epsilon_of, mu_of
from archipel.privacy.curves import (
    _discrete_cdf,
    curves,
    discrete_gaussian_delta,
    gaussian_delta,
    opposite,
)
from archipel.privacy.losses import SLACK, Loss, _bounds, _power, _sum, losses
from archipel.privacy.release import read, together, written
from archipel.privacy.renyi import divergences, renyi_epsilon

ONE = "add_or_remove"
GOLDEN = [  # q, z, T, delta, RDP, PLD: computed with dp-accounting 0.6 and checked with Opacus
    (0.01, 4.0, 10_000, 1e-5, 1.0355, 0.9470),
    (0.01, 1.1, 6_000, 1e-5, 4.2466, 3.8998),
    (0.01, 2.0, 3_000, 1e-5, 1.2260, 1.1196),
    (0.1, 1.0, 100, 1e-3, 5.655, 4.784),
]


def poisson(z, q, times=1):
    return Release(Gaussian(z), Poisson(q), times)


# -- known values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("q, z, times, at, rdp, pld", GOLDEN)
def test_known_values(q, z, times, at, rdp, pld):
    releases = [poisson(z, q, times)]

    assert epsilon(releases, at, "rdp") == pytest.approx(rdp, abs=1e-3)
    assert epsilon(releases, at, "pld") == pytest.approx(pld, abs=1e-2)


@pytest.mark.parametrize(
    "target, times, z", [(0.5, 2000, 3.26), (2, 6000, 1.712), (8, 20_000, 1.081)]
)
def test_noise_that_is_known_to_be_needed(target, times, z):
    found = noise_for(target, 1e-5, lambda z: [poisson(z, 0.01, times)])

    assert found == pytest.approx(z, abs=2e-3)


@pytest.mark.parametrize(
    "release",
    [
        poisson(0.7, 0.03, 50),
        poisson(3.0, 0.2, 200),
        Release(Laplace(2.0), None, 7),
        Release(Laplace(1.0), Poisson(0.05), 100),
        Release(DiscreteGaussian(3.0), None, 4),
        Release(DiscreteGaussian(2.0, contribution=2), Poisson(0.3), 5),
        Release(Pure(0.3), None, 20),
    ],
    ids=str,
)
def test_loss_distributions_are_those_of_dp_accounting(release):
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    fine, how = {"value_discretization_interval": 1e-4}, {"sampling_prob": release.rate}
    match release.mechanism:
        case Gaussian(noise):
            reference = pld.from_gaussian_mechanism(noise, **fine, **how)
        case Laplace(noise):
            reference = pld.from_laplace_mechanism(noise, **fine, **how, use_connect_dots=True)
        case DiscreteGaussian(sigma, contribution):
            reference = pld.from_discrete_gaussian_mechanism(
                sigma, int(contribution), **fine, **how, use_connect_dots=True
            )
        case Pure(each):
            known = common.DifferentialPrivacyParameters(each, 0)
            reference = pld.from_privacy_parameters(known, **fine)
    reference = reference.self_compose(release.times)

    for at in (1e-2, 1e-5, 1e-8):
        expected = reference.get_epsilon_for_delta(at)
        assert epsilon([release], at) == pytest.approx(expected, rel=2e-3)
        assert delta([release], expected) == pytest.approx(at, rel=2e-2)


@pytest.mark.parametrize("q, z", [(0.1, 1.0), (0.5, 2.0), (0.01, 3.0)])
def test_replacing_one_of_a_poisson_sample_is_that_of_dp_accounting(q, z):
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    reference = pld.from_gaussian_mechanism(
        z, sampling_prob=q, neighboring_relation=NeighboringRelation.REPLACE_ONE
    ).self_compose(30)

    expected = reference.get_epsilon_for_delta(1e-5)
    found = epsilon([poisson(z, q, 30)], 1e-5, neighbours="replace")
    assert found == pytest.approx(expected, rel=2e-3)


def test_discrete_noise_costs_a_little_more():
    assert epsilon([Release(DiscreteGaussian(10.0))], 1e-5) == pytest.approx(0.34082, abs=1e-4)
    assert epsilon([Release(Gaussian(10.0))], 1e-5) == pytest.approx(0.34067, abs=1e-5)


# -- curves ----------------------------------------------------------------------------------------


def masses(release, neighbours, width=40.0, points=400_001):
    """P and Q of the pair that is the worst, on a fine grid of what is seen."""
    x = np.linspace(-width, width, points)
    z, q = release.mechanism.noise, release.rate

    def seen(shift):
        return np.diff(norm.cdf(x, shift, z))

    if neighbours == ONE:
        return (1 - q) * seen(0) + q * seen(1), seen(0)
    if isinstance(release.sampling, Poisson):
        return (1 - q) * seen(0) + q * seen(1), (1 - q) * seen(0) + q * seen(-1)
    return (1 - q) * seen(0) + q * seen(2), seen(0)


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize(
    "release, neighbours",
    [
        (poisson(1.0, 0.3), ONE),
        (poisson(0.4, 0.9), ONE),
        (poisson(1.0, 0.3), "replace"),
        (poisson(3.0, 0.01), "replace"),
        (Release(Gaussian(1.5)), ONE),
    ],
    ids=str,
)
def test_curves_are_those_of_the_worst_pair(release, neighbours, way):
    P, Q = masses(release, neighbours)[:: 1 - 2 * way]

    for t in (-3.0, -0.4, -0.01, 0.0, 0.01, 0.4, 1.0, 3.0):
        direct = np.maximum(P - exp(t) * Q, 0).sum()
        found = curves(release, neighbours)[way](np.array([t]))[0]
        assert found == pytest.approx(direct, abs=1e-6)


def test_a_sample_of_fixed_size_costs_at_least_what_its_worst_pairs_do():
    release = Release(Gaussian(1.0), FixedSize(3, 10))
    P, Q = masses(release, "replace")
    found = curves(release, "replace")[0]

    for t in (-2.0, -0.1, 0.0, 0.1, 1.0, 2.5):
        both = [np.maximum(a - exp(t) * b, 0).sum() for a, b in ((P, Q), (Q, P))]
        assert found(np.array([t]))[0] == pytest.approx(max(both), abs=1e-6)


@given(st.floats(0, 2 * np.pi), st.floats(0, 1), st.floats(0, 1), st.floats(0.02, 0.98))
@settings(max_examples=30)
def test_no_other_pair_of_contributions_is_worse_than_opposite_ones(angle, far, other, q):
    """N(0) (1 − q) + N(v) q against N(0) (1 − q) + N(w) q in the plane, by summing over it."""
    side = np.linspace(-7, 7, 141)
    x, y = np.meshgrid(side, side)

    def seen(at):
        return (
            np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / 2)
            * (side[1] - side[0]) ** 2
            / 2
            / np.pi
        )

    v, w = (far, 0.0), (other * np.cos(angle), other * np.sin(angle))
    P, Q = ((1 - q) * seen((0, 0)) + q * seen(at) for at in (v, w))

    for t in (-1.0, -0.1, 0.0, 0.1, 0.5):
        direct = np.maximum(P - exp(t) * Q, 0).sum()
        assert direct <= opposite(1.0, q, np.array([t]))[0] + 1e-6


def test_the_discrete_distribution_is_the_same_by_both_ways():
    x = np.array([-5200.0, -1300.0, -1.0, 0.0, 700.0, 4000.0])

    direct, summed = _discrete_cdf(1000.0, x), _discrete_cdf(1000.0000001, x)

    assert summed == pytest.approx(direct, rel=1e-6)


@given(st.floats(0.05, 20), st.floats(1e-9, 0.5))
def test_mu_and_epsilon_are_inverse(mu, at):
    cost = epsilon_of(mu, at)

    assert gaussian_delta(mu, cost) <= at
    assert cost == 0 or mu_of(cost, at) == pytest.approx(mu, rel=1e-6)


# -- bounds ----------------------------------------------------------------------------------------


@given(
    st.floats(0.02, 20), st.sampled_from([1, 3, 100, 10_000]), st.sampled_from([1e-3, 1e-5, 1e-8])
)
@settings(max_examples=25)
def test_neither_accountant_is_below_the_exact_value(mu, times, at):
    releases = (Release(Gaussian(sqrt(times) / mu), None, times),)
    exact = epsilon_of(mu, at)
    rest = at * (1 - 1e-4) - SLACK * times

    assert renyi_epsilon(releases, ONE, at) >= exact
    on_grid = max(each.epsilon(rest) for each in losses(releases, ONE, at * 1e-4))
    assert exact <= on_grid <= exact * 1.01 + 1e-9
    assert epsilon(releases, at) == pytest.approx(exact)


RATES, NOISES = st.floats(1e-4, 1), st.floats(0.6, 20)
TIMES = st.integers(1, 1000)


@given(NOISES, RATES, TIMES, st.floats(1, 2), st.just("pld"))
@settings(max_examples=12)
@example(0.3, 1.0, 3000, 1.5, "pld")
@example(0.5, 1e-4, 1, 2.0, "pld")
@example(1.3, 0.2, 100, 1.2, "rdp")
@example(0.9, 0.01, 3000, 1.1, "rdp")
def test_more_costs_more(z, q, times, factor, accountant):
    less = epsilon([poisson(z, q, times)], 1e-5, accountant)
    near = 1 + 2e-3  # of grids that differ

    assert epsilon([poisson(z, q, times + int(9 * factor))], 1e-5, accountant) * near >= less
    assert epsilon([poisson(z, min(q * factor, 1), times)], 1e-5, accountant) * near >= less
    assert epsilon([poisson(z / factor, q, times)], 1e-5, accountant) * near >= less
    assert epsilon([poisson(z, q, times)], 1e-6, accountant) * near >= less


@given(NOISES, RATES, st.integers(1, 300), st.sampled_from([1e-3, 1e-6]))
@settings(max_examples=15)
def test_loss_distributions_are_at_most_renyi_divergences(z, q, times, at):
    found = epsilon([poisson(z, q, times)], at)

    assert found <= epsilon([poisson(z, q, times)], at, "rdp") * 1.002 + 1e-6


@pytest.mark.parametrize("sampling", [Poisson(0.1), FixedSize(1, 10)])
def test_so_they_are_where_one_is_replaced(sampling):
    releases = [Release(Gaussian(1.5), sampling, 40)]

    found = epsilon(releases, 1e-5, "pld", "replace")
    assert found <= epsilon(releases, 1e-5, "rdp", "replace") * 1.002


def test_sampling_of_fixed_size_is_not_poisson_sampling():
    fixed, independent = (
        Release(Gaussian(0.8), FixedSize(10, 10_000), 1000),
        poisson(0.8, 1e-3, 1000),
    )

    costs = epsilon([fixed], 1e-6, neighbours="replace")
    assert costs > 5 * epsilon([independent], 1e-6)
    assert costs > epsilon([independent], 1e-6, neighbours="replace")
    assert costs <= epsilon([fixed], 1e-6, "rdp", "replace")
    assert costs < epsilon([Release(Gaussian(0.8), None, 1000)], 1e-6, neighbours="replace")


def test_everybody_is_no_sample():
    plain = Release(Gaussian(2.0), None, 10)

    for sampling in (Poisson(1.0), FixedSize(7, 7)):
        assert epsilon([replace(plain, sampling=sampling)], 1e-5) == epsilon([plain], 1e-5)
    twice = epsilon([Release(Gaussian(1.0), None, 10)], 1e-5)
    assert epsilon([plain], 1e-5, neighbours="replace") == twice


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    "one, twice",
    [
        (Gaussian(4.0), Gaussian(2.0)),
        (Laplace(4.0), Laplace(2.0)),
        (DiscreteGaussian(6.0, contribution=1), DiscreteGaussian(6.0, contribution=2)),
        (DiscreteGaussian(6.0, 1.5, dimensions=3), DiscreteGaussian(6.0, 3.0, dimensions=3)),
        (Pure(0.2), Pure(0.4)),
    ],
    ids=str,
)
def test_replacing_one_is_twice_as_far_as_adding_it(one, twice, accountant):
    moved = epsilon([Release(one, times=3)], 1e-5, accountant, "replace")

    assert moved == pytest.approx(epsilon([Release(twice, times=3)], 1e-5, accountant))
    sampled = Release(one, FixedSize(1, 3), 3)
    assert epsilon([sampled], 1e-5, accountant, "replace") < moved


def test_what_transforms_round_is_allowed_for(monkeypatch):
    releases = together([poisson(1.0, 0.1, 10)])
    at = accounting._epsilon(releases, 1e-5, "pld", ONE)
    less = accounting._epsilon(releases, 0.96e-5, "pld", ONE)
    monkeypatch.setattr(accounting, "SLACK", 4e-8)

    assert at * 1.001 < accounting._epsilon(releases, 1e-5, "pld", ONE) == pytest.approx(less)
    assert accounting._delta(releases, at, "pld", ONE) == pytest.approx(1.04e-5, rel=5e-3)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=12).filter(lambda p: sum(p) > 0.1),
    st.integers(-8, 2),
    st.integers(1, 6),
    st.sampled_from([1e-1, 1e-2, 1e-6]),
)
def test_sums_of_losses_are_never_smaller_than_they_are(weights, first, times, tail):
    one = Loss(0.3, first, 0.99 * np.array(weights) / sum(weights), 0.01)
    exact = Loss(0.3, 0, np.ones(1), 0.0)
    for _ in range(times):
        mass = np.convolve(exact.mass, one.mass)
        exact = Loss(0.3, exact.first + first, mass, 1 - 0.99 * (1 - exact.infinite))

    sums = [_power(one, times, _bounds(one.mass, times, tail), tail)]
    sums.append(_sum(sums[0], Loss(0.3, 0, np.array([0.0, 1.0]), 0.0), tail))
    for above, found in enumerate(sums):
        for t in np.arange(-30, 5, 0.7):
            assert found.delta(t) >= exact.delta(t - 0.3 * above) - 1e-12
        assert found.infinite <= exact.infinite + 3 * tail


def test_the_discrete_gaussians_divergence_is_known_at_whole_orders_only():
    orders = np.array([1.5, 2.0, 2.5, 3.0])
    vectors = Release(DiscreteGaussian(2.0, 1.0, dimensions=5), None, 2)

    found = divergences([vectors], ONE, orders)
    assert found == pytest.approx([inf, 2 / 4, inf, 3 / 4])


def test_releases_of_several_studies_add_up():
    study = [poisson(1.0, 0.05, 100), Release(Laplace(20.0), None, 3), Release(Pure(0.1))]
    other = [poisson(1.0, 0.05, 50), Release(Gaussian(5.0))]

    both = epsilon([*study, *other], 1e-5)
    assert both == epsilon([*other, *study], 1e-5)
    assert max(epsilon(study, 1e-5), epsilon(other, 1e-5)) < both
    assert both < epsilon(study, 5e-6) + epsilon(other, 5e-6)


def test_each_attempt_of_a_round_counts():
    once, again = [poisson(1.0, 0.1, 100)], [poisson(1.0, 0.1, 100), poisson(1.0, 0.1, 7)]

    assert epsilon(again, 1e-5) == epsilon([poisson(1.0, 0.1, 107)], 1e-5) > epsilon(once, 1e-5)


@given(st.lists(st.floats(0.01, 2), min_size=1, max_size=5), st.floats(0.05, 1))
@settings(max_examples=20)
def test_pure_releases_cost_at_most_their_sum(costs, q):
    releases = [Release(Pure(each), Poisson(q)) for each in costs]
    summed = sum(log(1 + q * expm1(each)) for each in costs)

    for accountant in ("pld", "rdp"):
        assert epsilon(releases, 1e-9, accountant) <= summed * (1 + 1e-9)
        assert delta(releases, summed * (1 + 1e-9), accountant) == 0


def test_noise_on_vectors_of_whole_numbers_has_the_gaussians_divergence():
    vectors = Release(DiscreteGaussian(400.0, contribution=100.0, dimensions=10), Poisson(0.1), 50)

    found = epsilon([vectors], 1e-5, "rdp")
    assert epsilon([poisson(4.0, 0.1, 50)], 1e-5, "rdp") <= found
    assert found == pytest.approx(epsilon([poisson(4.0, 0.1, 50)], 1e-5, "rdp"), rel=0.02)
    tight = epsilon([poisson(4.0, 0.1, 50)], 1e-5)
    assert tight <= epsilon([vectors], 1e-5) == pytest.approx(tight, rel=1e-3)


@given(st.floats(0.2, 30), st.integers(1, 20))
def test_moving_by_more_steps_costs_more(sigma, shift):
    t = np.linspace(-3, 8, 50)

    nearer, further = (discrete_gaussian_delta(sigma, each, t) for each in (shift, shift + 1))
    assert np.all(further >= nearer - 1e-12)


def test_a_number_moves_by_whole_steps():
    assert discrete_gaussian_delta(2.0, 2, 0.5) == curves(
        Release(DiscreteGaussian(2.0, contribution=1.2)), ONE
    )[0](np.array(0.5))


# -- noise and curves over rounds ------------------------------------------------------------------


@given(st.floats(0.05, 20), st.floats(0.001, 1), st.integers(1, 2000), st.just("pld"))
@settings(max_examples=8)
@example(1.0, 0.02, 500, "rdp")
def test_noise_that_is_found_is_enough_and_little_more(target, q, times, accountant):
    z = noise_for(target, 1e-5, lambda z: [poisson(z, q, times)], accountant)

    assert epsilon([poisson(z, q, times)], 1e-5, accountant) <= target
    assert epsilon([poisson(z * 0.997, q, times)], 1e-5, accountant) > target * 0.995


def test_noise_that_costs_the_same_for_three_values_is_found_anew():
    def other(z):
        return [poisson(z, 0.1, 10 if z in (0.5, 1.0, 2.0) else 1000)]

    z = noise_for(1.0, 1e-5, lambda z: [poisson(z, 0.1, 10)])

    assert noise_for(1.0, 1e-5, other) > 2 * z


def test_a_target_below_what_else_is_released():
    with pytest.raises(ArchipelError, match=r"epsilon = 0.5: .* costs 1"):
        noise_for(0.5, 1e-5, lambda z: [poisson(z, 0.1), Release(Pure(1.0))])


def test_the_curve_over_rounds_rises_to_the_whole():
    once, before = [poisson(1.1, 0.01)], [Release(Pure(0.1))]

    found = curve(once, 500, 1e-5, before=before, points=6)

    rounds, costs = zip(*found, strict=True)
    assert rounds[0] == 1 and rounds[-1] == 500 and list(rounds) == sorted(set(rounds))
    assert list(costs) == sorted(costs) and costs[0] >= 0.1 * 0.999
    assert costs[-1] == epsilon([poisson(1.1, 0.01, 500), *before], 1e-5)


# -- ends ------------------------------------------------------------------------------------------


def test_without_noise_everything_is_lost_and_without_releases_nothing():
    for mechanism in (Gaussian(0.0), Laplace(0.0), Pure(inf), DiscreteGaussian(0.0)):
        bare = Release(mechanism, Poisson(0.1))
        assert epsilon([bare, poisson(1, 0.1)], 1e-5) == inf
        assert delta([bare], 3.0) == 1
    silent = [Release(Gaussian(1.0), None, 0), Release(Gaussian(inf)), Release(Pure(0.0))]
    assert epsilon([], 1e-5) == epsilon(silent, 1e-5) == 0
    assert delta([], 0.0) == 0


@pytest.mark.parametrize(
    "release",
    [
        poisson(1e-3, 0.5, 3),
        poisson(1e6, 1e-9, 10**6),
        poisson(1.0, 1e-12, 1),
        poisson(0.05, 0.999999, 1),
        poisson(1.0, 0.01, 10**9),
        Release(Laplace(1e-4), Poisson(0.1), 2),
        Release(Pure(50.0), Poisson(0.01), 30),
        Release(DiscreteGaussian(1e7, 1e6), Poisson(0.1), 3),
        Release(DiscreteGaussian(0.3), None, 2),
        Release(Gaussian(1e-200)),
    ],
    ids=str,
)
def test_extreme_releases_have_an_answer(release):
    for at in (1e-5, 1e-13, 1e-300):
        assert epsilon([release], at, "rdp") >= epsilon([release], at) * 0.99 >= 0
    assert epsilon([release], 1e-5, neighbours="replace") >= epsilon([release], 1e-5) * 0.99
    assert 0 <= delta([release], 1.0) <= 1


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: Gaussian(-1.0), "noise = -1.0: give a number from 0"),
        (lambda: Laplace(nan), "noise = nan"),
        (lambda: Pure(-0.1), "epsilon = -0.1"),
        (lambda: DiscreteGaussian(1.0, contribution=0.0), "contribution = 0.0"),
        (lambda: DiscreteGaussian(1.0, dimensions=0), "dimensions = 0"),
        (lambda: Poisson(0.0), "rate = 0.0: give a number above 0 and up to 1"),
        (lambda: Poisson(1.5), "rate = 1.5"),
        (lambda: Poisson(nan), "rate = nan"),
        (lambda: FixedSize(11, 10), "sampled = 11: there are 10"),
        (lambda: FixedSize(0, 10), "sampled = 0"),
        (lambda: FixedSize(2.5, 10), "sampled = 2.5"),
        (lambda: Release(Gaussian(1.0), times=-1), "times = -1: give a whole number from 0"),
        (lambda: Release(Gaussian(1.0), times=True), "times = True"),
        (lambda: epsilon([], 0.0), "delta = 0.0: give a number above 0 and below 1"),
        (lambda: epsilon([], 1.0), "delta = 1.0"),
        (lambda: epsilon([], nan), "delta = nan"),
        (lambda: epsilon([], 1e-5, "gdp"), "unknown accountant 'gdp'"),
        (lambda: epsilon([], 1e-5, neighbours="any"), "unknown neighbours 'any'"),
        (lambda: delta([], -1.0), "epsilon = -1.0"),
        (lambda: noise_for(0.0, 1e-5, lambda z: []), "epsilon = 0.0"),
        (lambda: noise_for(inf, 1e-5, lambda z: []), "epsilon = inf"),
        (lambda: curve([], 0, 1e-5), "rounds = 0"),
        (
            lambda: epsilon([Release(Gaussian(1.0), FixedSize(2, 10))], 1e-5),
            r"neighbours = 'add_or_remove': a sample of fixed size \(2 of 10\)",
        ),
        (lambda: read({"mechanism": "gaussian", "times": 1}), "not a release"),
        (lambda: read({"mechanism": "gauss", "noise": 1.0, "times": 1}), "unknown mechanism"),
    ],
)
def test_bad_input_is_one_sentence(make, says):
    with pytest.raises(ArchipelError, match=says):
        make()


# -- kept ------------------------------------------------------------------------------------------


RELEASES = st.builds(
    Release,
    st.one_of(
        st.builds(Gaussian, NOISES),
        st.builds(Laplace, NOISES),
        st.builds(Pure, NOISES),
        st.builds(DiscreteGaussian, NOISES, NOISES, st.integers(1, 9)),
    ),
    st.one_of(
        st.none(),
        st.builds(Poisson, RATES),
        st.builds(FixedSize, st.just(3), st.integers(3, 99)),
    ),
    TIMES,
)


@given(st.lists(RELEASES, max_size=6))
def test_releases_are_written_and_read_and_counted_together(releases):
    assert [read(json.loads(json.dumps(written(each)))) for each in releases] == releases
    assert together([*releases, *releases[::-1]]) == tuple(
        replace(each, times=2 * each.times) for each in together(releases)
    )


@pytest.fixture
def forgetful(tmp_path, monkeypatch):
    """A cache of its own, and a count of what is computed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remembered, "_memory", {})
    return tmp_path / "archipel" / "privacy.json"


def test_an_answer_is_computed_once(forgetful, monkeypatch):
    asked = ("epsilon", (poisson(1.0, 0.1),), 1e-5)

    assert [remembered.remembered(asked, lambda: 2.5) for _ in range(2)] == [2.5, 2.5]
    remembered._memory.clear()
    assert remembered.remembered(asked, lambda: pytest.fail("asked again")) == 2.5
    assert remembered.remembered((*asked, "rdp"), lambda: 3.5) == 3.5
    monkeypatch.setattr(remembered, "_version", lambda: "0.7")
    assert remembered.remembered(asked, lambda: 4.5) == 4.5


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("2.5", "0.5"),
        lambda text: text.replace("2.5", '"2.5"'),
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: "null",
        lambda text: "\0",
    ],
)
def test_a_damaged_answer_is_computed_again(forgetful, damage):
    remembered.remembered(("one",), lambda: 2.5)
    forgetful.write_text(damage(forgetful.read_text()))
    remembered._memory.clear()

    assert remembered.remembered(("one",), lambda: 7.5) == 7.5
    remembered._memory.clear()
    assert remembered.remembered(("one",), lambda: pytest.fail("asked again")) == 7.5


def test_where_nothing_can_be_written_answers_are_computed(forgetful):
    forgetful.parent.write_text("a file where the folder should be")

    assert remembered.remembered(("one",), lambda: inf) == inf
    assert epsilon([Release(Gaussian(1.0))], 1e-5) > 4


def test_an_infinite_answer_is_kept(forgetful):
    remembered.remembered(("one",), lambda: inf)
    remembered._memory.clear()

    assert remembered.remembered(("one",), lambda: 0.0) == inf


def test_the_folder_stays_small(forgetful, monkeypatch):
    monkeypatch.setattr(remembered, "_MOST", 3)
    for i in range(6):
        remembered.remembered((i,), lambda i=i: float(i))

    assert len(json.loads(forgetful.read_text())) == 3


def test_dp_accounting_is_not_imported_before_it_is_needed():
    program = (
        "import sys; from archipel.privacy.accounting import *; "
        "assert epsilon([Release(Gaussian(1.0), Poisson(0.1), 10)], 1e-5) > 0; "
        "assert 'dp_accounting' not in sys.modules"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
