# SPDX-License-Identifier: Apache-2.0
"""Keys between parties: agreement (X25519), and what is sealed for one (AES-256-GCM).

Two parties that know each other's public key agree on a secret (RFC 7748), and HKDF-SHA256
(RFC 5869) makes keys of it. A key holds for one `Session`, one purpose and one pair of parties, all
bound into it: so a key of one round, study, message or direction opens nothing of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from archipel.errors import ArchipelError

KEY = 32  # bytes of a key, private or public, and of a secret
SEAL = 16  # bytes that sealing adds


class Session(NamedTuple):
    """What keys hold for: one message of one round of one study, and whoever takes part in it."""

    study: bytes  # names the study, and the attempt at the round
    round: int
    message: int
    among: bytes = b""  # names those who take part, once they are known

    def named(self, purpose: str, *parts: bytes) -> bytes:
        """32 bytes that stand for this session, a purpose and what else is bound to it."""
        numbers = f"{self.round} {self.message}".encode()
        return digest(b"archipel", self.study, numbers, self.among, purpose.encode(), *parts)


def digest(*parts: bytes) -> bytes:
    """SHA-256 of parts, each with its length: no two lists of parts read the same.

    >>> digest(b"ab", b"c") == digest(b"a", b"bc")
    False
    """
    whole = sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int = KEY) -> bytes:
    return HKDF(SHA256(), size, salt, info).derive(secret)


class KeyPair:
    """A party's own half of all agreements of one session and purpose."""

    def __init__(self, private: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(private)

    @cached_property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def agree(self, other: bytes, session: Session, purpose: str, pair: Sequence[int]) -> bytes:
        """The key that the owner of `other` finds as well.

        `pair` are the numbers of the two: in their order for what both do alike, from whom to whom
        for what has a direction.
        """
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError:  # not a point, or one that makes the same secret with everybody
            raise ArchipelError(
                f"the public key of one of the parties {sorted(pair)} is no key."
            ) from None
        publics = sorted((self.public, other))
        numbers = " ".join(map(str, pair)).encode()
        return hkdf(secret, session.named(purpose), digest(numbers, *publics))


def seal(key: bytes, content: bytes) -> bytes:
    """Hide content, and have any change of it found; a key seals one content, ever."""
    return AESGCM(key).encrypt(bytes(12), content, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """The content; None where it was sealed with another key, or changed."""
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, None)
    except (InvalidTag, ValueError):
        return None
