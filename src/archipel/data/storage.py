# SPDX-License-Identifier: Apache-2.0
"""A federation on disk: one .npy file per array and meta.json; never a pickle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from archipel.errors import ArchipelError

FORMAT = "archipel federation 1"
_NEEDED = ("x", "y", "offsets", "test_from")
_META = ("training", "task", "classes", "about", "columns")


def write(folder: Path, arrays: dict[str, npt.NDArray[Any]], meta: dict[str, Any]) -> None:
    """Write beside `folder`, then rename, so that a reader sees all of it or nothing."""
    if folder.exists() and not (folder / "meta.json").is_file():
        raise ArchipelError(
            f"folder '{folder}' exists and holds no federation; choose another name."
        )
    side = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    side.mkdir(parents=True)
    try:
        for name, array in arrays.items():
            np.save(side / f"{name}.npy", array, allow_pickle=False)
        text = json.dumps({"format": FORMAT, **meta}, indent=1)
        (side / "meta.json").write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rename(old)
        side.rename(folder)
    finally:
        shutil.rmtree(side, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return the arrays, the large ones memory-mapped, and the rest of meta.json."""
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ArchipelError(
            f"folder '{folder}' holds no federation; make one with Federation.save."
        ) from None
    except ValueError:
        raise ArchipelError(f"'{folder / 'meta.json'}' is not JSON; save it again.") from None
    whole = isinstance(meta, dict) and all(key in meta for key in _META)
    if not whole or meta.pop("format", None) != FORMAT:
        raise ArchipelError(
            f"'{folder / 'meta.json'}' is not of format '{FORMAT}'; save the federation again."
        )
    arrays = {}
    for path in sorted(folder.glob("*.npy")):
        # "c", private to this process, rather than "r": torch has no read-only tensors
        mode: Any = "c" if path.stem in ("x", "y", "names") else None
        try:
            arrays[path.stem] = np.load(path, mmap_mode=mode, allow_pickle=False)
        except ValueError:
            empty = _load_empty(path)
            if empty is None:
                raise ArchipelError(f"'{path}' is not a plain array file; save it again.") from None
            arrays[path.stem] = empty
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise ArchipelError(f"folder '{folder}' lacks {missing[0]}.npy; save it again.")
    return arrays, meta


def _load_empty(path: Path) -> npt.NDArray[Any] | None:
    """Return an array without elements, which cannot be memory-mapped, or None."""
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except ValueError:
        return None
    return array if array.size == 0 else None
