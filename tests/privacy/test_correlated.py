# SPDX-License-Identifier: Apache-2.0
"""Correlated noise is C⁻¹ Z, its sensitivity is that of the worst rounds, and it helps."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import log, pi, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import chi2

from archipel.errors import ArchipelError
from archipel.privacy.accounting import epsilon
from archipel.privacy.analytic import epsilon_of
from archipel.privacy.banded import _log_error, banded, best, square_root
from archipel.privacy.correlated import (
    Participation,
    Toeplitz,
    Tree,
    drawn,
    error,
    independent,
    inverse,
    released,
    workload,
)
from archipel.privacy.linear import distances

COEFFICIENTS = st.lists(st.floats(-0.4, 0.4), max_size=5).map(lambda rest: Toeplitz((1.0, *rest)))
FALLING = st.lists(st.floats(0, 1), min_size=1, max_size=6).map(
    lambda c: Toeplitz((1.0, *sorted(c, reverse=True)))
)
STRATEGIES = st.one_of(COEFFICIENTS, FALLING, st.just(Tree(20)))


def increments(strategy, rounds):
    """z in terms of Z `[T, m]`, by running the recurrence on unit vectors."""
    count = sum(strategy.fresh(t) for t in range(rounds))
    units, state = iter(torch.eye(count).double()), strategy.start(torch.zeros(count).double())
    out = []
    for t in range(rounds):
        state, z = drawn(strategy, state, [next(units) for _ in range(strategy.fresh(t))])
        out.append(z.numpy())
    return np.stack(out)


# -- the recurrence --------------------------------------------------------------------------------


@given(COEFFICIENTS, st.integers(1, 12))
def test_the_inverse_is_the_inverse(strategy, rounds):
    C = strategy.matrix(rounds)
    inverted = np.stack([inverse(strategy.coefficients, column) for column in np.eye(rounds)], 1)

    assert C @ inverted == pytest.approx(np.eye(rounds), abs=1e-9)


@given(STRATEGIES, st.integers(1, 12), st.integers(1, 4), st.integers(0, 99))
def test_the_recurrence_is_the_matrix(strategy, rounds, p, seed):
    count = sum(strategy.fresh(t) for t in range(rounds))
    Z = torch.randn(count, 2, p, dtype=torch.float64, generator=torch.manual_seed(seed))
    rows, state, out = iter(Z), strategy.start(Z[0]), []
    for t in range(rounds):
        state, z = drawn(strategy, state, [next(rows) for _ in range(strategy.fresh(t))])
        out.append(z)

    if isinstance(strategy, Toeplitz):
        solved = np.linalg.inv(strategy.matrix(rounds))
    else:
        solved = increments(strategy, rounds)
    expected = np.einsum("tm,mqp->tqp", solved, Z.numpy())
    assert torch.stack(out).numpy() == pytest.approx(expected, abs=1e-9)
    assert bool((state.t == rounds).all())


@given(STRATEGIES, st.integers(1, 16))
def test_what_is_released_follows_from_what_is_measured(strategy, rounds):
    """Prefix sums of x + z are B (C x + Z) for a B with B C = A: the noise is not more than Z."""
    B = np.tri(rounds) @ increments(strategy, rounds)

    assert B @ strategy.matrix(rounds) == pytest.approx(np.tri(rounds), abs=1e-9)
    assert (B**2).sum(1) == pytest.approx(strategy.variances(rounds), rel=1e-9)


@given(STRATEGIES, st.integers(1, 16), st.floats(0, 0.95))
@settings(max_examples=30)
def test_variances_with_momentum(strategy, rounds, momentum):
    lags = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    A = np.where(lags >= 0, workload(rounds, momentum)[np.abs(lags)], 0.0)

    expected = ((A @ increments(strategy, rounds)) ** 2).sum(1)
    assert strategy.variances(rounds, momentum) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("strategy", [Toeplitz((1.0, 0.5, 0.3)), Tree(13), independent()])
def test_a_run_that_is_resumed_goes_on_bit_for_bit(strategy):
    Z = torch.randn(40, 7, generator=torch.manual_seed(0))

    def run(state, rounds, row):
        out = []
        for t in rounds:
            count = strategy.fresh(t)
            state, z = drawn(strategy, state, list(Z[row : row + count]))
            row, out = row + count, [*out, z]
        return state, row, out

    _, _, whole = run(strategy.start(Z[0]), range(13), 0)
    state, row, begin = run(strategy.start(Z[0]), range(6), 0)
    kept = type(state)(state.t.clone(), tuple(each.clone() for each in state.rows))
    _, _, rest = run(kept, range(6, 13), row)

    assert all(torch.equal(a, b) for a, b in zip(whole, [*begin, *rest], strict=True))


def test_memory_is_that_of_the_band_or_the_height():
    assert len(Toeplitz(tuple(square_root(8))).start(torch.zeros(3)).rows) == 7
    assert len(Tree(1000).start(torch.zeros(3)).rows) == 10
    assert sum(Tree(1024).fresh(t) for t in range(1024)) == 2047


def test_noise_that_is_drawn_has_the_variance_that_is_said():
    runs, rounds = 4000, 10
    for strategy in (banded(Participation(rounds, most=1), 4), Tree(rounds)):
        generator, state = torch.manual_seed(5), strategy.start(torch.zeros(runs))
        total = torch.zeros(runs)
        for t in range(rounds):
            rows = [torch.randn(runs, generator=generator) for _ in range(strategy.fresh(t))]
            state, z = drawn(strategy, state, rows)
            total = total + z
        square = float((total.double() ** 2).sum() / strategy.variances(rounds)[-1])
        assert chi2.ppf(5e-5, runs) < square < chi2.ppf(1 - 5e-5, runs)


# -- sensitivity -----------------------------------------------------------------------------------


def patterns(who):
    for k in range(1, who.times + 1):
        for rounds in combinations(range(who.rounds), k):
            if all(b - a >= who.separation for a, b in pairwise(rounds)):
                yield list(rounds)


def worst(strategy, who):
    """The largest |Σ ± C_i| over all rounds: updates of one coordinate, with every sign."""
    C = strategy.matrix(who.rounds)
    most = 0.0
    for rounds in patterns(who):
        for signs in range(2 ** (len(rounds) - 1)):
            sign = [1 - 2 * (signs >> i & 1) for i in range(len(rounds))]
            most = max(most, float(np.linalg.norm(C[:, rounds] @ sign)))
    return most


WHO = st.builds(
    Participation, st.integers(1, 8), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 5))
)


@given(FALLING, WHO)
@settings(max_examples=60)
def test_falling_coefficients_have_an_exact_sensitivity(strategy, who):
    assert strategy.sensitivity(who) == pytest.approx(worst(strategy, who), rel=1e-9)


@given(COEFFICIENTS, WHO)
@settings(max_examples=60)
def test_other_coefficients_have_a_bound_and_short_ones_the_exact_value(strategy, who):
    found, exact = strategy.sensitivity(who), worst(strategy, who)

    assert found >= exact * (1 - 1e-9)
    if len(strategy.coefficients) <= who.separation or who.times == 1:
        assert found == pytest.approx(exact, rel=1e-9)


@given(WHO)
@settings(max_examples=60)
def test_the_tree_has_a_bound(who):
    strategy = Tree(who.rounds)

    assert strategy.sensitivity(who) >= worst(strategy, who) * (1 - 1e-9)


@pytest.mark.parametrize("rounds, separation", [(8, 1), (8, 2), (8, 8), (4, 2), (16, 4)])
def test_the_trees_bound_is_exact_for_powers_of_two(rounds, separation):
    who, strategy = Participation(rounds, separation), Tree(rounds)
    C = strategy.matrix(rounds)

    aligned = np.linalg.norm(C[:, ::separation].sum(1))
    assert strategy.sensitivity(who) == pytest.approx(float(aligned))


@given(STRATEGIES, WHO, st.integers(0, 999))
@settings(max_examples=60)
def test_no_vectors_move_it_further(strategy, who, seed):
    rng = np.random.default_rng(seed)
    C = strategy.matrix(who.rounds)
    for rounds in list(patterns(who))[:20]:
        x = rng.normal(size=(len(rounds), 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        assert np.linalg.norm(C[:, rounds] @ x) <= strategy.sensitivity(who) * (1 + 1e-9)


def test_a_whole_run_is_one_gaussian_release():
    who, sigma = Participation(12, separation=4), 3.0
    strategy = banded(who, 4)
    mu = strategy.sensitivity(who) / sigma

    assert epsilon([released(strategy, who, sigma)], 1e-5) == epsilon_of(mu, 1e-5)
    seen = strategy.matrix(12)[:, ::4].sum(1, keepdims=True)
    assert distances(seen, [0.0], sigma * np.eye(12))[0] == pytest.approx(mu)
    steps = epsilon([released(independent(), who, sigma)], 1e-5)
    assert steps == pytest.approx(epsilon_of(sqrt(3) / sigma, 1e-5))


# -- how much it helps -----------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [64, 100, 512])
def test_banded_noise_is_better_than_a_tree_and_a_tree_than_independent_noise(rounds):
    who = Participation(rounds, most=1)
    by_band = [error(banded(who, band), who) for band in (1, 2, 4, 8, 16, 32)]

    assert by_band == sorted(by_band, reverse=True)
    assert by_band[-1] < error(Tree(rounds), who) < error(independent(), who) == by_band[0]


def test_independent_noise_has_the_error_that_is_written_down():
    assert error(independent(), Participation(10)) == pytest.approx(10 * 10 * 11 / 2)
    assert error(independent(), Participation(10, most=1)) == 10 * 11 / 2


def test_who_is_in_every_round_gains_nothing():
    choice = best(Participation(50))

    assert choice.errors["independent"] <= min(choice.errors.values()) * (1 + 1e-6)
    bound = 50 * 51 * 101 / 6  # |A 1|² for any C: not below two thirds
    assert choice.errors["independent"] < 1.5 * bound


def test_epochs_gain_much():
    who = Participation(rounds=200, separation=20)
    choice = best(who, rows=31)

    assert who.times == 10
    assert choice.name.startswith("banded")
    assert (
        min(choice.errors.values()) < choice.errors["tree"] / 3 < choice.errors["independent"] / 8
    )
    assert best(who, rows=0).name == "independent"


def test_two_rounds_have_the_best_coefficient():
    """(1 + c²) (2 + (1 − c)²), minimised by another method."""
    best_c = minimize_scalar(
        lambda c: (1 + c * c) * (2 + (1 - c) ** 2), bounds=(0, 1), method="bounded"
    ).x

    found = banded(Participation(2, most=1), 2).coefficients
    assert found[1] == pytest.approx(best_c, abs=1e-4)


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 99), st.floats(0, 0.9))
@settings(max_examples=30)
def test_the_gradient_is_that_of_differences(rounds, separation, seed, momentum):
    who, w = Participation(rounds, separation), workload(rounds, momentum)
    c = np.sort(np.random.default_rng(seed).uniform(0.1, 1, min(rounds, 4)))[::-1]
    _, gradient = _log_error(c, who, w)

    for i, unit in enumerate(np.eye(len(c)) * 1e-6):
        change = _log_error(c + unit, who, w)[0] - _log_error(c - unit, who, w)[0]
        assert change / 2e-6 == pytest.approx(gradient[i], rel=1e-4, abs=1e-6)
    found = Toeplitz(tuple(c))
    assert _log_error(c, who, w)[0] == pytest.approx(log(error(found, who, momentum)))


def test_the_square_root_of_prefix_sums_has_landaus_constants():
    """Σ c_j² is Landau's constant G: 1, 5/4, 89/64 …, and (ln n + γ + 4 ln 2) / π far out."""
    squares = np.cumsum(square_root(4000) ** 2)
    C = Toeplitz(tuple(square_root(30))).matrix(30)

    assert pytest.approx(np.tri(30)) == C @ C
    assert squares[:3].tolist() == [1, 5 / 4, 89 / 64]
    assert squares[-1] == pytest.approx((log(4000) + np.euler_gamma + 4 * log(2)) / pi, rel=1e-4)
    undone = inverse(tuple(square_root(5)), np.eye(5)[0])
    assert undone.tolist() == pytest.approx([1, -1 / 2, -1 / 8, -1 / 16, -5 / 128])


