"""A private mean with other trust than in a sum: its noise is what is said, its reports keep ε."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from archipel.aggregation.averaging import Question
from archipel.aggregation.trusting import levels, mean
from archipel.errors import ArchipelError
from archipel.privacy import gopa, shuffling
from archipel.privacy.accounting import Release, epsilon
from archipel.privacy.release import Shuffled

ONE = Question(("deaths",), (10.0,), (60.0,), 1.0, honest=1.0)
TWO = Question(("a", "b"), (0.0, -1.0), (1.0, 3.0), 1.0, honest=0.8, dropouts=0.1)


def test_one_number_is_told_at_the_epsilon_that_mixing_makes_of_it():
    way = levels(ONE, 500)
    randomiser = shuffling.Randomiser(way.epsilon0, way.levels)

    assert way.epsilon0 > 2
    assert shuffling.epsilon_of(randomiser, 500, 1e-5) == pytest.approx(1.0, rel=1e-3)
    assert levels(replace(ONE, honest=0.5), 500).epsilon0 < way.epsilon0
    assert levels(replace(ONE, dropouts=0.2), 500) == levels(replace(ONE, honest=0.8), 500)


def test_several_numbers_are_composed():
    way = levels(TWO, 300)
    hiding = 300 * 8 // 10 - 30
    release = Release(Shuffled(way.epsilon0, hiding, way.levels), None, 2)

    spent = epsilon([release], 1e-5, neighbours="replace")
    assert 0.99 < spent <= 1.0
    assert way.epsilon0 < levels(replace(ONE, honest=0.7), 300).epsilon0


@pytest.mark.parametrize("trust", ["server", "shuffler", "nobody"])
def test_means_have_the_deviation_that_is_said(trust):
    values = np.linspace(10, 60, 400)[:, None]
    found = [mean(trust, ONE, values, seed) for seed in range(200)]
    errors = np.array([each.estimate[0] - values.mean() for each in found])
    deviation = found[0].deviation[0]

    assert abs(errors.mean()) < 4 * deviation / sqrt(200)
    assert errors.std() < deviation * (1 + 4 / sqrt(2 * 200))
    assert errors.std() > 0.6 * deviation  # of reports it is the most, whatever the numbers are
    assert mean(trust, ONE, values, 3).estimate == found[3].estimate


def test_trust_is_bought_with_error():
    values = np.full((1000, 1), 30.0)
    server, shuffler, nobody = (
        mean(trust, ONE, values, 0).deviation[0] for trust in ("server", "shuffler", "nobody")
    )
    total = ONE.deviation(ONE.plan(1000), 1000)[0]

    assert server <= total < shuffler < nobody
    assert nobody / server == pytest.approx(sqrt(1000))
    assert server == pytest.approx(50 * gopa.curator_error(1.0, 1e-5, 1000))


def test_what_reports_cannot_promise_is_refused():
    with pytest.raises(ArchipelError, match=r"average\.contribution: a report hides all"):
        levels(replace(ONE, contribution=(1.0,)), 100)
    with pytest.raises(ArchipelError, match="no report of 4 parties is left"):
        levels(replace(ONE, honest=0.3, dropouts=0.5), 4)
