# SPDX-License-Identifier: Apache-2.0
"""Letters survive the wire, and nothing else does."""

import random
import tracemalloc
from contextlib import suppress
from statistics import median

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel.engines.network.letters import (
    KINDS,
    MAGIC,
    MOST_CONTAINERS,
    PIECE,
    BadLetter,
    Letter,
    Sealed,
    decode,
    encode,
)

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip
VALUES = {
    str: st.text(max_size=20),
    bytes: st.binary(max_size=40),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    list: st.lists(st.text(max_size=5), max_size=3),
    dict: st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    type(None): st.none(),
}


@st.composite
def letters(draw):
    kind = draw(st.sampled_from(sorted(KINDS)))
    fields = {
        name: draw(st.one_of([VALUES[each] for each in types]))
        for name, types in KINDS[kind].items()
    }
    arrays = []
    for _ in range(draw(st.integers(0, 3))):
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = draw(st.sampled_from(DTYPES))
        arrays.append(torch.randint(0, 100, shape).to(dtype))
    return Letter(kind, fields, arrays)


@given(letter=letters())
def test_a_letter_comes_back_as_it_was(letter):
    found = decode(encode(letter))

    assert (found.kind, dict(found.fields)) == (letter.kind, dict(letter.fields))
    assert len(found.arrays) == len(letter.arrays)
    for one, other in zip(found.arrays, letter.arrays, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_truth_values_are_0_or_1():
    data = encode(Letter("thanks", {}, [torch.tensor([True, False])]))
    data[-1] = 2
    with pytest.raises(BadLetter, match="neither 0 nor 1"):
        decode(data)


def test_a_transposed_array_is_written_row_by_row():
    x = torch.arange(6.0).view(2, 3).T
    assert torch.equal(decode(encode(Letter("thanks", {}, [x]))).arrays[0], x)


@given(letter=letters())
def test_both_sides_give_a_letter_the_same_name(letter):
    sealed, data = Sealed(letter), encode(letter)
    assert sealed.size == len(data)
    assert b"".join(sealed.pieces) == data
    assert decode(data).name == sealed.name
    assert letter.digests == decode(data).digests


def test_a_sealed_letter_is_sent_from_any_byte_on():
    letter = Letter("thanks", {}, [torch.randn(300_000), torch.randn(3), torch.randn(500_000)])
    sealed, data = Sealed(letter), bytes(encode(letter))
    assert [len(piece) for piece in sealed.pieces[:-1]] == [PIECE] * 3
    for at in (0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, len(data) - 1, len(data)):
        assert b"".join(sealed.since(at)) == data[at:]


def test_more_fields_and_other_arrays_make_another_name():
    x = torch.arange(4.0)
    plain = Letter("vector", {"study": "s", "round": 0, "number": 0}, [x])
    names = [Sealed(plain.adding(signature=text)).name for text in (b"", b"a")]
    names.append(Sealed(Letter(plain.kind, {**plain.fields, "signature": b""}, [x + 1])).name)
    assert len(set(names)) == 3


def raw(header, arrays=b""):
    packed = header if isinstance(header, bytes) else msgpack.packb(header)
    return MAGIC + len(packed).to_bytes(4, "little") + packed + bytes(-len(packed) % 8) + arrays


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "other bytes"),
        (b"ARC", "other bytes"),
        (b"ARC1\x00", "other bytes"),
        (b"PICK" + b"\0" * 20, "other bytes"),
        (MAGIC + b"\xff\xff\xff\xff", "a header of"),
        (raw(b"\xc1"), "not msgpack"),
        (raw(b"\x91" * 5000), "not msgpack"),
        (raw(msgpack.packb(msgpack.ExtType(1, b"x"))), "not msgpack"),
        (raw({"kind": "thanks"}), "another form"),
        (raw(["thanks", {}]), "another form"),
        (raw(["pickle", {}, []]), "unknown kind 'pickle'"),
        (raw(["thanks", {"x": 1}, []]), "unknown field 'x'"),
        (raw(["study", {}, []]), "study is a NoneType"),
        (raw(["study", {"study": 3}, []]), "study is a int"),
        (raw(["welcome", {"studies": {"a": [1]}}, []]), "holds a list"),
        (raw(["ask", {"study": "s", "number": True}, []]), "number is a bool"),
        (raw(["thanks", {}, [["f4", [2]]]], b"1234"), "announced"),
        (raw(["thanks", {}, [["f4", [1]]]], b"12345"), "announced"),
        (raw(["study", {"study": "s"}, []])[:-1] + b"x", "announced"),
        (raw(["thanks", {}, [["O", [1]]]]), "form that is not known"),
        (raw(["thanks", {}, [["f4", [-1]]]]), "form that is not known"),
        (raw(["thanks", {}, [["f4", [1 << 39, 1 << 39]]]]), "form that is not known"),
        (raw(["thanks", {}, [["f4", [1] * 9]]], b"1234"), "form that is not known"),
        (raw(["thanks", {}, [["f4", [True]]]], b"1234"), "form that is not known"),
    ],
)
def test_what_is_no_letter_is_refused(data, said):
    with pytest.raises(BadLetter, match=said):
        decode(data)


