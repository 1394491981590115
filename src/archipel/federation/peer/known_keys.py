# SPDX-License-Identifier: Apache-2.0
"""The keys of other peers that a peer has met, so that nobody can be put in another's place.

A roster comes from the coordinator, who could give a name to another key. A key is remembered when
it is first seen; from then on the name has this key, in every study, until an operator who has
telephoned says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.federation.roster import Member, fingerprint
from archipel.store.files import write


class KnownKey(NamedTuple):
    """A key that a name has here."""

    identity: str  # Ed25519 public key, in hexadecimal
    since: str  # date


class KnownKeys:
    """Names and keys, in one file of a peer's folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self) -> dict[str, KnownKey]:
        if not self._path.exists():
            return {}
        found = json.loads(self._path.read_bytes())
        return {name: KnownKey(*each) for name, each in found.items()}

    def new(self, peers: Iterable[Member]) -> list[Member]:
        """Those of a roster that this peer has not met; refuse one with another key than it had."""
        known, found = self.known(), list(peers)
        for each in found:
            if each.name in known and known[each.name].identity != each.identity:
                raise ArchipelError(
                    f"the roster has another key for {each.name} than this peer has known since "
                    f"{known[each.name].since}: telephone {each.name}; only if it has joined anew "
                    f"and its 'archipel peer fingerprint' is '{fingerprint(each.identity)}', say "
                    f"'archipel peer trust {each.name} --anew'."
                )
        return [each for each in found if each.name not in known]

    def trust(self, name: str, identity: str) -> None:
        """From now on the name has this key."""
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        self._write(self.known() | {name: KnownKey(identity, today)})

    def forget(self, name: str) -> None:
        self._write({each: known for each, known in self.known().items() if each != name})

    def _write(self, known: dict[str, KnownKey]) -> None:
        write(self._path, json.dumps(known, indent=1, sort_keys=True).encode())
