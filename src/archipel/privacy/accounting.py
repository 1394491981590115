# SPDX-License-Identifier: Apache-2.0
"""What releases cost: ε and δ of all together, the noise for a target, the curve over rounds.

Releases add up whatever they belong to: messages, rounds, evaluations, studies on the same data.
Every answer is an upper bound, and every noise is enough.

- Gaussian noise that everybody's contribution gets: exact, mu² = Σ mu_i² (`curves.py`).
- Discrete Gaussian noise on vectors of whole numbers, in shares or not: as the Gaussian noise that
  it is made of, where the factor between the two is next to 1 (`shares.py`).
- "pld": privacy-loss distributions (`losses.py`), nearly exact. Other noise on vectors of whole
  numbers, and a δ too small for a Fourier transform, go the next way.
- "rdp": Rényi divergences (`renyi.py`), looser by some 10 %.

What was asked is remembered (`remembered.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, expm1, inf, log, sqrt
from typing import Literal

import numpy as np

from archipel.errors import ArchipelError, unknown
from archipel.privacy.analytic import epsilon_of
from archipel.privacy.curves import Array, gaussian_delta
from archipel.privacy.losses import SLACK, has_losses, losses
from archipel.privacy.release import (
    DISTANCE,
    Binomial,
    DiscreteGaussian,
    FixedSize,
    Gaussian,
    Laplace,
    Neighbours,
    Poisson,
    Pure,
    Release,
    Shuffled,
    Skellam,
    bare,
    together,
)
from archipel.privacy.remembered import remembered
from archipel.privacy.renyi import renyi_delta, renyi_epsilon
from archipel.privacy.shares import as_gaussian

__all__ = [
    "Accountant",
    "Binomial",
    "DiscreteGaussian",
    "FixedSize",
    "Gaussian",
    "Laplace",
    "Neighbours",
    "Poisson",
    "Pure",
    "Release",
    "Skellam",
    "curve",
    "delta",
    "deltas",
    "epsilon",
    "noise_for",
]

Accountant = Literal["pld", "rdp"]
Releases = Sequence[Release]

_CUT = 1e-4  # part of δ that a grid may cut off
_VAST = 200.0  # an ε whose grid may be too wide
_NEAR = 1e-3  # how far below its target the noise that is found may leave ε
_QUIETEST, _LOUDEST = 1e-4, 1e9  # noise that is tried
_FACTOR = 1e-3  # between discrete and continuous noise, at most: logarithm
_COARSE = 8.0  # times the step of a grid, while searching


def epsilon(
    releases: Releases,
    delta: float,
    accountant: Accountant = "pld",
    neighbours: Neighbours = "add_or_remove",
) -> float:
    """The ε of all releases together at `delta`, rounded up; infinite where noise is missing.

    >>> step = Release(Gaussian(1.1), Poisson(0.01), times=6000)
    >>> round(epsilon([step], delta=1e-5), 2)
    3.9
    """
    _check(releases, accountant, neighbours)
    _check_delta(delta)
    return _asked(releases, delta, accountant, neighbours)


def _asked(
    releases: Releases, delta: float, accountant: Accountant, neighbours: Neighbours
) -> float:
    known = together(releases)
    asked = ("epsilon", known, float(delta), accountant, neighbours)
    return remembered(asked, lambda: _epsilon(known, delta, accountant, neighbours))


def delta(
    releases: Releases,
    epsilon: float,
    accountant: Accountant = "pld",
    neighbours: Neighbours = "add_or_remove",
) -> float:
    """The δ of all releases together at `epsilon`, rounded up; 1 where noise is missing."""
    _check(releases, accountant, neighbours)
    if not epsilon >= 0:
        raise ArchipelError(f"epsilon = {epsilon!r}: give a number from 0.")
    known = together(releases)
    asked = ("delta", known, float(epsilon), accountant, neighbours)
    return remembered(asked, lambda: _delta(known, epsilon, accountant, neighbours))


def deltas(
    releases: Releases,
    epsilons: Sequence[float] | Array,
    accountant: Accountant = "pld",
    neighbours: Neighbours = "add_or_remove",
) -> list[float]:
    """δ at each of several ε, to some 1e-9: the curve of all releases together."""
    _check(releases, accountant, neighbours)
    known = together(releases)
    if any(bare(each) for each in known):
        return [1.0] * len(epsilons)
    others, mu = _apart(known, neighbours)
    if others and mu < inf and accountant == "pld" and has_losses(others):
        joined = _joined(others, mu, neighbours)
        ways, slack = losses(joined, neighbours, 1e-9), _slack(joined)
        found = [max((w.delta(t) for w in ways), default=1.0) for t in map(float, epsilons)]
        return [min(each + slack, 1.0) for each in found]
    return [_delta(known, float(t), accountant, neighbours) for t in epsilons]


def noise_for(
    epsilon: float,
    delta: float,
    make_releases: Callable[[float], Releases],
    accountant: Accountant = "pld",
    neighbours: Neighbours = "add_or_remove",
) -> float:
    """The least noise, as `make_releases` understands it, that keeps ε at `delta` to `epsilon`.

    ε with it is never above `epsilon`, and at most 0.1 % below.

    >>> z = noise_for(2.0, 1e-5, lambda z: [Release(Gaussian(z), Poisson(0.01), times=6000)])
    >>> round(z, 2)
    1.71
    """
    if not 0 < epsilon < inf:
        raise ArchipelError(f"epsilon = {epsilon!r}: give a finite number above 0.")
    _check_delta(delta)
    samples = tuple(together(make_releases(z)) for z in (0.5, 1.0, 2.0))
    _check([each for sample in samples for each in sample], accountant, neighbours)

    def cost(z: float, coarse: float) -> float:
        return _epsilon(together(make_releases(z)), delta, accountant, neighbours, coarse)

    asked = ("noise", samples, float(epsilon), float(delta), accountant, neighbours)
    found = remembered(asked, lambda: _least(cost, epsilon))
    if _asked(make_releases(found), delta, accountant, neighbours) <= epsilon:
        return found
    return _least(cost, epsilon)  # other releases, though equal for three values of z


def curve(
    after: Releases | Callable[[int], Releases],
    rounds: int,
    delta: float,
    before: Releases = (),
    points: int = 20,
    accountant: Accountant = "pld",
    neighbours: Neighbours = "add_or_remove",
) -> list[tuple[int, float]]:
    """ε after some of `rounds` rounds, with what was released `before`.

    `after` says what was released after so many rounds, or what each of them releases.
    """
    if rounds < 1 or points < 1:
        raise ArchipelError(f"rounds = {rounds}, points = {points}: give whole numbers from 1.")
    at = np.unique(np.geomspace(1, rounds, points).round().astype(int)).tolist()
    out, most = [], 0.0
    for t in sorted({*at, rounds}):
        if callable(after):
            spent = after(t)
        else:
            spent = [Release(r.mechanism, r.sampling, r.times * t) for r in after]
        most = max(most, epsilon([*before, *spent], delta, accountant, neighbours))
        out.append((t, most))
    return out


# -- input -----------------------------------------------------------------------------------------


def _check(releases: Releases, accountant: str, neighbours: str) -> None:
    if accountant not in ("pld", "rdp"):
        raise unknown("accountant", accountant, ("pld", "rdp"))
    if neighbours not in DISTANCE:
        raise unknown("neighbours", neighbours, DISTANCE)
    for each in releases:
        if isinstance(each.sampling, FixedSize) and each.rate < 1 and neighbours != "replace":
            raise ArchipelError(
                f"neighbours = {neighbours!r}: a sample of fixed size "
                f"({each.sampling.sampled} of {each.sampling.among}) is accounted where one is "
                "replaced; say neighbours = 'replace', or sample each with a probability."
            )
        removed = isinstance(each.mechanism, Shuffled) and not each.mechanism.stays
        if removed and neighbours != "replace":
            raise ArchipelError(
                f"neighbours = {neighbours!r}: shuffled reports are accounted where one is "
                "replaced, since how many there are is seen; say neighbours = 'replace'."
            )


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ArchipelError(f"delta = {delta!r}: give a number above 0 and below 1.")


# -- answers ---------------------------------------------------------------------------------------


def _epsilon(
    known: tuple[Release, ...],
    delta: float,
    accountant: Accountant,
    neighbours: Neighbours,
    coarse: float = 1.0,
) -> float:
    if any(bare(each) for each in known):
        return inf
    known, far = _smooth(known, accountant)
    delta *= exp(-far)
    return 2 * far + _of_continuous(known, delta, accountant, neighbours, coarse)


def _of_continuous(
    known: tuple[Release, ...],
    delta: float,
    accountant: Accountant,
    neighbours: Neighbours,
    coarse: float,
) -> float:
    others, mu = _apart(known, neighbours)
    if not others or mu == inf:
        return epsilon_of(mu, delta)
    known = _joined(others, mu, neighbours)
    most = _without_delta(known, neighbours)
    rest = delta * (1 - _CUT) - _slack(known)
    if accountant == "pld" and has_losses(known) and rest > delta / 2:
        ways = losses(known, neighbours, delta * _CUT, coarse)
        found = min(most, max((each.epsilon(rest) for each in ways), default=inf))
        if found < _VAST or coarse > 1:
            return found
        most = found
    return min(most, renyi_epsilon(known, neighbours, delta))


def _delta(
    known: tuple[Release, ...], epsilon: float, accountant: Accountant, neighbours: Neighbours
) -> float:
    if any(bare(each) for each in known):
        return 1.0
    known, far = _smooth(known, accountant)
    if far:
        rest = epsilon - 2 * far
        found = _delta(known, max(rest, 0.0), accountant, neighbours) - expm1(min(rest, 0.0))
        return min(found * exp(far), 1.0)
    others, mu = _apart(known, neighbours)
    if not others or mu == inf:
        return float(gaussian_delta(mu, epsilon))
    known = _joined(others, mu, neighbours)
    if epsilon >= _without_delta(known, neighbours):
        return 0.0
    if accountant == "pld" and has_losses(known):
        least, expected, found = 10 * _slack(known), 1e-2, 0.0
        while found < expected / 10 and expected > least:  # so that what is cut off is little of it
            expected = max(expected if found == 0 else found, least)
            ways = losses(known, neighbours, expected * _CUT)
            found = max((each.delta(epsilon) for each in ways), default=1.0) + _slack(known)
        if found > least:
            return min(found, 1.0)
    return min(renyi_delta(known, neighbours, epsilon), 1.0)


def _smooth(
    known: tuple[Release, ...], accountant: Accountant
) -> tuple[tuple[Release, ...], float]:
    """Discrete Gaussian noise as the Gaussian noise it is made of, and the factor's logarithm."""
    found, far = [], 0.0
    for each in known:
        it = each.mechanism
        several = isinstance(it, DiscreteGaussian) and it.dimensions * it.shares > 1
        if accountant == "pld" and isinstance(it, DiscreteGaussian) and several:
            deviation, apart = as_gaussian(it.sigma, it.shares, it.dimensions)
            if each.times * apart < _FACTOR:
                far += each.times * apart
                each = Release(Gaussian(deviation / it.contribution), each.sampling, each.times)
        found.append(each)
    return together(found), far


