# SPDX-License-Identifier: Apache-2.0
"""What shuffling adds: n reports, each ε0-private by itself, of which nobody knows whose is which.

Feldman, McMillan, Talwar, FOCS 2021, https://arxiv.org/abs/2012.12803, Theorem 3.1 (closed form)
and 3.2 (numeric). Balle, Bell, Gascón, Nissim, CRYPTO 2019, https://arxiv.org/abs/1903.02837,
Theorem 5.3 with its two bounds. Erlingsson et al., SODA 2019, https://arxiv.org/abs/1811.12469.

Numeric. One participant's data is x or x'. With probability e^-ε0 another's report is drawn as if
its data were one of these two, either alike: a clone. C ~ Bin(n - 1, e^-ε0) clones, A ~ Bin(C, 1/2)
of them of x, and the report itself as binary randomised response would make it: whatever the
randomiser, its shuffled reports are post-processing of

    P = (A + Δ, C - A + 1 - Δ)  or  Q = (A + 1 - Δ, C - A + Δ),   Δ ~ Bern(e^ε0 / (e^ε0 + 1)).

P and Q are mirror images, so δ is one curve, and since C + 1 is seen, δ(ε) is the mean of δ_c(ε).
δ_c falls with c, which bounds the mean from both sides where several c are taken together; the
upper bound is what everything here uses.

k-ary randomised response, exactly. A report is uniform with probability γ = k / (e^ε0 + k - 1), and
else the truth. Tell the adversary which of the others' are not uniform, and whether the
participant's own report is one of x and x': it is, with probability w = (e^ε0 + 1) / (e^ε0 + k - 1)
under both. Then what tells x from x' are the uniform reports of these two values, C ~ Bin(n - 1,
2 / (e^ε0 + k - 1)), and δ(ε) <= w times the mean of δ_c(ε). For k = 2 this is 2 / (e^ε0 + 1) of
clones in place of e^-ε0, up to twice as many.

Only reports of honest participants hide anything: n is their number, and who may collude with the
analyser is not among them. Neighbours differ in one participant's data: it is replaced.

Departures: the closed form is the one of the authors' code, which is slightly above the theorem's.
Every c is taken, or a few together, where that code has steps of a fixed size. Of Balle's bounds,
the mean over the number of uniform reports is taken in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, expm1, floor, inf, log, log1p, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archipel.errors import ArchipelError
from archipel.privacy.analytic import smallest
from archipel.privacy.checks import check_count, check_delta, positive
from archipel.privacy.curves import Array

_BLOCKS, _FEWER = 400, 80  # of numbers of clones, and for a whole curve; the worst counts
_BEYOND = 1e-18  # of the mean, that no clones count for
_ROUNDED = 1e-11  # of the terms that are added up


@dataclass(frozen=True)
class Randomiser:
    """What is known of a local randomiser: ε0, and what it does where that tells more.

    >>> round(Randomiser(1.0).clones, 3), round(Randomiser(1.0, values=2).clones, 3)
    (0.368, 0.538)
    """

    epsilon0: float
    values: int | None = None  # k, of k-ary randomised response; None: any randomiser

    def __post_init__(self) -> None:
        positive("epsilon0", self.epsilon0)
        if self.values is not None and check_count("values", self.values) < 2:
            raise ArchipelError(f"values = {self.values}: give 2 or more to choose from.")

    @property
    def clones(self) -> float:
        """How likely another's report hides the participant's."""
        if self.values is None:
            return exp(-self.epsilon0)
        return 2 / (exp(self.epsilon0) + self.values - 1)

    @property
    def heard(self) -> float:
        """How likely the participant's own report tells anything."""
        if self.values is None:
            return 1.0
        return (exp(self.epsilon0) + 1) / (exp(self.epsilon0) + self.values - 1)


def honest(reports: int, share: float) -> int:
    """How many of the reports hide the others, where this share of participants is honest.

    >>> honest(1000, 0.5)
    500
    """
    if not 0 < share <= 1:
        raise ArchipelError(f"honest = {share}: give a share above 0 and up to 1.")
    return max(1, floor(reports * share + 1e-9))


# -- the numeric bound -----------------------------------------------------------------------------


class Bounds(NamedTuple):
    """Between two numbers that were computed."""

    lower: float
    upper: float


