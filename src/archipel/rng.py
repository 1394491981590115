# SPDX-License-Identifier: Apache-2.0
"""Randomness keyed by (seed, round, party, purpose).

A draw is a function of its key alone, so it does not depend on the engine, the number of workers,
the block size, the order of parties or who dropped out. Keys come from BLAKE2b; draws for many
parties at once from SplitMix64, a counter-based generator [Steele 2014]; long draws from Philox.
Noise that protects people never comes from here: a seed is not a secret.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Ints = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def key(*parts: int | str) -> int:
    """Hash (seed, round, purpose, ...) into 64 bits.

    >>> key(0, 1, "batches") == key(0, 1, "batches") != key(0, 2, "batches")
    True
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(z: Keys) -> Keys:
    """SplitMix64's finaliser: 64 well-mixed bits of each counter."""
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


def keys(base: int, indices: Ints) -> Keys:
    """One key per index (a party, an epoch, ...) under a base key: `[...] -> [...]`."""
    return _mix(np.uint64(base) ^ _mix(indices.astype(np.uint64) * _GOLDEN + _GOLDEN))


def subkeys(parents: Keys, indices: Ints) -> Keys:
    """One key per parent and index, elementwise."""
    return _mix(parents + _mix(indices.astype(np.uint64) * _GOLDEN + _GOLDEN))


def uniform(draw_keys: Keys) -> NDArray[np.float64]:
    """One number in [0, 1) per key."""
    return (_mix(draw_keys + _GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def words(stream_keys: Keys, count: int) -> Keys:
    """So many random words of 64 bits from each stream: `[m] -> [m, count]`."""
    places = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    z = stream_keys[:, None] + places
    shifted = z >> np.uint64(30)
    for mix, shift in ((_MIX1, 27), (_MIX2, 31)):  # `_mix`, in place
        z ^= shifted
        z *= mix
        np.right_shift(z, np.uint64(shift), out=shifted)
    z ^= shifted
    return z


def shuffles(stream_keys: Keys, sizes: Ints) -> Ints:
    """Concatenate one random permutation of range(sizes[i]) per key: `[q], [q] -> [sum sizes]`."""
    starts = np.cumsum(sizes) - sizes
    segment = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(segment)) - starts[segment]
    draws = _mix(stream_keys[segment] + position.astype(np.uint64) * _GOLDEN)
    ranks = (segment.astype(np.uint64) << np.uint64(40)) | (draws >> np.uint64(24))
    order = np.argsort(ranks, kind="stable")
    shuffled: Ints = position[order]
    return shuffled


def generator(*parts: int | str) -> np.random.Generator:
    """A Philox generator for one key: to sample parties, for noise vectors, to deal data out."""
    return np.random.Generator(np.random.Philox(key=key(*parts)))
