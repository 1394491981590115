# SPDX-License-Identifier: Apache-2.0
"""What parties know of each other: identities between institutions, of a simulation, of a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Protocol

from archipel.aggregation.keys import digest
from archipel.errors import ArchipelError
from archipel.signing import SIGNATURE, Signer, verify

SUM = b"archipel sum\n"  # before what a site signs in a sum: it fits nothing else


class Stranger(ArchipelError):
    """A party is named whose key is not known here yet."""


class Identities(Protocol):
    """A party's own key, and those that it knows the others of a study by."""

    @property
    def public(self) -> bytes: ...

    def sign(self, what: bytes) -> bytes: ...

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        """Whether party `by` signed this; raises `Stranger` where its key is not known."""


def session_of(study: str, attempt: int) -> bytes:
    """What names a study and the server's attempt at a round, at both ends."""
    return digest(b"archipel session", study.encode(), b"%d" % attempt)


@dataclass(frozen=True)
class Between:
    """Of a party between institutions, or of one that is rehearsed."""

    number: int
    identities: Identities
    session: bytes
    policy: Callable[[], int]
    agreed: dict[int, frozenset[int]] = field(default_factory=dict, compare=False)
    trial: ClassVar[bool] = False

    @property
    def least(self) -> int:
        """As the policy is at this moment."""
        return self.policy()

    @property
    def public(self) -> bytes:
        return self.identities.public

    def sign(self, what: bytes) -> bytes:
        return self.identities.sign(what)

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        return self.identities.signed(by, signature, what)


@dataclass(frozen=True)
class Trial:
    """Of a party that stands in every place of a round that is tried before the first one."""

    number: int
    session: ClassVar[bytes] = b"trial"
    least: ClassVar[int] = 0
    trial: ClassVar[bool] = True
    public: ClassVar[bytes] = bytes(32)

    @property
    def agreed(self) -> dict[int, frozenset[int]]:
        return {}

    def sign(self, what: bytes) -> bytes:
        return bytes(SIGNATURE)

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        return True


@dataclass(frozen=True)
class Simulated:
    """Of a simulation, whose parties have keys of its seed: these hide nothing from who has it."""

    number: int
    seed: int
    least: int = 0
    agreed: dict[int, frozenset[int]] = field(default_factory=dict, compare=False)
    trial: ClassVar[bool] = False

    @property
    def session(self) -> bytes:
        return b"simulation %d" % self.seed

    @property
    def public(self) -> bytes:
        return _identity(self.seed, self.number).public

    def sign(self, what: bytes) -> bytes:
        return _identity(self.seed, self.number).sign(SUM + what)

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        return _verified(self.seed, by, signature, what)


@lru_cache(maxsize=1 << 14)
def _verified(seed: int, by: int, signature: bytes, what: bytes) -> bool:
    """Found once, where many parties on one machine look at the same signature."""
    return verify(_identity(seed, by).public, signature, SUM + what)


@lru_cache(maxsize=1 << 14)
def _identity(seed: int, number: int) -> Signer:
    return Signer(digest(b"simulated identity", b"%d" % seed, b"%d" % number))
