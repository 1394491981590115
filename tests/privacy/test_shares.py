"""What a sum costs to which parties added integer noise in shares, against others' numbers.

Reference values are those of google-research/federated, distributed_dp/accounting_utils.py, run
outside of the project (rounding with beta = e^(-1/2)).
"""

from functools import reduce
from math import exp, inf, log, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from archipel.privacy.accounting import (
    DiscreteGaussian,
    Gaussian,
    Release,
    Skellam,
    delta,
    deltas,
    epsilon,
    noise_for,
)
from archipel.privacy.encoding import rounded_l2, secure_sum_error
from archipel.privacy.noise import discrete_gaussian
from archipel.privacy.release import read, written
from archipel.privacy.renyi import divergences
from archipel.privacy.shares import ROUNDED, as_gaussian, gaussian_rdp, in_l1, skellam_rdp, tau
from archipel.privacy.sources import Simulated

few = settings(max_examples=25, deadline=None)
ORDERS = np.array([*range(2, 129), 256], dtype=np.float64)  # of the reference
ROOT = exp(-0.5)

# step, deviation of a share, shares, clip, numbers, rounds, δ; ε of both; divergences of both at
# orders 2, 8, 32
REFERENCE = [
    ((0.1, 1.0, 10, 1.0, 16, 1, 1e-5), 1.419621967952188, 1.4204115899298735,
     [0.116, 0.464, 1.856], [0.11615162197768561, 0.4644996219776856, 1.8578916219776855]),
    ((0.01, 0.05, 1000, 1.0, 1024, 1, 1e-5), 2.8736291678455332, 2.873699221389197,
     [0.41488, 1.65952, 6.63808], [0.41490026794366347, 1.6595900535436634, 6.638349195943663]),
    ((0.05, 0.1, 100, 2.0, 2**16, 10, 1e-6), 466.2292161968457, 468.7818411968444,
     [45.38000000000013, 181.52000000000052, 726.0800000000021],
     [45.635262499999996, 182.11561249999997, 728.0370125]),
    ((0.2, 0.12, 50, 1.0, 256, 3, 1e-5), 793.649051682853, 29.25163110385034,
     [261.1741401930009, 278.1741401930009, 346.1741401930009],
     [6.375, 24.319444444444446, 96.09722222222223]),
    ((0.001, 0.02, 10000, 5.0, 2**20, 100, 1e-7), 646.4232012898384, 646.4233679882415,
     [6.316914, 25.267656, 101.070624],
     [6.3169156669840305, 25.267662404669526, 101.07064935541152]),
]  # fmt: skip


def mechanisms(step, deviation, shares, clip, size):
    sigma, contribution = deviation / step, rounded_l2(clip / step, size, ROOT)
    return (
        DiscreteGaussian(sigma, contribution, size, shares),
        Skellam(sigma**2, contribution, size, shares),
    )


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: str(case[0]))
def test_divergences_and_epsilons_are_those_of_the_reference(case):
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    (*values, rounds, target), *found = case
    for it, cost, known in zip(mechanisms(*values), found[:2], found[2:], strict=True):
        ours = divergences([Release(it)], "add_or_remove", np.array([2.0, 8.0, 32.0]))
        np.testing.assert_allclose(ours, known, rtol=1e-12)
        all_ = divergences([Release(it, None, rounds)], "add_or_remove", ORDERS)
        if values[0] != 0.2 or isinstance(it, Skellam):  # sigma = 0.6 from 0.5 on
            assert compute_epsilon(ORDERS, all_, target)[0] == pytest.approx(cost, rel=1e-9)
        assert epsilon([Release(it, None, rounds)], target) <= cost * (1 + 1e-9)


def test_norms_after_rounding_are_those_of_the_reference():
    found = [
        rounded_l2(*each) for each in ((10.0, 1024, ROOT), (100.0, 2**16, ROOT), (3.0, 16, 0.0))
    ]
    assert found == pytest.approx([19.544820285692065, 163.1318485152424, 7.0], rel=1e-12)
    assert rounded_l2(1e4, 2**20, 1e-12) == pytest.approx(10016.999978641228, rel=1e-12)


# -- a sum of shares is the Gaussian noise that it is said to be made of ---------------------------


def chances(sigma, reach):
    at = np.arange(-reach, reach + 1)
    p = np.exp(-((at / sigma) ** 2) / 2)
    return p / p.sum()


