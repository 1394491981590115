# SPDX-License-Identifier: Apache-2.0
"""The roster of a study between peers: who takes part, where they listen, who speaks for them.

The coordinator puts together what peers signed when they approved, and signs the whole with the
authority's key when the study starts. From then on peers need the coordinator for nothing. A peer's
address and certificate are in its own signed approval, so the coordinator can change neither; what
it could do is invent a peer, or give a name to another key. Against that peers remember each
other's keys (`peer/known_keys.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.certificates import (
    Authority,
    host_and_port,
    in_words,
    is_of_ones_own,
    verify,
)

_ROSTER, _REVOKED = b"archipel roster\n", b"archipel revoked\n"  # a signature fits nothing else
_ECDSA = ec.ECDSA(hashes.SHA256())


def fingerprint(identity: str) -> str:
    """Of a peer's key, in words to compare by telephone."""
    return in_words(sha256(bytes.fromhex(identity)).digest())


class Member(NamedTuple):
    """A peer in a study, as it approved it."""

    party: int
    name: str
    identity: str  # Ed25519 public key, in hexadecimal
    facts: Mapping[str, Any]  # all that it told when it approved
    signature: str  # of its approval with these facts, in hexadecimal

    @property
    def address(self) -> str:
        return str(self.facts["address"])

    @property
    def certificate(self) -> str:
        """Of its port, PEM."""
        return str(self.facts["certificate"])

    def check(self, study: str) -> None:
        """Refuse what the peer did not sign itself, and a way to it that is none."""
        check_port(self.name, self.facts)
        said = approval.statement(self.name, study, "approved", self.facts)
        if not verify(bytes.fromhex(self.identity), bytes.fromhex(self.signature), said):
            raise ArchipelError(
                f"the roster has an approval of {self.name} that {self.name} did not sign: do not "
                "take part, and tell the coordinator's operator."
            )


@dataclass(frozen=True)
class Roster:
    """Who takes part in a study, and along which graph."""

    study: str  # hash
    topology: str
    parties: int  # places in the graph; one may be empty
    peers: tuple[Member, ...]  # by number

    def sign(self, authority: Authority) -> Signed:
        return Signed.by(authority, _ROSTER, asdict(self))

    def member(self, name: str) -> Member | None:
        return next((each for each in self.peers if each.name == name), None)

    def check(self) -> None:
        """Refuse a roster in which two have one number or name, or that somebody did not sign."""
        numbers = [each.party for each in self.peers]
        if sorted(set(numbers)) != numbers or not all(0 <= k < self.parties for k in numbers):
            raise ArchipelError(f"the roster's numbers are {numbers[:20]}: tell the operator.")
        both = {each.name for each in self.peers}, {each.identity for each in self.peers}
        if any(len(found) < len(self.peers) for found in both):
            raise ArchipelError(
                "the roster has one name or key twice: tell the coordinator's operator."
            )
        for each in self.peers:
            each.check(self.study)


class Signed(NamedTuple):
    """What the authority says, as it travels and lies on disks."""

    text: bytes
    signature: bytes

    @classmethod
    def by(cls, authority: Authority, kind: bytes, what: Mapping[str, Any]) -> Signed:
        text = json.dumps(what, sort_keys=True).encode()
        return cls(text, authority.key.sign(kind + text, _ECDSA))

    def read(self, authority: bytes) -> Roster:
        """The roster, if the authority of this certificate (PEM) signed it."""
        found = self._verified(authority, _ROSTER)
        try:
            members = tuple(_member(*each) for each in found["peers"])
            return Roster(
                str(found["study"]), str(found["topology"]), int(found["parties"]), members
            )
        except (KeyError, TypeError, ValueError):
            raise ArchipelError(
                "the roster has another form than this Archipel knows: install the coordinator's "
                "version, or have the study submitted anew."
            ) from None

    def revoked(self, authority: bytes, study: str) -> frozenset[str]:
        """The names in a list of those that the study goes on without."""
        found = self._verified(authority, _REVOKED)
        if found.get("study") != study:
            raise ArchipelError(f"the list of revoked peers is not one of study {study[:12]}.")
        return frozenset(str(name) for name in found["names"])

    def _verified(self, authority: bytes, kind: bytes) -> Any:
        key = x509.load_pem_x509_certificate(authority).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(self.signature, kind + self.text, _ECDSA)
        except InvalidSignature:
            raise ArchipelError(
                "the roster is not signed by the federation's authority: do not take part, and "
                "tell the coordinator's operator."
            ) from None
        return json.loads(self.text)

    def to_json(self) -> bytes:
        return json.dumps([self.text.decode(), self.signature.hex()]).encode()

    @classmethod
    def of_json(cls, content: bytes) -> Signed:
        text, signature = json.loads(content)
        return cls(text.encode(), bytes.fromhex(signature))


def _member(party: int, name: str, identity: str, facts: Mapping[str, Any], signed: str) -> Member:
    texts = all(isinstance(each, str) for each in (name, identity, signed))
    if not texts or type(party) is not int or not isinstance(facts, dict):
        raise TypeError
    bytes.fromhex(signed)
    return Member(party, name, bytes.fromhex(identity).hex(), facts, signed)


def sign_revoked(authority: Authority, study: str, names: Iterable[str]) -> Signed:
    """Have peers know whom the study goes on without."""
    return Signed.by(authority, _REVOKED, {"study": study, "names": sorted(names)})


def check_address(address: str) -> str:
    host_and_port("address =", address, "as other peers will reach it")
    return address


def check_port(name: str, facts: Mapping[str, Any]) -> None:
    """Refuse facts of somebody whom peers could not reach, or not tell apart."""
    address, certificate = facts.get("address"), facts.get("certificate")
    if not isinstance(address, str) or not isinstance(certificate, str):
        raise ArchipelError(
            f"address: site {name} listens nowhere; have it join with 'archipel peer join'."
        )
    check_address(address)
    if not is_of_ones_own(certificate, name):
        raise ArchipelError(
            f"certificate: not one that {name} made for its port; have it join anew with 'archipel "
            "peer join'."
        )


def make(study: str, topology: str, parties: int, peers: Iterable[Member]) -> Roster:
    """The roster of those who approved; all of them listen somewhere."""
    found = Roster(study, topology, parties, tuple(sorted(peers, key=lambda each: each.party)))
    found.check()
    if len(found.peers) < 2:
        raise ArchipelError("a study between peers needs two of them or more: ask for approvals.")
    return found
