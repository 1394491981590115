# SPDX-License-Identifier: Apache-2.0
"""Uniform integers and permutations from random words, without a bias.

A word of 64 bits modulo `limit` favours small numbers. So words beyond the last whole multiple of
`limit` are drawn again (rejection); with a limit below 2^32 that happens once in 2^32 words.
"""

from __future__ import annotations

import numpy as np

from archipel.errors import ArchipelError
from archipel.privacy.sources import Source
from archipel.rng import Ints, Keys


def below(source: Source, limit: int, count: int) -> Ints:
    """Integers in [0, limit), every one alike, int64 `[m, count]`: `count` for each party."""
    if not 1 <= limit <= 1 << 62:
        raise ArchipelError(f"limit = {limit}: give an integer from 1 to 2^62.")
    return _below(source, np.full((source.parties, count), limit, np.uint64))


def permutation(source: Source, count: int) -> Ints:
    """Every order of 0 ... count - 1 alike, int64 `[count]` [Fisher, Yates; Knuth's Algorithm P].

    >>> from archipel.privacy.sources import System
    >>> sorted(permutation(System(), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    if source.parties != 1:
        raise ArchipelError(f"source of {source.parties} parties: an order is drawn by one.")
    order = np.arange(count)
    limits = np.arange(count, 1, -1, dtype=np.uint64)  # i + 1, for the places i from the last on
    for place, other in zip(range(count - 1, 0, -1), _below(source, limits[None])[0], strict=True):
        order[place], order[other] = order[other], order[place]
    return order


def _below(source: Source, limits: Keys) -> Ints:
    """An integer in [0, limit) for each limit, `[m, count]`."""
    flat, parties = limits.reshape(-1), np.repeat(np.arange(len(limits)), limits.shape[1])
    out, open_ = np.empty(flat.shape, np.int64), np.arange(len(flat))
    while len(open_):
        words = source.words(np.bincount(parties[open_], minlength=len(limits)))
        top = flat[open_]
        found = words % top
        # the last whole multiple of `top` begins at 2^64 - 2^64 mod top, and 2^64 mod top is
        # (2^64 - top) mod top, in arithmetic modulo 2^64
        kept = words - found <= -top
        out[open_[kept]] = found[kept].astype(np.int64)
        open_ = open_[~kept]
    return out.reshape(limits.shape)
