# SPDX-License-Identifier: Apache-2.0
"""Bulletproofs: that committed numbers are weighted sums of bits, and so lie in their ranges.

Bünz, Bootle, Boneh, Poelstra, Wuille, Maxwell, S&P 2018, https://eprint.iacr.org/2017/1066, section
4.2 with the inner-product argument of section 3, made non-interactive (`transcript.py`).

Departures: the weights of the bits are any public numbers, not powers of two alone. A prover
commits to bits a_L in A, and proves for rows w_q with commitments V_q = v_q G + γ_q H that <a_L,
w_q> = v_q. With a_R = a_L − 1, ω = Σ_q z^(1+q) w_q and y^n = (1, y, .., y^(n−1)),

    l(X) = a_L − z 1 + s_L X
    r(X) = y^n ∘ (a_R + z 1 + s_R X) + ω
    <l, r>(0) = Σ_q z^(1+q) v_q + δ,   δ = (z − z²) <1, y^n> − z <1, ω>,

which for w_q = 2^n is the paper's (36) to (39). So one argument serves three statements:

- a number from 0 to any `top`, not only below a power of two: weights 1, 2, 4, .. and for the last
  bit what is missing to `top`; they reach every number up to it, and none above.
- bits that were committed to first, in A, and get signs by coins that came later (`noise.py`).
- numbers that add up to a public one: a row with V = that number times G.

The verifier's side is two equations (`equations.py`): all proofs of all parties are one sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.verifiable import inner_product
from archipel.verifiable.equations import Equation
from archipel.verifiable.group import (
    BASE,
    BLINDING,
    ORDER,
    POINT,
    SCALAR,
    Point,
    add,
    drawn,
    generators,
    scalar,
    total,
    written,
)
from archipel.verifiable.inner_product import Argument, dot, powers_of
from archipel.verifiable.transcript import Transcript

MOST = 1 << 16  # bits of one proof


class Row(NamedTuple):
    """A statement: the bits times the weights are what the commitment holds."""

    weights: Sequence[int]  # of some bits; the others count 0
    point: Point  # V
    start: int = 0  # the first of these bits


class Bits(NamedTuple):
    """A prover's bits and what blinds their commitment."""

    values: tuple[int, ...]  # a_L, of 0 and 1
    blinding: int  # α
    point: Point  # A


def commit(values: Sequence[int], size: int | None = None) -> Bits:
    """Commit to bits, filled up with zeros to a power of two."""
    size = padded(len(values)) if size is None else size
    bits = (*values, *[0] * (size - len(values)))
    G, H = _bases(size)
    alpha = drawn()
    ones = [G[i] if bit else H[i] for i, bit in enumerate(bits)]
    # A = α H + Σ a_L G + Σ (a_L − 1) H: where a bit is 1 the second is 0
    minus = add(point for point, bit in zip(ones, bits, strict=True) if not bit)
    plus = add(point for point, bit in zip(ones, bits, strict=True) if bit)
    return Bits(bits, alpha, alpha * BLINDING + plus - minus)


def padded(count: int) -> int:
    """The number of bits of a proof."""
    if not 1 <= count <= MOST:
        raise ArchipelError(f"{count} bits: a proof is about 1 to {MOST} of them; give fewer.")
    return 1 << (count - 1).bit_length()


def weights_to(top: int) -> list[int]:
    """Weights of bits that reach every number from 0 to `top`, and no other.

    >>> weights_to(65535) == [2**i for i in range(16)]
    True
    >>> weights_to(10)
    [1, 2, 4, 3]
    """
    powers = [1 << i for i in range(top.bit_length() - 1)]
    return [*powers, top - sum(powers)]


def bits_of(value: int, top: int) -> list[int]:
    """Bits whose weighted sum is the value."""
    *powers, last = weights_to(top)
    high = int(value >= 1 << len(powers))
    low = value - last * high
    return [*(low >> i & 1 for i in range(len(powers))), high]


class Proof(NamedTuple):
    """A proof about bits that were committed to in A."""

    S: Point
    T1: Point
    T2: Point
    tau: int  # τ_x
    mu: int  # μ
    t: int  # t̂
    inner: Argument

    @property
    def encoded(self) -> bytes:
        points = self.S.encoded + self.T1.encoded + self.T2.encoded
        scalars = written(self.tau) + written(self.mu) + written(self.t)
        return points + scalars + self.inner.encoded

    @classmethod
    def read(cls, encoded: bytes, size: int) -> Proof:
        """The proof about `size` bits; every point and scalar has one encoding."""
        if len(encoded) != proof_bytes(size):
            raise ArchipelError(f"proof of {len(encoded)} bytes: this one has {proof_bytes(size)}.")
        S, T1, T2 = (Point.read(encoded[i * POINT : (i + 1) * POINT]) for i in range(3))
        start = 3 * POINT
        tau, mu, t = (scalar(encoded[start + i * SCALAR :][:SCALAR]) for i in range(3))
        return cls(S, T1, T2, tau, mu, t, Argument.read(encoded[start + 3 * SCALAR :]))


