# SPDX-License-Identifier: Apache-2.0
"""Noise on the integers: discrete Gaussian, discrete Laplace, Skellam; and a choice by scores.

How it is drawn. Integers |K| lie in strips of 2^j, A <= |K| < A + 2^j. A table (`tables.py`) draws
a strip in proportion to exp(-A^2 / 2 r^2), where r >= s = sigma has few digits so that tables are
few; in the strip every integer is as likely; one is kept with chance
exp(-(K^2 / 2 s^2 - A^2 / 2 r^2)), 98 % of all. The exponent is a sum of positive terms and below 3,
so in double precision the chance is right up to a factor e^(+-eta), eta = 2^-48 (`CLOSE`): an error
of a chance, not of a place. Where s < 512, j = 0 and r = s: the table is the distribution itself,
and eta = 0. Laplace noise, with |K| / s in place of K^2 / 2 s^2, is drawn in the same way.

What a table leaves out has a chance of 2^-109, by P(K >= k) <= exp(-k^2 / 2 s^2), exp(-k / s) and,
for Skellam, exp(v (cosh t - 1) - t k) with sinh t = k / v; and its 128 bits are off by 2^-106. So
but for the factor above, noise is within 2^-100 (`MISSED`) of what it should be in total variation.

Skellam noise is the difference of two Poisson variables of half its variance each, P(k) ~ I_k(v).
Its table is made by Miller's recurrence, f_{k-1} = f_{k+1} + (2 k / v) f_k from f_{N+1} = 0 down:
that is I_k - (-1)^(k-N-1) K_k I_{N+1} / K_{N+1}, off by I_{N+1} at most, since K_k grows with k.

Canonne, Kamath, Steinke, NeurIPS 2020, https://arxiv.org/abs/2004.00010 (discrete Gaussian).
Agarwal, Kairouz, Liu, NeurIPS 2021, https://arxiv.org/abs/2110.04995 (Skellam).
McSherry, Talwar, FOCS 2007 (choice by scores).
Departures: tables and strips in place of the papers' samplers, which draw one number at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from math import asinh, ceil, frexp, isfinite, ldexp, log, sinh
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel.errors import ArchipelError
from archipel.privacy.checks import positive
from archipel.privacy.sources import Source
from archipel.privacy.tables import EXACT, Table, alias, pick, shared, weighed
from archipel.rng import Ints, Keys

CLOSE = 2.0**-48  # eta: chances are right up to a factor e^(+-eta)
MISSED = 2.0**-100  # xi: but for so much of them
PLAIN = 512  # below this scale they are right to the last bit: eta = 0

_TAIL = 110 * log(2)  # what is more than this many nats less likely is beyond a table
_WIDEST = 2.0**45  # scale of noise on integers
_LONGEST = 1 << 20  # entries of a table, which takes 2 s to make
_BLOCK = 15_000  # numbers at a time: arrays that stay in the cache


class _Strips(NamedTuple):
    """Integers of either sign whose chance falls with their distance from 0, to be drawn."""

    table: Table  # draws a strip
    shift: int  # j: a strip has 2^j integers
    sure: Keys  # [2^bits] below it, of 2^(63 - j), an integer of this strip is kept wherever it is
    fixed: NDArray[np.float64]  # [2^bits] the exponent of the chance to be kept is, in its strip,
    rise: NDArray[np.float64]  # [2^bits] fixed + l (rise + bend l) for the integer A + l
    bend: float


# -- tables ----------------------------------------------------------------------------------------


def _falling(power: int, scale: Decimal, count: int) -> list[Decimal]:
    """exp(-k / scale), or exp(-k^2 / 2 scale^2), for k = 0 ... count - 1."""
    times = EXACT.multiply
    over = EXACT.divide(Decimal(-1), times(Decimal(power), EXACT.power(scale, power)))
    step = EXACT.exp(over)
    growth = times(step, step) if power == 2 else Decimal(1)  # (k + 1)^2 - k^2 = 2 k + 1
    weights = [Decimal(1)]
    for _ in range(count - 1):
        weights.append(times(weights[-1], step))
        step = times(step, growth)
    return weights


@lru_cache(maxsize=256)
def _falling_table(power: int, scale: float) -> Table:
    """All that is not beyond: P(K >= t scale) <= exp(-t^2 / 2), or exp(-t)."""
    reach = scale * (power * _TAIL) ** (1 / power)
    bits = max(1, ceil(reach).bit_length())
    return alias(weighed(_falling(power, Decimal(scale), 1 << bits)))


_STRIPS = {1: 4, 2: 6}  # a scale has 2^4 to 2^5 strips of Laplace noise, 2^6 to 2^7 of Gaussian


@lru_cache(maxsize=64)
def _strips(power: int, scale: float) -> _Strips:
    """Strips of discrete Laplace noise (power 1) or discrete Gaussian noise (power 2)."""
    mantissa, exponent = frexp(scale)
    shift = exponent - 1 - _STRIPS[power]
    if shift <= 2:
        return _plain(_falling_table(power, scale))
    rounded = ldexp(ceil(ldexp(mantissa, 7)), -7)  # r >= s of 7 bits
    table = _falling_table(power, ldexp(rounded, exponent - shift))
    s, r = scale, ldexp(rounded, exponent)
    start = np.ldexp(np.arange(1 << table.bits, dtype=np.float64), shift)  # A
    if power == 2:
        fixed = (start / s) ** 2 * ((r - s) * (r + s) / r**2 / 2)  # A^2 (1 / s^2 - 1 / r^2) / 2
        rise, bend = start / s / s, 0.5 / s / s
    else:
        fixed, rise, bend = start / s * ((r - s) / r), np.full_like(start, 1 / s), 0.0
    length = ldexp(1.0, shift)
    least = np.exp(-(fixed + length * (rise + bend * length))) * (1 - 2.0**-40)
    sure = np.ldexp(least, 63 - shift).astype(np.uint64)
    return _Strips(table, shift, sure, fixed, rise, bend)


def _plain(table: Table) -> _Strips:
    """Strips of one integer each, all of which are kept."""
    zeros = np.zeros(1 << table.bits)
    return _Strips(table, 0, np.full(1 << table.bits, 1 << 63, np.uint64), zeros, zeros, 0.0)


@lru_cache(maxsize=8)
def _skellam(variance: float) -> _Strips:
    bits = 1
    while not _beyond(variance, 1 << bits):
        bits += 1
        if 1 << bits > _LONGEST:
            raise ArchipelError(
                f"variance = {variance}: Skellam noise is drawn up to a deviation of some 80000; "
                "give a smaller variance, that of a coarser grid."
            )
    v, after, weights = Decimal(variance), Decimal(0), [Decimal(1)]  # from the last one downwards
    for k in range((1 << bits) - 1, 0, -1):
        factor = EXACT.divide(Decimal(2 * k), v)
        after, now = weights[-1], EXACT.fma(factor, weights[-1], after)
        weights.append(now)
    return _plain(alias(weighed(weights[::-1])))


def _beyond(variance: float, k: int) -> bool:
    """Whether P(K >= k) is as small as what a table leaves out.

    log P(K >= k) <= v (cosh t - 1) - t k for every t, and least at sinh t = k / v.
    """
    t = asinh(k / variance)
    return t * k - 2 * variance * sinh(t / 2) ** 2 > _TAIL


# -- drawing ---------------------------------------------------------------------------------------


def _candidates(strips: _Strips, source: Source, counts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Integers `[sum counts]`, and which of them are kept."""
    strip = pick(strips.table, source, counts)
    word = source.words(counts)  # its bits: a sign, where in the strip, whether it is kept
    negative = (word & np.uint64(1)).view(np.int64)
    inside = ((word >> np.uint64(1)) & np.uint64((1 << strips.shift) - 1)).view(np.int64)
    chance = word >> np.uint64(1 + strips.shift)
    kept = chance < strips.sure.take(strip)
    open_ = np.flatnonzero(~kept)
    if len(open_):  # the bits drawn so far do not say: draw more
        more = source.words(shared(open_, counts))
        exact = chance[open_] + np.ldexp(more.astype(np.float64), -64)
        sure = _keeping(strips, strip[open_], inside[open_])
        kept[open_] = np.ldexp(exact, strips.shift - 63) < sure
    size = (strip << strips.shift) | inside
    kept &= (size | (negative ^ 1)) != 0  # there is one 0, not two
    signed: Ints = (size ^ -negative) + negative  # -size where negative
    return signed, kept


