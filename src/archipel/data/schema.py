# SPDX-License-Identifier: Apache-2.0
"""The columns that every party's own table has, as a study describes them.

A party that reads its table by a schema gets the features, classes and test points that a
simulation of the same study gives it, without seeing another party's table: nothing is learnt
from values but whether they are allowed. Columns that are not named are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.data import frames
from archipel.data import partition as partitions
from archipel.data.about import About
from archipel.data.build import fraction
from archipel.data.features import Features
from archipel.data.federation import Federation
from archipel.data.rows import Bools, draw_own_test
from archipel.data.scaling import Scaling, Sums
from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Column", "Records", "Report", "Scaling", "Schema", "Sums"]

TEST = 0.2  # share of a party's rows to test on, where a study does not say
_MISSING = ("error", "drop", "mean")


class Column(NamedTuple):
    """A column of a table: numbers, or some values in an order."""

    name: str
    values: tuple[int, ...] | tuple[str, ...] = ()  # none for numbers

    @classmethod
    def of(cls, name: str, kind: Any) -> Column:
        """Check what a study says of a column."""
        field = f"data.schema.{name} = {json.dumps(kind, default=str, ensure_ascii=False)}"
        if kind == "number":
            return cls(name)
        if not isinstance(kind, list | tuple):
            raise ArchipelError(f'{field}: give "number", or a list of its values.')
        if not (all(type(v) is int for v in kind) or all(type(v) is str for v in kind)):
            raise ArchipelError(f"{field}: give whole numbers, or texts in quotes, not both.")
        if len(kind) < 2:
            raise ArchipelError(f"{field}: give two values or more.")
        if len(set(kind)) < len(kind):
            twice = next(v for i, v in enumerate(kind) if v in kind[:i])
            raise ArchipelError(f"{field}: {json.dumps(twice)} is there twice; give it once.")
        if any(isinstance(v, str) and v.strip() != (v or " ") for v in kind):
            raise ArchipelError(f"{field}: give texts without blanks around them, none empty.")
        return cls(name, tuple(kind))

    @property
    def encoded(self) -> list[str]:
        """Names of the features it becomes: a 0/1 one for each value but the first."""
        return [f"{self.name}={value}" for value in self.values[1:]] or [self.name]


class Report(NamedTuple):
    """What there is in a party's file, for those who answer for it."""

    rows: int
    used: int  # rows without those that are dropped
    missing: dict[str, int]  # empty cells of each column that has some
    classes: dict[str, int]  # rows used of each class, or with each value of the event
    ignored: list[str]  # columns that are not read


class Records(NamedTuple):
    """A party's rows as the schema wants them."""

    schema: Schema
    x: Tensor  # float64 [n, d], NaN in empty cells
    y: Tensor  # int64 [n] classes, or float64: numbers [n], (time, event) [n, 2]
    is_test: Tensor  # bool [n]

    def sums(self) -> Sums:
        """What the party tells of its training rows before the first round."""
        return Sums.of(self.x[~self.is_test])

    def federation(
        self, scaling: Scaling | None = None, name: str = "0", standardise: bool = True
    ) -> Federation:
        """Return the party alone, as a federation of one, its features scaled.

        Without `standardise` the scaling fills empty cells and does no more. Without a scaling
        features stay as they are, and there must be no empty cell.
        """
        features = Features(self.schema)
        if scaling is not None:
            features = features.scaled(scaling) if standardise else features.filled(scaling.mean)
        x = features.apply(self.x)
        party = Federation.from_rows(
            x,
            self.y,
            np.zeros(len(x), np.int64),
            test=self.is_test.numpy(),
            names=[name],
            task=self.schema.task,
            classes=self.schema.classes or None,
            about=About(name),
            columns=self.schema.columns,
            features=features,
            scan=False,
        )
        return party.single()