def deltas(randomiser: Randomiser, reports: int, epsilons: ArrayLike, lower: bool = False) -> Array:
    """δ at each ε >= 0: at most this, or with `lower` at least this, for the pair (P, Q)."""
    asked = np.asarray(epsilons, np.float64)
    blocks = _BLOCKS if asked.size < 100 else _FEWER
    starts, ends, mass = _blocks(check_count("reports", reports) - 1, randomiser.clones, blocks)
    out = np.zeros(asked.shape)
    for at in np.ndindex(asked.shape):
        each = _given(ends if lower else starts, float(asked[at]), randomiser.epsilon0, lower)
        out[at] = randomiser.heard * float(each @ mass)
    missing = 0.0 if lower else randomiser.heard * _BEYOND
    below = asked < randomiser.epsilon0
    found: Array = np.where(below, np.clip(out + missing, 0.0, 1.0), 0.0)
    return found


def _blocks(n: int, share: float, blocks: int) -> tuple[Array, Array, Array]:
    """Numbers of clones in blocks, all but `_BEYOND` of them: first, last, how likely."""
    from scipy.stats import binom  # takes long to import

    need, mean = log(2 / _BEYOND), n * share
    reach = need / 3 + sqrt(need * need / 9 + 2 * need * mean * (1 - share))  # Bernstein
    low, high = max(floor(mean - reach), 0), min(ceil(mean + reach), n)
    edges = np.unique(np.linspace(low, high + 1, min(blocks, high + 1 - low) + 1).astype(np.int64))
    starts, ends = edges[:-1], edges[1:] - 1
    upper_half = starts > mean  # differences of what is small
    mass = np.where(
        upper_half,
        binom.sf(starts - 1, n, share) - binom.sf(ends, n, share),
        binom.cdf(ends, n, share) - binom.cdf(starts - 1, n, share),
    )
    return starts.astype(np.float64), ends.astype(np.float64), np.maximum(mass, 0.0)


def _given(c: Array, epsilon: float, epsilon0: float, lower: bool) -> Array:
    """δ_c(ε) for each number of clones.

    P(a) = α b(a - 1) + (1 - α) b(a), Q the same with 1 - α for α, b of Bin(c, 1/2). P / Q grows
    with a, and is above e^ε from the first a with b(a) / b(a - 1) = (c - a + 1) / a below r.
    """
    from scipy.stats import binom

    alpha = 1 / (1 + exp(-epsilon0))
    gain, loss = alpha - exp(epsilon) * (1 - alpha), exp(epsilon) * alpha - (1 - alpha)
    if gain <= 0:
        return np.zeros_like(c)
    first = np.floor((c + 1) / (1 + gain / loss)) + 1  # r = gain / loss
    one, above = binom.pmf(first - 1, c, 0.5), binom.sf(first - 1, c, 0.5)
    terms = gain * one, expm1(epsilon) * above
    error = _ROUNDED * (terms[0] + terms[1])
    exact: Array = terms[0] - terms[1]
    found: Array = np.maximum(exact + (-error if lower else error), 0.0)
    return found


def delta_of(randomiser: Randomiser, reports: int, epsilon: float) -> float:
    """δ of the shuffled reports at ε, rounded up."""
    return float(deltas(randomiser, reports, epsilon))


def epsilon_of(randomiser: Randomiser, reports: int, delta: float) -> float:
    """ε of the shuffled reports at δ, rounded up; never more than ε0.

    >>> round(epsilon_of(Randomiser(4.0), 10**5, 1e-6), 3)
    0.17
    """
    return epsilon_bounds(randomiser, reports, delta).upper


def epsilon_bounds(randomiser: Randomiser, reports: int, delta: float) -> Bounds:
    """Between which ε the pair (P, Q) has this δ."""
    check_delta(delta)

    def first(lower: bool) -> float:
        return _first(
            lambda t: float(deltas(randomiser, reports, t, lower)) <= delta, randomiser.epsilon0
        )

    return Bounds(first(True), first(False))


def _first(holds: Callable[[float], bool], most: float) -> float:
    """The least ε up to ε0 from which on something holds, to 1e-9 of it and on the safe side."""
    low, high = 0.0, most
    if holds(0.0):
        return 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def epsilon0_for(epsilon: float, reports: int, delta: float, values: int | None = None) -> float:
    """The largest ε0 whose shuffled reports cost no more than (ε, δ), rounded down.

    >>> round(epsilon0_for(1.0, 1000, 1e-5), 2) > 2
    True
    """
    positive("epsilon", epsilon)
    check_delta(delta)
    low, high = epsilon, epsilon + 1.0  # a report alone costs ε0 at most

    def enough(epsilon0: float) -> bool:
        return delta_of(Randomiser(epsilon0, values), reports, epsilon) <= delta

    while enough(high):
        low, high = high, high + 1.0
        if high > 700:
            return low
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


