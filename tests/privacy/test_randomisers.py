"""Local randomisers: what they tell is right on average, as far off as they say, and no more."""

from math import exp, log

import numpy as np
import pytest
from scipy.stats import binomtest, chi2, norm

from archipel.errors import ArchipelError
from archipel.privacy.randomisers import (
    Coordinates,
    Levels,
    Response,
    best_levels,
    shuffled_histogram,
    shuffled_mean,
)
from archipel.privacy.shuffling import Randomiser, epsilon_of
from archipel.privacy.sources import Simulated

ALPHA, RUNS = 1e-4, 2000
COUNTS = np.array([50, 0, 120, 30])
NUMBERS = np.linspace(-1, 3, 60)
VECTORS = np.random.default_rng(3).uniform(-2, 2, (50, 4))


def source(parties, run=0):
    return Simulated(7, run, range(parties), "reports")


def check_right(found, truth, variance):
    """Means by a z-test, variances by chi-squared, all coordinates at ALPHA together."""
    found = np.asarray(found).reshape(RUNS, -1)
    truth, variance = np.ravel(truth), np.ravel(variance)
    level = ALPHA / found.shape[1] / 2
    z = (found.mean(0) - truth) / np.sqrt(variance / RUNS)
    assert (2 * norm.sf(np.abs(z)) > level).all(), z
    statistic = RUNS * ((found - truth) ** 2).mean(0) / variance
    tails = np.minimum(chi2.sf(statistic, RUNS), chi2.cdf(statistic, RUNS))
    assert (tails > level / 10).all(), statistic / RUNS


def test_a_histogram_by_randomised_response_is_unbiased_with_its_variance():
    way, held = Response(1.0, 4), np.repeat(np.arange(4), COUNTS)
    found = [way.estimate(way.report(held, source(200, run))) for run in range(RUNS)]

    check_right(found, COUNTS, way.variance(COUNTS))


@pytest.mark.parametrize("levels", [2, 5])
def test_a_mean_by_levels_is_unbiased_with_its_variance(levels):
    way = Levels(0.7, -1.0, 3.0, levels)
    found = [way.estimate(way.report(NUMBERS, source(60, run))) for run in range(RUNS)]

    check_right(found, NUMBERS.mean(), way.variance(NUMBERS))


@pytest.mark.parametrize("epsilon0", [1.0, 6.0])
def test_a_sum_of_vectors_by_coordinates_is_unbiased_with_its_variance(epsilon0):
    way = Coordinates(epsilon0, 4, bound=2.0)
    found = [way.estimate(way.report(VECTORS, source(50, run))) for run in range(RUNS)]

    assert way.told == (1 if epsilon0 == 1.0 else 2)
    check_right(found, VECTORS.sum(0), way.variance(VECTORS))


def test_the_deviation_of_levels_is_the_worst_over_all_numbers():
    way = Levels(1.3, 0.0, 2.0, 4)
    numbers = np.linspace(0, 2, 1001)

    assert way.deviation**2 >= max(way.variance(numbers[[i]]) for i in range(1001)) * 0.999


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_shuffled_mean_and_histogram_keep_their_budget(share):
    numbers = np.linspace(0, 1, 400) ** 2
    values = np.repeat([0, 1, 2], [200, 150, 50])
    mean = shuffled_mean(numbers, 1.0, 1e-5, source(400), source(1), share=share)
    counts = shuffled_histogram(values, 3, 1.0, 1e-5, source(400), source(1), share=share)
    levels = best_levels(1.0, int(400 * share), 1e-5).levels

    assert abs(mean.value - numbers.mean()) < 5 * mean.deviation
    assert (np.abs(counts.value - [200, 150, 50]) < 5 * counts.deviation).all()
    for told, k in ((mean, levels), (counts, 3)):
        assert epsilon_of(Randomiser(told.epsilon0, k), int(400 * share), 1e-5) <= 1.0 + 1e-9
        assert told.epsilon0 > 1.5  # more than a report alone may cost


def test_chances_are_those_of_randomised_response():
    way = Response(2.0, 3)
    told = way.report(np.ones(40_000, int), source(40_000))
    for value, chance in ((0, way.other), (1, way.truth), (2, way.other)):
        assert binomtest(int((told == value).sum()), len(told), chance).pvalue > ALPHA
    assert way.truth / way.other == pytest.approx(exp(2.0))
    assert way.truth + 2 * way.other == pytest.approx(1.0)


def test_no_report_is_likelier_than_epsilon0_allows():
    """Of all reports of (s = 2 coordinates, bits): the ratio for two vectors, by their chances."""
    assert Coordinates(5.0, 2).told == 2
    flipped = 1 / (exp(5.0 / 2) + 1)

    def chance(x, j, bit):
        one = (x[j] + 1) / 2
        right = one if bit else 1 - one
        return (right * (1 - flipped) + (1 - right) * flipped) / 2

    corners = [np.array(each) for each in ((1, 1), (-1, -1), (1, -1), (0.3, -0.7))]
    for x in corners:
        for y in corners:
            worst = max(
                chance(x, j, a) * chance(x, k, b) / (chance(y, j, a) * chance(y, k, b))
                for j in (0, 1)
                for k in (0, 1)
                for a in (0, 1)
                for b in (0, 1)
            )
            assert log(worst) <= 5.0 + 1e-9


def test_numbers_outside_are_clipped_and_nan_is_nothing():
    way = Coordinates(50.0, 1, bound=1.0)
    told = way.report([[1e9], [-np.inf], [np.nan], [-3.0]] * 200, source(800))
    ones = (told % 2).mean(1).reshape(200, 4).mean(0)

    assert ones[0] == 1.0
    assert ones[3] == 0.0
    assert 0.3 < ones[1] < 0.7  # what is not finite counts as 0
    assert 0.3 < ones[2] < 0.7


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Response(1.0, 1), r"values = 1: give 2 or more"),
        (lambda: Response(0.0, 2), r"epsilon0 = 0\.0: give a finite number above 0"),
        (lambda: Response(1.0, 3).report([3], source(1)), "whole numbers from 0 to 2"),
        (lambda: Response(1.0, 3).report([0.5], source(1)), "whole numbers from 0 to 2"),
        (lambda: Levels(1.0, 2.0, 2.0), r"low = 2\.0, high = 2\.0: give low below high"),
        (lambda: Coordinates(1.0, 3).report([[0.0]], source(1)), "give 1 of 3 coordinates"),
    ],
)
def test_what_cannot_be_told_is_refused(make, said):
    with pytest.raises(ArchipelError, match=said):
        make()