def summed(sigma, shares, reach):
    """The distribution of a sum of shares, on [-reach, reach]."""
    wide = reduce(np.convolve, [chances(sigma, reach)] * shares)
    middle = len(wide) // 2
    return wide[middle - reach : middle + reach + 1]


@pytest.mark.parametrize(("sigma", "shares"), [(0.7, 100), (0.8, 80), (0.9, 60), (1.2, 40)])
def test_a_sum_of_shares_is_within_its_factor_of_a_discrete_gaussian(sigma, shares):
    reach = int(7 * sigma * sqrt(shares)) + 2
    ratio = np.log(summed(sigma, shares, reach) / chances(sigma * sqrt(shares), reach))
    _, apart = as_gaussian(sigma, shares, 1)

    assert np.abs(ratio).max() <= apart
    assert apart <= tau(sigma, shares)  # the paper's has other constants


@pytest.mark.parametrize(("sigma", "eta2"), [(2.0, 0.3), (1.5, 0.5), (3.0, 1.0)])
def test_a_gaussian_that_is_rounded_at_random_is_a_discrete_gaussian(sigma, eta2):
    """The proof's first step, integrated, with so little η that the factor is seen."""
    x, y = np.arange(-12, 13), np.linspace(-30, 30, 120_001)
    near = np.exp(-((np.arange(-50, 51)[:, None] - y) ** 2) / (2 * eta2)).sum(axis=0)
    density = stats.norm.pdf(y, 0, sqrt(sigma**2 - eta2))
    rounded = np.array([
        np.trapezoid(density * np.exp(-((k - y) ** 2) / (2 * eta2)) / near, y) for k in x
    ])  # fmt: skip
    theta = 2 * exp(-2 * pi**2 * eta2) * (1 + 1e-6)
    found = np.abs(np.log(rounded / chances(sigma, 40)[28:53]))

    assert found.max() <= log((1 + theta) / (1 - theta)) + 1e-9


@pytest.mark.parametrize("shares", [1, 3])
@pytest.mark.parametrize("shift", [(3,), (4, 8), (10, 1, 1)])
def test_delta_of_whole_vectors_is_above_what_is_counted_one_by_one(shares, shift):
    """All outcomes of up to three numbers, against what the accountant says of their norm."""
    sigma, reach, more = 6.6 / sqrt(shares), 50, 10
    p = summed(sigma, shares, reach + more) if shares > 1 else chances(sigma, reach + more)
    views = [(p[more - v : len(p) - more - v], p[more : len(p) - more]) for v in shift]
    joint = [reduce(np.multiply.outer, each).ravel() for each in zip(*views, strict=True)]
    norm = sqrt(sum(v * v for v in shift))
    it = Release(DiscreteGaussian(sigma, norm, max(len(shift), 2), shares))
    for target in (0.05, 0.3, 1.0, 2.5):
        exact = np.maximum(joint[0] - exp(target) * joint[1], 0.0).sum()
        assert exact <= delta([it], target)
        assert delta([it], target) <= 1.2 * exact + 1e-3
    assert deltas([it], [0.3, 1.0]) == [delta([it], 0.3), delta([it], 1.0)]


@few
@given(
    st.floats(3.0, 1e4), st.integers(1, 500), st.integers(1, 10**6), st.floats(1.0, 1e4),
    st.integers(1, 50),
)  # fmt: skip
def test_much_noise_costs_what_gaussian_noise_does(sigma, shares, size, contribution, times):
    """η² less of variance, and next to nothing besides: no Rényi divergence is converted."""
    ours = epsilon(
        [Release(DiscreteGaussian(sigma, contribution, size, shares), None, times)], 1e-5
    )
    z = sqrt(shares * sigma**2 - ROUNDED) / contribution
    ideal = epsilon([Release(Gaussian(z), None, times)], 1e-5)
    if size * shares > 1:
        assert ideal <= ours <= ideal * (1 + 1e-6) + 2.1e-3


