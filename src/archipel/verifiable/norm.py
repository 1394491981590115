# SPDX-License-Identifier: Apache-2.0
"""A vector in one commitment, with a proof that its l2 norm is at most a bound: for models.

C = Σ x_i G_i + r H binds all of x in 33 bytes, and adds up over parties. That <x, x> is at most B²
is proved modulo the order of the group by the inner-product argument of Bünz et al., S&P 2018
(`inner_product.py`). It is so for the whole numbers too, since no x_i is large: that is shown by
projections, as in Bell et al. (ACORN), USENIX Security 2023, https://eprint.iacr.org/2022/1461.

Small entries. After C, T = 128 rows Π of −1, 0, 0, 1 are drawn, and y = Π x is proved to lie within
R = 16 B. If |x_j| > 2 R for one j (centred modulo the order), then of c, c + x_j, c − x_j the first
cannot lie within R together with one of the others, whatever c the other entries make: their
distance is x_j. So a row fails with probability 1/2 at least, and all of T hold with 2^-T. An
honest vector has |y_t| > R with probability 2 e^-128 [Hoeffding]. So |x_i| <= 32 B, and with p 1024
B² below the order nothing wraps.

One argument. The prover commits to x a second time, on the other generators: D = Σ x_i H_i + r' H.
C + e D, for a challenge e, is then a commitment to a = x on G and b = x on e H. If C or D had parts
on the generators of the other, a = b could not hold for more than two e. For challenges y, z and
ω = Σ_t ρ^t Π_t,

    l(X) = a + z y^n + s_L X,   r(X) = b − z y^n + z² ω + s_R X,
    <l, r>(0) = <a, b> − z <a − b, y^n> + z² <a, ω> − z² <y^n, y^n> + z³ <y^n, ω>,

which says, power by power of z, that <a, b> is what V_s holds, a = b, and <a, ω> = Σ_t ρ^t y_t.

Departures: the bound on entries is the lemma above, whose factor of 32 serves against wrapping
alone; one argument of the vector's size says all else, and T + 1 numbers are proved to lie in
ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel.errors import ArchipelError
from archipel.verifiable import bits, inner_product
from archipel.verifiable.bits import Row, bits_of, padded, weights_to
from archipel.verifiable.commitments import commitment
from archipel.verifiable.equations import Equation
from archipel.verifiable.group import (
    BASE,
    BLINDING,
    ORDER,
    Point,
    drawn,
    generators,
    total,
    written,
)
from archipel.verifiable.inner_product import Argument, dot, powers_of
from archipel.verifiable.transcript import Transcript

ROWS = 128  # T
SPREAD = 16  # R / B
MOST = 1 << 20  # parameters
Matrix = NDArray[np.int8]
ROWS_OF: Matrix = np.array([-1, 0, 0, 1], np.int8)  # two bits make an entry of a row


class Vector(NamedTuple):
    """A party's vector and what blinds its commitment."""

    values: tuple[int, ...]  # on a grid, of a power of two in number
    blinding: int
    point: Point  # C


class Bounded(NamedTuple):
    """That the vector in a commitment has a norm of at most the bound."""

    D: Point
    square: Point  # V_s
    projections: tuple[Point, ...]  # V_t
    A: Point  # bits of what lies in ranges
    ranges: bits.Proof
    S: Point
    T1: Point
    T2: Point
    tau: int
    mu: int
    t: int
    inner: Argument

    @property
    def encoded(self) -> bytes:
        points = (self.D, self.square, *self.projections, self.A, self.S, self.T1, self.T2)
        told = b"".join(point.encoded for point in points)
        scalars = written(self.tau) + written(self.mu) + written(self.t)
        return told + self.ranges.encoded + scalars + self.inner.encoded


