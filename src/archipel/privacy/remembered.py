# SPDX-License-Identifier: Apache-2.0
"""Answers of the accountant that need not be computed again: in memory, and in the user's cache.

An answer is kept under all that was asked and the version that answered, with a check sum: what
does not fit is asked again. The file is in the folder of the plans that are timed once.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from math import isnan
from pathlib import Path
from typing import Any

_FORM = 1  # rises with every change of what is computed here
_MOST = 4096  # answers on the disk

_memory: dict[str, float] = {}


def remembered(asked: tuple[Any, ...], answer: Callable[[], float]) -> float:
    """The answer to what is asked, computed if it is not known yet."""
    key = _print(repr((_FORM, _version(), asked)))
    if key not in _memory:
        known = _read().get(key)
        found = _checked(key, known)
        _memory[key] = answer() if found is None else found
        if found is None:
            _write(key, _memory[key])
    return _memory[key]


def _checked(key: str, entry: Any) -> float | None:
    """A number that was kept, if it is what was kept."""
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], float)):
        return None
    value, check = entry
    return value if check == _print(f"{key} {value!r}") and value >= 0 else None


def _print(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


@cache
def _version() -> str:
    return version("dp-accounting")


def _path() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "archipel" / "privacy.json"


def _read() -> dict[str, Any]:
    try:
        known = json.loads(_path().read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(key: str, value: float) -> None:
    """Keep an answer; a machine where nothing can be written simply computes again."""
    if isnan(value):
        return
    path, known = _path(), _read()
    entry = [float(value), _print(f"{key} {float(value)!r}")]
    kept = dict(list(known.items())[1 - _MOST :])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({**kept, key: entry}, file)
        Path(file.name).replace(path)
    except OSError:
        return