def test_what_is_said_of_the_noise_of_a_thousand_parties():
    """Within 0.01 % of the trusted curator, where divergences would need 8 % more."""
    curator = noise_for(1.0, 1e-5, lambda z: [Release(Gaussian(z))])
    ours = noise_for(
        1.0, 1e-5, lambda z: [Release(DiscreteGaussian(z * 1000 / sqrt(999), 1000.0, 10, 999))]
    )
    skellam = noise_for(
        1.0, 1e-5, lambda z: [Release(Skellam((z * 1000) ** 2 / 999, 1000.0, 10, 999))]
    )
    assert curator <= ours * 1.001 and ours <= curator * 1.002
    assert 1.05 < skellam / curator < 1.12
    trusted = curator / 1000  # of the mean of numbers in [0, 1], one of which is replaced
    assert trusted < secure_sum_error(1.0, 1e-5, 1000) < 1.002 * trusted
    assert 1.1 < secure_sum_error(1.0, 1e-5, 1000, honest=0.8) / trusted < 1.13
    assert 1.0 < secure_sum_error(1.0, 1e-5, 1000, size=100_000, bits=18) / trusted < 1.01


# -- monotone, in whatever should lower a cost -----------------------------------------------------


@pytest.mark.parametrize("of", [
    lambda noise, shares, size: DiscreteGaussian(noise, 20.0, size, shares),
    lambda noise, shares, size: Skellam(noise**2, 20.0, size, shares),
], ids=["gaussian", "skellam"])  # fmt: skip
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_more_noise_more_shares_and_fewer_rounds_cost_less(of, accountant):
    def cost(noise=3.0, shares=20, size=100, times=5, neighbours="replace"):
        release = Release(of(noise, shares, size), None, times)
        return epsilon([release], 1e-5, accountant, neighbours)

    for values in (
        [cost(noise=s) for s in (1.0, 2.0, 4.0, 30.0)],
        [cost(shares=n) for n in (5, 10, 50, 1000)],
        [cost(times=t) for t in (50, 10, 2, 1)],
        [cost(), cost(neighbours="add_or_remove")],
    ):
        assert values == sorted(values, reverse=True) and len(set(values)) == len(values)


def test_replacing_costs_what_twice_the_contribution_does():
    for kind in (DiscreteGaussian, Skellam):
        one, two = (Release(kind(400.0, c, 50, 10)) for c in (60.0, 30.0))
        near = divergences([one], "add_or_remove", ORDERS)
        far = divergences([two], "replace", ORDERS)
        assert np.all(far <= near * (1 + 1e-12))  # two contributions' L1 norms are less than that
        np.testing.assert_allclose(far, near, rtol=0.01)


def test_ledgers_hold_shares():
    for it in (DiscreteGaussian(3.0, 2.5, 7, 12), Skellam(9.0, 2.5, 7, 12)):
        release = Release(it, None, 3)
        assert read(written(release)) == release
    old = {"mechanism": "discrete_gaussian", "sigma": 2.0, "contribution": 1.0, "dimensions": 3,
           "times": 1}  # fmt: skip
    assert read(old) == Release(DiscreteGaussian(2.0, 1.0, 3))


def test_little_noise_in_shares_costs_everything():
    bad = DiscreteGaussian(0.3, 1.0, 4, 5)
    assert epsilon([Release(bad)], 1e-5) == inf
    assert as_gaussian(0.3, 5, 4)[1] == inf and as_gaussian(1.0, 1, 4)[1] == inf
    assert gaussian_rdp(2, 5.0, 1, 1.0, 1.0, 3) == pytest.approx(2 / 50)
    assert skellam_rdp(inf, 1.0, 1.0, 1.0) == inf and in_l1(3.0, 100) == 9.0


@pytest.mark.parametrize(("sigma", "shares"), [(0.8, 5), (3.0, 8), (600.0, 4)])
def test_sums_of_drawn_shares_have_their_distribution(sigma, shares):
    """χ² against the discrete Gaussian of the sum, and the variance in its interval."""
    drawn = discrete_gaussian(Simulated(5, 0, range(shares), "shares"), sigma, 40_000).sum(axis=0)
    total = sigma * sqrt(shares)
    edges = np.unique(np.round(stats.norm.ppf(np.linspace(0, 1, 42)[1:-1]) * total)) + 0.5
    reach = int(10 * total)
    below = np.cumsum(chances(total, reach))[(edges - 0.5).astype(int) + reach]
    expected = np.diff([0.0, *below, 1.0]) * len(drawn)
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=len(expected))

    assert stats.chisquare(counts, expected).pvalue > 1e-4
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(drawn))
    assert low < (drawn.astype(float) ** 2).sum() / total**2 * (1 - 3e-3 * (sigma < 1)) < high
