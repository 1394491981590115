# SPDX-License-Identifier: Apache-2.0
"""Vectors as integers of few bits, to which noise is added in shares, under a secure sum: the plan.

A party clips its vector to norm c, turns it by a random rotation that all have in common, takes it
times a scale s, rounds every number up or down at random so that nothing is lost on average, adds
its share of integer noise, and sends what is left modulo 2^b. The sum is read off its residue next
to 0, divided by s and turned back (`wire/integers.py` computes; here is what to compute with).

Kairouz, Liu, Steinke, ICML 2021, https://arxiv.org/abs/2102.06387, Algorithms 1 and 2.

- Rounding makes vectors longer; it is done again where that is by much. What is kept has, in steps,
  a norm of at most (Proposition 22; each attempt is kept with a chance of at least 1 - beta)

      R² = min{ (cs + √d)², (cs)² + d / 4 + √(2 ln(1 / beta)) (cs + √d / 2) }.

- One party moves the integer sum by R at most where it comes or goes, by 2 R where it is replaced:
  R is the contribution that `release.py` counts. Its L1 norm is at most R min(√d, R).
- Wrapping changes what the sum says, never what it costs: modulo 2^b comes after the noise. A
  number of the turned sum is subgaussian by its signs, with variance (n c s)² / w, by rounding with
  n / 4, by noise with n σ²: it leaves (-2^(b-1), 2^(b-1)) with a chance of at most
  2 exp(-2^(2b-2) / 2 V), V their sum (Section 4.2; Hoeffding). Nor does it where noise is smaller
  than 2^(b-1) - n R; without noise the scale is so small that n R < 2^(b-1), and no sum wraps.

Departures: beta is 1e-12 in place of e^(-1/2), so that rounding hardly ever starts again and means
are unbiased up to 1e-12 n; it makes R longer by 7.4 steps at most. The rotation is of `rotate.py`,
which pads nothing: w is the largest power of two in d, and stands where the paper has the padded
dimension. 6 deviations, not 4, are kept free of wraps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import exp, floor, inf, log, sqrt

from archipel.errors import ArchipelError
from archipel.privacy.release import DiscreteGaussian, Kind, Mechanism, Release, Skellam
from archipel.privacy.shares import ROUNDED

BETA = 1e-12
DEVIATIONS = 6.0  # of a number of the sum that fit into the modulus, at least
_FINEST = 2.0**32  # steps in a clip, at most: rounding no longer matters
_LARGEST = {"gaussian": 2.0**88, "skellam": 2.0**24}  # variance of a share that is drawn quickly


def rounded_l2(norm: float, size: int, beta: float = BETA) -> float:
    """The norm, in steps, of what is kept of a vector of `size` numbers that is rounded."""
    most = norm + sqrt(size)
    if beta == 0:
        return most
    likely = norm**2 + size / 4 + sqrt(2 * log(1 / beta)) * (norm + sqrt(size) / 2)
    return min(most, sqrt(likely))


@dataclass(frozen=True)
class Encoding:
    """How vectors of one message become integers, whose sum is over so many parties at most.

    >>> Encoding.exact(1.0, 1000, parties=100, bits=32).wraps(0.0)
    0.0
    """

    clip: float  # c
    size: int  # d
    parties: int  # n
    bits: int  # b
    scale: float  # s

    @classmethod
    def exact(cls, clip: float, size: int, parties: int, bits: int) -> Encoding:
        """The finest with which a sum without noise cannot wrap."""
        return cls.fitted(clip, size, parties, bits, lambda contribution: 0.0)

    @classmethod
    def fitted(
        cls, clip: float, size: int, parties: int, bits: int, share: Callable[[float], float]
    ) -> Encoding:
        """The finest whose sum stays in the modulus by `DEVIATIONS`.

        `share(R)` is the variance of a party's noise, in steps, where contributions are R.
        """

        def fits(steps: float) -> bool:
            contribution = rounded_l2(steps, size)
            return _room(steps, size, parties, bits, share(contribution)) >= DEVIATIONS

        return cls._finest(fits, clip, size, parties, bits)

    @classmethod
    def _finest(
        cls, fits: Callable[[float], bool], clip: float, size: int, parties: int, bits: int
    ) -> Encoding:
        """The largest scale at which it fits; `fits` is of the clip in steps."""
        low, high = 1.0, _FINEST
        if not fits(low):
            raise ArchipelError(
                f"privacy.bits = {bits}: too few for the sum of {parties} parties with its noise; "
                f"give more, up to 32."
            )
        if not fits(high):
            for _ in range(60):
                middle = sqrt(low * high)
                low, high = (middle, high) if fits(middle) else (low, middle)
        else:
            low = high
        return cls(clip, size, parties, bits, low / clip)

    @property
    def contribution(self) -> float:
        """R: the largest norm of a party's integers, before noise."""
        return rounded_l2(self.clip * self.scale, self.size)

    @property
    def longer(self) -> float:
        """By which factor rounding makes contributions longer."""
        return self.contribution / (self.clip * self.scale)

    def wraps(self, variance: float) -> float:
        """A bound on the chance that a number of the sum wraps; `variance` of a share, in steps."""
        room = _room(self.clip * self.scale, self.size, self.parties, self.bits, variance)
        return 0.0 if room == inf else min(1.0, 2 * exp(-(room**2) / 2))


