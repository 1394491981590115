# SPDX-License-Identifier: Apache-2.0
"""Tables to arrays: whose rows, which test, what is predicted, by which columns, empty cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from archipel.data import kinds, looks, split, tables
from archipel.data.cells import Cells, refusal, too_empty
from archipel.data.column import Column
from archipel.data.dialect import UNSAID, NoRows, Written
from archipel.data.looks import Looks
from archipel.data.outcome import Outcome, outcome
from archipel.data.rows import Bools, Ints
from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from archipel.data.schema import Schema

MISSING = ("error", "drop", "mean")
PARTY = "party (file name)"  # the column that tells files of one folder apart


class Said(NamedTuple):
    """What is said of a table, by the keys of [data]; what is not said is found out."""

    target: str | Sequence[str]
    by: str | None = None
    test: float | str = 0.2
    time: str | None = None
    drop: Sequence[str] = ()
    missing: str = "error"
    empty: Sequence[str] = ()
    task: str | None = None
    columns: Mapping[str, Any] = {}

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def texts(self) -> list[str]:
        """Columns that are categories, whatever is written in them."""
        words = {name: _values(kind) for name, kind in self.columns.items()}
        return [name for name, kind in words.items() if kind in ("category", "skip", "text")]


def _values(kind: Any) -> Any:
    """What is said of a column in a word: "text" for a list of texts."""
    if isinstance(kind, Mapping):
        kind = kind.get("values", kind.get("kind"))
    is_list = isinstance(kind, list | tuple)
    return "text" if is_list and any(isinstance(each, str) for each in kind) else kind


NOTHING = Said(())  # of a table that is only looked at


class Sheet(NamedTuple):
    """A table as it is written, nothing in empty cells."""

    frame: pd.DataFrame
    row: Callable[[int], int]  # the number of a row in its file, as a spreadsheet shows it
    notes: tuple[str, ...] = ()  # what is said of it

    @classmethod
    def of(cls, frame: pd.DataFrame, said: Said) -> Sheet:
        """A table in memory."""
        source = tables.InMemory(frame)
        twice = next((name for name in source.header if source.header.count(name) > 1), None)
        if twice is not None:
            raise tables.called_alike(None, twice)
        return cls.read(source, said)

    @classmethod
    def read(cls, source: tables.Source, said: Said) -> Sheet:
        """A table that was opened."""
        frame = source.frame(said.texts, said.empty)
        note = f"blanks around names in column '{said.by}' do not count"
        return cls(frame, source.row, (note,) if said.by in source.padded else ())

    def look(self, name: str) -> Looks:
        return Looks(name, self.frame[name])

    def only(self, kept: Bools) -> Sheet:
        """Some of the rows."""
        places = np.flatnonzero(kept)
        frame = self.frame[kept].reset_index(drop=True)
        return Sheet(frame, lambda row: self.row(int(places[row])), self.notes)


class Roles(NamedTuple):
    """Which columns are for what."""

    targets: list[str]
    by: str | None
    flag: str | None  # true on test rows
    time: str | None  # by which test rows are told
    features: list[str]
    said: dict[str, str | Column]  # of features and targets

    @property
    def required(self) -> list[str]:
        """Columns in which no cell may be empty, whatever is done about features."""
        others = [name for name in (self.by, self.flag, self.time) if name is not None]
        return [*self.targets, *others]


class Table(NamedTuple):
    """What a federation needs of a table; only `x` may hold NaN, and only if it is to be filled."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[Any]
    labels: npt.NDArray[Any]  # [N] to sort or share out by
    strata: npt.NDArray[Any]  # [N] to balance train and test over
    party: Ints
    names: list[str] | None
    is_test: Bools | None
    schema: Schema  # as which the table was read
    notes: tuple[str, ...]


def read(sheet: Sheet, said: Said) -> Table:
    """Take a table apart; see `Federation.from_frame`."""
    from archipel.data.schema import Schema  # which reads tables by this file

    if said.missing not in MISSING:
        raise unknown("way to treat missing values", said.missing, MISSING)
    roles = roles_of(sheet, said)
    notes = list(sheet.notes)
    everyone = whose(sheet, roles)[1]
    total = len(sheet.frame)
    gaps = {name: int(sheet.look(name).empty.sum()) for name in roles.features}
    if said.missing == "drop":
        whole = sheet.frame[[*roles.features, *roles.required]].notna().all(axis=1)
        sheet = sheet.only(whole.to_numpy())
    refuse_gaps(sheet, roles, said.missing)
    if len(sheet.frame) == 0:
        worst = max(gaps, key=lambda name: gaps[name])
        raise ArchipelError(
            f"no row is left without an empty cell, most are in '{worst}' ({gaps[worst]}); fill "
            f'them in, data.drop = ["{worst}"], or say data.missing = "mean".'
        )
    party, names = whose(sheet, roles)
    gone = [name for name in everyone or () if name not in (names or ())]
    notes += [f"party '{name}' has no row without an empty cell: left out" for name in gone]
    if pair := looks.alike(names or ()):
        notes.append(f"parties '{pair[0]}' and '{pair[1]}' differ in capitals alone")
    place = place_of(sheet, party, names)
    found = outcome_of(sheet, roles, said.task, place)
    features = features_of(sheet, roles, party, place)
    schema = Schema(tuple(features), found.columns, said.missing, empty_words=tuple(said.empty))
    cells = Cells.of(sheet.frame, sheet.row)
    known = (*schema.features, *schema.targets)
    refused = [
        *too_empty("", known, gaps, total),
        *(text for c in known for text in cells.out_of_range(c, cells.numbers(c))),
    ]
    if refused:
        raise refusal(refused)
    y = schema.outcomes(cells)
    labels, strata = _keys(y, found.task)
    is_test = split.test_rows(sheet, roles, said.test)
    if is_test is not None:
        notes += split.one_sided(is_test, party, names)
    return Table(schema.encode(cells), y, labels, strata, party, names, is_test, schema,
                 tuple(notes))  # fmt: skip


