# SPDX-License-Identifier: Apache-2.0
"""A look at a run's row in its journal, for lists of runs: without SQLAlchemy, which takes longer
to load than all runs of a folder take to read.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from archipel.errors import ArchipelError, RunFailed

# of what is in the tables; 1 wrote "all" where everybody was sampled, and up to 2 a site that does
# not tell its points had 1
VERSION = 3
_JSON = ("description", "plan", "environment", "baselines", "summary", "scorecard")


def exact(value: Any) -> Any:
    """JSON of a journal as it was meant: {"float": "nan"} is a number that is not finite."""
    if isinstance(value, dict):
        if value.keys() == {"float"} and value["float"] in ("nan", "inf", "-inf"):
            return float(value["float"])
        return {key: exact(each) for key, each in value.items()}
    return [exact(each) for each in value] if isinstance(value, list) else value


def row_of(path: Path, *columns: str) -> dict[str, Any]:
    """These columns of the only run in an SQLite journal."""
    try:
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            query = f"SELECT run, version, {', '.join(columns)} FROM runs"
            found = connection.execute(query).fetchone()
    except sqlite3.Error as error:
        raise RunFailed(
            f"the journal {path} cannot be used ({error}): put it back from a copy, or start the "
            "run anew."
        ) from None
    if found is None:
        raise RunFailed(f"the journal {path} knows no run.")
    name, version, *values = found
    check(name, version)
    return {
        column: exact(json.loads(value)) if column in _JSON and value is not None else value
        for column, value in zip(columns, values, strict=True)
    }


def check(run: str, version: int) -> None:
    """Refuse a journal of a later version."""
    if version > VERSION:
        raise ArchipelError(
            f"the journal of run '{run}' has version {version}, this is version {VERSION}: open it "
            "with the Archipel that wrote it."
        )
