"""Mechanisms cost what they say, to known values, and never less."""

from dataclasses import replace
from math import exp, inf, log, nan, sqrt

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from archipel.errors import ArchipelError
from archipel.privacy.analytic import delta_of, epsilon_of, mu_of, smallest
from archipel.privacy.costs import converted, pure, summed
from archipel.privacy.mechanisms import DiscreteGaussian, Exponential, Gaussian, Laplace, Skellam
from archipel.privacy.sources import System, secret

ALPHA = 1e-4
EPSILONS = st.floats(1e-3, 20)
DELTAS = st.floats(-12, -1).map(lambda x: 10**x)


def stream(name="test"):
    return secret(bytes(range(32)), name)


# -- the analytic Gaussian mechanism ---------------------------------------------------------------


def exact_delta(mu, epsilon):
    """Theorem 8 of Balle and Wang, word for word."""
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
    upper, lower = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return mpmath.ncdf(upper) - mpmath.exp(epsilon) * mpmath.ncdf(lower)


@given(st.floats(-12, 3), st.floats(0, 36), st.booleans())
@settings(max_examples=200)
def test_delta_is_right_and_never_too_small_down_to_1e_300(log_mu, far, past):
    mu = 10**log_mu
    epsilon = mu * far + past * mu**2 / 2

    with mpmath.workdps(400):  # e^epsilon times a chance of e^-epsilon
        exact = exact_delta(mu, epsilon)
        if exact < 1e-300:
            return
        above = float(mpmath.mpf(delta_of(mu, epsilon)) / exact - 1)
    assert 0 <= above < 4e-9 or exact > 1 - 1e-8


@pytest.mark.parametrize(
    "sigma, delta, epsilon",
    [(10.0, 1e-5, 0.340669), (1.0, 1e-5, 4.377178), (1.0, 1e-6, 4.886554), (0.5, 1e-5, 9.997256)],
)
def test_known_epsilons_of_gaussian_noise(sigma, delta, epsilon):
    assert epsilon_of(1 / sigma, delta) == pytest.approx(epsilon, abs=1e-6)
    assert Gaussian(sigma, 1.0).epsilon(delta) == pytest.approx(epsilon, abs=1e-6)


@pytest.mark.parametrize("epsilon, mu", [(1, 0.268), (2, 0.502), (4, 0.925), (8, 1.666)])
def test_known_noise_at_delta_1e_5(epsilon, mu):
    assert mu_of(epsilon, 1e-5) == pytest.approx(mu, abs=5e-4)


def test_delta_falls_with_epsilon_and_grows_with_mu():
    epsilons = np.linspace(0, 30, 400)
    mus = np.geomspace(1e-3, 30, 400)

    for mu in (1e-6, 0.01, 1.0, 5.0):
        assert (np.diff([delta_of(mu, e) for e in epsilons]) <= 0).all()
    for epsilon in (0.0, 0.1, 1.0, 10.0):
        assert (np.diff([delta_of(mu, epsilon) for mu in mus]) >= 0).all()


@given(st.floats(1e-9, 1e5), st.floats(-299, -0.01).map(lambda x: 10**x))
@settings(max_examples=60)
def test_searches_end_on_the_safe_side_and_close(epsilon, delta):
    mu = mu_of(epsilon, delta)

    assert delta_of(mu, epsilon) <= delta < delta_of(mu * (1 + 1e-9), epsilon)
    assert delta_of(mu, epsilon_of(mu, delta)) <= delta
    assert epsilon_of(mu, delta) <= epsilon * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("root", [0.0, 1e-300, 1e-5, 0.7, 1.0, 3.3, 1e300])
def test_the_smallest_number_is_found(root):
    assert smallest(lambda x: x >= root) == root


def test_there_may_be_no_smallest_number():
    assert smallest(lambda x: False) == inf


# -- calibration -----------------------------------------------------------------------------------


@given(EPSILONS, DELTAS, st.floats(1e-3, 1e3), st.integers(1, 10**7))
@settings(max_examples=60)
def test_gaussian_noise_is_enough_and_no_more(epsilon, delta, sensitivity, size):
    if size > 1e12 * epsilon**2:
        return
    it = Gaussian.calibrated(epsilon, delta, sensitivity, size)

    assert it.delta(epsilon) <= delta
    assert it.epsilon(delta) <= epsilon * (1 + 1e-9) + 1e-12
    less = it.sigma * (1 - 1e-6) / (1 + 2.0**-31 * it.sigma / sensitivity * sqrt(size))
    assert Gaussian(less, sensitivity, size).delta(epsilon) > delta