def _room(steps: float, size: int, parties: int, bits: int, share: float) -> float:
    """How many deviations of a number of the sum fit into the modulus; infinite if it cannot wrap.

    Either all of it is random (V), or all but noise is as large as it can be (n R).
    """
    half, window = 2.0 ** (bits - 1), 1 << (size.bit_length() - 1)
    left = half - parties * rounded_l2(steps, size)
    if share == inf:
        return 0.0
    if share == 0:
        return inf if left > 0 else 0.0
    everything = (parties * steps) ** 2 / window + parties * (0.25 + share)
    return max(half / sqrt(everything), left / sqrt(parties * share))


# -- a share of noise ------------------------------------------------------------------------------


def counted(least: int, colluding: int = 0) -> int:
    """How many parties' noise is counted on, in a sum of `least` parties or more.

    One less than all, since a party knows its own noise and sees what comes of the sum; or so many
    less as tell others theirs.

    >>> counted(1000), counted(1000, colluding=100), counted(3)
    (999, 900, 2)
    """
    found = least - max(1, colluding)
    if found < 1:
        raise ArchipelError(
            f'privacy.trust = "sum": a sum may be of {least} parties, of whom {max(1, colluding)} '
            "know their own noise, so nobody's can be counted on; take more parties, or a larger "
            "threshold of wire.sum."
        )
    return found


@dataclass(frozen=True)
class Share:
    """A party's noise in one message of a round; `noise` is z, that of all counted on, over R."""

    kind: Kind
    clip: float  # C
    size: int  # numbers in the message: d
    parties: int  # in a sum, at most
    counted: int  # whose noise is counted on
    bits: int  # of the modulus

    def encoding(self, noise: float) -> Encoding:
        """How uploads become integers."""
        return _encoding(self, noise)

    def variance(self, noise: float) -> float:
        """Of one party's share, in steps."""
        return self.of(noise, self.encoding(noise).contribution)

    def of(self, noise: float, contribution: float) -> float:
        """The same where contributions are so long."""
        rounded = ROUNDED if self.kind == "gaussian" else 0.0
        found = ((noise * contribution) ** 2 + rounded) / self.counted
        return found if found <= _LARGEST[self.kind] else inf

    def mechanism(self, noise: float, parties: int | None = None) -> Mechanism:
        """The noise of all who are counted on, or of so many, as an accountant sees it."""
        known = (self.encoding(noise).contribution, self.size, parties or self.counted)
        if self.kind == "gaussian":
            return DiscreteGaussian(sqrt(self.variance(noise)), *known)
        return Skellam(self.variance(noise), *known)


@lru_cache(maxsize=1024)
def _encoding(share: Share, noise: float) -> Encoding:
    known = (share.clip, share.size, share.parties, share.bits)
    return Encoding.fitted(*known, lambda contribution: share.of(noise, contribution))


def secure_sum_error(
    epsilon: float,
    delta: float,
    parties: int,
    moved: float = 1.0,
    honest: float = 1.0,
    size: int = 1,
    bits: int = 32,
    kind: Kind = "gaussian",
) -> float:
    """The deviation of each number of a mean, where all parties add their share of the noise.

    One party's vector of `size` numbers moves by `moved` at most; `honest` is the share of parties
    whose noise is counted on. Rounding is counted as the most that it can add.
    """
    from archipel.privacy.accounting import noise_for

    known = counted(parties, parties - floor(honest * parties + 1e-9))
    share = Share(kind, moved / 2, size, parties, known, bits)
    noise = noise_for(epsilon, delta, lambda z: [Release(share.mechanism(z))], neighbours="replace")
    return sqrt((share.variance(noise) + 0.25) / parties) / share.encoding(noise).scale