@dataclass(frozen=True)
class Schema:
    """Features and targets of a table, and what an empty cell means.

    >>> schema = Schema.of({"age": "number", "cp": ["a", "b", "c"], "ill": [0, 1]}, "ill")
    >>> schema.columns, schema.task, schema.classes
    (['age', 'cp=b', 'cp=c'], 'classification', 2)
    """

    features: tuple[Column, ...]
    targets: tuple[Column, ...]  # one, or time and event
    missing: str = "error"  # "drop" the row, or fill in the "mean"

    @classmethod
    def of(
        cls, columns: Mapping[str, Any], target: str | Sequence[str] | None, missing: str = "error"
    ) -> Schema:
        """Check the keys `schema`, `target` and `missing` of [data]."""
        if missing not in _MISSING:
            raise unknown("data.missing", missing, _MISSING)
        if not columns:
            raise ArchipelError("data.schema is empty: say of every column what is in it.")
        if not target:
            raise ArchipelError(
                "data.target is missing: name the column of data.schema to predict."
            )
        targets = [target] if isinstance(target, str) else list(target)
        for name in targets:
            if name not in columns:
                raise unknown("data.target", name, columns)
        known = {name: Column.of(name, kind) for name, kind in columns.items()}
        if len(targets) > 2 or len(set(targets)) < len(targets):
            raise ArchipelError(f"data.target = {targets}: give one column, or [time, event].")
        if len(targets) == 2 and [known[name].values for name in targets] != [(), (0, 1)]:
            raise ArchipelError(
                f'data.target = {json.dumps(targets)}: say "number" for {targets[0]} and [0, 1] '
                f"for {targets[1]} in data.schema."
            )
        features = tuple(column for name, column in known.items() if name not in targets)
        if not features:
            raise ArchipelError("data.schema has the target only: name columns to learn from.")
        return cls(features, tuple(known[name] for name in targets), missing)

    # -- what it says ------------------------------------------------------------------------------

    @property
    def task(self) -> str:
        if len(self.targets) == 2:
            return "survival"
        return "classification" if self.targets[0].values else "regression"

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression and survival."""
        return len(self.targets[0].values)

    @property
    def columns(self) -> list[str]:
        """Names of the features as a model sees them."""
        return [name for column in self.features for name in column.encoded]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return (len(self.columns),)

    @property
    def named(self) -> list[str]:
        """The columns that a table must have."""
        return [column.name for column in (*self.features, *self.targets)]

    @property
    def hash(self) -> str:
        """The same for two studies whose tables are read alike."""
        parts = [self.features, self.targets, self.missing]
        return sha256(json.dumps(parts).encode()).hexdigest()

    def empty(self) -> Federation:
        """A party with one made-up point, to build a model for and to see what it would send."""
        y = torch.zeros(1, 2) if self.task == "survival" else torch.zeros(1)
        return Federation.from_rows(
            torch.zeros(1, *self.shape), y.long() if self.classes else y, [0],
            test=[False], task=self.task, classes=self.classes or None, columns=self.columns,
            features=Features(self),
        )  # fmt: skip

    # -- reading -----------------------------------------------------------------------------------

    def read(self, path: Path, test: float | None = None, seed: int = 0) -> Records:
        """Read one party's own .csv or .parquet file, and draw its test rows."""
        rows = self._rows(path)
        is_test = self._draw(rows.y, np.zeros(len(rows.x), np.int64), test, seed)
        return Records(
            self, torch.from_numpy(rows.x), torch.from_numpy(rows.y), torch.from_numpy(is_test)
        )

    def report(self, path: Path) -> Report:
        """Read one party's own file and say what is in it."""
        rows = self._rows(path)
        kinds, codes = self.targets[-1].values, rows.y[:, -1] if rows.y.ndim == 2 else rows.y
        classes = {str(kind): int((codes == i).sum()) for i, kind in enumerate(kinds)}
        return Report(rows.total, len(rows.x), rows.missing, classes, rows.ignored)

    def federation(
        self,
        files: Sequence[Path],
        *,
        by: str | None = None,
        partition: str | None = None,
        parties: int = 10,
        test: float | None = None,
        about: About | None = None,
        seed: int = 0,
    ) -> Federation:
        """Read all parties' rows: from a file each, or from one with a column that says whose.

        Features are float64 and empty cells NaN, until `Federation.standardised` or `filled`.
        A party's test rows depend on the seed and its own rows alone (`rows.draw_own_test`).
        """
        tables = [self._rows(file, by) for file in files]
        x, y = (np.concatenate([getattr(t, name) for t in tables]) for name in ("x", "y"))
        names: list[str] | None = [file.stem for file in files]
        owner = np.repeat(np.arange(len(files)), [len(t.x) for t in tables])
        if partition is not None:
            labels = y[:, 0] if y.ndim == 2 else y
            owner, names = partitions.assign(labels, partition, parties, seed), None
        elif by is not None:
            whose = np.concatenate([t.party for t in tables])
            values, owner = np.unique(whose, return_inverse=True)
            names = [str(value) for value in values]
        return Federation.from_rows(
            x,
            y,
            owner,
            test=self._draw(y, owner, test, seed),
            names=names,
            task=self.task,
            classes=self.classes or None,
            about=about,
            columns=self.columns,
            features=Features(self),
            scan=False,
        )

    def _draw(
        self, y: npt.NDArray[Any], owner: npt.NDArray[np.int64], test: float | None, seed: int
    ) -> Bools:
        strata = {"classification": y, "survival": y[..., -1]}.get(self.task, np.zeros(len(y)))
        share = fraction(TEST if test is None else test)
        return draw_own_test(owner, strata, share, np.random.default_rng([seed, 4]))

    def _rows(self, path: Path, by: str | None = None) -> _Rows:
        """Read the columns of a file that have a name here, and check every value."""
        there = frames.header(path)
        named = [*self.named, *([by] if by else [])]
        self._check_header(path, there, named)
        frame = self._columns(path, named)
        total = len(frame)
        empty = frame.isna()
        missing = {name: int(empty[name].sum()) for name in named if empty[name].any()}
        if self.missing == "drop":
            frame = frame[~empty.any(axis=1)]
        else:
            required = named if self.missing == "error" else named[len(self.features) :]
            self._refuse_empty(path, frame, required)
        if len(frame) == 0:
            raise ArchipelError(f"'{path}': no row is left to learn from; look for empty cells.")
        x, y = self.encode(frame, path), self.outcomes(frame, path)
        party = frames.comparable(frame[by]) if by else np.empty(0)
        ignored = [name for name in there if name not in named]
        return _Rows(x, y, party, total, missing, ignored)

    def encode(self, frame: pd.DataFrame, path: Path | None = None) -> npt.NDArray[np.float64]:
        """Return the features [n, d] of a table, NaN in empty cells; `path` is where it lies."""
        encoded = [part for c in self.features for part in _encode(path, frame, c)]
        return np.stack(encoded, axis=1)

    def outcomes(self, frame: pd.DataFrame, path: Path | None = None) -> npt.NDArray[Any]:
        """Return the targets of a table: classes or numbers [n], or (time, event) [n, 2]."""
        if len(self.targets) == 2:
            y = np.stack([_numbers(path, frame, c) for c in self.targets], axis=1)
            _refuse(path, frame, self.targets[0], y[:, 0] < 0, "is below 0")
            return y
        (target,) = self.targets
        y = _numbers(path, frame, target)
        return y.astype(np.int64) if target.values else y

    def frame(self, table: Path | pd.DataFrame, outcomes: bool) -> tuple[pd.DataFrame, list[str]]:
        """Return the columns to predict by, with `outcomes` targets, and those not needed."""
        wanted = [*self.features, *(self.targets if outcomes else ())]
        named = [column.name for column in wanted]
        path = table if isinstance(table, Path) else None
        there = frames.header(table) if isinstance(table, Path) else [*map(str, table.columns)]
        self._check_header(path, there, named)
        if isinstance(table, Path):
            frame = self._columns(table, named)
        else:
            frame = table.rename(columns=str).reset_index(drop=True)[named]
        rest = [name for name in there if name not in self.named]
        targets = [column.name for column in self.targets] if outcomes else []
        self._refuse_holes(path, frame, targets, "leave --score out, or fill it in")
        return frame, rest

    def refuse_empty(self, path: Path | None, frame: pd.DataFrame) -> None:
        """Refuse an empty cell among the features."""
        said = "fill it in: the model was trained on rows without empty cells"
        self._refuse_holes(path, frame, [column.name for column in self.features], said)

    def _columns(self, path: Path, named: Sequence[str]) -> pd.DataFrame:
        values = {c.name: c.values for c in (*self.features, *self.targets)}
        return frames.read_columns(path, {name: values.get(name, ()) for name in named})

    def _check_header(self, path: Path | None, there: Sequence[str], named: Sequence[str]) -> None:
        absent = [name for name in named if name not in there]
        if absent:
            rest = {name.lower(): name for name in there if name not in named}
            near = {name: get_close_matches(name.lower(), rest, n=1) for name in absent}
            asked = [f"'{k}'" + (f" (is it '{rest[v[0]]}'?)" if v else "") for k, v in near.items()]
            raise ArchipelError(
                f"{_of(path)}no column {', '.join(asked)}; name columns as the study does, the "
                f"{'table' if path is None else 'file'} has {', '.join(there)}."
            )
        for name in named:
            if there.count(name) > 1:
                raise ArchipelError(f"{_of(path)}two columns are called '{name}'; rename one.")

    def _refuse_empty(self, path: Path, frame: pd.DataFrame, required: Sequence[str]) -> None:
        features = [column.name for column in self.features]
        for name in required:
            ways = '"drop"' + (' or "mean"' if name in features else "")
            said = f"fill it in, or have the study say data.missing = {ways}"
            self._refuse_holes(path, frame, [name], said)

    def _refuse_holes(
        self, path: Path | None, frame: pd.DataFrame, required: Sequence[str], said: str
    ) -> None:
        for name in required:
            holes = np.flatnonzero(frame[name].isna().to_numpy())
            if len(holes):
                row = _row(path, int(holes[0]))
                many = _in_all(len(holes))
                raise ArchipelError(
                    f"{_of(path)}column '{name}' is empty in row {row}{many}; {said}."
                )