def _apart(known: tuple[Release, ...], neighbours: Neighbours) -> tuple[tuple[Release, ...], float]:
    """All but plain Gaussian noise, and that as one mu: its distances are at right angles."""
    others, squares = [], 0.0
    for each in known:
        if isinstance(each.mechanism, Gaussian) and each.sampling is None:
            mu = DISTANCE[neighbours] / each.mechanism.noise
            squares += each.times * mu * mu
        else:
            others.append(each)
    return tuple(others), sqrt(squares)


def _joined(others: tuple[Release, ...], mu: float, neighbours: Neighbours) -> tuple[Release, ...]:
    return (*others, Release(Gaussian(DISTANCE[neighbours] / mu))) if mu else others


def _slack(known: tuple[Release, ...]) -> float:
    return SLACK * sum(each.times for each in known)


def _without_delta(known: tuple[Release, ...], neighbours: Neighbours) -> float:
    """The sum of what each costs at δ = 0; infinite where one has no such cost."""
    total = 0.0
    for each in known:
        match each.mechanism:
            case Pure(epsilon):
                one = DISTANCE[neighbours] * epsilon
            case Shuffled(epsilon0):
                one = epsilon0
            case Laplace(noise):
                one = DISTANCE[neighbours] / noise
            case _:
                return inf
        q = each.rate
        total += each.times * (float(np.logaddexp(log(q) + one, log(1 - q))) if q < 1 else one)
    return total * (1 + 1e-12)


