# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all, whenever the process or the power ends."""

from __future__ import annotations

import os
import tempfile
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


def sync(folder: Path) -> None:
    """Have a folder's entries on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
