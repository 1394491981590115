# SPDX-License-Identifier: Apache-2.0
"""What a site or the coordinator did, in a file that cannot be changed without its being found.

One line of JSON per entry, keys sorted, ASCII. `before` is the SHA-256 of the line before with its
newline, what `tail -n 1 audit.jsonl | sha256sum` printed then; `signature` is Ed25519 over the same
JSON without the signature. So no line can be changed, moved, added or removed in the middle. That
the end was cut off, or that the owner of the key wrote it all anew, shows against an anchor: the
number and hash of a last line that somebody else kept.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import math
import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from archipel.engines.local.pool import cores
from archipel.errors import ArchipelError, RunFailed
from archipel.federation.certificates import Identity, verify
from archipel.store.files import sync

Plain = str | int | float | bool | None

DAMAGED = "damaged"  # the kind of an entry that holds what a writer that was stopped left behind
START = "0" * 64  # before the first line
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_HALF = re.compile("[\ud800-\udfff]")  # of a character; JSON joins two of them
_WHOLE = 1 << 64  # larger numbers are not read everywhere
_BLOCK = 4096  # bytes of the end that are read first
_SHARE = 500  # lines that a thread checks at a time
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class Entry(NamedTuple):
    """One line."""

    number: int  # from 1
    time: str  # UTC, in seconds
    what: str  # "joined", "sent", ...
    detail: Mapping[str, Plain]
    before: str  # hash of the line before
    signature: str = ""  # base64


class Anchor(NamedTuple):
    """A point of the chain, for the other side to keep."""

    number: int  # of the last entry up to here
    hash: str  # of the last one's line

    @property
    def text(self) -> str:
        """As it travels."""
        return f"{self.number}:{self.hash}"

    @classmethod
    def read(cls, text: str) -> Anchor:
        """The anchor that somebody else sent."""
        if not re.fullmatch(r"\d{1,15}:[0-9a-f]{64}", text):
            raise ArchipelError(f"log = {text[:100]!r}: not the number and hash of an entry.")
        number, _, hash = text.partition(":")
        return cls(int(number), hash)


@dataclass(frozen=True)
class Audit:
    """A log that only grows; several processes with one key may add to it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     audit = Audit(Path(folder) / "audit.jsonl", Identity.create())
    ...     anchor = audit.append("joined", site="a", points=120)
    ...     check(audit.path, audit.identity.public, anchor)
    1
    """

    path: Path
    identity: Identity

    def append(self, what: str, /, **detail: Plain) -> Anchor:
        """Add an entry, which is on the disk when this returns its anchor.

        A line that a stopped writer left without its end becomes an entry of kind "damaged" first.
        """
        _refuse(what, detail)
        try:
            with _locked(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as log:
                last, torn = _tail(log)
                new = not last
                if torn:
                    last = self._mend(log, last, torn)
                entry = self._next(last, what, detail)
                line = _line(entry)
                if os.write(log, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(log)
                if new:
                    sync(self.path.parent)
        except OSError as error:
            raise RunFailed(
                f"'{self.path}' cannot be written ({error.strerror}): make room, or allow writing."
            ) from error
        return Anchor(entry.number, _hash(line))

    def mend(self) -> None:
        """Make a line that a stopped writer left without its end an entry, as `append` does."""
        if not self.path.exists():
            return
        try:
            with _locked(self.path, os.O_RDWR | os.O_APPEND, fcntl.LOCK_EX) as log:
                last, torn = _tail(log)
                if torn:
                    self._mend(log, last, torn)
        except OSError as error:
            raise RunFailed(
                f"'{self.path}' cannot be written ({error.strerror}): make room, or allow writing."
            ) from error

    def entries(self, *kinds: str) -> Iterator[Entry]:
        """All entries, or those of some kinds, as they stand there; `check` says if they are right.

        Of other kinds nothing but the name is looked at, which is quick.
        """
        if not self.path.exists():
            return
        names = [b'"what":"%s"}' % kind.encode() for kind in kinds]
        for number, line in enumerate(_lines(self.path), 1):
            if names and not any(name in line for name in names):
                continue
            if line.endswith(b"\n"):
                entry = _read(line)
                if entry is None:
                    raise _bad(self.path, number, "is not an entry, so it was changed")
                if not kinds or entry.what in kinds:
                    yield entry

    @property
    def head(self) -> Anchor:
        """The anchor of the last entry."""
        try:
            with _locked(self.path, os.O_RDONLY, fcntl.LOCK_SH) as log:
                last, _ = _tail(log)
        except FileNotFoundError:
            last = b""
        except OSError as error:
            raise ArchipelError(f"'{self.path}' cannot be read ({error.strerror}).") from error
        return Anchor(self._own(last).number, _hash(last))

    def _next(self, last: bytes, what: str, detail: Mapping[str, Plain]) -> Entry:
        """The entry after the last line, signed."""
        above = self._own(last)
        time = max(datetime.now(UTC).isoformat(timespec="seconds"), above.time)  # a clock put back
        entry = Entry(above.number + 1, time, what, detail, _hash(last))
        signature = self.identity.sign(_signed(entry))
        return entry._replace(signature=base64.b64encode(signature).decode())

    def _own(self, last: bytes) -> Entry:
        """The last line's entry: nothing is built on what this key did not sign."""
        if not last:
            return Entry(0, "", "", {}, "")
        entry = _read(last)
        public = self.identity.public
        if entry is None or not verify(public, _signature(entry), _signed(entry)):
            raise ArchipelError(
                f"'{self.path}': its last line is not an entry signed with this key; keep the file "
                "as it is for those who look into it, and begin a new one."
            )
        return entry

    def _mend(self, log: int, last: bytes, torn: bytes) -> bytes:
        """Write an entry that holds the torn line over it, and return its line.

        Each byte takes one character or more, so the new line is longer: if this is stopped as
        well, what is left is again a torn line, and never none.
        """
        detail: dict[str, Plain] = {"dropped": len(torn), "text": torn.decode("latin-1")}
        line = _line(self._next(last, DAMAGED, detail))
        handle = os.open(self.path, os.O_WRONLY)  # O_APPEND would write behind it
        try:
            if os.pwrite(handle, line, os.fstat(log).st_size - len(torn)) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        finally:
            os.close(handle)
        return line