# -- what the papers say in formulas ---------------------------------------------------------------


def closed_form(epsilon0: float, reports: int, delta: float) -> float:
    """ε by the closed form of Feldman, McMillan, Talwar; ε0 where that does not hold.

    >>> round(closed_form(4.0, 10**5, 1e-6), 4)
    0.5378
    """
    if epsilon0 > log(reports / (16 * log(4 / delta))):
        return epsilon0
    grown = 8 * sqrt(exp(epsilon0) * log(4 / delta) / reports) + 8 * exp(epsilon0) / reports
    told = -expm1(-epsilon0) / (1 + exp(-epsilon0) / (1 + grown))
    return min(log1p(told * grown), epsilon0)


def erlingsson(epsilon0: float, reports: int, delta: float) -> float:
    """ε by Erlingsson et al.: for ε0 <= 1/2, n >= 1000, δ < 1/100, and NaN elsewhere."""
    if not (epsilon0 <= 0.5 and reports >= 1000 and delta < 0.01):
        return nan
    return 12 * epsilon0 * sqrt(log(1 / delta) / reports)


class Blanket(NamedTuple):
    """What Balle et al. need of a randomiser, where ε is asked for.

    L = (μ_x(Y) - e^ε μ_x'(Y)) / ω(Y) for Y ~ ω, the part that all data share: E L = γ (1 - e^ε)
    in their scale, where L has the factor γ.
    """

    gamma: float  # how likely a report is of the blanket, at least
    most: float  # b+, of L
    width: float  # b, of L
    square: float  # c, E L^2


def any_blanket(epsilon0: float, epsilon: float) -> Blanket:
    """Of any randomiser."""
    e0, e = exp(epsilon0), exp(epsilon)
    return Blanket(
        1 / e0, e0 * (1 - e / e0**2), (e + 1) * (e0 - 1 / e0), e0 * (e * e + 1) - 2 * e / e0**3
    )


def response_blanket(epsilon0: float, epsilon: float, values: int = 2) -> Blanket:
    """Of k-ary randomised response."""
    k, e = values, exp(epsilon)
    gamma = k / (exp(epsilon0) + k - 1)
    most = gamma * (1 - e) + (1 - gamma) * k
    square = gamma * (2 - gamma) * (e - 1) ** 2 + (1 - gamma) ** 2 * k * (e * e + 1)
    return Blanket(gamma, most, (1 - gamma) * k * (e + 1), square)


def laplace_blanket(epsilon0: float, epsilon: float) -> Blanket:
    """Of Laplace noise on a number in [0, 1]."""
    half, e = exp(epsilon0 / 2), exp(epsilon)
    square = (e * e + 1) / 3 * (2 * half + half**-2) - 2 * e * (2 / half - half**-2)
    return Blanket(1 / half, half * (1 - e / half**2), (e + 1) * (half - 1 / half), square)


def hoeffding(blanket: Blanket, reports: int, epsilon: float) -> float:
    """δ by Balle et al. with Hoeffding's inequality."""
    (gamma, _, b, _), a = blanket, expm1(epsilon)
    exponent = reports * log1p(gamma * expm1(-2 * a * a / (b * b)))
    return min(1.0, b * b / (4 * a * gamma * reports) * exp(exponent))


def bennett(blanket: Blanket, reports: int, epsilon: float) -> float:
    """δ by Balle et al. with Bennett's inequality.

    P(L_1 + ... + L_m > t) <= e^(-m (c / b^2) φ(b (a + t / m) / c)), φ(u) = (1 + u) ln(1 + u) - u;
    φ is above its tangent, so the integral over t is at most e^(-m (c / b^2) φ(u)) b / ln(1 + u),
    u = a b / c.
    """
    (gamma, b, _, c), a = blanket, expm1(epsilon)
    if b <= 0:
        return 0.0
    u = a * b / c
    phi = (1 + u) * log1p(u) - u
    exponent = reports * log1p(gamma * expm1(-(c / b**2) * max(phi, 0.0)))
    return min(1.0, b / (gamma * reports * log1p(u)) * exp(exponent))


def epsilon_by(
    bound: Callable[[Blanket, int, float], float],
    blanket: Callable[[float, float], Blanket],
    epsilon0: float,
    reports: int,
    delta: float,
) -> float:
    """ε at δ by one of Balle's bounds; ε0 where it says nothing better."""

    def holds(t: float) -> bool:
        return t >= epsilon0 or (t > 0 and bound(blanket(epsilon0, t), reports, t) <= delta)

    found = smallest(holds)
    return min(found, epsilon0) if found < inf else epsilon0
