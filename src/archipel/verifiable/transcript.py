# SPDX-License-Identifier: Apache-2.0
"""Challenges by hashing all that was said before: proofs that nobody has to be asked for.

Fiat, Shamir, CRYPTO 1986, https://doi.org/10.1007/3-540-47721-7_12, in the strong form of Bernhard,
Pereira, Warinschi, ASIACRYPT 2012, https://eprint.iacr.org/2016/771: the statement is hashed before
the proof, and with it the session, the party and what the proof is for. So a proof holds for one
party, once, of one statement. Each piece has a label and its length, so that no two sequences of
pieces are the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256, sha512

from archipel.verifiable.group import ORDER, Point, written


class Transcript:
    """What a prover said so far, as both sides hash it.

    >>> a, b = (Transcript("range", b"session", party) for party in ("anna", "bert"))
    >>> a.challenge("x") == b.challenge("x")
    False
    """

    def __init__(self, purpose: str, session: bytes, party: str) -> None:
        self._state = sha256(b"archipel transcript 1").digest()
        self.say("purpose", purpose.encode())
        self.say("session", session)
        self.say("party", party.encode())

    def say(self, label: str, data: bytes) -> None:
        """Hash one piece."""
        name = label.encode()
        sizes = len(name).to_bytes(8, "big") + len(data).to_bytes(8, "big")
        self._state = sha256(self._state + sizes + name + data).digest()

    def points(self, label: str, *points: Point) -> None:
        self.say(label, b"".join(point.encoded for point in points))

    def scalars(self, label: str, values: Iterable[int]) -> None:
        self.say(label, b"".join(written(value) for value in values))

    def challenge(self, label: str) -> int:
        """A scalar that depends on all that was said; not 0, and even to 2^-256."""
        self.say(label, b"challenge")
        return int.from_bytes(sha512(self._state).digest(), "big") % (ORDER - 1) + 1
