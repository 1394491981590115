# SPDX-License-Identifier: Apache-2.0
"""A peer's port: a key and a certificate that the peer makes itself, for as long as it is a peer.

The certificate is among what the peer signs when it approves a study, and reaches others in the
study's roster. They trust exactly that one, so that nobody who has the authority's key can sit
between two peers.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from archipel.errors import ArchipelError
from archipel.federation.certificates import new_key, of_ones_own, pem_of, write_secret

if TYPE_CHECKING:
    from archipel.engines.network.grpc import Credentials

_BEGINS = b"-----BEGIN CERTIFICATE-----"


def make(home: Path, name: str) -> None:
    """Make a peer's key and certificate, in one file of its folder."""
    key = new_key()
    write_secret(home / "port.pem", pem_of(key) + of_ones_own(key, name))


def credentials(home: Path, trusted: Iterable[str] = ()) -> Credentials:
    """What a peer shows on its port and where it asks; it trusts these certificates (PEM) alone."""
    from archipel.engines.network.grpc import Credentials

    try:
        key, begins, rest = (home / "port.pem").read_bytes().partition(_BEGINS)
    except FileNotFoundError:
        raise ArchipelError(
            f"home = '{home}': has no certificate for a peer's port; join anew with 'archipel peer "
            "join TOKEN --address HOST:PORT'."
        ) from None
    own = begins + rest
    return Credentials(key, own, b"".join(each.encode() for each in trusted) or own)


def certificate(home: Path) -> str:
    """As it is signed, and as others know it."""
    return credentials(home).chain.decode()
