# SPDX-License-Identifier: Apache-2.0
"""The group of all commitments: secp256k1, its scalars, generators, and sums of many multiples.

secp256k1 (SEC 2, version 2.0, https://www.secg.org/sec2-v2.pdf) has prime order, so every point but
the identity generates it and nothing has to be cleared. libsecp256k1 through coincurve knows no
identity: here it is a point like others (`IDENTITY`), which nothing that is read may be.

`total` is Pippenger's bucket method on libsecp256k1's sums of many points (Bernstein, Doumen,
Lange, Oosterwijk, INDOCRYPT 2012, https://eprint.iacr.org/2012/549, section 4). Departures: a
bucket that counts j times is added once for each bit of j, since long sums are ten times as fast as
single additions.

Generators are hashes of public tags to points, by trying counters: nobody knows a relation between
two of them.

Side channels: libsecp256k1 multiplies the base point in constant time, and other points in time
that depends on the scalar; Python's integers depend on their size as well. So whoever can time a
party at work, on the same machine or by its answers, may learn of its secrets. Here a party works
out all its answers before it sends any, and answers in phases that all share; on a machine with
hostile neighbours that is not enough.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from itertools import pairwise
from math import log2

import numpy as np
from coincurve import PublicKey
from numpy.typing import NDArray

from archipel.errors import ArchipelError

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
POINT, SCALAR = 33, 32  # bytes
_FEW = 300  # points up to which single multiples are faster than buckets
_SINGLE, _CALL = 0.35, 4.0  # µs of an addition in a long sum, and of beginning one


class Point:
    """An element of the group; `+`, `-` and `scalar * point` mean what they say.

    >>> 2 * BASE + -1 * BASE == BASE
    True
    >>> BASE + -BASE == IDENTITY
    True
    """

    __slots__ = ("_encoded", "key")

    def __init__(self, key: PublicKey | None, encoded: bytes | None = None) -> None:
        self.key = key
        self._encoded = encoded

    @classmethod
    def read(cls, encoded: bytes) -> Point:
        """The point of 33 bytes, if they are one; the identity has no encoding."""
        if len(encoded) != POINT or encoded[0] not in (2, 3):
            raise ArchipelError(f"point = {encoded[:40].hex()}: not a point of secp256k1.")
        try:
            return cls(PublicKey(encoded), encoded)
        except ValueError:
            raise ArchipelError(f"point = {encoded.hex()}: not a point of secp256k1.") from None

    @property
    def encoded(self) -> bytes:
        """33 bytes, all zero for the identity."""
        if self._encoded is None:
            self._encoded = self.key.format() if self.key is not None else bytes(POINT)
        return self._encoded

    def __add__(self, other: Point) -> Point:
        return add((self, other))

    def __sub__(self, other: Point) -> Point:
        return add((self, -other))

    def __neg__(self) -> Point:
        if self.key is None:
            return self
        turned = bytes([self.encoded[0] ^ 1]) + self.encoded[1:]
        return Point(PublicKey(turned), turned)

    def __rmul__(self, scalar: int) -> Point:
        scalar %= ORDER
        if self.key is None or scalar == 0:
            return IDENTITY
        if self is BASE:
            return Point(PublicKey.from_valid_secret(scalar.to_bytes(SCALAR, "big")))
        return Point(self.key.multiply(scalar.to_bytes(SCALAR, "big")))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def __repr__(self) -> str:
        return f"Point({self.encoded.hex()})"


IDENTITY = Point(None)
BASE = Point(PublicKey.from_valid_secret((1).to_bytes(SCALAR, "big")))  # G


def scalar(encoded: bytes) -> int:
    """The scalar of 32 bytes, if it is below the order: each has one encoding."""
    value = int.from_bytes(encoded, "big")
    if len(encoded) != SCALAR or value >= ORDER:
        raise ArchipelError(f"scalar = {encoded[:40].hex()}: not below the order of the group.")
    return value


def written(value: int) -> bytes:
    """A scalar as 32 bytes."""
    return (value % ORDER).to_bytes(SCALAR, "big")


def drawn() -> int:
    """A secret scalar of the operating system's, never 0; each is used once."""
    return secrets.randbelow(ORDER - 1) + 1


@cache
def generator(tag: str) -> Point:
    """The point that a tag hashes to."""
    for counter in range(256):
        digest = sha256(b"archipel generator\0%d\0%s" % (counter, tag.encode())).digest()
        try:
            return Point(PublicKey(b"\x02" + digest))
        except ValueError:
            continue
    raise AssertionError(f"no point for {tag!r}")  # one tag in 2^256 has none


BLINDING = generator("blinding")  # H


@cache
def generators(tag: str, count: int) -> tuple[Point, ...]:
    """The first points of an endless list."""
    return tuple(generator(f"{tag} {i}") for i in range(count))


def add(points: Iterable[Point]) -> Point:
    """The sum of points."""
    return _sum([point.key for point in points if point.key is not None])


def _sum(keys: list[PublicKey]) -> Point:
    if len(keys) < 2:
        return Point(keys[0]) if keys else IDENTITY
    try:
        return Point(PublicKey.combine_keys(keys))
    except ValueError:  # the sum is the identity
        return IDENTITY


def total(scalars: Sequence[int], points: Sequence[Point]) -> Point:
    """Σ scalars[i] points[i]. In time that depends on the scalars: see above.

    >>> total([2, ORDER - 2], [BASE, BASE]) == IDENTITY
    True
    """
    pairs = [
        (value, point)
        for value, point in zip((s % ORDER for s in scalars), points, strict=True)
        if value and point.key is not None
    ]
    if len(pairs) < _FEW:
        return add(value * point for value, point in pairs)
    keys = [key for _, point in pairs if (key := point.key) is not None]
    return _by_buckets([value for value, _ in pairs], keys)


def _by_buckets(scalars: list[int], keys: list[PublicKey]) -> Point:
    """Each window of bits by itself: points of one digit are added up, then digit times that."""
    bits = max(value.bit_length() for value in scalars)
    width = _width(len(keys), bits)
    windows = -(-bits // width)
    raw = b"".join(value.to_bytes(SCALAR, "little") for value in scalars)
    table = np.unpackbits(
        np.frombuffer(raw, np.uint8).reshape(-1, SCALAR), axis=1, bitorder="little"
    )
    table = np.pad(table, ((0, 0), (0, width)))  # the last window may reach beyond
    powers = 1 << np.arange(width)
    result = IDENTITY
    for window in reversed(range(windows)):
        digits = table[:, window * width : (window + 1) * width] @ powers
        result = (1 << width) * result + _window(digits, keys, width)
    return result


def _window(digits: NDArray[np.int64], keys: list[PublicKey], width: int) -> Point:
    """Σ digit times the points that have it."""
    order = np.argsort(digits, kind="stable")
    ends = np.searchsorted(digits[order], np.arange(1, (1 << width) + 1)).tolist()
    sorted_keys = [keys[i] for i in order.tolist()]
    buckets = [
        (digit, found.key)
        for digit, (low, high) in enumerate(pairwise(ends), 1)
        if high > low and (found := _sum(sorted_keys[low:high])).key is not None
    ]
    return add(
        (1 << bit) * _sum([key for digit, key in buckets if digit >> bit & 1])
        for bit in range(width)
    )


def _width(count: int, bits: int) -> int:
    """The window that costs least."""

    def cost(width: int) -> float:
        full = min(count, 1 << width)
        return bits / width * (count * _SINGLE + full * _CALL + full * width / 2 * _SINGLE)

    return min(range(2, max(4, int(log2(count)) + 2)), key=cost)