def commit(values: Sequence[int]) -> Vector:
    """Commit to a vector of whole numbers; zeros fill it up to a power of two."""
    if not 1 <= len(values) <= MOST:
        raise ArchipelError(f"{len(values)} parameters: a commitment is to 1 to {MOST}.")
    size = 1 << (len(values) - 1).bit_length()
    whole = (*map(int, values), *[0] * (size - len(values)))
    blinding = drawn()
    return Vector(whole, blinding, _on(_bases(size)[0], whole, blinding))


def prove(transcript: Transcript, vector: Vector, bound: int) -> Bounded:
    """Prove that the norm is at most `bound`, in steps of the grid."""
    x, n = vector.values, len(vector.values)
    square = _squared(x)
    if square > bound * bound:
        raise ArchipelError(f"norm = {square**0.5:.6g}: more than the bound of {bound}; clip it.")
    G, H = _bases(n)
    other = drawn()
    D = _on(H, x, other)
    matrix = _begin(transcript, vector.point, D, n, bound)
    y = [int(each) for each in matrix.astype(object) @ np.array(x, dtype=object)]
    blindings = [drawn() for _ in range(ROWS + 1)]
    points = [commitment(*pair) for pair in zip([square, *y], blindings, strict=True)]
    rows = _rows(points, bound)
    inside = [bound**2 - square, *(each + SPREAD * bound for each in y)]
    tops = _tops(bound)
    told = bits.commit(
        [bit for value, top in zip(inside, tops, strict=True) for bit in bits_of(value, top)]
    )
    signs = [-blindings[0], *blindings[1:]]
    ranges = bits.prove(transcript, told, rows, signs)
    # <a, b>, a = b and <a, omega> in one
    e, z, powers, omega, by_row = _challenges(transcript, matrix, n)
    l0 = [(a + z * p) % ORDER for a, p in zip(x, powers, strict=True)]
    r0 = [(b - z * p + z * z * w) % ORDER for b, p, w in zip(x, powers, omega, strict=True)]
    s_L, s_R, rho = [drawn() for _ in range(n)], [drawn() for _ in range(n)], drawn()
    S = total([rho, *s_L, *(e * each for each in s_R)], [BLINDING, *G, *H])
    t1, t2 = dot(l0, s_R) + dot(s_L, r0), dot(s_L, s_R)
    tau1, tau2 = drawn(), drawn()
    T1, T2 = commitment(t1, tau1), commitment(t2, tau2)
    transcript.points("S", S, T1, T2)
    X = transcript.challenge("X")
    left = [(a + X * s) % ORDER for a, s in zip(l0, s_L, strict=True)]
    right = [(a + X * s) % ORDER for a, s in zip(r0, s_R, strict=True)]
    t = dot(left, right)
    openings = blindings[0] + z * z * dot(by_row, blindings[1:])
    tau = (openings + X * tau1 + X * X * tau2) % ORDER
    mu = (vector.blinding + e * other + X * rho) % ORDER
    transcript.scalars("answers", (tau, mu, t))
    inner = inner_product.prove(transcript, list(G), list(H), left, right, e)
    return Bounded(
        D, points[0], tuple(points[1:]), told.point, ranges, S, T1, T2, tau, mu, t, inner
    )


