"""Completeness and soundness of every proof that a party signs, by the field, on a whole run.

What a party changes before it signs is signed: nothing but the proofs can tell.
"""

import math
import secrets
from dataclasses import dataclass
from hashlib import sha256

import pytest

from archipel.errors import ArchipelError
from archipel.federation.certificates import Identity
from archipel.verifiable import run
from archipel.verifiable.agreement import Twice, statement
from archipel.verifiable.bulletin import Board, in_bytes, in_text
from archipel.verifiable.commitments import Shared, Zero, commitment
from archipel.verifiable.equations import hold
from archipel.verifiable.group import BASE, drawn
from archipel.verifiable.party import Party
from archipel.verifiable.protocol import among
from archipel.verifiable.terms import agreed
from archipel.verifiable.transcript import Transcript
from archipel.verifiable.verification import checked

SMALL = {"epsilon": 8.0, "honest": 1.0, "bits": 4, "delta": 1e-3}


@dataclass
class Flipping(Party):
    """Turns a bit of one field over before it signs, once it is told which."""

    what: str = ""
    field: str = ""
    bit: int = -1

    def _say(self, run, what, body):
        if what == self.what and self.bit >= 0:
            content = bytearray(in_bytes(body[self.field]))
            content[self.bit // 8] ^= 1 << self.bit % 8
            body = {**body, self.field: in_text(bytes(content))}
        return super()._say(run, what, body)


class OwnTerms(Party):
    """Commits to terms of its own with everybody, so that others dispute them."""

    def _say(self, run, what, body):
        if what == "commit":
            pairs = in_bytes(body["pairs"])
            own = b"".join(commitment(drawn(), drawn()).encoded for _ in range(len(pairs) // 33))
            body = {**body, "pairs": in_text(own)}
        return super()._say(run, what, body)


def held(parties, board, dropping=None, **more):
    keys = {party.name: party.identity.public.hex() for party in parties}
    terms = agreed(keys, secrets.token_hex(16), dropouts=0.34, **{**SMALL, **more})
    among(parties, board, terms, dropping or {})
    verdict = checked(board.entries, board.lines)
    return verdict, {fault.party for fault in verdict.told}


CASES = [  # what, field, bytes of it
    ("commit", "same", 65),
    ("correct", "values", 32),
    ("correct", "openings", 32),
    ("dispute", "proof", 131),
]


@pytest.mark.parametrize(("what", "field", "size"), CASES)
@pytest.mark.parametrize("at", [0, 1, 7, 100, 255, -1])
def test_a_flipped_bit_of_rarer_entries_is_charged_to_who_signed_it(what, field, size, at):
    bit = at % (8 * size)
    bert = Flipping("bert", (0.5,))
    third = OwnTerms("cleo", (0.5,)) if what == "dispute" else Party("cleo", (0.5,))
    parties, board = [Party("anna", (0.5,)), bert, third], Board(Identity.create())
    if what == "commit":  # proofs of the same values are of a second run
        _, nobody = held(parties, board, data="ages")
        assert not nobody
    bert.what, bert.field, bert.bit = what, field, bit
    verdict, charged = held(
        parties, board, {"cleo": "publish"} if what == "correct" else {}, data="ages"
    )

    assert not verdict.right and "bert" in charged
    assert charged <= ({"bert", "cleo"} if what == "dispute" else {"bert"})


def test_a_flipped_bit_of_an_accusation_convicts_nobody():
    """Of both signed hashes, all bits: what is left convicts the accuser, and never the accused."""
    bert = Identity.create()

    def pair(told):
        digest = sha256(told).digest()
        return digest, bert.sign(statement(b"about", "bert", digest))

    whole = Twice.of(pair(b"a"), pair(b"b"))
    assert whole.convicts(b"about", "bert", bert.public)
    for field in ("first", "second"):
        for at in range(8 * 96):
            content = bytearray(getattr(whole, field))
            content[at // 8] ^= 1 << at % 8
            changed = whole._replace(**{field: bytes(content)})
            assert not changed.convicts(b"about", "bert", bert.public), (field, at)


@pytest.mark.parametrize(
    "value", [math.nextafter(1.0, 2.0), math.nextafter(0.0, -1.0), math.nan, math.inf]
)
def test_a_value_one_step_of_a_float_beyond_is_refused_by_its_own_party(value):
    with pytest.raises(ArchipelError, match="must lie from 0 to 1"):
        run({"a": value, "b": 0.5}, **SMALL)
    assert run({"a": 1.0, "b": 0.0}, **SMALL).right


def test_all_of_1000_short_proofs_hold():
    for _ in range(500):
        key, other, blinding = drawn(), drawn() * BASE, drawn()
        zero = Zero.prove(Transcript("same", b"s", "a"), blinding)
        shared = Shared.prove(Transcript("dispute", b"s", "a"), key, other)
        assert hold([zero.equation(Transcript("same", b"s", "a"), commitment(0, blinding))])
        assert hold(shared.equations(Transcript("dispute", b"s", "a"), key * BASE, other))


@pytest.mark.slow
def test_all_proofs_of_1000_parties_hold():
    """Whole runs, of other sizes, with drop-outs at every phase: nobody honest is ever charged."""
    phases = ["join", "commit", "reveal", "publish", ""]
    for k in range(200):
        parties = [Party(name, (k % 17 / 16, 1 - k % 5 / 4)) for name in "abcde"]
        dropping = {"c": phases[k % 5]} if phases[k % 5] else {}
        verdict, charged = held(parties, Board(Identity.create()), dropping, names=["x", "y"])
        assert verdict.right and not charged, (k, verdict.told)