def roles_of(sheet: Sheet, said: Said) -> Roles:
    """Check which columns are for what."""
    there, targets = [*sheet.frame.columns], said.targets
    flag = said.test if isinstance(said.test, str) and not split.is_after(said.test) else None
    time = split.time_of(sheet, said)
    named = {"data.by": said.by, "data.test": flag, "data.time": time}
    used = {f"data.target {name!r}": name for name in targets}
    used |= {f"{key} = {name!r}": name for key, name in named.items() if name is not None}
    for column in [*used.values(), *said.drop]:
        if column not in there:
            raise unknown("column", column, [name for name in there if name != PARTY])
    for i, (key, name) in enumerate(used.items()):
        other = next((k for k, v in [*used.items()][:i] if v == name), None)
        if other is not None:
            raise ArchipelError(f"{key}: is {other} as well; name two columns.")
        if name in said.drop or said.columns.get(name) == "skip":
            raise ArchipelError(f"{key}: is among the columns to leave out; take it out there.")
    kinds_said = kinds.said(said.columns, [name for name in there if name != PARTY])
    for role in (said.by, flag):
        if role in kinds_said:
            raise ArchipelError(f"data.columns.{role}: is no feature; take it out.")
    if wrong := next((name for name in said.drop if name in kinds_said), None):
        raise ArchipelError(f"data.columns.{wrong}: is in data.drop as well; take it out of one.")
    gone = {*said.drop, *targets, said.by, flag, *(n for n, k in kinds_said.items() if k == "skip")}
    gone |= {time} if time not in kinds_said else set()
    features = [name for name in there if name not in gone]
    if not features:
        raise ArchipelError("no column is left to learn from; data.drop fewer.")
    return Roles(targets, said.by, flag, time, features, kinds_said)


def whose(sheet: Sheet, roles: Roles) -> tuple[Ints, list[str] | None]:
    """Number the parties; rows without one come last."""
    if roles.by is None:
        return np.zeros(len(sheet.frame), np.int64), None
    column = sheet.frame[roles.by]
    values, owner = np.unique(comparable(column[column.notna()]), return_inverse=True)
    party = np.full(len(column), len(values), np.int64)
    party[column.notna().to_numpy()] = owner
    return party, [str(value) for value in values]


def place_of(sheet: Sheet, party: Ints, names: Sequence[str] | None) -> kinds.Place:
    """How a row is named."""

    def place(row: int) -> str:
        known = names is not None and party[row] < len(names)
        return (f"party '{names[party[row]]}', " if known and names else "") + (
            f"row {sheet.row(row)}"
        )

    return place


def refuse_gaps(sheet: Sheet, roles: Roles, missing: str) -> None:
    """Refuse empty cells that nothing is said about, in all columns at once."""
    party, names = whose(sheet, roles)
    place = place_of(sheet, party, names)
    required = _gaps(sheet, roles.required)
    if required:
        name, row = next(iter(required)), next(iter(required.values()))[0]
        is_target = name in roles.targets
        way = "a target is never filled in" if is_target else "nobody can tell where they belong"
        raise ArchipelError(
            f"{_counted(required)}, the first in {place(row)}: {way}; fill them in or delete these "
            'rows, or say data.missing = "drop" to leave out every row with an empty cell.'
        )
    features = _gaps(sheet, roles.features)
    if missing == "error" and features:
        some = ", ".join(f'"{name}"' for name in [*features][:8])
        raise ArchipelError(
            f"{_counted(features)}, the first in {place(next(iter(features.values()))[0])}; say "
            f'data.missing = "drop" (the rows) or "mean", or data.drop = [{some}].'
        )


def _gaps(sheet: Sheet, names: Sequence[str]) -> dict[str, Ints]:
    """The rows in which columns are empty, of those that have such rows."""
    found = {name: np.flatnonzero(sheet.look(name).empty) for name in names}
    return {name: rows for name, rows in found.items() if len(rows)}


def _counted(gaps: Mapping[str, Ints]) -> str:
    """Which columns have how many empty cells."""
    columns = ", ".join(f"'{name}' ({len(rows)})" for name, rows in [*gaps.items()][:8])
    more = f" and {len(gaps) - 8} more columns" if len(gaps) > 8 else ""
    return f"empty cells in {columns}{more}"