@given(EPSILONS, st.floats(1e-3, 1e3), st.integers(1, 10**5))
@settings(max_examples=60)
def test_laplace_noise_is_enough_and_no_more(epsilon, sensitivity, size):
    it = Laplace.calibrated(epsilon, sensitivity, size)

    assert it.delta(epsilon) < 1e-15
    assert it.shift <= epsilon
    assert it.scale == pytest.approx(sensitivity / epsilon, rel=1e-6 + size * 2**-31 / epsilon)


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
@pytest.mark.parametrize("sensitivity, size, shares", [(1.0, 1, 1), (3.0, 1, 1), (20.0, 50, 10)])
def test_integer_noise_is_enough_and_no_more(kind, sensitivity, size, shares):
    it = kind.calibrated(1.0, 1e-5, sensitivity, size, shares)

    first = it.sigma if kind is DiscreteGaussian else it.variance
    assert it.delta(1.0) <= 1e-5
    assert it.epsilon(1e-5) <= 1 + 1e-12
    assert kind(first * (1 - 1e-6), sensitivity, size, shares).delta(1.0) > 1e-5
    gaussian = Gaussian.calibrated(1.0, 1e-5, sensitivity)
    total = it.sigma * (sqrt(shares) if kind is DiscreteGaussian else 1)
    assert total == pytest.approx(gaussian.sigma, rel=0.12)  # nearly as good


def test_rounding_to_the_grid_is_paid_for():
    small, large = Gaussian(1.0, 1.0, 1), Gaussian(1.0, 1.0, 10**8)

    assert large.mu == 1 + 1e4 * 2.0**-32
    assert small.mu < large.mu and small.delta(1.0) < large.delta(1.0)
    assert Laplace(1.0, 1.0, 10**6).shift == 1 + 1e6 * 2.0**-32


# -- integers --------------------------------------------------------------------------------------


def test_one_integer_costs_what_its_chances_say():
    assert DiscreteGaussian(10.0, 1.0).epsilon(1e-5) == pytest.approx(0.34082, abs=5e-6)
    assert Gaussian(10.0, 1.0).epsilon(1e-5) == pytest.approx(0.34067, abs=5e-6)


def chances(kind, scale, reach):
    """Chances of integers from -reach to reach, with 40 digits."""
    with mpmath.workdps(40):
        if kind is DiscreteGaussian:
            weights = [
                mpmath.exp(-(mpmath.mpf(k) ** 2) / 2 / mpmath.mpf(scale) ** 2)
                for k in range(-reach, reach + 1)
            ]
        else:
            weights = [mpmath.besseli(abs(k), scale) for k in range(-reach, reach + 1)]
        total = mpmath.fsum(weights)
        return [weight / total for weight in weights]


def shifted(p, by):
    return [mpmath.mpf(0)] * by + p[: len(p) - by]


@pytest.mark.parametrize("kind, scale", [(DiscreteGaussian, 3.0), (Skellam, 9.0), (Skellam, 0.5)])
@pytest.mark.parametrize("shift", [1, 4])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0, 8.0])
def test_delta_of_one_integer_is_the_sum_over_all(kind, scale, shift, epsilon):
    p = chances(kind, scale, 150)
    q = shifted(p, shift)
    exact = mpmath.fsum(max(0, a - mpmath.exp(epsilon) * b) for a, b in zip(p, q, strict=True))

    found = kind(scale, float(shift)).delta(epsilon)

    assert float(exact) <= found < float(exact) * (1 + 1e-8) + 1e-13


def renyi(p, q, alpha):
    total = mpmath.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(p, q, strict=True) if a and b)
    return float(mpmath.log(total) / (alpha - 1))


@pytest.mark.parametrize("kind, scale", [(DiscreteGaussian, 3.0), (Skellam, 9.0), (Skellam, 40.0)])
@pytest.mark.parametrize("shift", [1, 5])
@pytest.mark.parametrize("alpha", [2, 5, 16])
def test_renyi_divergences_are_not_below_those_of_the_chances(kind, scale, shift, alpha):
    p = chances(kind, scale, 120)
    exact = renyi(p, shifted(p, shift), alpha)

    bound = kind(scale, float(shift)).rdp(alpha)

    assert exact <= bound * (1 + 1e-12)
    assert bound < exact * (1.001 if kind is DiscreteGaussian else 4)


