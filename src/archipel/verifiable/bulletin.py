# SPDX-License-Identifier: Apache-2.0
"""The bulletin: a public file to which every party's messages are added, and nothing is taken away.

One line of JSON per entry, keys sorted, ASCII, as in a site's audit log (`federation/audit.py`).
`before` is the SHA-256 of the line before with its newline. A party signs its entry with the hash
of the last announcement that it saw; the keeper, who adds lines and announces when a phase begins,
signs the announcements with the hash of the line before. So no line can be changed, moved, added or
removed unless the keeper's and every later party's keys are used, and an operator who shows two
parties two files is found out by their signatures. The last announcement says that a run is over:
without it the end was cut off. A head that somebody kept (`--head`) shows that all was written
anew.

A bulletin may have no keeper (`peers.py`): every party writes it, announcements follow from what
was said and nobody signs them, and in the end parties seal it: each signs the hash of all of it.

Bytes are base64. No entry is longer than `LONGEST`; what is not exactly what would have been
written is refused.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from archipel.errors import ArchipelError
from archipel.federation.certificates import Identity, verify

START = "0" * 64  # before the first line
LONGEST = 16 * 2**20  # bytes of a line
_NAME = re.compile(r"[\w.\- ]{1,80}")
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
KEEPER = ("run", "phase", "end")  # what the keeper announces
PARTY = ("join", "commit", "dispute", "reveal", "publish", "correct", "seal", "accuse")


class Entry(NamedTuple):
    """One line."""

    what: str
    by: str  # the party's name, or "" for the keeper
    seen: str  # for a party, the hash of the last announcement; for the keeper, of the line before
    body: Mapping[str, Any]
    signature: str = ""  # base64, of all above
    before: str = START

    @property
    def signed(self) -> bytes:
        return _encode([self.what, self.by, self.seen, self.body]).encode()

    @property
    def line(self) -> bytes:
        return _encode(self._asdict()).encode() + b"\n"


def entry(identity: Identity, what: str, by: str, seen: str, body: Mapping[str, Any]) -> Entry:
    """An entry, signed."""
    unsigned = Entry(what, by, seen, body)
    return unsigned._replace(signature=in_text(identity.sign(unsigned.signed)))


@dataclass
class Board:
    """A bulletin that is being written, in memory or to a file: by its keeper, if it has one."""

    keeper: Identity | None
    path: Path | None = None
    lines: list[bytes] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._file = self._opened(self.path) if self.path is not None else None

    def _opened(self, path: Path) -> BinaryIO:
        """The file, for this process alone, with what it has."""
        try:
            file = path.open("ab")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchipelError(f"'{path}': another process writes to it; wait for it.") from None
        except OSError as error:
            raise ArchipelError(f"'{path}' cannot be written ({error.strerror}).") from error
        for each, line in read(path):
            self.entries.append(each)
            self.lines.append(line)
        return file

    @property
    def head(self) -> str:
        return sha256(self.lines[-1]).hexdigest() if self.lines else START

    def announce(self, what: str, **body: Any) -> str:
        """Add an announcement, and return its hash: what parties see from then on."""
        said = Entry(what, "", self.head, body)
        self.add(said if self.keeper is None else entry(self.keeper, *said[:4]))
        return self.head

    def add(self, said: Entry) -> None:
        """Add a party's entry behind the others."""
        placed = said._replace(before=self.head)
        self.entries.append(placed)
        self.lines.append(placed.line)
        if self._file is not None:
            self._file.write(placed.line)
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


CHANGED, CUT, BAD = "log changed", "log cut", "bad signature"


class Fault(NamedTuple):
    """Who did not keep to the protocol, and how."""

    party: str  # "" for the bulletin and its keeper
    kind: str  # "out of range", ...
    detail: str

    @property
    def of_the_log(self) -> bool:
        """Whether whoever held the file may have done it: what follows convicts nobody."""
        return self.party == "" and self.kind in (CHANGED, CUT, BAD)


def read(path: Path) -> Iterator[tuple[Entry, bytes]]:
    """All entries with their lines; the first line that is not one ends it with an error."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                if len(line) > LONGEST:
                    raise ArchipelError(f"'{path}': line {number} is longer than {LONGEST} bytes.")
                found = read_line(line)
                if found is None:
                    raise ArchipelError(
                        f"'{path}': line {number} is not an entry: it was changed or cut off."
                    )
                yield found, line
    except OSError as error:
        raise ArchipelError(f"'{path}' cannot be read ({error.strerror}).") from error


def read_line(line: bytes) -> Entry | None:
    """The entry, or None unless the line is to the byte what would have been written."""
    try:
        found = Entry(**json.loads(line.decode("ascii")))
        right = (
            all(type(getattr(found, each)) is str for each in ("what", "by", "seen", "before"))
            and type(found.body) is dict
            and (is_name(found.by) or found.by == "")
            and found.what in (KEEPER if found.by == "" else PARTY)
            and in_text(in_bytes(found.signature)) == found.signature
            and found.line == line
        )
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError, ArchipelError):
        return None
    return found if right else None


def is_name(text: str) -> bool:
    """Whether a party can be called this in a bulletin."""
    return _NAME.fullmatch(text) is not None


def chained(entries: Sequence[Entry], lines: Sequence[bytes]) -> Fault | None:
    """The first line that does not follow the one before."""
    before = START
    for number, (each, line) in enumerate(zip(entries, lines, strict=True), 1):
        if each.before != before or (each.by == "" and each.seen != before):
            what = "does not follow the line before it: a line was changed, removed or moved"
            return Fault("", CHANGED, f"line {number} {what}")
        before = sha256(line).hexdigest()
    return None


def signed_by(public: bytes, said: Entry) -> bool:
    """Whether the owner of a key signed this entry."""
    return verify(public, in_bytes(said.signature), said.signed)


def in_text(data: bytes) -> str:
    """Bytes as an entry holds them."""
    return base64.b64encode(data).decode()


def in_bytes(text: object) -> bytes:
    """Bytes from what an entry holds."""
    if not isinstance(text, str):
        raise ArchipelError(f"{str(text)[:40]!r}: not base64.")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ArchipelError(f"{text[:40]!r}: not base64.") from None
