"""What shuffling adds: bounds against brute force and published numbers; uniform orders."""

from itertools import permutations
from math import exp, isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from archipel.errors import ArchipelError
from archipel.privacy import shuffling as s
from archipel.privacy.accounting import epsilon
from archipel.privacy.release import Release, Shuffled, read, written
from archipel.privacy.sources import Keystream, Simulated
from archipel.privacy.uniform import below, permutation

ALPHA = 1e-4


def pair(epsilon0, c):
    """P and Q of the paper for c clones, over the number of those of x."""
    alpha, a = 1 / (1 + exp(-epsilon0)), np.arange(c + 2)
    one, none = binom.pmf(a - 1, c, 0.5), binom.pmf(a, c, 0.5)
    return alpha * one + (1 - alpha) * none, (1 - alpha) * one + alpha * none


def brute(epsilon0, n, clones, epsilon):
    total = 0.0
    for c in range(n):
        P, Q = pair(epsilon0, c)
        total += binom.pmf(c, n - 1, clones) * np.maximum(P - exp(epsilon) * Q, 0).sum()
    return total


@settings(deadline=None, max_examples=60)
@given(st.floats(0.05, 5), st.integers(1, 40), st.floats(0, 1))
def test_the_numeric_bound_is_the_mean_over_the_number_of_clones(epsilon0, n, part):
    randomiser, epsilon = s.Randomiser(epsilon0), part * epsilon0
    found = brute(epsilon0, n, randomiser.clones, epsilon)

    assert s.delta_of(randomiser, n, epsilon) == pytest.approx(found, rel=1e-7, abs=1e-10)
    assert s.delta_of(randomiser, n, epsilon) >= found * (1 - 1e-12)
    assert s.deltas(randomiser, n, epsilon, lower=True) <= found * (1 + 1e-12)


def response_delta(n, k, epsilon0, epsilon, others):
    """δ of shuffled randomised response by its definition: counts of every value, x = 0, x' = 1."""
    p, q = exp(epsilon0) / (exp(epsilon0) + k - 1), 1 / (exp(epsilon0) + k - 1)

    def seen(values):
        found = {(0,) * k: 1.0}
        for value in values:
            after = {}
            for counts, chance in found.items():
                for told in range(k):
                    more = tuple(c + (i == told) for i, c in enumerate(counts))
                    after[more] = after.get(more, 0.0) + chance * (p if told == value else q)
            found = after
        return found

    P, Q = seen([0, *others]), seen([1, *others])
    return sum(max(P[each] - exp(epsilon) * Q[each], 0.0) for each in P)


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("epsilon0", [0.5, 1.5, 3.0])
def test_randomised_response_costs_no_more_than_its_bound_whatever_the_others_have(k, epsilon0):
    n, rng = 7, np.random.default_rng(1)
    randomiser, any_ = s.Randomiser(epsilon0, k), s.Randomiser(epsilon0)
    for others in [[0] * 6, [1] * 6, [k - 1] * 6, *rng.integers(k, size=(6, 6)).tolist()]:
        for part in (0.0, 0.2, 0.6):
            found = response_delta(n, k, epsilon0, part * epsilon0, others)

            assert found <= s.delta_of(randomiser, n, part * epsilon0) * (1 + 1e-9)
            assert found <= s.delta_of(any_, n, part * epsilon0) * (1 + 1e-9)


def test_the_published_numbers():
    lower, upper = s.epsilon_bounds(s.Randomiser(4.0), 10**5, 1e-6)

    assert 0.1675 <= lower <= upper <= 0.1728  # between the two that the authors' code prints
    assert upper - lower < 1e-3 * upper
    assert round(s.closed_form(4.0, 10**5, 1e-6), 4) == 0.5378


@pytest.mark.parametrize(
    ("n", "epsilon0", "delta", "numeric", "closed"),
    [(1000, 1, 1e-5, 0.174, 0.61), (10**4, 1, 1e-6, 0.0535, 0.233), (10**4, 2, 1e-6, 0.159, 0.524)],
)
def test_never_above_what_steps_of_a_hundred_clones_find(n, epsilon0, delta, numeric, closed):
    found = s.epsilon_of(s.Randomiser(epsilon0), n, delta)

    assert 0.85 * numeric < found < numeric
    assert s.closed_form(epsilon0, n, delta) == pytest.approx(closed, abs=0.005)
    assert s.epsilon_of(s.Randomiser(epsilon0, 2), n, delta) < found


def test_the_closed_form_is_above_and_no_shuffling_is_worse_than_none():
    for epsilon0 in (0.3, 1.0, 2.5, 6.0, 12.0):
        for n in (1, 2, 100, 5000):
            found = s.epsilon_of(s.Randomiser(epsilon0), n, 1e-6)
            assert found <= s.closed_form(epsilon0, n, 1e-6) <= epsilon0


def test_balles_bounds_hold_for_what_they_are_of():
    n, delta = 10**4, 1e-6
    for epsilon0 in (0.5, 1.0, 2.0):
        exact = s.epsilon_of(s.Randomiser(epsilon0, 2), n, delta)
        for bound in (s.hoeffding, s.bennett):
            own = s.epsilon_by(bound, s.response_blanket, epsilon0, n, delta)
            any_ = s.epsilon_by(bound, s.any_blanket, epsilon0, n, delta)
            laplace = s.epsilon_by(bound, s.laplace_blanket, epsilon0, n, delta)
            assert exact <= own <= any_ <= epsilon0
            assert laplace <= any_


