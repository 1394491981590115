"""The group: the identity is a point, sums by buckets are sums, other bytes are no points."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError
from archipel.verifiable import group
from archipel.verifiable.group import (
    BASE,
    BLINDING,
    IDENTITY,
    ORDER,
    Point,
    add,
    generators,
    scalar,
    total,
    written,
)

scalars = st.one_of(
    st.integers(0, ORDER - 1), st.sampled_from([0, 1, 2, ORDER - 1, ORDER - 2, ORDER])
)


@settings(max_examples=60, deadline=None)
@given(scalars, scalars)
def test_multiples_add_up_with_the_identity(a, b):
    assert a * BASE + b * BASE == (a + b) * BASE
    assert a * BLINDING - a * BLINDING == IDENTITY
    assert IDENTITY + a * BASE == a * BASE
    assert -(a * BASE) == (ORDER - a) * BASE


def test_the_base_point_is_that_of_the_standard():
    x = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"

    assert BASE.encoded.hex() == f"02{x}"
    assert (ORDER - 1) * BASE + BASE == IDENTITY


@pytest.mark.parametrize("bits", [16, 128, 256])
def test_sums_by_buckets_are_sums(monkeypatch, bits):
    draw = random.Random(bits)
    points = [*generators("test", 39), IDENTITY, -BASE, BASE]
    values = [draw.getrandbits(bits) for _ in points[2:]] + [5, 5]
    one_by_one = add(value * point for value, point in zip(values, points, strict=True))
    monkeypatch.setattr(group, "_FEW", 1)

    assert total(values, points) == one_by_one


def test_a_sum_by_buckets_can_be_the_identity(monkeypatch):
    monkeypatch.setattr(group, "_FEW", 1)
    points = list(generators("test", 20))

    assert total([7] * 20 + [-7] * 20, points + points) == IDENTITY
    assert total([7] * 20 + [-7] * 19 + [-8], points + points) != IDENTITY


@pytest.mark.parametrize(
    "encoded",
    [b"", bytes(33), b"\x02" + b"\xff" * 32, b"\x04" + bytes(64), b"\x05" + BASE.encoded[1:],
     BASE.encoded[:-1], BASE.encoded + b"\0", BASE.key.format(compressed=False),
     b"\x02" + (5).to_bytes(32, "big")],
)  # fmt: skip
def test_what_is_no_point_is_refused(encoded):
    with pytest.raises(ArchipelError, match="not a point of secp256k1"):
        Point.read(encoded)


def test_a_scalar_has_one_encoding():
    assert scalar(written(ORDER - 1)) == ORDER - 1
    for encoded in (ORDER.to_bytes(32, "big"), b"\xff" * 32, bytes(31), bytes(33)):
        with pytest.raises(ArchipelError, match="not below the order"):
            scalar(encoded)


def test_generators_are_all_different_and_always_the_same():
    found = [BASE, BLINDING, *generators("bit", 64), *generators("other bit", 64)]

    assert len({point.encoded for point in found}) == len(found)
    assert BLINDING.encoded.hex().startswith("02")
    assert generators("bit", 3) == generators("bit", 64)[:3]
