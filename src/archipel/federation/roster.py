# SPDX-License-Identifier: Apache-2.0
"""The roster of a study between peers: who takes part, where they listen, who speaks for them.

The coordinator signs it with the authority's key when the study starts. From then on peers need the
coordinator for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from archipel.errors import ArchipelError
from archipel.federation.authority import Authority, host_and_port

_PREFIX = b"archipel roster\n"  # so that the signature fits nothing else
_ECDSA = ec.ECDSA(hashes.SHA256())


class Member(NamedTuple):
    """A peer in a study."""

    party: int
    name: str
    address: str  # host:port
    identity: str  # Ed25519 public key, in hexadecimal
    n: int  # training points, as it told


@dataclass(frozen=True)
class Roster:
    """Who takes part in a study, and along which graph."""

    study: str  # hash
    topology: str
    parties: int  # places in the graph; one may be empty
    peers: tuple[Member, ...]  # by number

    def sign(self, authority: Authority) -> Signed:
        text = json.dumps(asdict(self), sort_keys=True).encode()
        return Signed(text, authority.key.sign(_PREFIX + text, _ECDSA))

    def member(self, name: str) -> Member | None:
        return next((each for each in self.peers if each.name == name), None)


class Signed(NamedTuple):
    """A roster as it travels and lies on disks."""

    text: bytes
    signature: bytes

    def read(self, authority: bytes) -> Roster:
        """The roster, if the authority of this certificate (PEM) signed it."""
        key = x509.load_pem_x509_certificate(authority).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        try:
            key.verify(self.signature, _PREFIX + self.text, _ECDSA)
        except InvalidSignature:
            raise ArchipelError(
                "the roster is not signed by the federation's authority: do not take part, and "
                "tell the coordinator's operator."
            ) from None
        found = json.loads(self.text)
        return Roster(**{**found, "peers": tuple(Member(*each) for each in found["peers"])})

    def to_json(self) -> bytes:
        return json.dumps([self.text.decode(), self.signature.hex()]).encode()

    @classmethod
    def of_json(cls, content: bytes) -> Signed:
        text, signature = json.loads(content)
        return cls(text.encode(), bytes.fromhex(signature))


def check_address(address: str) -> str:
    host_and_port("address =", address, "as other peers will reach it")
    return address


def make(study: str, topology: str, parties: int, peers: Iterable[Member]) -> Roster:
    """The roster of those who approved; all of them listen somewhere."""
    found = tuple(sorted(peers))
    for member in found:
        if not member.address:
            raise ArchipelError(
                f"site {member.name} listens nowhere: have it join with 'archipel peer join', or "
                "leave the study."
            )
    if len(found) < 2:
        raise ArchipelError("a study between peers needs two of them or more: ask for approvals.")
    return Roster(study, topology, parties, found)
