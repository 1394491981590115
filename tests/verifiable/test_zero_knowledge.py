"""Zero-knowledge proofs: right ones are accepted, and nothing else is.

PRIVACY of the statement: complete, sound (a flipped bit anywhere, one step out of range, another
generator, session, party or purpose), and hiding (fresh randomness; a simulator for the challenge).
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError
from archipel.verifiable import bits, commitments
from archipel.verifiable.bits import Proof, Row, bits_of, weights_to
from archipel.verifiable.commitments import Shared, Zero, commitment, opened
from archipel.verifiable.equations import hold, wrong
from archipel.verifiable.group import BASE, BLINDING, ORDER, Point, drawn, generator
from archipel.verifiable.transcript import Transcript


def transcript(purpose="range", session=b"session", party="anna"):
    return Transcript(purpose, session, party)


def ranged(values, top, **said):
    """Commitments, rows and a proof that values are up to top."""
    blindings = [drawn() for _ in values]
    points = [commitment(*pair) for pair in zip(values, blindings, strict=True)]
    weights = weights_to(top)
    rows = [Row(weights, point, i * len(weights)) for i, point in enumerate(points)]
    told = bits.commit([bit for value in values for bit in bits_of(value, top)])
    proof = bits.prove(transcript(**said), told, rows, blindings)
    return told.point, rows, len(told.values), proof


def accepted(point, rows, size, proof, **said):
    return hold(bits.equations(transcript(**said), point, rows, size, proof))


# -- completeness ----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.data())
def test_every_number_up_to_any_top_is_proved(top, data):
    values = data.draw(st.lists(st.integers(0, top), min_size=1, max_size=3))

    assert accepted(*ranged(values, top))


def test_weights_reach_every_number_to_the_top_and_none_above():
    for top in range(1, 130):
        weights = weights_to(top)
        sums = {0}
        for weight in weights:
            sums |= {each + weight for each in sums}

        assert sums == set(range(top + 1))
        for value in range(top + 1):
            found = bits_of(value, top)
            assert sum(w * b for w, b in zip(weights, found, strict=True)) == value


def many(count, seed):
    draw = random.Random(seed)
    shown = []
    for _ in range(count):
        top = draw.choice([1, 2, 3, 7, 10])
        shown.append(ranged([draw.randrange(top + 1)], top))
    return shown


def test_all_of_150_proofs_hold_at_once_and_one_by_one():
    shown = many(150, 1)
    groups = [bits.equations(transcript(), *each[:3], each[3]) for each in shown]

    assert wrong(groups) == []
    assert all(hold(group) for group in groups)


@pytest.mark.slow
def test_all_of_1000_proofs_hold():
    shown = many(900, 2) + [ranged([i * 655], 65535) for i in range(100)]

    assert wrong([bits.equations(transcript(), *each[:3], each[3]) for each in shown]) == []


def test_wrong_ones_are_found_among_many():
    shown = many(20, 3)
    groups = [bits.equations(transcript(), *each[:3], each[3]) for each in shown]
    for bad in (4, 17, 18):
        point, rows, size, proof = shown[bad]
        worse = proof._replace(tau=proof.tau + 1)
        groups[bad] = bits.equations(transcript(), point, rows, size, worse)

    assert wrong(groups) == [4, 17, 18]


# -- soundness -------------------------------------------------------------------------------------

SHOWN = ranged([777], 1023, session=b"fixed")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_is_rejected(data):
    point, rows, size, proof = SHOWN
    pieces = [point.encoded, rows[0].point.encoded, proof.encoded]
    which = data.draw(st.integers(0, 2))
    at = data.draw(st.integers(0, 8 * len(pieces[which]) - 1))
    changed = bytearray(pieces[which])
    changed[at // 8] ^= 1 << at % 8
    pieces[which] = bytes(changed)
    try:
        told = Point.read(pieces[0])
        row = rows[0]._replace(point=Point.read(pieces[1]))
        said = Proof.read(pieces[2], size)
    except ArchipelError:
        return  # not even a point or a scalar

    assert not accepted(told, [row], size, said, session=b"fixed")


@pytest.mark.slow
def test_every_single_flipped_bit_is_rejected():
    point, rows, size, proof = SHOWN
    encoded = proof.encoded
    for at in range(8 * len(encoded)):
        changed = bytearray(encoded)
        changed[at // 8] ^= 1 << at % 8
        try:
            said = Proof.read(bytes(changed), size)
        except ArchipelError:
            continue
        assert not accepted(point, rows, size, said, session=b"fixed"), at


@pytest.mark.parametrize("value", [65536, 65537, -1, 1 << 200, ORDER - 1])
def test_one_step_out_of_range_is_rejected(value):
    """Whatever bits a liar takes: those of the last number, or the low ones of its own."""
    for told in (65535, value % 65536):
        blinding = drawn()
        row = Row(weights_to(65535), commitment(value, blinding))
        own = bits.commit(bits_of(told, 65535))
        proof = bits.prove(transcript(), own, [row], [blinding])

        assert not accepted(own.point, [row], 16, proof)


def test_digits_that_are_not_bits_are_rejected():
    """A liar who commits to the digit 2, with a_R = a_L − 1 or with a_L a_R = 0."""
    G, H = bits._bases(2)
    for other in (1, 0):
        blinding, alpha = drawn(), drawn()
        row = Row([1, 2], commitment(4, blinding))
        point = alpha * BLINDING + 2 * G[1] + other * H[1] + -1 * H[0]
        proof = bits.prove(transcript(), bits.Bits((0, 2), alpha, point), [row], [blinding])

        assert not accepted(point, [row], 2, proof)


def test_a_proof_holds_for_one_session_party_and_purpose():
    point, rows, size, proof = ranged([5], 15)

    assert accepted(point, rows, size, proof)
    assert not accepted(point, rows, size, proof, session=b"another")
    assert not accepted(point, rows, size, proof, party="bert")
    assert not accepted(point, rows, size, proof, purpose="noise")


def test_a_proof_holds_for_its_statement_alone():
    point, rows, size, proof = ranged([5], 15)
    other = [rows[0]._replace(point=commitment(5, drawn()))]
    wider = [rows[0]._replace(weights=[1, 2, 4, 9])]

    assert not accepted(point, other, size, proof)
    assert not accepted(point, wider, size, proof)
    assert not accepted(rows[0].point, rows, size, proof)


def test_another_second_generator_is_rejected(monkeypatch):
    """Whoever chose H knows its logarithm and could open a commitment to anything."""
    honest = ranged([5], 15)
    monkeypatch.setattr(commitments, "BLINDING", generator("another"))
    monkeypatch.setattr(bits, "BLINDING", generator("another"))
    other = ranged([5], 15)
    assert accepted(*other)
    assert not accepted(*honest)
    monkeypatch.undo()

    assert accepted(*honest)
    assert not accepted(*other)


@pytest.mark.parametrize("change", [b"", b"\0", bytes(523)])
def test_other_lengths_are_refused(change):
    proof = SHOWN[3].encoded
    for encoded in (change, proof + b"\0", proof[:-1]):
        with pytest.raises(ArchipelError):
            Proof.read(encoded, 16)


# -- short proofs ----------------------------------------------------------------------------------


def test_that_a_commitment_holds_zero():
    blinding = drawn()
    proof = Zero.prove(transcript("same"), blinding)
    point = commitment(0, blinding)

    assert Zero.read(proof.encoded) == proof
    assert hold([proof.equation(transcript("same"), point)])
    assert not hold([proof.equation(transcript("same"), commitment(1, blinding))])
    assert not hold([proof.equation(transcript("same", party="bert"), point)])
    assert not hold([proof.equation(transcript("same", session=b"other"), point)])


def test_that_a_secret_is_shared():
    mine, other = drawn(), drawn()
    keys = mine * BASE, other * BASE
    proof = Shared.prove(transcript("dispute"), mine, keys[1])

    assert proof.secret == other * keys[0]
    assert Shared.read(proof.encoded) == proof
    assert hold(proof.equations(transcript("dispute"), *keys))
    lie = proof._replace(secret=proof.secret + BASE)
    assert not hold(lie.equations(transcript("dispute"), *keys))
    assert not hold(proof.equations(transcript("dispute"), keys[1], keys[0]))


ZERO = Zero.prove(transcript("same"), 12345)
SHARED = Shared.prove(transcript("dispute"), 99, 77 * BASE)


@settings(max_examples=120, deadline=None)
@given(st.booleans(), st.data())
def test_a_flipped_bit_of_a_short_proof_is_rejected(zero, data):
    encoded = bytearray((ZERO if zero else SHARED).encoded)
    at = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[at // 8] ^= 1 << at % 8
    try:
        if zero:
            said = [Zero.read(bytes(encoded)).equation(transcript("same"), 12345 * BLINDING)]
        else:
            read = Shared.read(bytes(encoded))
            said = read.equations(transcript("dispute"), 99 * BASE, 77 * BASE)
    except ArchipelError:
        return

    assert not hold(said)


def test_a_commitment_opens_to_one_value():
    point = commitment(7, 11)

    assert hold([opened(point, 7, 11)])
    assert not hold([opened(point, 8, 11)])
    assert not hold([opened(point, 7, 12)])


# -- zero knowledge --------------------------------------------------------------------------------


def test_a_simulator_without_the_secret_makes_the_same_transcripts():
    """For a challenge known beforehand: answer first, then the first message that fits."""
    point = commitment(0, drawn())
    answer, challenge = drawn(), drawn()
    first = answer * BLINDING + -challenge * point

    assert answer * BLINDING == first + challenge * point


def test_proofs_and_commitments_of_the_same_value_have_nothing_in_common():
    shown = [ranged([3], 15) for _ in range(3)]
    pieces = [
        {each.encoded for each in (point, rows[0].point, proof.S, proof.T1, *proof.inner.L)}
        | {proof.tau, proof.mu, proof.t, proof.inner.a, proof.inner.b}
        for point, rows, _, proof in shown
    ]

    assert not pieces[0] & pieces[1] and not pieces[0] & pieces[2] and not pieces[1] & pieces[2]


def test_answers_of_0_and_of_the_top_are_alike(monkeypatch):
    """The low bits of every answer, 120 proofs of each value: chi-squared over 16 bins."""
    fixed = random.Random(7)
    monkeypatch.setattr(bits, "drawn", lambda: fixed.randrange(1, ORDER))
    monkeypatch.setitem(ranged.__globals__, "drawn", bits.drawn)
    counts = {value: [0] * 16 for value in (0, 1)}
    for value in counts:
        for _ in range(120):
            _, _, _, proof = ranged([value], 1)
            for answer in (proof.tau, proof.mu, proof.t, proof.inner.a, proof.inner.b):
                counts[value][answer % 16] += 1
    statistic = sum(
        (a - b) ** 2 / (a + b) for a, b in zip(counts[0], counts[1], strict=True) if a + b
    )

    assert statistic < 44.26  # chi-squared with 15 degrees, alpha 1e-4


def test_a_transcript_does_not_confuse_pieces():
    found = set()
    for pieces in ([("a", b"bc")], [("ab", b"c")], [("a", b"b"), ("c", b"")], [("abc", b"")]):
        said = transcript()
        for label, data in pieces:
            said.say(label, data)
        found.add(said.challenge("x"))

    assert len(found) == 4
