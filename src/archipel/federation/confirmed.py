# SPDX-License-Identifier: Apache-2.0
"""The keys of other sites that somebody here has confirmed, by words heard over the telephone.

A site believes the coordinator once, when it first meets another. Whoever has telephoned need not:
the twelve words of the other's key are written down here, also before the two have met. From then
on a name with another key is refused, and a policy may want that every key is confirmed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.federation.roster import fingerprint
from archipel.federation.words import WORDS
from archipel.store.files import write

_FILE = "confirmed.json"
_WORDS = 12


class Words(NamedTuple):
    """What somebody confirmed."""

    fingerprint: str
    since: str  # date


class Confirmed:
    """Names and the words of their keys, in one file of a site's folder."""

    def __init__(self, home: Path) -> None:
        self.path = home / _FILE

    def all(self) -> dict[str, Words]:
        if not self.path.exists():
            return {}
        found = json.loads(self.path.read_bytes())
        return {name: Words(*each) for name, each in found.items()}

    def confirm(self, name: str, words: str) -> None:
        """From now on the name has the key with these words, and no other."""
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        self._write(self.all() | {name: Words(words, today)})

    def forget(self, name: str) -> None:
        if name in (found := self.all()):
            self._write({each: words for each, words in found.items() if each != name})

    def check(self, keys: Mapping[str, str]) -> None:
        """Refuse keys, by name, that are not those which were confirmed for them."""
        found = self.all()
        for name, identity in keys.items():
            if name in found and fingerprint(identity) != found[name].fingerprint:
                raise ArchipelError(
                    f"the coordinator has another key for {name} than was confirmed here on "
                    f"{found[name].since}: telephone {name}; only if it has joined anew, say "
                    f"'archipel site keys --forget {name}' and confirm the words that it reads you."
                )

    def lacking(self, keys: Mapping[str, str]) -> list[str]:
        """Those whose keys nobody here has confirmed."""
        found = self.all()
        return [
            name
            for name, identity in keys.items()
            if name not in found or found[name].fingerprint != fingerprint(identity)
        ]

    def _write(self, found: dict[str, Words]) -> None:
        write(self.path, json.dumps(found, indent=1, sort_keys=True).encode())


def not_confirmed(names: Iterable[str]) -> str:
    """What a site says whose policy wants confirmed keys."""
    return (
        f"policy.confirmed = true: nobody here has confirmed the key of {', '.join(names)}; "
        "telephone, and say 'archipel site keys --trust NAME \"WORDS\"' with the words that "
        "'archipel site keys' shows there."
    )


def read_words(text: str) -> str:
    """A fingerprint as somebody wrote it down; refused where it is none.

    >>> read_words("Acorn, actor album  alder almond amber anchor angel ankle anvil apple apron")
    'acorn actor album alder almond amber anchor angel ankle anvil apple apron'
    """
    words = text.lower().replace(",", " ").replace("-", " ").split()
    strange = [word for word in words if word not in WORDS]
    if strange or len(words) != _WORDS:
        why = f"'{strange[0]}' is none of them" if strange else f"these are {len(words)}"
        raise ArchipelError(
            f"words = '{text}': give the {_WORDS} words that 'archipel site keys' shows at that "
            f"site; {why}."
        )
    return " ".join(words)
