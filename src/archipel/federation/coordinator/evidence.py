# SPDX-License-Identifier: Apache-2.0
"""What sites signed, kept by the coordinator: a third person can check later who sent what.

One line of JSON per letter that was accepted: the text that the site signed (its fields, and dtype,
shape and SHA-256 of every array), the signature, and the public key. The numbers themselves are not
kept. The site's audit log has the SHA-256 of the same text, so the two can be laid side by side.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from archipel.engines.network.transport import Refused
from archipel.errors import ArchipelError, RunFailed
from archipel.federation.certificates import verify
from archipel.store.files import now, sync

_LONGEST = 1 << 18  # bytes of a text that is kept
_MOST = 1 << 26  # bytes that one site may add to one study while a coordinator is up


class Item(NamedTuple):
    """A letter that a site signed."""

    time: str  # UTC
    site: str
    key: str  # Ed25519 public key, in hexadecimal
    signed: str  # the text
    signature: str  # in hexadecimal

    @property
    def kind(self) -> str:
        return self.signed.split("\n")[1]

    @property
    def round(self) -> int | None:
        found = re.search(r"^round=(-?\d+)$", self.signed, re.MULTILINE)
        return int(found[1]) if found else None

    @property
    def digest(self) -> str:
        """As the site's audit log has it."""
        return sha256(self.signed.encode()).hexdigest()


class Evidence:
    """A folder with a file for each study."""

    def __init__(self, folder: Path, full: Callable[[str, str], None] = lambda *_: None) -> None:
        """`full` is told study and site where nothing more of it is kept."""
        self._folder, self._full = folder, full
        self._last: dict[tuple[str, str], str] = {}  # of a study and site: letters come twice
        self._written: Counter[tuple[str, str]] = Counter()

    def path(self, study: str) -> Path:
        return self._folder / f"{study}.jsonl"

    def check_size(self, said: bytes) -> None:
        """Refuse what would be too long to keep, before it is accepted."""
        if len(said) > _LONGEST:
            raise Refused(f"the letter's fields have {len(said)} bytes: send fewer.")

    def keep(self, study: str, site: str, key: bytes, said: bytes, signature: bytes) -> None:
        """Write down what was signed; it is on the disk when this returns."""
        who = study, site
        if self._last.get(who) == signature.hex() or self._written[who] > _MOST:
            return
        line = json.dumps(Item(now(), site, key.hex(), said.decode(), signature.hex())._asdict())
        try:
            self._append(self.path(study), line.encode() + b"\n")
        except OSError as error:
            raise RunFailed(
                f"'{self.path(study)}' cannot be written ({error.strerror}): make room."
            ) from error
        self._last[who] = signature.hex()
        self._written[who] += len(line)
        if self._written[who] > _MOST:
            self._full(study, site)

    def _append(self, path: Path, line: bytes) -> None:
        new = not path.exists()
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            if size and os.pread(handle, 1, size - 1) != b"\n":  # a writer was stopped
                line = b"\n" + line
            os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
        if new:
            sync(path.parent)

    def items(self, study: str) -> Iterator[tuple[int, Item | None]]:
        """Every line's number and what it says; None for one that is no item."""
        if self.path(study).exists():
            with self.path(study).open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield number, _read(line)

    def check(self, study: str, keys: Mapping[str, Set[bytes]]) -> int:
        """Return how many items there are, each signed with a key of its site, or say which not."""
        count = 0
        for number, item in self.items(study):
            where = f"'{self.path(study)}': line {number}"
            if item is None:
                raise ArchipelError(f"{where} is no item: it was changed, or its writer stopped.")
            if bytes.fromhex(item.key) not in keys.get(item.site, ()):
                raise ArchipelError(f"{where}: the key is none of site {item.site}.")
            signature = bytes.fromhex(item.signature)
            if not verify(bytes.fromhex(item.key), signature, item.signed.encode()):
                raise ArchipelError(f"{where} is not signed by {item.site}: it was changed.")
            if f"study='{study}'" not in item.signed.split("\n"):
                raise ArchipelError(f"{where} is of another study.")
            count += 1
        return count


def _read(line: bytes) -> Item | None:
    try:
        item = Item(**json.loads(line))
        bytes.fromhex(item.key + item.signature)
        return item if item.signed.startswith("archipel letter\n") else None
    except (ValueError, TypeError, AttributeError):
        return None