def outcome_of(sheet: Sheet, roles: Roles, task: str | None, place: kinds.Place) -> Outcome:
    """What is predicted."""
    targets = [sheet.look(name) for name in roles.targets]
    return outcome(targets, [roles.said.get(name) for name in roles.targets], task, place)


def features_of(sheet: Sheet, roles: Roles, party: Ints, place: kinds.Place) -> list[Column]:
    """The columns to learn from; one that never differs says nothing, and is left out."""
    found: list[Column | None] = []
    refused: dict[str, ArchipelError] = {}
    for name in roles.features:
        try:
            found.append(kinds.column_of(sheet.look(name), roles.said.get(name), party, place))
        except ArchipelError as error:
            refused[name] = error
    if refused:
        first, *others = refused
        more = f" Refused as well: {', '.join(others[:8])}; see 'archipel data'." if others else ""
        raise ArchipelError(f"{refused[first]}{more}")
    columns = [column for column in found if column is not None]
    if not columns:
        raise ArchipelError("no column is left that differs from row to row.")
    return columns


def _keys(y: npt.NDArray[Any], task: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What to sort rows by, and what to balance over."""
    if task == "survival":
        return y[:, 0], y[:, 1]
    return y, y if task == "classification" else np.zeros(len(y), np.int64)


def comparable(column: pd.Series[Any]) -> npt.NDArray[Any]:
    """Return numbers as they are and anything else as text, so that values have an order."""
    if column.dtype.kind not in "iuf":
        return looks.as_text(column).str.strip().to_numpy(dtype=str)
    numbers = looks.numbers(column)
    whole = (numbers == np.round(numbers)).all() and (np.abs(numbers) < 2**53).all()
    return numbers.astype(np.int64) if whole else numbers


def party_files(folder: Path) -> list[Path]:
    """Return the data files of a folder, all of one kind, in order of name."""
    if not folder.is_dir():
        raise ArchipelError(f"folder '{folder}' does not exist; give a folder of party files.")
    endings = [*tables.ENDINGS, ".npz"]
    named = (f for f in folder.iterdir() if f.name.endswith(tuple(endings)))
    files = sorted(named, key=tables.stem)
    if not files:
        raise ArchipelError(f"folder '{folder}' has no {', '.join(endings)} files.")
    if len({f.name.removeprefix(tables.stem(f)) for f in files}) > 1:
        raise ArchipelError(f"folder '{folder}' mixes {', '.join(endings)} files; keep one kind.")
    return files


def read_npz(file: Path, target: str) -> dict[str, npt.NDArray[Any]]:
    """Read one party's arrays; never a pickle."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except ValueError:
        raise ArchipelError(f"'{file}' holds Python objects; save plain arrays only.") from None
    for name in ("x", target):
        if name not in arrays:
            raise ArchipelError(f"'{file}' has no array '{name}'; it has {', '.join(arrays)}.")
    return arrays


def read_table(file: Path, written: Written = UNSAID, said: Said = NOTHING) -> Sheet:
    """Read a .csv, .csv.gz or .parquet file."""
    source = tables.opened(file, written)
    twice = next((name for name in source.header if source.header.count(name) > 1), None)
    if twice is not None:
        raise tables.called_alike(file, twice)
    return Sheet.read(source, said)


def read_tables(files: Sequence[Path], written: Written = UNSAID, said: Said = NOTHING) -> Sheet:
    """Read one table per party and put them under each other, in column `PARTY` the file's name.

    A file without rows says nothing of what columns are; its party is left out, and that is noted.
    """
    import pandas as pd

    read: dict[str, Sheet] = {}
    notes = []
    for file in files:
        try:
            read[tables.stem(file)] = read_table(file, written, said)
        except NoRows:
            notes.append(f"party '{tables.stem(file)}' has a table without rows: left out")
    if not read:
        raise ArchipelError(f"no table in '{files[0].parent}' has a row.")
    columns = {name: [*sheet.frame.columns] for name, sheet in read.items()}
    first = next(iter(columns.values()))
    for name, there in columns.items():
        if odd := sorted({*there} ^ {*first}):
            raise ArchipelError(
                f"party '{name}': column '{odd[0]}' is not in every file; make columns equal."
            )
    frames = [sheet.frame[first].assign(**{PARTY: name}) for name, sheet in read.items()]
    frame: pd.DataFrame = pd.concat(_alike(frames), ignore_index=True)
    starts = np.cumsum([0, *(len(each) for each in frames)])

    def row(place: int) -> int:
        k = int(np.searchsorted(starts, place, side="right")) - 1
        return [*read.values()][k].row(place - int(starts[k]))

    return Sheet(frame, row, tuple(notes))


def _alike(frames: Sequence[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Tables whose columns are all text or all numbers: where one is text, the others' are, too."""
    numeric = {
        str(name): all(frame[name].dtype.kind in "iuf" for frame in frames)
        for name in frames[0].columns
    }
    for frame in frames:
        yield frame.assign(
            **{name: looks.as_text(frame[name]) for name, right in numeric.items() if not right}
        )