def test_bytes_for_a_huge_array_are_not_set_aside():
    data = raw(["thanks", {}, [["f8", [1 << 38]]]], b"\0" * 64)
    tracemalloc.start()
    with pytest.raises(BadLetter, match="announced"):
        decode(data)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


@pytest.mark.parametrize("inside", [{}, [], {"a": {}}, [[]]], ids=str)
def test_a_header_full_of_empty_things_ends_with_the_first_too_many(monkeypatch, inside):
    """Low: a megabyte of empty maps took a second, and they were all made before it was refused."""
    made, unpack = [], msgpack.unpackb

    def counting(data, *, object_hook, list_hook, **options):
        def hook(container, before):
            made.append(1)
            return before(container)

        return unpack(
            data,
            object_hook=lambda each: hook(each, object_hook),
            list_hook=lambda each: hook(each, list_hook),
            **options,
        )

    monkeypatch.setattr(msgpack, "unpackb", counting)
    full = [[inside] * 4000 for _ in range(60)]
    header = msgpack.packb(["hello", {"version": "1", "approved": full}, []])
    data = MAGIC + len(header).to_bytes(4, "little") + header

    with pytest.raises(BadLetter, match="not msgpack"):
        decode(data + bytes(-len(header) % 8))
    assert len(made) == MOST_CONTAINERS + 1


def test_a_letter_that_cannot_be_sent_says_why():
    with pytest.raises(ar.ArchipelError, match=r"holds no torch\.complex64"):
        encode(Letter("thanks", {}, [torch.zeros(1, dtype=torch.complex64)]))


SEEDS = [
    Letter("work", {"study": "s", "round": 3, "number": 0, "attempt": 7}, [torch.randn(9)]),
    Letter("scores", {"study": "s", "round": 1, "metrics": {"auc": 0.5}, "own": None, "points": 9,
                      "signature": b"x" * 64}),
    Letter("welcome", {"studies": {"a": "b", "c": "d"}}),
]  # fmt: skip


def mutated(data, draws):
    """The bytes with some changed, cut, doubled or put in."""
    data = bytearray(data)
    for _ in range(draws.choice([1, 1, 2, 5, 20])):
        at = draws.randrange(len(data) + 1)
        match draws.randrange(5):
            case 0:
                data[at : at + 1] = bytes([draws.randrange(256)])
            case 1:
                del data[at : at + draws.randrange(1, 9)]
            case 2:
                data[at:at] = draws.randbytes(draws.randrange(1, 9))
            case 3:
                data[at:at] = data[at : at + draws.randrange(1, 40)]
            case 4:
                data[at : at + 1] = draws.choice(
                    [b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf", b"\x00"]
                )
    return bytes(data)


@pytest.mark.parametrize("count", [40_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_mutated_letters_give_letters_or_refusals_and_take_no_memory(count):
    draws, seeds, decoded = random.Random(0), [bytes(encode(each)) for each in SEEDS], 0
    peaks = []  # of some letters each: threads of other tests may take memory now and then
    tracemalloc.start()
    for i in range(count):
        if i % 5000 == 0:
            tracemalloc.reset_peak()
        with suppress(BadLetter):
            decode(mutated(seeds[i % len(seeds)], draws))
            decoded += 1
        if i % 5000 == 4999:
            peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert 0 < decoded < count / 2  # changed numbers in arrays are letters, too
    assert median(peaks) < 4 << 20