@pytest.mark.parametrize("sigma, shares", [(0.5, 2), (0.5, 5), (0.7, 3), (1.0, 10)])
def test_a_sum_of_shares_costs_no_more_than_is_said(sigma, shares):
    one = np.array([float(x) for x in chances(DiscreteGaussian, sigma, 30)])
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    p, q = total[1:], total[:-1]

    for alpha in (2, 4, 8):
        there = (p > 1e-30) & (q > 1e-30)
        exact = log((p[there] ** alpha * q[there] ** (1.0 - alpha)).sum()) / (alpha - 1)
        assert exact <= DiscreteGaussian(sigma, 1.0, 1, shares).rdp(alpha) * (1 + 1e-9)


@pytest.mark.parametrize(
    "it, alpha, rdp",
    [  # both papers' formulas, evaluated apart with 40 digits; each term is the least one somewhere
        (DiscreteGaussian(2.0, 5.0, 100, 10), 4, 1.25),
        (DiscreteGaussian(0.8, 3.0, 16, 4), 2, 3.75927565808829),
        (DiscreteGaussian(0.5, 2.0, 10, 100), 8, 97.6515845412137),
        (Skellam(4.0, 5.0, 100, 10), 4, 1.30078125),
        (Skellam(100.0, 30.0, 1000, 1), 16, 72.8325),
        (Skellam(0.5, 2.0, 4, 3), 3, 8.0),
    ],
)
def test_known_renyi_divergences_of_shares(it, alpha, rdp):
    assert it.rdp(alpha) == pytest.approx(rdp, rel=1e-12)


def test_more_shares_or_noise_cost_less():
    for kind in (DiscreteGaussian, Skellam):
        costs = [kind(4.0, 6.0, 20, shares).epsilon(1e-5) for shares in (1, 2, 5, 20)]
        assert costs == sorted(costs, reverse=True)
        costs = [kind(noise, 6.0, 20, 5).epsilon(1e-5) for noise in (1.0, 2.0, 5.0, 20.0)]
        assert costs == sorted(costs, reverse=True)


def test_orders_between_integers_take_the_next_for_skellam():
    it = Skellam(9.0, 2.0)

    assert it.rdp(2.5) == it.rdp(3) > it.rdp(2)
    assert it.rdp(inf) == inf


def test_conversion_of_renyi_divergences_is_not_below_the_exact_delta():
    ideal = converted(lambda alpha: alpha * 0.3**2 / 2)

    for epsilon in (0.1, 0.5, 1.0, 3.0):
        assert delta_of(0.3, epsilon) <= ideal(epsilon) < 30 * delta_of(0.3, epsilon) + 1e-30


def test_a_sensitivity_just_above_an_integer_by_rounding_is_that_integer():
    density = lambda k: np.exp(-((k / 3.0) ** 2) / 2)  # noqa: E731

    assert summed(density, 3.0, 2 + 1e-12)(0.5) == summed(density, 3.0, 2.0)(0.5)
    assert summed(density, 3.0, 2.1)(0.5) == summed(density, 3.0, 3.0)(0.5)


# -- Laplace and the exponential mechanism ---------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.5, 2.0, 10.0, 200.0])
@pytest.mark.parametrize("scale", [0.2, 1.0, 30.0])
def test_renyi_divergence_of_laplace_noise(alpha, scale):
    def integrand(x):
        p, q = -abs(x) / scale, -abs(x - 1) / scale
        return mpmath.exp(alpha * p + (1 - alpha) * q) / (2 * scale)

    total = mpmath.quad(integrand, [-inf, 0, 1, inf])

    assert Laplace(scale, 1.0).rdp(alpha) == pytest.approx(float(mpmath.log(total) / (alpha - 1)))


def test_laplace_noise_costs_its_shift_at_most():
    it = Laplace(0.5, 1.0)

    assert it.rdp(inf) == it.shift == pytest.approx(2.0)
    assert it.rdp(1e9) == pytest.approx(2.0)
    assert it.delta(2.0 + 1e-8) < 1e-20 < it.delta(1.9)
    assert it.epsilon(1e-10) == pytest.approx(2.0)


