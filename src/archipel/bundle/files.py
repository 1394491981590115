# SPDX-License-Identifier: Apache-2.0
"""A bundle's folder: written whole or not at all, read only as its digests say.

The digests find a bundle that was damaged or changed by mistake. Whoever changes it on purpose can
write new ones: compare the digest that `archipel predict --json` prints with the sender's.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from archipel.errors import ArchipelError, clean
from archipel.store.files import UMASK, sync, write

ABOUT, MODEL, STUDY, CARD, SUMS = (
    "bundle.json", "model.safetensors", "study.toml", "card.md", "SHA256SUMS",
)  # fmt: skip
CODE = "code"  # folder of the model's own Python files, where it has some
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_MOST = {ABOUT: 64 << 20, MODEL: 4 << 30, SUMS: 1 << 20}  # bytes
_MOST_ELSE, _MOST_FILES = 4 << 20, 200


def save(folder: Path, files: Mapping[str, bytes], again: bool = False) -> None:
    """Write a bundle beside its place, then move it there; with `again`, in place of an old one."""
    if folder.exists() and not again:
        raise ArchipelError(f"--bundle {folder}: is there already; name another, or remove it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    side = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    old = side.with_name(f"{side.name}.old")
    try:
        sums = "".join(
            f"{sha256(content).hexdigest()}  {name}\n" for name, content in files.items()
        )
        for name, content in {**files, SUMS: sums.encode()}.items():
            (side / name).parent.mkdir(parents=True, exist_ok=True)
            write(side / name, content)
        side.chmod(0o777 & ~UMASK)
        if folder.exists():
            folder.rename(old)
        side.rename(folder)
    finally:
        shutil.rmtree(side, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    sync(folder.parent)


def load(folder: Path) -> tuple[dict[str, bytes], str]:
    """Return a bundle's files by name, each as its digest says, and the digest of them all."""
    if not folder.is_dir():
        raise ArchipelError(f"bundle '{folder}': no such folder; 'archipel export' writes one.")
    sums = _read(folder, SUMS)
    digests = _digests(folder, sums)
    files = {}
    for name, digest in digests.items():
        content = _read(folder, name)
        if sha256(content).hexdigest() != digest:
            raise ArchipelError(
                f"bundle '{folder}': {name} is not as it was written; get the bundle again."
            )
        files[name] = content
    return files, sha256(sums).hexdigest()


def _digests(folder: Path, sums: bytes) -> dict[str, str]:
    try:
        lines = sums.decode().splitlines()
    except UnicodeDecodeError:
        lines = [""]
    found = [_LINE.fullmatch(line) for line in lines]
    digests = {match[2]: match[1] for match in found if match is not None}
    if len(digests) < len(lines) or len(lines) > _MOST_FILES:
        raise ArchipelError(f"bundle '{folder}': {SUMS} is no list of digests; get it again.")
    for name in (ABOUT, MODEL, STUDY, CARD):
        if name not in digests:
            raise ArchipelError(f"bundle '{folder}': {SUMS} lacks {name}; get the bundle again.")
    for name in digests:
        inside = name in (ABOUT, MODEL, STUDY, CARD) or name.startswith(f"{CODE}/")
        if not inside or clean(name) != name or {"", ".", ".."} & set(name.split("/")):
            raise ArchipelError(f"bundle '{folder}': '{name}' is no file of a bundle.")
    return digests


def _read(folder: Path, name: str) -> bytes:
    """Read a plain file that lies in the folder itself, of a size that a bundle's file may have."""
    most, path = _MOST.get(name, _MOST_ELSE), folder
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            raise ArchipelError(f"bundle '{folder}': {name} is a link; a bundle has plain files.")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (OSError, ValueError):
        raise ArchipelError(f"bundle '{folder}': {name} cannot be read; get it again.") from None
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > most:
            raise ArchipelError(
                f"bundle '{folder}': {name} is no plain file of at most {most:,} bytes."
            )
        return file.read(most + 1)