# -- the least noise -------------------------------------------------------------------------------


def _least(cost: Callable[[float, float], float], target: float) -> float:
    """The least noise that costs at most `target`: found on a coarse grid, then on a fine one."""
    low, high = _around(lambda z: cost(z, _COARSE), target, 1.0, 4.0)
    near = _narrowed(lambda z: cost(z, _COARSE), target, low, high)
    low, high = _around(lambda z: cost(z, 1.0), target, near, 1.02)
    return _narrowed(lambda z: cost(z, 1.0), target, low, high)


def _around(
    cost: Callable[[float], float], target: float, start: float, factor: float
) -> tuple[float, float]:
    """A noise that is too little, and one `factor` above or more that is enough."""
    low = high = start
    while cost(high) > target:
        low, high, factor = high, high * factor, factor**1.5
        if high > _LOUDEST:
            raise ArchipelError(
                f"epsilon = {target:g}: no noise reaches it, since what else is released costs "
                f"{cost(_LOUDEST):.4g}; give a larger epsilon, or release less."
            )
    while low == high or (low > _QUIETEST and cost(low) <= target):
        low, high, factor = low / factor, low, factor**1.5
    return low, high


def _narrowed(cost: Callable[[float], float], target: float, low: float, high: float) -> float:
    """A noise from `low`, too little, to `high`, enough, that costs the target or 0.1 % less.

    ln ε is nearly straight in ln z, so a secant needs few steps; a third of them halve.
    """
    aim = log(target * (1 - _NEAR / 2))
    above, below = cost(low), cost(high)
    for turn in range(60):
        if below >= target * (1 - _NEAR) or high < low * (1 + 1e-9) or above <= target:
            break
        part = 0.5
        if turn % 3 < 2 and below > 0 and above < inf:
            part = min(max((log(above) - aim) / (log(above) - log(below)), 0.0), 1.0)
        middle = low * (high / low) ** part
        found = cost(middle)
        low, above, high, below = (
            (middle, found, high, below) if found > target else (low, above, middle, found)
        )
    return high