def proof_bytes(size: int) -> int:
    """How long a proof about so many bits is.

    >>> proof_bytes(16), proof_bytes(64)
    (523, 655)
    """
    return 3 * POINT + 3 * SCALAR + inner_product.argument_bytes(size)


def prove(
    transcript: Transcript, bits: Bits, rows: Sequence[Row], blindings: Sequence[int]
) -> Proof:
    """Prove all rows of one commitment to bits; `blindings` are those of the rows' points."""
    n = len(bits.values)
    G, H = _bases(n)
    _state(transcript, bits.point, rows, n)
    s_L, s_R = [drawn() for _ in range(n)], [drawn() for _ in range(n)]
    rho = drawn()
    S = total([rho, *s_L, *s_R], [BLINDING, *G, *H])
    transcript.points("S", S)
    y, z = transcript.challenge("y"), transcript.challenge("z")
    powers, omega = powers_of(y, n), _omega(rows, z, n)
    l0 = [(a - z) % ORDER for a in bits.values]
    r0 = [(p * (a - 1 + z) + w) % ORDER for p, a, w in zip(powers, bits.values, omega, strict=True)]
    r1 = [p * s % ORDER for p, s in zip(powers, s_R, strict=True)]
    t1, t2 = dot(l0, r1) + dot(s_L, r0), dot(s_L, r1)
    tau1, tau2 = drawn(), drawn()
    T1 = t1 * BASE + tau1 * BLINDING
    T2 = t2 * BASE + tau2 * BLINDING
    transcript.points("T", T1, T2)
    x = transcript.challenge("x")
    left = [(a + x * s) % ORDER for a, s in zip(l0, s_L, strict=True)]
    right = [(a + x * s) % ORDER for a, s in zip(r0, r1, strict=True)]
    t = dot(left, right)
    openings = dot(blindings, _row_powers(z, len(rows)))
    tau = (openings + x * tau1 + x * x * tau2) % ORDER
    mu = (bits.blinding + x * rho) % ORDER
    transcript.scalars("answers", (tau, mu, t))
    inverse = powers_of(pow(y, -1, ORDER), n)
    turned = [value * point for value, point in zip(inverse, H, strict=True)]  # h'
    inner = inner_product.prove(transcript, list(G), turned, left, right)
    return Proof(S, T1, T2, tau, mu, t, inner)


def equations(
    transcript: Transcript, point: Point, rows: Sequence[Row], size: int, proof: Proof
) -> list[Equation]:
    """What holds if the proof of these rows about the bits in `point` (A) is right."""
    G, H = _bases(size)
    _state(transcript, point, rows, size)
    transcript.points("S", proof.S)
    y, z = transcript.challenge("y"), transcript.challenge("z")
    transcript.points("T", proof.T1, proof.T2)
    x = transcript.challenge("x")
    transcript.scalars("answers", (proof.tau, proof.mu, proof.t))
    powers, omega, by_row = powers_of(y, size), _omega(rows, z, size), _row_powers(z, len(rows))
    delta = (z - z * z) * sum(powers) - z * sum(omega)
    balance = Equation(  # t̂ G + τ_x H = Σ z^(1+q) V_q + δ G + x T_1 + x² T_2
        [proof.t - delta, proof.tau, -x, -x * x, *(-each for each in by_row)],
        [BASE, BLINDING, proof.T1, proof.T2, *(row.point for row in rows)],
    )
    g, h, inner = inner_product.verify(transcript, size, proof.t, proof.inner)
    inverse = powers_of(pow(y, -1, ORDER), size)
    # A + x S − z Σ G + Σ (z y^i + ω_i) h'_i − μ H, less what the argument makes of it
    scalars = [1, x, -proof.mu]
    scalars += [-z - each for each in g]
    scalars += [z + v * (w - b) for v, w, b in zip(inverse, omega, h, strict=True)]
    points = [point, proof.S, BLINDING, *G, *H, *inner.points]
    return [balance, Equation([*scalars, *inner.scalars], points)]


def _state(transcript: Transcript, point: Point, rows: Sequence[Row], size: int) -> None:
    """The statement: number of bits, generators by their first ones, A, and every row."""
    G, H = _bases(size)
    transcript.say("bits", size.to_bytes(8, "big"))
    transcript.points("generators", BASE, BLINDING, G[0], H[0])
    transcript.points("A", point)
    for row in rows:
        transcript.say("start", row.start.to_bytes(8, "big"))
        transcript.scalars("weights", row.weights)
        transcript.points("V", row.point)


def _bases(size: int) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    return generators("bit", size), generators("other bit", size)


def _row_powers(z: int, rows: int) -> list[int]:
    """z^(1+q) for q = 1, 2, .."""
    return powers_of(z, rows + 2)[2:]


def _omega(rows: Sequence[Row], z: int, size: int) -> list[int]:
    omega = [0] * size
    for power, row in zip(_row_powers(z, len(rows)), rows, strict=True):
        for i, weight in enumerate(row.weights, row.start):
            omega[i] = (omega[i] + power * weight) % ORDER
    return omega