def test_erlingssons_bound_where_it_is_proved():
    assert s.erlingsson(0.5, 10**6, 1e-6) == pytest.approx(12 * 0.5 * (np.log(1e6) / 1e6) ** 0.5)
    assert s.epsilon_of(s.Randomiser(0.5), 10**6, 1e-6) < s.erlingsson(0.5, 10**6, 1e-6)
    assert all(isnan(s.erlingsson(*each)) for each in [(0.6, 10**6, 1e-6), (0.5, 999, 1e-6)])


@pytest.mark.parametrize("values", [None, 2, 8])
@pytest.mark.parametrize("target", [0.1, 1.0, 4.0])
def test_the_largest_epsilon0_for_a_budget(target, values):
    found = s.epsilon0_for(target, 1000, 1e-5, values)

    assert found >= target
    assert s.delta_of(s.Randomiser(found, values), 1000, target) <= 1e-5
    assert s.delta_of(s.Randomiser(found * 1.001, values), 1000, target) > 1e-5


def test_reports_of_those_who_collude_hide_nothing():
    assert s.honest(1000, 0.5) == 500
    assert s.epsilon_of(s.Randomiser(1.0), s.honest(1000, 0.1), 1e-5) > s.epsilon_of(
        s.Randomiser(1.0), 1000, 1e-5
    )
    assert s.epsilon_of(s.Randomiser(1.0), 1, 1e-12) == pytest.approx(1.0)
    with pytest.raises(ArchipelError, match=r"honest = 1\.5: give a share above 0"):
        s.honest(10, 1.5)


# -- accounting ------------------------------------------------------------------------------------


def test_one_release_costs_what_the_bound_says_and_several_less_than_their_sum():
    alone = s.epsilon_of(s.Randomiser(1.0), 1000, 1e-6)
    once, ten = (
        epsilon([Release(Shuffled(1.0, 1000), times=times)], 1e-6, neighbours="replace")
        for times in (1, 10)
    )

    assert alone <= once <= 1.005 * alone
    assert once < ten < 10 * s.epsilon_of(s.Randomiser(1.0), 1000, 1e-7)


def test_composition_against_the_convolution_by_hand():
    """Two releases with n = 3: all outcomes of (P, Q) x (P, Q)."""
    epsilon0, n, clones = 1.2, 3, exp(-1.2)
    outcomes = [
        (binom.pmf(c, n - 1, clones) * p, binom.pmf(c, n - 1, clones) * q)
        for c in range(n)
        for p, q in zip(*pair(epsilon0, c), strict=True)
    ]
    P, Q = (np.multiply.outer(*[np.array(each)] * 2) for each in zip(*outcomes, strict=True))
    found = epsilon([Release(Shuffled(epsilon0, n), times=2)], 0.05, neighbours="replace")

    assert np.maximum(P - exp(found) * Q, 0).sum() <= 0.05
    assert np.maximum(P - exp(found * 0.98) * Q, 0).sum() > 0.05


def test_shuffled_reports_are_written_and_read_and_only_replaced():
    release = Release(Shuffled(1.0, 1000, 2), times=3)

    assert read(written(release)) == release
    with pytest.raises(ArchipelError, match="say neighbours = 'replace'"):
        epsilon([release], 1e-6)


# -- orders ----------------------------------------------------------------------------------------


def test_every_order_of_five_is_as_likely():
    count = 60_000
    source = Keystream(bytes(range(32)))
    orders = {each: i for i, each in enumerate(permutations(range(5)))}
    found = np.bincount([orders[tuple(permutation(source, 5))] for _ in range(count)])
    statistic = ((found - count / 120) ** 2).sum() / (count / 120)

    assert chi2.sf(statistic, 119) > ALPHA


def test_the_first_of_a_thousand_is_anywhere():
    count = 20_000
    source = Keystream(b"the first of a thousand" + bytes(9))
    first = [int(np.argmin(permutation(source, 1000))) for _ in range(count // 10)]
    second = [int(np.argmax(permutation(source, 1000))) for _ in range(count // 10)]
    for found in (first, second):
        bins = np.bincount(np.array(found) // 10, minlength=100)
        expected = len(found) / 100
        assert chi2.sf(((bins - expected) ** 2).sum() / expected, 99) > ALPHA


class Given:
    """Words that were chosen."""

    protects, parties = True, 1

    def __init__(self, *words):
        self.rest = list(words)

    def words(self, counts):
        taken, self.rest = self.rest[: counts.sum()], self.rest[counts.sum() :]
        return np.array(taken, np.uint64)


def test_words_beyond_the_last_whole_multiple_are_drawn_again():
    source = Given(2**64 - 1, 5)  # 2^64 = 1 modulo 3: the last word of all is one too many
    assert below(source, 3, 1).tolist() == [[2]]
    assert source.rest == []
    assert below(Given(2**64 - 2), 3, 1).tolist() == [[2]]
    assert below(Given(2**64 - 1), 4, 1).tolist() == [[3]]


def test_integers_are_uniform_for_each_party():
    drawn = below(Simulated(1, 0, range(3), "test"), 7, 20_000)
    for row in drawn:
        found = np.bincount(row, minlength=7)
        expected = len(row) / 7
        assert chi2.sf(((found - expected) ** 2).sum() / expected, 6) > ALPHA
    assert len(np.unique(drawn, axis=0)) == 3
