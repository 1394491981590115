# SPDX-License-Identifier: Apache-2.0
"""Forecasts on the disk: one for each study, by its hash, beside the runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from archipel.errors import ArchipelError
from archipel.forecast.forecast import VERSION, Forecast
from archipel.store.files import write

FOLDER = ".forecasts"  # in the folder that holds the runs


def keep(forecast: Forecast, out: Path) -> Path:
    """Write a forecast beside the runs, in place of an earlier one of the same study."""
    path = _path(out, forecast.hash)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchipelError(
            f"out = '{out}': cannot be made ({error.strerror}); name another folder."
        ) from None
    write(path, json.dumps(forecast.to_json(), indent=1, allow_nan=False).encode())
    return path


def kept(out: Path, digest: str) -> Forecast | None:
    """The forecast of a study; None where there is none, or none that this version reads."""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        return None
    try:
        told = json.loads(_path(out, digest).read_bytes())
        return Forecast.of_json(told) if told["version"] == VERSION else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _path(out: Path, digest: str) -> Path:
    return out / FOLDER / f"{digest}.json"
