# SPDX-License-Identifier: Apache-2.0
"""What becomes of a table: of every column its kind, what is in it, and how a model is fed it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from archipel.data import frames, kinds, looks, tables
from archipel.data.column import Column
from archipel.data.frames import Roles, Said, Sheet
from archipel.data.looks import Looks
from archipel.data.outcome import Outcome
from archipel.data.rows import Ints
from archipel.data.schema import Schema
from archipel.errors import ArchipelError

_SHOWN = 5  # values of a category


class Entry(NamedTuple):
    """One column of a table."""

    name: str
    kind: str  # number, category, date, mixed, or empty
    values: list[Any]  # of a category, in order
    missing: int  # empty cells
    range: list[float] | list[str]  # least, median and largest number, or date
    becomes: str
    features: int  # how many numbers a model is fed of it
    refused: bool = False  # `becomes` is then the sentence that says why


class Account(NamedTuple):
    """All columns of a table, and what is predicted."""

    rows: int
    columns: list[Entry]
    task: str | None  # None where it is refused
    guessed: bool
    notes: tuple[str, ...]


def account(sheet: Sheet, said: Said, standardise: bool) -> Account:
    """Say of every column what becomes of it, whether the table can be used or not."""
    roles = frames.roles_of(sheet, said)
    party, names = frames.whose(sheet, roles)
    place = frames.place_of(sheet, party, names)
    found: Outcome | None = None
    refused = ""
    try:
        found = frames.outcome_of(sheet, roles, said.task, place)
    except ArchipelError as error:
        refused = str(error)
    entries = []
    for name in sheet.frame.columns:
        column = sheet.look(name)
        if name in roles.targets and found is not None:
            entries.append(_target(column, found, roles.targets.index(name)))
        elif name in roles.targets:
            entries.append(_entry(column, _plain(column), refused, 0, refused=True))
        elif name in roles.features:
            entries.append(_feature(column, roles, party, place, standardise))
        elif name != frames.PARTY:
            entries.append(_entry(column, _plain(column), _other(name, roles), 0))
    task = None if found is None else found.task
    return Account(len(sheet.frame), entries, task, bool(found and found.guessed), sheet.notes)


def described(files: Sequence[Path], schema: Schema, standardise: bool, by: str | None) -> Account:
    """The same of tables whose columns a study describes; others are not read."""
    import pandas as pd

    known = {column.name: column for column in (*schema.features, *schema.targets)}
    sources = [tables.opened(file, schema.written) for file in files]
    asked = {name: column.read_as for name, column in known.items()}
    frame = pd.concat(
        [source.columns(asked, schema.empty_words) for source in sources], ignore_index=True
    )
    targets = [column.name for column in schema.targets]
    outcome = Outcome(schema.targets, schema.task, False)
    entries = []
    for name, column in known.items():
        cells = Looks(name, frame[name])
        if name in targets:
            entries.append(_target(cells, outcome, targets.index(name)))
        else:
            entries.append(_fed(cells, column, standardise))
    unread = sorted({name for source in sources for name in source.header} - {*known, by})
    note = f"not read, for data.schema does not name them: {', '.join(unread)}"
    return Account(len(frame), entries, schema.task, False, (note,) if unread else ())


def _feature(
    column: Looks, roles: Roles, party: Ints, place: kinds.Place, standardise: bool
) -> Entry:
    try:
        found = kinds.column_of(column, roles.said.get(column.name), party, place)
    except ArchipelError as error:
        return _entry(column, _plain(column), str(error), 0, refused=True)
    if found is None:
        return _entry(column, _plain(column), "left out: never differs", 0)
    return _fed(column, found, standardise and not _marks(column, found))


def _marks(column: Looks, found: Column) -> bool:
    """Whether numbers are zeros and ones, which are not scaled (`Federation.marks`)."""
    known = looks.numbers(looks.told(column.cells))[~column.empty]
    return found.kind == "number" and bool(np.isin(known, (0, 1)).all())


def _fed(column: Looks, found: Column, standardise: bool) -> Entry:
    """What is fed; 0/1 features are never scaled (`Schema.marks`)."""
    many = len(found.encoded)
    scaled = ", standardised" if standardise else ""
    becomes = {
        "number": "number" + scaled,
        "date": "number of days" + scaled,
        "category": f"{many} 0/1 features" if many > 1 else "one 0/1 feature",
    }[found.kind]
    return _entry(column, found, becomes, many)


def _target(column: Looks, found: Outcome, place: int) -> Entry:
    own = found.columns[place]
    said = f"target: {len(own.values)} classes" if own.values else "target: a number"
    if found.task == "survival":
        said = ("target: time", "target: 1 is the event")[place]
    return _entry(column, own, said, 0)


def _other(name: str, roles: Roles) -> str:
    said = {
        roles.by: "says whose row it is",
        roles.flag: "says which rows test",
        roles.time: "says when, for the test rows; no feature",
    }
    return said.get(name, "left out, as said")


def _plain(column: Looks) -> Column:
    """What a column is that is not fed."""
    some = ~column.empty
    if column.dated:
        return Column(column.name, date=True)
    if column.is_number[some].all():
        return Column(column.name)
    return Column(column.name, column.values)


def _entry(
    column: Looks, found: Column, becomes: str, features: int, refused: bool = False
) -> Entry:
    missing = int(column.empty.sum())
    kind = "empty" if missing == len(column.cells) else found.kind
    if refused and kind == "category" and column.is_number.any():
        kind = "mixed"
    values = list(found.values) if kind == "category" else []
    ranged = _range(column, found) if kind in ("number", "date") else []
    return Entry(column.name, kind, values, missing, ranged, becomes, features, refused)


def _range(column: Looks, found: Column) -> list[float] | list[str]:
    numbers = column.numbers
    if found.date:
        try:
            numbers = looks.days(column.cells, column.name)
        except ArchipelError:  # of which no row tells where the month is
            return []
    known = numbers[np.isfinite(numbers)]
    if len(known) == 0:
        return []
    least = [float(q) for q in np.quantile(known, [0, 0.5, 1])]
    return [looks.shown_day(q) for q in least] if found.date else least


def some(values: Sequence[Any]) -> str:
    """The first values of a category, and how many there are."""
    shown = ", ".join(map(str, values[:_SHOWN])) + (", ..." if len(values) > _SHOWN else "")
    return f"{len(values)}: {shown}"
