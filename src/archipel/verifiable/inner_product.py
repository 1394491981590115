# SPDX-License-Identifier: Apache-2.0
"""The inner-product argument: what two committed vectors multiply to, in 2 log2(n) points.

Bünz, Bootle, Boneh, Poelstra, Wuille, Maxwell, S&P 2018, https://eprint.iacr.org/2017/1066,
Protocols 1 and 2: knowledge of a, b with P = Σ a_i g_i + Σ b_i h_i and <a, b> = c. The verifier
does not fold generators: with the challenges x_j it knows what each is multiplied by in the end
(section 3.1), and adds that to its one sum.

Departures: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.verifiable.equations import Equation
from archipel.verifiable.group import (
    ORDER,
    POINT,
    SCALAR,
    Point,
    generator,
    scalar,
    total,
    written,
)
from archipel.verifiable.transcript import Transcript

INNER = generator("inner product")  # u


class Argument(NamedTuple):
    """The prover's messages."""

    L: tuple[Point, ...]
    R: tuple[Point, ...]
    a: int
    b: int

    @property
    def encoded(self) -> bytes:
        points = b"".join(point.encoded for point in (*self.L, *self.R))
        return points + written(self.a) + written(self.b)

    @classmethod
    def read(cls, encoded: bytes) -> Argument:
        """The argument, if it has some length that one can have."""
        rounds, rest = divmod(len(encoded) - 2 * SCALAR, 2 * POINT)
        if rounds < 0 or rest:
            raise ArchipelError(f"inner product of {len(encoded)} bytes: no argument is that long.")
        cut = 2 * rounds * POINT
        folds = [Point.read(encoded[i : i + POINT]) for i in range(0, cut, POINT)]
        a, b = scalar(encoded[cut : cut + SCALAR]), scalar(encoded[cut + SCALAR :])
        return cls(tuple(folds[:rounds]), tuple(folds[rounds:]), a, b)


def argument_bytes(size: int) -> int:
    """How long an argument about vectors of this size, a power of two, is."""
    return 2 * (size.bit_length() - 1) * POINT + 2 * SCALAR


def prove(
    transcript: Transcript, g: list[Point], h: list[Point], a: list[int], b: list[int], e: int = 1
) -> Argument:
    """Prove <a, b> of vectors on g and e h, whose commitment and product are in the transcript."""
    u = transcript.challenge("u") * INNER
    L, R = [], []
    c = 1  # the paper's generators are c g and e h: one multiple less of each
    while len(a) > 1:
        half = len(a) // 2
        (a0, a1), (b0, b1) = (a[:half], a[half:]), (b[:half], b[half:])
        (g0, g1), (h0, h1) = (g[:half], g[half:]), (h[:half], h[half:])
        L.append(_mixed(c, a0, g1, e, b1, h0, u))
        R.append(_mixed(c, a1, g0, e, b0, h1, u))
        x, inverse = _challenge(transcript, L[-1], R[-1])
        a = [(x * p + inverse * q) % ORDER for p, q in zip(a0, a1, strict=True)]
        b = [(inverse * p + x * q) % ORDER for p, q in zip(b0, b1, strict=True)]
        if half > 1:  # the last generators are not used
            square, other = x * x % ORDER, inverse * inverse % ORDER
            g = [p + square * q for p, q in zip(g0, g1, strict=True)]  # x^-1 g0 + x g1
            h = [p + other * q for p, q in zip(h0, h1, strict=True)]  # x h0 + x^-1 h1
            c, e = c * inverse % ORDER, e * x % ORDER
    return Argument(tuple(L), tuple(R), a[0], b[0])


def _mixed(
    c: int, a: list[int], g: list[Point], e: int, b: list[int], h: list[Point], u: Point
) -> Point:
    """Σ a_i c g_i + Σ b_i e h_i + <a, b> u."""
    scalars = [*(c * each for each in a), *(e * each for each in b), dot(a, b)]
    return total(scalars, [*g, *h, u])


def verify(
    transcript: Transcript, size: int, product: int, argument: Argument
) -> tuple[list[int], list[int], Equation]:
    """What the argument says P is: multiples of g, of h, and the rest, to be added to P.

    P = Σ g[i] g_i + Σ h[i] h_i − the rest, where the rest holds L, R and u.
    """
    if 1 << len(argument.L) != size or len(argument.L) != len(argument.R):
        raise ArchipelError(f"{len(argument.L)} folds: a proof about {size} bits has others.")
    at = transcript.challenge("u")
    s, squares = [1], []
    for left, right in zip(argument.L, argument.R, strict=True):
        x, inverse = _challenge(transcript, left, right)
        squares.append((x * x % ORDER, inverse * inverse % ORDER))
        s = [value * each % ORDER for value in s for each in (inverse, x)]
    a, b = argument.a, argument.b
    g = [a * each % ORDER for each in s]
    h = [b * each % ORDER for each in reversed(s)]  # 1 / s_i is s of the opposite index
    rest = Equation(
        [
            *(square for square, _ in squares),
            *(inverse for _, inverse in squares),
            at * (product - a * b) % ORDER,
        ],
        [*argument.L, *argument.R, INNER],
    )
    return g, h, rest


def _challenge(transcript: Transcript, left: Point, right: Point) -> tuple[int, int]:
    transcript.points("fold", left, right)
    x = transcript.challenge("fold")
    return x, pow(x, -1, ORDER)


def dot(a: Iterable[int], b: Iterable[int]) -> int:
    """<a, b>."""
    return sum(p * q for p, q in zip(a, b, strict=True)) % ORDER


def powers_of(base: int, count: int) -> list[int]:
    """(1, base, base², ..)."""
    out = [1] * count
    for i in range(1, count):
        out[i] = out[i - 1] * base % ORDER
    return out
