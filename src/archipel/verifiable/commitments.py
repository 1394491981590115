# SPDX-License-Identifier: Apache-2.0
"""Commitments that add up, and short proofs about them.

Pedersen, CRYPTO 1991, https://doi.org/10.1007/3-540-46766-1_9: C = v G + r H. r is even over all
scalars, so C tells nothing of v, whatever anybody can compute; whoever opens C in two ways knows
the logarithm of H. `Zero`: Schnorr, CRYPTO 1989, knowledge of r where v = 0; of a difference of two
commitments it says that both hold the same value. `Shared`: Chaum, Pedersen, CRYPTO 1992, that a
point is a Diffie-Hellman secret of two public keys.

Departures: proofs hold their first message rather than the challenge, so that many are checked at
once (`equations.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.verifiable.equations import Equation
from archipel.verifiable.group import (
    BASE,
    BLINDING,
    ORDER,
    POINT,
    SCALAR,
    Point,
    drawn,
    scalar,
    written,
)
from archipel.verifiable.transcript import Transcript


def commitment(value: int, blinding: int) -> Point:
    """C = value G + blinding H.

    >>> commitment(2, 5) + commitment(3, -5) == commitment(5, 0)
    True
    """
    return value * BASE + blinding * BLINDING


def opened(point: Point, value: int, blinding: int) -> Equation:
    """That a commitment opens to this."""
    return Equation((1, -value, -blinding), (point, BASE, BLINDING))


class Zero(NamedTuple):
    """That a commitment holds 0: knowledge of r in r H."""

    first: Point
    answer: int

    @classmethod
    def prove(cls, transcript: Transcript, blinding: int) -> Zero:
        nonce = drawn()
        first = nonce * BLINDING
        challenge = _zero_challenge(transcript, blinding * BLINDING, first)
        return cls(first, (nonce + challenge * blinding) % ORDER)

    def equation(self, transcript: Transcript, point: Point) -> Equation:
        """What holds if `point` is a commitment to 0."""
        challenge = _zero_challenge(transcript, point, self.first)
        return Equation((self.answer, -1, -challenge), (BLINDING, self.first, point))

    @property
    def encoded(self) -> bytes:
        return self.first.encoded + written(self.answer)

    @classmethod
    def read(cls, encoded: bytes) -> Zero:
        _sized(encoded, POINT + SCALAR)
        return cls(Point.read(encoded[:POINT]), scalar(encoded[POINT:]))


def _zero_challenge(transcript: Transcript, point: Point, first: Point) -> int:
    transcript.points("zero", BLINDING, point)
    transcript.points("first", first)
    return transcript.challenge("zero")


class Shared(NamedTuple):
    """That `secret` = key · other, where key · G is public: log_G mine = log_other secret."""

    secret: Point
    first: Point  # nonce G
    second: Point  # nonce other
    answer: int

    @classmethod
    def prove(cls, transcript: Transcript, key: int, other: Point) -> Shared:
        nonce = drawn()
        secret, first, second = key * other, nonce * BASE, nonce * other
        challenge = _shared_challenge(transcript, key * BASE, other, secret, first, second)
        return cls(secret, first, second, (nonce + challenge * key) % ORDER)

    def equations(self, transcript: Transcript, mine: Point, other: Point) -> list[Equation]:
        secret, first, second, answer = self
        c = _shared_challenge(transcript, mine, other, secret, first, second)
        return [
            Equation((answer, -1, -c), (BASE, first, mine)),
            Equation((answer, -1, -c), (other, second, secret)),
        ]

    @property
    def encoded(self) -> bytes:
        points = self.secret.encoded + self.first.encoded + self.second.encoded
        return points + written(self.answer)

    @classmethod
    def read(cls, encoded: bytes) -> Shared:
        _sized(encoded, 3 * POINT + SCALAR)
        points = [Point.read(encoded[i * POINT : (i + 1) * POINT]) for i in range(3)]
        return cls(points[0], points[1], points[2], scalar(encoded[3 * POINT :]))


def _shared_challenge(transcript: Transcript, *points: Point) -> int:
    transcript.points("shared", BASE, *points)
    return transcript.challenge("shared")


def _sized(encoded: bytes, size: int) -> None:
    if len(encoded) != size:
        raise ArchipelError(f"a proof of {len(encoded)} bytes: this one has {size}.")
