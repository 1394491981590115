# SPDX-License-Identifier: Apache-2.0
"""Draw from a finite distribution whose chances are multiples of 2^-128, exactly and at once.

Walker's alias method [Walker 1977; Vose, IEEE TSE 1991]: 2^b bins of the same size, each filled by
its own number and at most one other. A word chooses the bin by its first b bits; the rest of it and
a second word say whose part of the bin was hit. A second word is drawn only where the first does
not decide, once in 2^(64 - b) draws. How long a draw takes does not depend on what is drawn.

Chances come from decimal arithmetic of 60 digits, rounded down to multiples of 2^-128 with what is
left over given to the likeliest number: of n numbers, they are off by less than n 2^-127 together.

Departures: integers in place of floating point, so that nothing is lost when bins are filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel.privacy.sources import Source
from archipel.rng import Ints, Keys

_TOTAL = 1 << 128

EXACT = Context(prec=60)  # of weights: after n products still 10^-59 n of a weight at most


class Table(NamedTuple):
    """2^bits bins: how much of each is its own number's, and whose the rest is."""

    bits: int
    high: Keys  # [2^bits] own part of a bin in units of 2^-64, and its fraction in `low`
    low: Keys
    other: Ints


def weighed(weights: Sequence[Decimal]) -> list[int]:
    """Weights as integers whose sum is 2^128."""
    down = Context(prec=60, rounding=ROUND_FLOOR, Emin=EXACT.Emin, Emax=EXACT.Emax)
    total = Decimal(0)
    for weight in weights:
        total = EXACT.add(total, weight)
    unit = EXACT.divide(Decimal(_TOTAL), total)
    parts = [int(down.multiply(weight, unit)) for weight in weights]
    likeliest = max(range(len(parts)), key=parts.__getitem__)
    parts[likeliest] += _TOTAL - sum(parts)
    return parts


def alias(parts: Sequence[int]) -> Table:
    """Fill the bins from integers whose sum is 2^128; their number is rounded up to 2^bits."""
    bits = max(1, (len(parts) - 1).bit_length())
    size = _TOTAL >> bits
    left = [*parts, *[0] * ((1 << bits) - len(parts))]
    other = list(range(1 << bits))
    over = [k for k, part in enumerate(left) if part > size]
    under = [k for k, part in enumerate(left) if part < size]
    while under:  # then some number has more than its bin holds
        k, giver = under.pop(), over[-1]
        other[k] = giver
        left[giver] -= size - left[k]
        if left[giver] <= size:
            over.pop()
            if left[giver] < size:
                under.append(giver)
    return Table(
        bits,
        np.array([part >> 64 for part in left], np.uint64),
        np.array([part & (1 << 64) - 1 for part in left], np.uint64),
        np.array(other, np.int64),
    )


def pick(table: Table, source: Source, counts: Ints) -> Ints:
    """Draw counts[i] numbers for each party: `[m] -> [sum counts]`, int64."""
    word = source.words(counts)
    rest = np.uint64(64 - table.bits)
    bin_ = (word >> rest).view(np.int64)
    at = word & np.uint64((1 << int(rest)) - 1)
    part = table.high.take(bin_)
    own: NDArray[np.bool_] = at < part
    tied = np.flatnonzero(at == part)
    if len(tied):
        own[tied] = source.words(shared(tied, counts)) < table.low[bin_[tied]]
    return np.where(own, bin_, table.other.take(bin_))


def shared(places: Ints, counts: Ints) -> Ints:
    """How many of rising places in `[sum counts]` are each party's, `[m]`."""
    ends = places.searchsorted(counts.cumsum())
    return np.diff(ends, prepend=0)
