# SPDX-License-Identifier: Apache-2.0
"""Signatures (Ed25519, RFC 8032): who said something, whoever brought it."""

from __future__ import annotations

from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = 64  # bytes


class Signer:
    """An identity made of 32 secret bytes."""

    def __init__(self, private: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(private)

    @cached_property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def sign(self, what: bytes) -> bytes:
        return self._private.sign(what)


def verify(public: bytes, signature: bytes, what: bytes) -> bool:
    """Whether the owner of a public key signed this."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, what)
    except (InvalidSignature, ValueError):
        return False
    return True
