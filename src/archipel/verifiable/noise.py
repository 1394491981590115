# SPDX-License-Identifier: Apache-2.0
"""Noise that nobody chooses: bits that a party commits to, turned over by coins that come later.

Biswas, Cormode, CCS 2023, https://arxiv.org/abs/2208.09011: a prover commits to bits b_i, then
public coins c_i arrive, and the noise is Σ b_i xor c_i. That is c_i + (1 − 2 c_i) b_i, so anybody
turns a commitment to bits into one to the noise. It is binomial if either the bits or the coins are
fair: the first is what an honest party's privacy needs, the second what the sum's accuracy needs
where a party is not honest. Binomial noise adds up over parties.

Departures: to be as fine as values of 16 bits, coins of equal weight would have to be 10^11. Here a
party's noise is unit · Binomial(coins, 1/2) + U, with U of log2(unit) more bits that weigh 1, 2, 4,
.., unit / 2, so that it is even over 0 .. unit − 1. Moved by t = a unit + r, the chance of y =
unit q + s is that of q − a where s >= r, and of q − a − 1 otherwise. So the privacy curve is
(1 − r / unit) δ_a + (r / unit) δ_(a+1), at most that of the binomial moved by ceil(t / unit) steps;
what other parties' U add is independent of it and cannot reveal more. Values may be multiplied by a
whole number first, where even one coin of each party would be too much noise.

Accounting: the binomial of the coins of the parties that are honest and stay (`privacy/curves.py`),
exact with its tails, composed over the numbers that one party can change; and the probability that
the honest are not all connected by pairwise terms (`privacy/gopa.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import shake_256
from math import ceil, inf, sqrt
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.privacy.accounting import Binomial, Release
from archipel.privacy.accounting import delta as delta_of
from archipel.privacy.analytic import mu_of
from archipel.privacy.checks import check_delta, positive
from archipel.privacy.curves import binomial_delta
from archipel.privacy.gopa import disconnected

_NEAR = 1.04  # times the least deviation that noise of fewer bits may have
_DRAWS = 0.01  # part of delta for a graph that leaves honest parties alone
_MOST = 4096  # bits of one number's noise
_FEW = 20  # parties that are all neighbours


class Noise(NamedTuple):
    """How a party's noise is made, for one number."""

    multiplier: int  # of the value
    unit: int  # what a coin weighs, a power of two
    coins: int  # of one party

    @property
    def weights(self) -> list[int]:
        """Of all its bits: coins, then those that fill up a unit."""
        return [self.unit] * self.coins + [1 << i for i in range(self.unit.bit_length() - 1)]

    @property
    def mean(self) -> float:
        return sum(self.weights) / 2

    @property
    def variance(self) -> float:
        return sum(weight**2 for weight in self.weights) / 4

    def release(self, steps: int, honest: int, moved: int) -> Release:
        """The noise of honest parties, where one moves so many numbers by so many steps each."""
        units = -(-steps * self.multiplier // self.unit)
        return Release(Binomial(self.coins * honest, units), times=moved)


@cache
def planned(
    epsilon: float, delta: float, steps: int, honest: int, parties: int, moved: int = 1
) -> Noise:
    """The noise of fewest bits whose deviation is within 4 % of the least, for (ε, δ).

    Which grid that is, Gaussian noise of the same deviation tells; how many coins, the binomial.

    >>> planned(1.0, 1e-5, 65535, 900, 1000)
    Noise(multiplier=3, unit=16384, coins=9)
    """
    mu = mu_of(positive("epsilon", epsilon), check_delta(delta))
    found = []
    for multiplier, unit in _grids(steps):
        shift = -(-steps * multiplier // unit)
        coins = ceil(4 * shift**2 * moved / mu**2 / honest)
        if coins <= _MOST:
            noise = Noise(multiplier, unit, coins)
            found.append((sqrt(noise.variance) / multiplier, noise))
    least = min((deviation for deviation, _ in found), default=inf)
    near = [each for each in found if each[0] <= _NEAR * least]
    near.sort(key=lambda each: (len(each[1].weights), each[0]))
    for _, noise in near:
        for coins in range(noise.coins, noise.coins + noise.coins // 10 + 3):
            more = noise._replace(coins=coins)
            if _delta(more, steps, honest, moved, epsilon) <= delta:
                return more
    raise ArchipelError(
        f"epsilon = {epsilon:g}, honest = {honest} parties: their noise would take more than "
        f"{_MOST} bits of each; give a larger epsilon, or ask more parties."
    )


def _delta(noise: Noise, steps: int, honest: int, moved: int, epsilon: float) -> float:
    release = noise.release(steps, honest, moved)
    if moved == 1:
        mechanism = release.mechanism
        assert isinstance(mechanism, Binomial)
        return float(binomial_delta(mechanism.coins, mechanism.contribution, epsilon))
    return delta_of([release], epsilon)


def _grids(steps: int) -> Iterator[tuple[int, int]]:
    """Multipliers and units that make a value 1 to 64 units."""
    for multiplier in range(1, 65):
        for power in range(steps.bit_length() + 6):
            odd = multiplier % 2 or power == 0
            if odd and 1 <= -(-steps * multiplier // (1 << power)) <= 64:
                yield multiplier, 1 << power


def coins_of(beacon: bytes, session: bytes, party: str, count: int) -> list[int]:
    """A party's public coins: bits of a hash of what all contributed."""
    name = party.encode()
    seed = b"archipel coins\0" + beacon + session + len(name).to_bytes(8, "big") + name
    raw = int.from_bytes(shake_256(seed).digest(-(-count // 8)), "little")
    return [raw >> i & 1 for i in range(count)]


def turned(weights: list[int], coins: list[int]) -> tuple[list[int], int]:
    """Weights of the bits that were committed to, and the constant: Σ w (b xor c)."""
    signs = [-w if c else w for w, c in zip(weights, coins, strict=True)]
    return signs, sum(w for w, c in zip(weights, coins, strict=True) if c)


def neighbours_for(parties: int, honest: int, delta: float) -> int:
    """The fewest picks that connect the honest but for a hundredth of delta; few pick all."""
    most = parties - 1
    for k in range(1, most if parties > _FEW else 1):
        if disconnected(parties, honest, k) <= _DRAWS * delta:
            return k
    return most
