# SPDX-License-Identifier: Apache-2.0
"""Reports in two layers: the outer one for the shuffler, the inner one for who analyses them.

Bittau et al., Prochlo, SOSP 2017, https://arxiv.org/abs/1710.00901: the shuffler knows who sent a
report and cannot read it; the analyser reads reports and does not know who sent them. A report is
as long as every other one, so that its length tells nothing. A random number inside the inner layer
has the analyser drop a report that comes twice; whoever cannot open that layer cannot compare.

A layer is sealed as HPKE's base mode does it (RFC 9180): a fresh X25519 key, HKDF-SHA256 of the
agreement bound to both public keys and to what the report is for, ChaCha20-Poly1305 under a key
that is used once. A report of another round, message or study does not open.

Departures: no crowd identifiers; no secure hardware: the shuffler is trusted not to tell the
analyser which report was whose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from archipel.aggregation.keys import KEY, SEAL, digest, hkdf
from archipel.errors import ArchipelError

LAYER = KEY + SEAL  # bytes that a layer adds
MARK = 16  # bytes of the number that tells a report from its copy


class Secrets(NamedTuple):
    """What one report is sealed with: of the party's secrets of a round, each used once."""

    inner: bytes
    outer: bytes
    mark: bytes


def length(content: int) -> int:
    """Bytes of a report with so many bytes of content, as it leaves a party."""
    return content + MARK + 2 * LAYER


def sealed(content: bytes, analyser: bytes, shuffler: bytes, about: bytes, own: Secrets) -> bytes:
    """A report as it leaves a party, for these two public keys."""
    inner = _layer(own.mark + content, analyser, about + b" analyser", own.inner)
    return _layer(inner, shuffler, about + b" shuffler", own.outer)


def peeled(report: bytes, shuffler: bytes, about: bytes) -> bytes | None:
    """What is in the outer layer, by the shuffler's private key; None where it does not open."""
    return _opened(report, shuffler, about + b" shuffler")


def opened(inner: Iterable[bytes], analyser: bytes, about: bytes) -> list[bytes]:
    """All contents that open, each mark once, by the analyser's private key."""
    found: dict[bytes, bytes] = {}
    for each in inner:
        content = _opened(each, analyser, about + b" analyser")
        if content is not None:
            found.setdefault(content[:MARK], content[MARK:])
    return list(found.values())


def _layer(content: bytes, public: bytes, about: bytes, private: bytes) -> bytes:
    ours = X25519PrivateKey.from_private_bytes(private)
    shown = ours.public_key().public_bytes_raw()
    try:
        secret = ours.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # not a point, or one that makes the same secret with everybody
        raise ArchipelError(
            "wire.sum: a public key of the shuffler or the server is no key."
        ) from None
    key = hkdf(secret, digest(b"archipel onion", about), digest(shown, public))
    return shown + ChaCha20Poly1305(key).encrypt(bytes(12), content, about)


def _opened(layer: bytes, private: bytes, about: bytes) -> bytes | None:
    ours = X25519PrivateKey.from_private_bytes(private)
    shown, rest = layer[:KEY], layer[KEY:]
    try:
        secret = ours.exchange(X25519PublicKey.from_public_bytes(shown))
        own = ours.public_key().public_bytes_raw()
        key = hkdf(secret, digest(b"archipel onion", about), digest(shown, own))
        return ChaCha20Poly1305(key).decrypt(bytes(12), rest, about)
    except (InvalidTag, ValueError):
        return None