class _Rows(NamedTuple):
    """The rows of a file that are used, and what was found on the way."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[Any]
    party: npt.NDArray[Any]  # [n], or empty where the file is one party's
    total: int
    missing: dict[str, int]
    ignored: list[str]


def _encode(
    path: Path | None, frame: pd.DataFrame, column: Column
) -> list[npt.NDArray[np.float64]]:
    """Return the features that a column becomes, NaN in empty cells."""
    numbers = _numbers(path, frame, column)
    if not column.values:
        return [numbers]
    hole = np.where(np.isnan(numbers), np.nan, 0.0)
    return [(numbers == code) + hole for code in range(1, len(column.values))]


def _numbers(path: Path | None, frame: pd.DataFrame, column: Column) -> npt.NDArray[np.float64]:
    """Return a column's numbers, or the places of its values in their list; NaN where empty."""
    series = frame[column.name]
    if column.values:
        numbers = frames.codes(series, column.values)
    else:
        numbers = frames.numbers(series)
        numbers[np.abs(numbers) > 3e38] = np.nan
    among = ", ".join(map(str, column.values))
    wrong = np.isnan(numbers) & series.notna().to_numpy()
    said = f"is not among {among}" if among else "is no number below 3e38"
    _refuse(path, frame, column, wrong, said)
    return numbers


def _refuse(
    path: Path | None, frame: pd.DataFrame, column: Column, wrong: Bools, said: str
) -> None:
    found = np.flatnonzero(wrong)
    if len(found):
        row = _row(path, int(frame.index[found[0]]))
        value = str(frame[column.name].iloc[found[0]])
        raise ArchipelError(
            f"{_of(path)}column '{column.name}', row {row}: {value!r} {said}"
            f"{_in_all(len(found))}; correct the {'table' if path is None else 'file'}."
        )


def _of(path: Path | None) -> str:
    """Which file a sentence is about; a table that is in no file has no name."""
    return "" if path is None else f"'{path}': "


def _row(path: Path | None, row: int) -> int:
    return row + 1 if path is None else frames.row_number(path, row)


def _in_all(many: int) -> str:
    return f" ({many} such rows in all)" if many > 1 else ""