def test_optimised_coefficients_are_better_than_the_square_root():
    who = Participation(300, most=1)

    whole = error(banded(who, 300), who)
    assert whole < error(Toeplitz(tuple(square_root(300))), who)
    assert error(banded(who, 16), who) < error(Toeplitz(tuple(square_root(16))), who)


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: Participation(0), "rounds = 0: give a whole number from 1"),
        (lambda: Participation(5, separation=0), "separation = 0"),
        (lambda: Participation(5, most=0), "most = 0"),
        (lambda: Participation(2.5), "rounds = 2.5"),
        (lambda: Toeplitz(()), "coefficients"),
        (lambda: Toeplitz((0.0, 1.0)), "diagonal"),
        (lambda: Toeplitz((1.0, float("nan"))), "finite"),
        (lambda: banded(Participation(5), 6), "band = 6: .* from 1 to the number of rounds, 5"),
        (lambda: banded(Participation(5), 2, momentum=1.0), "momentum = 1.0"),
        (lambda: best(Participation(5), rows=-1), "rows = -1"),
    ],
)
def test_bad_input_is_one_sentence(make, says):
    with pytest.raises(ArchipelError, match=says):
        make()


def test_a_tree_ends():
    strategy, one = Tree(1), torch.ones(2)
    state, z = drawn(strategy, strategy.start(one), [one])

    assert torch.equal(z, one)
    with pytest.raises(ArchipelError, match="rounds = 1: the tree's noise is used up"):
        drawn(strategy, state, [one])


def test_one_round_is_one_release():
    who = Participation(1)

    assert error(Tree(1), who) == error(independent(), who) == 1
    assert best(who).name == "independent"