def equations(
    transcript: Transcript, point: Point, size: int, bound: int, proof: Bounded
) -> list[Equation]:
    """What holds if the vector of `size` numbers in `point` (C) has a norm of at most `bound`."""
    n = 1 << (size - 1).bit_length()
    if len(proof.projections) != ROWS:
        raise ArchipelError(f"{len(proof.projections)} projections: there are {ROWS}.")
    G, H = _bases(n)
    matrix = _begin(transcript, point, proof.D, n, bound)
    rows = _rows([proof.square, *proof.projections], bound)
    held = bits.equations(transcript, proof.A, rows, _bits(bound), proof.ranges)
    e, z, powers, omega, by_row = _challenges(transcript, matrix, n)
    transcript.points("S", proof.S, proof.T1, proof.T2)
    X = transcript.challenge("X")
    transcript.scalars("answers", (proof.tau, proof.mu, proof.t))
    delta = z**3 * dot(powers, omega) - z**2 * dot(powers, powers)
    balance = Equation(  # t G + τ H = V_s + z² Σ ρ^t V_t + δ G + X T_1 + X² T_2
        [proof.t - delta, proof.tau, -1, *(-z * z * each for each in by_row), -X, -X * X],
        [BASE, BLINDING, proof.square, *proof.projections, proof.T1, proof.T2],
    )
    g, h, rest = inner_product.verify(transcript, n, proof.t, proof.inner)
    scalars = [1, e, X, -proof.mu]
    scalars += [z * p - a for p, a in zip(powers, g, strict=True)]
    scalars += [e * (z * z * w - z * p - b) for p, w, b in zip(powers, omega, h, strict=True)]
    points = [point, proof.D, proof.S, BLINDING, *G, *H, *rest.points]
    return [*held, balance, Equation([*scalars, *rest.scalars], points)]


# -- pieces ----------------------------------------------------------------------------------------


def _bases(size: int) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    return generators("parameter", size), generators("other parameter", size)


def _on(bases: Sequence[Point], values: Sequence[int], blinding: int) -> Point:
    """A commitment on these generators, by short multiples: of numbers above 0, and below."""
    plus = total([max(value, 0) for value in values], bases)
    minus = total([max(-value, 0) for value in values], bases)
    return plus - minus + blinding * BLINDING


def _squared(values: Sequence[int]) -> int:
    return sum(value * value for value in values)


def _begin(transcript: Transcript, C: Point, D: Point, n: int, bound: int) -> Matrix:
    """The statement, and the rows that follow from it, [T, n]."""
    if not 1 <= bound < 1 << 64:
        raise ArchipelError(f"bound = {bound}: give a whole number of steps from 1.")
    assert n * (2 * SPREAD * bound) ** 2 < ORDER  # with at most 2^20 parameters
    transcript.say("size", n.to_bytes(8, "big"))
    transcript.say("bound", bound.to_bytes(8, "big"))
    transcript.points("vector", C, D, BLINDING)
    seed = written(transcript.challenge("rows"))
    raw = np.frombuffer(shake_256(seed).digest(ROWS * n // 4), np.uint8)
    pairs = np.stack([raw >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1).reshape(ROWS, n)
    return ROWS_OF[pairs]


def _challenges(
    transcript: Transcript, matrix: Matrix, n: int
) -> tuple[int, int, list[int], list[int], list[int]]:
    """e, z, y^n, ω and the powers of ρ."""
    e, z, y, rho = (transcript.challenge(name) for name in ("e", "z", "y", "rho"))
    by_row = powers_of(rho, ROWS)
    return e, z, powers_of(y, n), _combined(matrix, by_row), by_row


def _combined(matrix: Matrix, by_row: list[int]) -> list[int]:
    """Σ_t ρ^t Π_t, in limbs of 16 bits that numpy adds up."""
    limbs = np.array([[value >> 16 * k & 0xFFFF for k in range(16)] for value in by_row], np.int64)
    sums = matrix.T.astype(np.int64) @ limbs  # [n, 16]
    return [sum(limb << 16 * k for k, limb in enumerate(row)) % ORDER for row in sums.tolist()]


def _tops(bound: int) -> list[int]:
    return [bound**2, *[2 * SPREAD * bound] * ROWS]


def _bits(bound: int) -> int:
    return padded(sum(top.bit_length() for top in _tops(bound)))


def _rows(points: Sequence[Point], bound: int) -> list[Row]:
    """B² − s and y_t + R, each from 0 to its top, in blocks of bits."""
    shifted = [bound**2 * BASE - points[0]]
    shifted += [point + SPREAD * bound * BASE for point in points[1:]]
    rows, at = [], 0
    for top, point in zip(_tops(bound), shifted, strict=True):
        weights = weights_to(top)
        rows.append(Row(weights, point, at))
        at += len(weights)
    return rows
