"""A vector in one commitment: a norm up to the bound is proved, and nothing else is."""

import random

import numpy as np
import pytest

from archipel.errors import ArchipelError
from archipel.verifiable import norm
from archipel.verifiable.bits import bits_of
from archipel.verifiable.equations import hold
from archipel.verifiable.group import BASE, BLINDING, ORDER, drawn, total
from archipel.verifiable.transcript import Transcript


def transcript(session=b"session"):
    return Transcript("norm", session, "anna")


def accepted(point, size, bound, proof, session=b"session"):
    return hold(norm.equations(transcript(session), point, size, bound, proof))


@pytest.fixture(autouse=True)
def few_rows(request, monkeypatch):
    """Cheaper proofs, which a liar passes with 2^-24; slow tests have all rows."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(norm, "ROWS", 24)


@pytest.fixture
def shown():
    vector = norm.commit([3, -4, 0])
    return vector, norm.prove(transcript(), vector, 5)


def test_a_norm_up_to_the_bound_is_proved(shown):
    vector, proof = shown

    assert accepted(vector.point, 3, 5, proof)


def test_the_statement_is_bound(shown):
    vector, proof = shown

    assert not accepted(vector.point, 3, 6, proof)
    assert not accepted(vector.point, 3, 5, proof, b"another")
    assert not accepted(vector.point + BASE, 3, 5, proof)


@pytest.mark.parametrize("field", ["D", "square", "A", "S", "T1", "T2"])
def test_every_point_counts(shown, field):
    vector, proof = shown
    worse = proof._replace(**{field: getattr(proof, field) + BASE})

    assert not accepted(vector.point, 3, 5, worse)


@pytest.mark.parametrize("field", ["tau", "mu", "t"])
def test_every_scalar_counts(shown, field):
    vector, proof = shown
    worse = proof._replace(**{field: getattr(proof, field) + 1})

    assert not accepted(vector.point, 3, 5, worse)


def test_a_larger_norm_is_refused_and_a_liar_rejected():
    vector = norm.commit([3, -4, 1])
    with pytest.raises(ArchipelError, match="more than the bound of 5"):
        norm.prove(transcript(), vector, 5)

    lie = vector._replace(values=(3, -4, 0, 0))
    assert not accepted(vector.point, 3, 5, norm.prove(transcript(), lie, 5))


def test_entries_that_wrap_around_the_order_are_rejected(monkeypatch):
    """Squares that add up to a small number modulo the order: it is the projections that tell."""
    a = random.Random(1).randrange(ORDER)
    b = next(root for x in range(1, 60) if (root := _root(x - a * a)) is not None)
    blinding = drawn()
    point = total([a, b, blinding], [*norm._bases(2)[0], BLINDING])
    lie = norm.Vector((a, b), blinding, point)
    monkeypatch.setattr(norm, "_squared", lambda values: sum(v * v for v in values) % ORDER)
    monkeypatch.setattr(norm, "bits_of", lambda value, top: bits_of(min(value, top), top))
    assert not accepted(point, 2, 8, norm.prove(transcript(), lie, 8))

    monkeypatch.setattr(norm, "ROWS_OF", np.zeros(4, np.int8))
    assert accepted(point, 2, 8, norm.prove(transcript(), lie, 8))


def _root(square):
    """A square root modulo the order, if there is one."""
    square %= ORDER
    if pow(square, (ORDER - 1) // 2, ORDER) != 1:
        return None
    q, s = ORDER - 1, 0  # Tonelli, Shanks
    while q % 2 == 0:
        q, s = q // 2, s + 1
    z = next(z for z in range(2, 100) if pow(z, (ORDER - 1) // 2, ORDER) == ORDER - 1)
    m, c, t, r = s, pow(z, q, ORDER), pow(square, q, ORDER), pow(square, (q + 1) // 2, ORDER)
    while t != 1:
        i, u = 0, t
        while u != 1:
            i, u = i + 1, u * u % ORDER
        b = pow(c, 1 << (m - i - 1), ORDER)
        m, c, t, r = i, b * b % ORDER, t * b * b % ORDER, r * b % ORDER
    return r


def test_a_commitment_with_parts_on_other_generators_is_rejected():
    """What C has too much on the second generators, D lacks."""
    junk = 5 * norm._bases(2)[1][0]
    vector = norm.commit([1, 2])
    proof = norm.prove(transcript(), vector._replace(point=vector.point + junk), 3)
    other = proof._replace(D=proof.D - junk)

    assert not accepted(vector.point + junk, 2, 3, proof)
    assert not accepted(vector.point + junk, 2, 3, other)


def test_commitments_add_up():
    a, b = norm.commit([1, -2, 3, 4]), norm.commit([10, 20, -30, 40])
    whole = norm._on(norm._bases(4)[0], [11, 18, -27, 44], a.blinding + b.blinding)

    assert a.point + b.point == whole


@pytest.mark.slow
def test_larger_vectors():
    draw = random.Random(2)
    values = [draw.randrange(-900, 900) for _ in range(700)]
    vector = norm.commit(values)
    bound = 1 + int(sum(v * v for v in values) ** 0.5)

    assert accepted(vector.point, 700, bound, norm.prove(transcript(), vector, bound))
