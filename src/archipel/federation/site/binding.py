# SPDX-License-Identifier: Apache-2.0
"""A site's own table, bound to what studies ask for: checked here, and read by nobody else.

A binding belongs to a schema: every study that describes its columns in the same way finds it.
What is kept is where the file lies and the hash of its bytes, so that a file that was changed
afterwards is not used unseen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path
from typing import NamedTuple

from archipel.data.cells import refusal
from archipel.data.dialect import UNSAID, Written
from archipel.data.schema import Records, Report, Schema
from archipel.data.shadow import Facts
from archipel.errors import ArchipelError
from archipel.store.files import write
from archipel.study import checks
from archipel.study.file import Study


def schema_of(study: Study) -> Schema:
    """What a study says that every site's table has."""
    if study.data.schema is None:
        raise ArchipelError(
            f"study {study.name}: [data.schema] is missing, so no table can be bound; the study "
            "has to name its columns."
        )
    return checks.schema_of(study.data)


class Bound(NamedTuple):
    """A table that was bound: where it lies, what it was, and how it is written."""

    schema: str  # the hash of what it is read by
    file: Path
    sha256: str
    written: Written
    before: tuple[str, ...] = ()  # hashes of the tables that were bound in its place before

    @property
    def unchanged(self) -> bool:
        return self.file.is_file() and _digest(self.file) == self.sha256


def bind(
    folder: Path,
    study: Study,
    file: Path,
    written: Written = UNSAID,
    show: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Check a table against a study, and use it for all studies that describe it so.

    `show` is given what is in the table before it may be refused.
    """
    schema = replace(schema_of(study), written=written)
    sha256 = _digest(file)
    report = schema.report(file)
    show(report)
    if report.refused:
        raise refusal(report.refused)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, before = folder / f"{schema.hash}.json", set[str]()
    if path.exists():
        last = _read(path)
        before = {*last.before, last.sha256} - {sha256}
    bound = {"file": str(file.absolute()), "sha256": sha256, "written": written._asdict()}
    write(path, json.dumps({**bound, "before": sorted(before)}, indent=1).encode())
    return report


def is_bound(folder: Path, study: Study) -> bool:
    """Whether a table was bound for a study."""
    return (folder / f"{schema_of(study).hash}.json").exists()


def bound(folder: Path) -> list[Bound]:
    """All tables that were bound, by the hash of what they are read by."""
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def find(folder: Path, study: Study) -> Bound:
    """The table that was bound for a study, unchanged."""
    path = folder / f"{schema_of(study).hash}.json"
    if not path.exists():
        raise ArchipelError(
            f"study {study.name}: no table of this site is bound to its columns; run 'archipel "
            f"site data add {study.name} TABLE'."
        )
    found = _read(path)
    if not found.unchanged:
        raise ArchipelError(
            f"'{found.file}': is not the table that was bound any more; run 'archipel site data "
            "add' again to check the new one."
        )
    return found


def report(folder: Path, study: Study) -> Report:
    """What is in the table that was bound for a study."""
    found = find(folder, study)
    return replace(schema_of(study), written=found.written).report(found.file)


def records(folder: Path, study: Study) -> Records:
    """The table that was bound for a study, checked again."""
    found = find(folder, study)
    schema = replace(schema_of(study), written=found.written)
    return schema.read(found.file, checks.share_of(study.data))._replace(table=found.sha256)


def _read(path: Path) -> Bound:
    kept = json.loads(path.read_bytes())
    written, before = Written(**kept["written"]), tuple(kept.get("before", ()))
    return Bound(path.stem, Path(kept["file"]), kept["sha256"], written, before)


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
