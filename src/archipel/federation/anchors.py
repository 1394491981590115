# SPDX-License-Identifier: Apache-2.0
"""Anchors of others' audit logs: who keeps one can show that the log was cut or written anew.

Sites and the coordinator tell each other theirs with every round. What is kept of the other side is
the latest; entries that came after it are not covered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.federation.audit import Anchor
from archipel.store.files import now, write


class Kept(NamedTuple):
    """The latest anchor of somebody's log."""

    number: int
    hash: str
    key: str  # that signs the log, in hexadecimal; empty where it is not known
    time: str  # when it came, in UTC


class Anchors:
    """The latest anchor of each name, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kept: dict[str, Kept] = read(path) if path.exists() else {}

    def hear(self, name: str, anchor: Anchor, key: str = "") -> str:
        """Take an anchor; return what is wrong with the log if it shows that, else nothing.

        A log with another key is another log: its owner joined anew.
        """
        before = self.kept.get(name)
        if before is not None and before.key == key:
            if anchor.number < before.number:
                return (
                    f"the audit log of {name} has {anchor.number} entries and had {before.number}: "
                    "it was cut"
                )
            if anchor.number == before.number and anchor.hash != before.hash:
                return f"entry {anchor.number} of the audit log of {name} was rewritten"
        self.kept[name] = Kept(anchor.number, anchor.hash, key, now())
        return ""

    def save(self) -> None:
        write(self._path, to_json(dict(self.kept)))


def to_json(kept: dict[str, Kept]) -> bytes:
    anchors = {name: each._asdict() for name, each in kept.items()}
    return json.dumps({"anchors": anchors}, indent=1).encode()


def read(path: Path) -> dict[str, Kept]:
    """The anchors in a file, which may have come from somebody else."""
    try:
        found = json.loads(path.read_bytes())["anchors"]
        kept = {str(name): Kept(**each) for name, each in found.items()}
        if all(isinstance(each.key, str) and _is_one(each) for each in kept.values()):
            return kept
    except OSError as error:
        raise ArchipelError(f"'{path}': cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ArchipelError(
        f"'{path}': holds no anchors; take what 'archipel coordinator anchors --json' or "
        "'archipel site anchors --json' prints."
    )


def _is_one(kept: Kept) -> bool:
    try:
        return Anchor.read(f"{kept.number}:{kept.hash}") == (kept.number, kept.hash)
    except ArchipelError:
        return False


def anchor_in(path: Path, name: str, public: bytes) -> Anchor:
    """The anchor of a log in a file, by the name and the key of its owner."""
    kept = read(path)
    if name not in kept:
        raise ArchipelError(
            f"'{path}': has no anchor of {name}, only of {', '.join(sorted(kept))}."
        )
    found = kept[name]
    if found.key and found.key != public.hex():
        raise ArchipelError(
            f"'{path}': its anchor of {name} is of a log with another key; take one that was kept "
            "since this one began."
        )
    return Anchor(found.number, found.hash)
