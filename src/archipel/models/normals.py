# SPDX-License-Identifier: Apache-2.0
"""Many standard normal numbers, each a function of (key, party, place, index) alone.

Noise is most of what a step of DP-SGD costs, so it is drawn in bulk: AES-128 of counters makes the
bits, for all parties in one call, and Box and Muller's transform makes two normal numbers of two
words [Ann. Math. Stat. 1958]. A draw does not depend on who draws at the same time, so not on
blocks or workers. For simulations: the key comes of a seed, so that the noise hides nothing; and
floating-point numbers have holes (`privacy.grid`).

Departures: the radius is of 31 bits (floats) or 63 (doubles), so that no number is beyond 6.8 or
9.4 deviations, where one in 10^11 or in 10^20 would be. The angle is one of 2^16 or 2^32, evenly
spaced, which leaves every moment of two numbers up to that order as it is, since a sum of
e^(i m t) over N such angles is 0 unless N divides m.
"""

from __future__ import annotations

import threading
from hashlib import blake2b
from math import prod
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
_ANGLE = np.uint64(1 << (_PLACE - 1))  # of an index: the words of angles
_TURN = {4: "i2", 8: "i4"}  # words of angles, by the bytes of a number
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
        blocks = _blocks(piece, out.dtype.itemsize)
        ids, squares = self._ids[:a], -2.0 * scales.reshape(-1, 1, 1).numpy() ** 2
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
                    self._pieces(ids[some], start, squares[some], part[some, at : at + each], add)

    def _pieces(
        self, ids: NDArray[np.uint64], first: int, squares: Floats, out: Floats, add: bool
    ) -> None:
        """Pieces `[a, k, n]`: the first half of each is r cos t, the second r sin t."""
        (a, k, n), kind = out.shape, out.dtype
        half, width, bits = (n + 1) // 2, kind.itemsize, 8 * kind.itemsize - 1
        each = _blocks(n, width)
        places = np.arange(first, first + k * each, dtype=np.uint64).reshape(k, each)
        radii = self._words("radii", ids, places, f"i{width}")
        places = places[:, : _blocks(n, width // 2)] | _ANGLE
        angles = self._words("angles", ids, places, _TURN[width])
        r, t, c = (_room(name, (a, k, radii.shape[-1]), kind) for name in "rtc")
        np.copyto(r, radii, casting="unsafe")
        np.abs(r, out=r)
        r *= 2.0**-bits  # uniform in [0, 1]
        r += 2.0 ** -(bits + 2)  # never 0
        np.log(r, out=r)
        r *= squares
        np.sqrt(r, out=r)
        t[:] = angles[..., : t.shape[-1]]
        t *= np.pi * 2.0 ** (1 - 4 * width)
        np.cos(t, out=c)
        c *= r
        np.sin(t, out=t)
        t *= r
        for made, into in ((c, out[..., :half]), (t, out[..., half:])):
            if add:
                into += made[..., : into.shape[-1]]
            else:
                into[:] = made[..., : into.shape[-1]]

    def _words(
        self, name: str, ids: NDArray[np.uint64], places: NDArray[np.uint64], kind: str
    ) -> NDArray[Any]:
        """Random words `[a, k, .]` of each party and piece: AES of (party, place)."""
        counters = _room("counters", (len(ids), *places.shape, 2), np.dtype(np.uint64))
        counters[..., 0] = ids[:, None, None]
        counters[..., 1] = places
        words = _room(name, (8 * (counters.size + 2),), np.dtype(np.uint8))
        self._cipher.update_into(counters.reshape(-1).view(np.uint8).data, words.data)
        return words[:-16].view(kind).reshape(len(ids), len(places), -1)


def _blocks(n: int, width: int) -> int:
    """Blocks of 16 bytes that words of this width are in, one for two of n numbers."""
    return -(-((n + 1) // 2 * width) // 16)


def _room(name: str, shape: tuple[int, ...], kind: np.dtype[Any]) -> NDArray[Any]:
    """Memory of this thread that is used again and again, on a line of the cache."""
    rooms = _ROOMS.__dict__
    size = prod(shape) * kind.itemsize
    room = rooms.get(name)
    if room is None or len(room) < size:
        room = rooms[name] = torch.empty(size, dtype=torch.uint8).numpy()
    return room[:size].view(kind).reshape(shape)