@given(st.floats(1e-6, 30), st.floats(0, 30))
def test_pure_delta_is_that_of_randomised_response(own, epsilon):
    truth, lie = 1 / (1 + exp(-own)), 1 / (1 + exp(own))

    assert pure(own, epsilon) == pytest.approx(max(0.0, truth - exp(epsilon) * lie), abs=1e-12)


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([-1, 0, 1])), min_size=2, max_size=8),
    st.floats(0.01, 5),
)
def test_a_choice_costs_no_more_than_it_says(scores, eps):
    it = Exponential(eps, 1.0)
    one = np.array([score for score, _ in scores])
    other = one + np.array([move for _, move in scores])

    p, q = (np.exp(eps * s / 2) / np.exp(eps * s / 2).sum() for s in (one, other))
    for alpha in (1.5, 2.0, 10.0, 100.0):
        exact = logsumexp(alpha * np.log(p) + (1 - alpha) * np.log(q)) / (alpha - 1)
        assert exact <= it.rdp(alpha) * (1 + 1e-9) + 1e-12
    for epsilon in (0.0, eps / 2, eps):
        assert np.maximum(0, p - exp(epsilon) * q).sum() <= it.delta(epsilon) + 1e-12


def test_a_choice_is_made():
    it = Exponential(eps=50.0, sensitivity=1.0)

    assert it.choose([0.0, 3.0, 1.0], stream()) == 1


# -- what is released ------------------------------------------------------------------------------

AUDITED = [
    Gaussian(1.0, 1.0),
    Laplace(1.0, 1.0),
    DiscreteGaussian(2.0, 1.0),
    Skellam(4.0, 1.0),
]


def released(it, x, n):
    """What n uses of a mechanism give for the value x: as many numbers, each with its own noise."""
    kind = torch.int64 if isinstance(it, DiscreteGaussian | Skellam) else torch.float64
    values = torch.full((n,), x, dtype=kind)
    return replace(it, size=n).add(values, stream(f"audit {x}")).double().numpy()


def found_delta(it, epsilon, shrunk=1.0, n=200_000):
    """What an attack finds delta to be at least, and the standard error of that.

    Outputs above a threshold are likelier for 1 than for 0. The threshold is the best one by the
    first half of the outputs; the second half measures.
    """
    zero, one = (x + shrunk * (released(it, x, n) - x) for x in (0, 1))
    half = n // 2

    def gain(t, there):
        return (one[there] > t).mean() - exp(epsilon) * (zero[there] > t).mean()

    thresholds = np.quantile(np.concatenate([zero, one]), np.linspace(0.01, 0.99, 99))
    best = max(thresholds, key=lambda t: gain(t, slice(half)))
    p, q = ((x[half:] > best).mean() for x in (one, zero))
    error = sqrt((p * (1 - p) + exp(2 * epsilon) * q * (1 - q)) / half)
    return gain(best, slice(half, None)), error


@pytest.mark.parametrize("it", AUDITED, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_an_attack_finds_no_more_than_the_mechanism_says(it, epsilon):
    found, error = found_delta(it, epsilon)

    z = norm.isf(ALPHA)
    assert found - z * error <= it.delta(epsilon)
    if not isinstance(it, Laplace):  # whose delta here is that of the worst one as private
        assert found + z * error + 0.01 >= it.delta(epsilon)


@pytest.mark.parametrize("it", AUDITED, ids=lambda it: type(it).__name__)
def test_the_attack_finds_it_where_noise_is_halved(it):
    found, error = found_delta(it, 0.5, shrunk=0.5)

    assert found - norm.isf(ALPHA) * error > it.delta(0.5)


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
def test_integers_get_integer_noise_and_do_not_overflow(kind):
    values = torch.tensor([0, 2**63 - 1, -(2**63)])

    out = kind(4.0, 1.0, 3).add(values, stream())

    assert out.dtype == torch.int64
    assert (out.double() - torch.tensor([0, 2.0**62, -(2.0**62)])).abs().max() < 4096
    stacked = kind(4.0, 1.0, 3).add(values.expand(2, 3), System(2))
    assert not torch.equal(stacked[0], stacked[1])


def test_values_keep_their_type_and_shape():
    values = torch.zeros(2, 3, 5)

    out = Gaussian(1.0, 1.0, 5).add(values, System(3))

    assert out.shape == values.shape and out.dtype == values.dtype
    assert not values.any()


# -- what cannot be --------------------------------------------------------------------------------

BAD = [0.0, -1.0, nan, inf, -inf]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "make",
    [
        lambda bad: Gaussian(bad, 1.0),
        lambda bad: Gaussian(1.0, bad),
        lambda bad: Gaussian.calibrated(bad, 1e-5, 1.0),
        lambda bad: Gaussian.calibrated(1.0, 1e-5, bad),
        lambda bad: Laplace(bad, 1.0),
        lambda bad: Laplace(1.0, bad),
        lambda bad: Laplace.calibrated(bad, 1.0),
        lambda bad: Laplace.calibrated(1.0, bad),
        lambda bad: DiscreteGaussian(bad, 1.0),
        lambda bad: DiscreteGaussian(1.0, bad),
        lambda bad: DiscreteGaussian(1.0, 1.0, sensitivity_1=bad),
        lambda bad: DiscreteGaussian.calibrated(bad, 1e-5, 1.0),
        lambda bad: DiscreteGaussian.calibrated(1.0, 1e-5, bad),
        lambda bad: Skellam(bad, 1.0),
        lambda bad: Skellam(1.0, bad),
        lambda bad: Skellam.calibrated(bad, 1e-5, 1.0),
        lambda bad: Skellam.calibrated(1.0, 1e-5, bad),
        lambda bad: Exponential(bad, 1.0),
        lambda bad: Exponential(1.0, bad),
    ],
)
def test_what_is_not_positive_and_finite_is_refused(make, bad):
    with pytest.raises(ArchipelError, match=rf"= {bad}: give a finite number above 0\.$"):
        make(bad)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 2.0, nan, inf])