def check(path: Path, public: bytes, anchor: Anchor | tuple[int, str] | None = None) -> int:
    """Return how many entries there are, all of them right, or say which line is the first bad one.

    Every signature is checked, at about 0.1 ms of a core each, in as many threads as there are
    cores: the last one vouches for the lines before it only if its writer looked at them.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        raise ArchipelError("public: not an Ed25519 key of 32 bytes.") from None
    kept, known = anchor or (0, START)
    if kept < 1 and (kept, known) != (0, START):
        raise ArchipelError(f"anchor = {(kept, known)}: say the number and hash of a `head`.")
    number, above, lines = 0, b"", _lines(path)
    under_way: deque[Future[None]] = deque()  # in the order of the lines
    with ThreadPoolExecutor(cores()) as pool:
        while share := list(islice(lines, _SHARE)):
            job = (path, share, key, number, above, Anchor(kept, known))
            under_way.append(pool.submit(_check_share, *job))
            number, above = number + len(share), share[-1]
            if len(under_way) > 2 * cores():
                under_way.popleft().result()
        for each in under_way:
            each.result()
    if number < kept:
        gone = f"is missing: the anchor names line {kept}, so the end was cut off"
        raise _bad(path, number + 1, gone)
    return number


def _check_share(
    path: Path, lines: Sequence[bytes], key: Ed25519PublicKey, number: int, above: bytes,
    anchor: Anchor,
) -> None:  # fmt: skip
    """Check lines after so many others; `above` is the last of those, and checked elsewhere."""
    before, last = _hash(above), _read(above) if above else None
    time = last.time if last is not None else ""
    for at, line in enumerate(lines, number + 1):
        time = _verified(path, line, key, at, before, time).time
        before = _hash(line)
        if at == anchor.number and before != anchor.hash:
            raise _bad(path, at, "is not the one that the anchor names: the log was rewritten")


def _verified(
    path: Path, line: bytes, key: Ed25519PublicKey, number: int, before: str, time: str
) -> Entry:
    """The entry of this line, if it is signed and continues the chain."""
    if not line.endswith(b"\n"):
        raise _bad(path, number, "has no end: its writer was stopped, or the log was cut there")
    entry = _read(line)
    if entry is None:
        raise _bad(path, number, "is not an entry, so it was changed")
    try:
        key.verify(_signature(entry), _signed(entry))
    except InvalidSignature:
        changed = "is not signed with this key: it was changed, or someone else wrote it"
        raise _bad(path, number, changed) from None
    if entry.number != number:
        moved = f"has number {entry.number}: lines were removed, added or moved"
        raise _bad(path, number, moved)
    if entry.before != before:
        raise _bad(path, number, "does not follow the line before it: one of them was replaced")
    if entry.time < time:
        raise _bad(path, number, f"has time {entry.time}, but the line before it {time}")
    return entry


def _bad(path: Path, number: int, fault: str) -> ArchipelError:
    return ArchipelError(f"'{path}': line {number} {fault}.")


# -- entries and bytes -----------------------------------------------------------------------------


def _refuse(what: str, detail: Mapping[str, Plain]) -> None:
    """Only what comes back from JSON as it went in."""
    if type(what) is not str or not _KIND.fullmatch(what):
        raise ArchipelError(f"what = {what!r}: say one word in lower case, such as 'joined'.")
    for key, value in detail.items():
        if not (_is_plain(key) and _is_plain(value)):
            raise ArchipelError(
                f"{key} = {value!r}: say it as text, a finite number below 2^64, True, False or "
                "None."
            )


def _is_plain(value: object) -> bool:
    """By its very type: a subclass would come back as something else."""
    if type(value) is str:
        return not _HALF.search(value)
    if type(value) is int:
        return -_WHOLE < value < _WHOLE
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) is bool


def _line(entry: Entry) -> bytes:
    return _encode(entry._asdict()).encode() + b"\n"


def _signed(entry: Entry) -> bytes:
    fields = entry._asdict()
    del fields["signature"]
    return _encode(fields).encode()


def _signature(entry: Entry) -> bytes:
    return base64.b64decode(entry.signature)


def _hash(line: bytes) -> str:
    return sha256(line).hexdigest() if line else START


def _read(line: bytes) -> Entry | None:
    """The entry, or None unless the line is to the byte what `append` would have written."""
    try:
        entry = Entry(**json.loads(line.decode("ascii")))
        _refuse(entry.what, entry.detail)
        moment = datetime.fromisoformat(entry.time).astimezone(UTC)
        signature = base64.b64encode(_signature(entry)).decode()
        right = (
            type(entry.number) is int
            and moment.isoformat(timespec="seconds") == entry.time
            and signature == entry.signature
            and _line(entry) == line
        )
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return entry if right else None


# -- the file --------------------------------------------------------------------------------------


@contextmanager
def _locked(path: Path, flags: int, kind: int) -> Iterator[int]:
    handle = os.open(path, flags, 0o600)
    try:
        fcntl.flock(handle, kind)
        yield handle
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing alone leaves it to a process forked meanwhile
        os.close(handle)


def _tail(log: int) -> tuple[bytes, bytes]:
    """The last whole line, and what comes after it."""
    size, span = os.fstat(log).st_size, _BLOCK
    while True:
        start = max(0, size - span)
        *lines, torn = os.pread(log, size - start, start).split(b"\n")
        if start == 0 or len(lines) > 1:  # the first may have begun earlier
            return lines[-1] + b"\n" if lines else b"", torn
        span *= 4


def _lines(path: Path) -> Iterator[bytes]:
    """All lines that are there now, the last perhaps without its end."""
    try:
        with _locked(path, os.O_RDONLY, fcntl.LOCK_SH) as log:  # nobody is in the middle of a line
            left = os.fstat(log).st_size
        with path.open("rb") as file:
            while line := file.readline(left):
                left -= len(line)
                yield line
    except FileNotFoundError:
        raise ArchipelError(f"'{path}': there is no audit log here.") from None
    except OSError as error:
        raise ArchipelError(f"'{path}' cannot be read ({error.strerror}).") from error
