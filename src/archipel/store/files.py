# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all, whenever the process or the power ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from archipel.errors import RunFailed

UMASK = os.umask(0)  # which rights the user does not give; can only be asked by setting it
os.umask(UMASK)


def write(path: Path, content: bytes) -> None:
    """Write to the side, sync, rename, sync the folder."""
    try:
        _write(path, content)
    except OSError as error:
        raise RunFailed(
            f"'{path}' cannot be written ({error.strerror}): make room, or name another folder."
        ) from error


def _write(path: Path, content: bytes) -> None:
    handle, side = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(side).chmod(0o666 & ~UMASK)
        Path(side).replace(path)
    except BaseException:
        Path(side).unlink(missing_ok=True)
        raise
    sync(path.parent)


def now() -> str:
    """The time, as logs and databases have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def sync(folder: Path) -> None:
    """Have a folder's entries on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock, or learn that another process does; it ends however this one ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _taken(handle)
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    for attempt in range(5):  # somebody may only be looking
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt < 4:
                time.sleep(0.02)
    return False