def test_a_delta_outside_0_and_1_is_refused(bad):
    for use in (
        lambda: Gaussian.calibrated(1.0, bad, 1.0),
        lambda: DiscreteGaussian.calibrated(1.0, bad, 1.0),
        lambda: Skellam.calibrated(1.0, bad, 1.0),
        lambda: Gaussian(1.0, 1.0).epsilon(bad),
        lambda: Laplace(1.0, 1.0).epsilon(bad),
        lambda: Exponential(1.0, 1.0).epsilon(bad),
    ):
        with pytest.raises(ArchipelError, match=rf"delta = {bad}: give a number in \(0, 1\)"):
            use()


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_sizes_and_shares_are_counts(bad):
    for use in (
        lambda: Gaussian(1.0, 1.0, bad),
        lambda: Gaussian.calibrated(1.0, 1e-5, 1.0, bad),
        lambda: Laplace.calibrated(1.0, 1.0, bad),
        lambda: DiscreteGaussian(1.0, 1.0, bad),
        lambda: Skellam(1.0, 1.0, 1, bad),
    ):
        with pytest.raises(ArchipelError, match="give an integer from 1 on"):
            use()


@pytest.mark.parametrize("bad", [1.0, 0.0, -2.0, nan])
def test_orders_are_above_1(bad):
    for it in (*AUDITED, Exponential(1.0, 1.0)):
        with pytest.raises(ArchipelError, match="give an order above 1"):
            it.rdp(bad)


@pytest.mark.parametrize("bad", [-0.1, nan])
def test_delta_is_asked_at_an_epsilon(bad):
    for it in (*AUDITED, Exponential(1.0, 1.0)):
        with pytest.raises(ArchipelError, match="give a number from 0 on"):
            it.delta(bad)


def test_more_numbers_than_a_grid_allows_are_refused():
    with pytest.raises(ArchipelError, match="release fewer"):
        Laplace.calibrated(1e-6, 1.0, 10**6)
    with pytest.raises(ArchipelError, match="release fewer"):
        Gaussian.calibrated(1e-9, 1e-15, 1.0, 10**12)


def test_a_delta_below_what_is_drawn_is_refused_and_costs_everything():
    with pytest.raises(ArchipelError, match="give a smaller epsilon"):
        Gaussian.calibrated(60.0, 1e-5, 1.0, 10**6)
    assert Gaussian(1.0, 1.0, 10**6).epsilon(1e-30) == inf


def test_shares_of_little_noise_are_refused():
    with pytest.raises(ArchipelError, match=r"sigma = 0.4: shares"):
        DiscreteGaussian(0.4, 1.0, 1, shares=2)


@pytest.mark.parametrize("it", AUDITED, ids=lambda it: type(it).__name__)
def test_other_numbers_than_the_mechanism_covers_are_refused(it):
    with pytest.raises(ArchipelError, match="covers 1 numbers"):
        it.add(torch.zeros(2, dtype=torch.int64), stream())


def test_integer_noise_is_for_integers():
    with pytest.raises(ArchipelError, match="give int64"):
        Skellam(1.0, 1.0).add(torch.zeros(1), stream())
