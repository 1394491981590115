# SPDX-License-Identifier: Apache-2.0
"""Many standard normal numbers, each a function of (key, party, place, index) alone.

Noise is most of what a step of DP-SGD costs, so it is drawn in bulk: AES-128 of counters makes the
bits, for all parties in one call, and two words of 16 bits make two normal numbers. Each word is a
place in a table of 2^16 quantiles of the normal distribution, x or y, and the two numbers are
(x + y) / sqrt 2 and (x - y) / sqrt 2, which are independent and normal where x and y are. A look-up
takes half the time of Box and Muller's logarithms and cosines. A draw does not depend on who draws
at the same time, so not on blocks or workers. For simulations: the key comes of a seed, so that the
noise hides nothing; and floating-point numbers have holes (`privacy.grid`).

Departures: numbers are normal but for what 2^32 pairs of quantiles leave out: none is beyond 6.1
deviations, where one in 10^9 would be; means, variances and correlations are exact, distribution
functions differ by less than 10^-5, the fourth moment by 10^-3 of it (`test_normals`).
"""

from __future__ import annotations

import threading
from functools import cache
from hashlib import blake2b
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray
from torch import Tensor

from archipel.rng import Ints

Floats = NDArray[Any]  # float32 or float64
PIECE = 1 << 15  # numbers that are made of the same run of words
_TOGETHER = 1 << 17  # numbers at a time, about: what they are made of stays in the cache
_PLACE = 40  # bits of an index; the rest of 64 is the place
_QUANTILES = 1 << 16  # as many as a word of two bytes has values
_ROOMS = threading.local()


class Normals:
    """Standard normal numbers of parties, by place: the same again whenever they are asked for.

    >>> drawn = Normals(7, np.array([3, 5])).draw(0, torch.ones(2), 4)
    >>> bool((Normals(7, np.array([5])).draw(0, torch.ones(1), 4) == drawn[1:]).all())
    True
    """

    def __init__(self, key: int, ids: Ints) -> None:
        digest = blake2b(key.to_bytes(8, "little"), digest_size=16, person=b"normals").digest()
        self._cipher = Cipher(AES128(digest), ECB()).encryptor()  # of counters: counter mode
        self._ids = ids.astype(np.uint64)

    def draw(self, place: int, scales: Tensor, count: int, piece: int = PIECE) -> Tensor:
        """N(0, scales²) of the first parties `[a]`, so many of each at this place: `[a, count]`.

        What comes out does not depend on what else is drawn; with fewer pieces, it is the first.
        """
        out = scales.new_empty(len(scales), count)
        self._make(place, scales, out.numpy(), piece, add=False)
        return out

    def add(self, place: int, scales: Tensor, into: Tensor) -> None:
        """Add the same to `[a, count]`, while it is in the cache."""
        self._make(place, scales, into.numpy(), PIECE, add=True)

    def _make(self, place: int, scales: Tensor, out: Floats, piece: int, add: bool) -> None:
        a, count = out.shape
        whole = count // piece
        blocks = _blocks(piece)
        ids, wide = self._ids[:a], scales.reshape(-1, 1, 1).numpy()
        parts = (
            (out[:, : whole * piece].reshape(a, whole, piece), 0),
            (out[:, whole * piece :].reshape(a, 1, count - whole * piece), whole * blocks),
        )
        for part, first in parts:
            _, k, n = part.shape
            if not part.size:
                continue
            each = min(k, max(1, _TOGETHER // n))
            who = max(1, _TOGETHER // (each * n))
            for at in range(0, k, each):
                start = (place << _PLACE) + first + at * blocks
                for i in range(0, a, who):
                    some = slice(i, i + who)
                    self._pieces(ids[some], start, wide[some], part[some, at : at + each], add)

    def _pieces(
        self, ids: NDArray[np.uint64], first: int, scales: Floats, out: Floats, add: bool
    ) -> None:
        """Pieces `[a, k, n]`: the first half of each is (x + y) / sqrt 2, the second x - y over it.

        The table has them over sqrt 2.
        """
        (_, k, n), kind = out.shape, out.dtype
        half, each = (n + 1) // 2, _blocks(n)
        words = self._words(ids, np.arange(first, first + k * each, dtype=np.uint64), (k, each))
        places = _room("places", words.shape, np.dtype(np.int32))
        found = _room("found", words.shape, kind)
        np.copyto(places, words)
        flat = torch.from_numpy(found).view(-1)
        torch.index_select(_table(flat.dtype), 0, torch.from_numpy(places).view(-1), out=flat)
        found *= scales
        x, y = found[..., :half], found[..., half : 2 * half]
        if not add:
            np.add(x, y, out=out[..., :half])
            np.subtract(x[..., : n - half], y[..., : n - half], out=out[..., half:])
            return
        sums = _room("sums", x.shape, kind)
        out[..., :half] += np.add(x, y, out=sums)
        out[..., half:] += np.subtract(x, y, out=sums)[..., : n - half]

    def _words(
        self, ids: NDArray[np.uint64], places: NDArray[np.uint64], shape: tuple[int, int]
    ) -> NDArray[np.uint16]:
        """Random words `[a, k, .]` of each party and piece: AES of (party, place)."""
        counters = _room("counters", (len(ids), *shape, 2), np.dtype(np.uint64))
        counters[..., 0] = ids[:, None, None]
        counters[..., 1] = places.reshape(shape)
        words = _room("words", (8 * (counters.size + 2),), np.dtype(np.uint8))
        self._cipher.update_into(counters.reshape(-1).view(np.uint8).data, words.data)
        return words[:-16].view(np.uint16).reshape(len(ids), shape[0], -1)


@cache
def _table(kind: torch.dtype) -> Tensor:
    """Quantiles in the middle of steps that are as likely, and their negatives; variance 1/2."""
    above = torch.special.ndtri((torch.arange(_QUANTILES // 2).double() + 0.5) / _QUANTILES)
    both = torch.cat([above, -above.flip(0)])
    return (both / (both.square().mean().sqrt() * sqrt(2))).to(kind)


def _blocks(n: int) -> int:
    """Blocks of 16 bytes that two words for every two of n numbers are in."""
    return -(-((n + 1) // 2 * 4) // 16)


def _room(name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Memory of this thread that is used again and again, on a line of the cache."""
    rooms = _ROOMS.__dict__
    size = prod(shape) * kind.itemsize
    room = rooms.get(name)
    if room is None or len(room) < size:
        room = rooms[name] = torch.empty(size, dtype=torch.uint8).numpy()
    return room[:size].view(kind).reshape(shape)