def _keeping(strips: _Strips, strip: Ints, inside: Ints) -> NDArray[np.float64]:
    """The chance that an integer is kept."""
    slope = strips.rise.take(strip) + strips.bend * inside
    return np.exp(-(strips.fixed.take(strip) + inside * slope))


def _drawn(strips: _Strips, source: Source, count: int) -> Ints:
    """Integers `[m, count]`, those that are not kept drawn again.

    What a party draws depends on nothing but its own words and `count`.
    """
    parties = source.parties
    out, holes = np.empty(parties * count, np.int64), [np.empty(0, np.int64)]
    for at, counts in _blocks(parties, count):
        values, kept = _candidates(strips, source, counts)
        out[at : at + len(values)] = values
        holes.append(np.flatnonzero(~kept) + at)
    open_, each = np.concatenate(holes), np.full(parties, count)
    while len(open_):
        values, kept = _candidates(strips, source, shared(open_, each))
        out[open_] = values
        open_ = open_[~kept]
    return out.reshape(parties, count)


def _blocks(parties: int, count: int) -> Iterator[tuple[int, Ints]]:
    """Where blocks of `[parties, count]` begin, and how many numbers of each party are in them.

    A block has some parties whole, or a part of one.
    """
    some = max(1, _BLOCK // max(1, count))
    for first in range(0, parties, some):
        for at in range(0, count, _BLOCK):
            counts = np.zeros(parties, np.int64)
            counts[first : first + some] = min(count - at, _BLOCK)
            yield first * count + at, counts


def discrete_gaussian(source: Source, sigma: float, count: int) -> Ints:
    """Integers with P(k) ~ exp(-k^2 / 2 sigma^2), int64 `[m, count]`."""
    return _drawn(_strips(2, _on_integers("sigma", sigma)), source, count)


def discrete_laplace(source: Source, scale: float, count: int) -> Ints:
    """Integers with P(k) ~ exp(-|k| / scale), int64 `[m, count]`."""
    return _drawn(_strips(1, _on_integers("scale", scale)), source, count)


def skellam(source: Source, variance: float, count: int) -> Ints:
    """Differences of two Poisson variables that have this variance together, int64 `[m, count]`.

    The sum of several is one of the sum of their variances.
    """
    return _drawn(_skellam(positive("variance", variance)), source, count)


def exponential(
    source: Source, scores: Sequence[float], epsilon: float, sensitivity: float, count: int = 1
) -> Ints:
    """Choices with P(i) ~ exp(epsilon scores[i] / 2 sensitivity), indices int64 `[m, count]`.

    Exponents are exact, and only what is less likely than the best choice enters: scores may be as
    large as they like.
    """
    if not len(scores) or not all(map(isfinite, scores)):
        raise ArchipelError(
            f"scores = {[*scores]}: give one finite score per choice, at least one."
        )
    rate = EXACT.divide(
        Decimal(positive("epsilon", epsilon)),
        EXACT.multiply(Decimal(2), Decimal(positive("sensitivity", sensitivity))),
    )
    best = Decimal(max(scores))
    behind = [EXACT.subtract(Decimal(score), best) for score in scores]
    weights = [EXACT.exp(EXACT.multiply(rate, distance)) for distance in behind]
    counts = np.full(source.parties, count)
    return pick(alias(weighed(weights)), source, counts).reshape(source.parties, count)


def _on_integers(field: str, scale: float) -> float:
    if positive(field, scale) > _WIDEST:
        raise ArchipelError(
            f"{field} = {scale}: noise on integers is drawn up to 2^45; give a smaller one, that "
            "of a coarser grid."
        )
    return float(scale)
