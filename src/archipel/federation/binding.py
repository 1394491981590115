# SPDX-License-Identifier: Apache-2.0
"""A site's own table, bound to what studies ask for: checked here, and read by nobody else.

A binding belongs to a schema: every study that describes its columns in the same way finds it.
What is kept is where the file lies and the hash of its bytes, so that a file that was changed
afterwards is not used unseen.
"""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path

from archipel import sections
from archipel.data.schema import Records, Report, Schema
from archipel.data.shadow import Facts
from archipel.errors import ArchipelError
from archipel.store.files import write
from archipel.study import Study


def schema_of(study: Study) -> Schema:
    """What a study says that every site's table has."""
    if study.data.schema is None:
        raise ArchipelError(
            f"study {study.name}: [data.schema] is missing, so no table can be bound; the study "
            "has to name its columns."
        )
    return sections.schema_of(study.data)


def bind(folder: Path, study: Study, file: Path) -> Report:
    """Check a table against a study, and use it for all studies that describe it so."""
    schema = schema_of(study)
    report = schema.report(file)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    bound = {"file": str(file.absolute()), "sha256": _digest(file)}
    write(folder / f"{schema.hash}.json", json.dumps(bound, indent=1).encode())
    return report


def records(folder: Path, study: Study) -> Records:
    """The table that was bound for a study, checked again."""
    schema = schema_of(study)
    path = folder / f"{schema.hash}.json"
    if not path.exists():
        raise ArchipelError(
            f"study {study.name}: no table of this site is bound to its columns; run 'archipel "
            f"site data add --schema {study.name} --csv FILE'."
        )
    bound = json.loads(path.read_bytes())
    file = Path(bound["file"])
    if not file.is_file() or _digest(file) != bound["sha256"]:
        raise ArchipelError(
            f"'{file}': is not the table that was bound any more; run 'archipel site data add' "
            "again to check the new one."
        )
    return schema.read(file, study.data.test)._replace(table=bound["sha256"])


def facts(records: Records, counts: bool) -> Facts:
    """What the site tells of its table; how many rows it has only if it agrees."""
    told = Facts.of(records.schema.empty(), counts=False)
    if not counts:
        return told
    test = int(records.is_test.sum())
    return replace(told, n=len(records.x) - test, n_test=test)


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise ArchipelError(f"'{file}': cannot be read ({error.strerror}).") from None
