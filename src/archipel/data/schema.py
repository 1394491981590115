# SPDX-License-Identifier: Apache-2.0
"""The columns that every party's own table has, as a study describes them.

A party that reads its table by a schema gets the features, classes and test points that a
simulation of the same study gives it, without seeing another party's table: nothing is learnt
from values but whether they are allowed. Columns that are not named are not read.

One file, since it is one class: what the columns are, and what a table that has them becomes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.data import frames, tables
from archipel.data import partition as partitions
from archipel.data.about import About
from archipel.data.build import fraction
from archipel.data.cells import Cells, check_header, in_all, refusal, too_empty
from archipel.data.column import Column
from archipel.data.dialect import UNSAID, Written
from archipel.data.features import Features
from archipel.data.federation import Federation
from archipel.data.rows import Bools, draw_own_test
from archipel.data.scaling import Scaling, Sums
from archipel.data.summary import Summary, summary
from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Column", "Records", "Report", "Scaling", "Schema", "Sums"]

TEST = 0.2  # share of a party's rows to test on, where a study does not say
_MISSING = ("error", "drop", "mean")


class Report(NamedTuple):
    """What there is in a party's file, for those who answer for it."""

    rows: int
    used: int  # rows without those that are dropped
    missing: dict[str, int]  # empty cells of each column that has some
    classes: dict[str, int]  # rows used of each class, or with each value of the event
    ignored: list[str]  # columns that are not read
    columns: list[Summary]  # what is in each that is
    read_with: dict[str, str]  # separator, decimal mark and encoding of a text file
    refused: list[str]  # why the table cannot be used: ranges, empty cells


class Records(NamedTuple):
    """A party's rows as the schema wants them."""

    schema: Schema
    x: Tensor  # float64 [n, d], NaN in empty cells
    y: Tensor  # int64 [n] classes, or float64: numbers [n], (time, event) [n, 2]
    is_test: Tensor  # bool [n]
    table: str = ""  # hash of the file's bytes, where it was bound

    def sums(self) -> Sums:
        """What the party tells of its training rows before the first round."""
        return Sums.of(self.summed)

    @property
    def summed(self) -> Tensor:
        """Training rows of the columns of `Schema.summed`, NaN in empty cells."""
        columns = [self.x, *([self.y[:, None].double()] if self.schema.scales_target else [])]
        return torch.cat(columns, dim=1)[~self.is_test]

    def federation(self, scaling: Scaling | None = None, name: str = "0") -> Federation:
        """Return the party alone, as a federation of one, its features scaled.

        Without a scaling features stay as they are, and there must be no empty cell.
        """
        features = Features.of(self.schema, scaling)
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
        return party.cast()


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
    written: Written = UNSAID  # how files are; each has its own way, which no hash covers
    empty_words: tuple[str, ...] = ()  # mean an empty cell, beside the usual ones
    standardise: bool = True  # whether numbers get one scale; tables are read alike without

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Any],
        target: str | Sequence[str] | None,
        missing: str = "error",
        empty_words: Sequence[str] = (),
    ) -> Schema:
        """Check the keys `schema`, `target`, `missing` and `empty` of [data]."""
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
        if missing == "error" and any(column.missing for column in known.values()):
            name = next(name for name, column in known.items() if column.missing)
            raise ArchipelError(
                f'data.schema.{name}.missing = {known[name].missing:g}: data.missing = "error" '
                'allows no empty cell; say "drop" or "mean" there, or leave it out.'
            )
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
        outcomes = tuple(known[name] for name in targets)
        if outcomes[0].date:
            raise ArchipelError(
                f'data.schema.{targets[0]} = "date": a target is a number or has classes; say so.'
            )
        return cls(features, outcomes, missing, empty_words=tuple(empty_words))

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
    def marks(self) -> Tensor:
        """Which features are the 0/1 ones of values, bool [d]: they are not scaled.

        To divide a mark that few rows have by its small spread would make these rows' steps huge.
        """
        return torch.tensor([bool(c.values) for c in self.features for _ in c.encoded])

    @property
    def plain(self) -> Tensor:
        """Which features need no sums, bool [d]: marks, unless empty cells get their means.

        Their sums would be numbers of patients.
        """
        return self.marks & (self.missing != "mean")

    @property
    def scales_target(self) -> bool:
        """Whether the model is trained on the target with mean 0 and variance 1."""
        return self.standardise and self.task == "regression"

    @property
    def summed(self) -> list[tuple[Column, str]]:
        """What a party's sums for the common scale are of: features, and a number to predict."""
        features = [(column, name) for column in self.features for name in column.encoded]
        return [*features, *((c, c.name) for c in self.targets if self.scales_target)]

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
        features, targets = ([c.identity for c in part] for part in (self.features, self.targets))
        parts = [features, targets, self.missing, *([self.empty_words] if self.empty_words else [])]
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

    def read(self, path: Path, test: float | None = None) -> Records:
        """Read one party's own .csv or .parquet file, and draw its test rows.

        Which rows they are follows from the table and the share alone: a study that could choose
        them would see from sums of its choice what single rows hold.
        """
        rows = self._rows(path).allowed()
        is_test = self._draw(rows.y, np.zeros(len(rows.x), np.int64), test)
        return Records(
            self, torch.from_numpy(rows.x), torch.from_numpy(rows.y), torch.from_numpy(is_test)
        )

    def report(self, path: Path) -> Report:
        """Read one party's own file and say what is in it."""
        rows = self._rows(path)
        kinds, codes = self.targets[-1].values, rows.y[:, -1] if rows.y.ndim == 2 else rows.y
        classes = {str(kind): int((codes == i).sum()) for i, kind in enumerate(kinds)}
        return Report(
            rows.total, len(rows.x), rows.missing, classes, rows.ignored, rows.columns,
            rows.read_with, rows.refused,
        )  # fmt: skip

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
        A party's test rows follow from its own rows and the share alone (`rows.draw_own_test`);
        the seed deals rows out where there is a partition.
        """
        parts = [self._rows(file, by).allowed() for file in files]
        x, y = (np.concatenate([getattr(t, name) for t in parts]) for name in ("x", "y"))
        names: list[str] | None = [tables.stem(file) for file in files]
        owner = np.repeat(np.arange(len(files)), [len(t.x) for t in parts])
        if partition is not None:
            labels = y[:, 0] if y.ndim == 2 else y
            owner, names = partitions.assign(labels, partition, parties, seed), None
        elif by is not None:
            whose = np.concatenate([t.party for t in parts])
            values, owner = np.unique(whose, return_inverse=True)
            names = [str(value) for value in values]
        return Federation.from_rows(
            x,
            y,
            owner,
            test=self._draw(y, owner, test),
            names=names,
            task=self.task,
            classes=self.classes or None,
            about=about,
            columns=self.columns,
            features=Features(self),
            scan=False,
        )

    def _draw(self, y: npt.NDArray[Any], owner: npt.NDArray[np.int64], test: float | None) -> Bools:
        strata = {"classification": y, "survival": y[..., -1]}.get(self.task, np.zeros(len(y)))
        share = fraction(TEST if test is None else test)
        return draw_own_test(owner, strata, share, np.random.default_rng([0, 4]))

    def _rows(self, path: Path, by: str | None = None) -> _Rows:
        """Read the columns of a file that have a name here, and check every value."""
        source = tables.opened(path, self.written)
        named = [*self.named, *([by] if by else [])]
        check_header(path, source.header, named)
        texts = {c.name: c.read_as for c in (*self.features, *self.targets)}
        frame = source.columns({name: texts.get(name) for name in named}, self.empty_words)
        total = len(frame)
        empty = frame.isna()
        missing = {name: int(empty[name].sum()) for name in named if empty[name].any()}
        if self.missing == "drop":
            frame = frame[~empty.any(axis=1)]
        else:
            required = named if self.missing == "error" else named[len(self.features) :]
            self._refuse_holes(Cells(path, source, frame), required)
        if len(frame) == 0:
            raise ArchipelError(f"'{path}': no row is left to learn from; look for empty cells.")
        cells, known = Cells(path, source, frame), (*self.features, *self.targets)
        numbers = {c.name: cells.numbers(c) for c in known}
        return _Rows(
            x=self.encode(cells),
            y=self.outcomes(cells),
            party=frames.comparable(frame[by]) if by else np.empty(0),
            total=total,
            missing=missing,
            ignored=[name for name in source.header if name not in named],
            columns=[summary(c, numbers[c.name], missing.get(c.name, 0), total) for c in known],
            read_with=source.read_with,
            refused=[
                *too_empty(cells.where, known, missing, total),
                *(said for c in known for said in cells.out_of_range(c, numbers[c.name])),
            ],
        )

    def encode(self, cells: Cells) -> npt.NDArray[np.float64]:
        """Return the features [n, d] of a table, NaN in empty cells."""
        parts = [part for c in self.features for part in _encode(c, cells.numbers(c))]
        return np.stack(parts, axis=1)

    def outcomes(self, cells: Cells) -> npt.NDArray[Any]:
        """Return the targets of a table: classes or numbers [n], or (time, event) [n, 2]."""
        y = np.stack([cells.numbers(c) for c in self.targets], axis=1)
        if len(self.targets) == 2:
            cells.refuse(self.targets[0], y[:, 0] < 0, "is below 0")
            return y
        return y[:, 0].astype(np.int64) if self.classes else y[:, 0]

    def cells(self, table: Path | pd.DataFrame, outcomes: bool) -> tuple[Cells, list[str]]:
        """Return the columns to predict by, with `outcomes` targets, and names of those not needed.

        What the study of the model did not allow is refused: empty cells, numbers out of range.
        """
        wanted = [*self.features, *(self.targets if outcomes else ())]
        path = table if isinstance(table, Path) else None
        source: tables.Source = (
            tables.opened(table, self.written)
            if isinstance(table, Path)
            else tables.InMemory(table)
        )
        check_header(path, source.header, [column.name for column in wanted])
        read = source.columns({c.name: c.read_as for c in wanted}, self.empty_words)
        cells = Cells(path, source, read)
        targets = [column.name for column in self.targets] if outcomes else []
        self._refuse_holes(cells, targets, "leave --score out, or fill it in")
        if self.missing != "mean":
            said = "fill it in: the model was trained on rows without empty cells"
            self._refuse_holes(cells, [column.name for column in self.features], said)
        for column in wanted:
            for said in cells.out_of_range(column, cells.numbers(column)):
                raise ArchipelError(said)
        return cells, [name for name in source.header if name not in self.named]

    def _refuse_holes(self, cells: Cells, required: Sequence[str], said: str = "") -> None:
        """Refuse empty cells, with what to do; by default what a study can say of them."""
        features = [column.name for column in self.features]
        for name in required:
            ways = '"drop"' + (' or "mean"' if name in features else "")
            holes = np.flatnonzero(cells.frame[name].isna().to_numpy())
            if len(holes) == 0:
                continue
            way = said or f"fill it in, or have the study say data.missing = {ways}"
            raise ArchipelError(
                f"{cells.where}column '{name}' is empty in row "
                f"{cells.source.row(int(holes[0]))}{in_all(len(holes))}; {way}."
            )


class _Rows(NamedTuple):
    """The rows of a file that are used, and what was found on the way."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[Any]
    party: npt.NDArray[Any]  # [n], or empty where the file is one party's
    total: int
    missing: dict[str, int]
    ignored: list[str]
    columns: list[Summary]
    read_with: dict[str, str]
    refused: list[str]

    def allowed(self) -> _Rows:
        """The same, unless something is out of what the study allows."""
        if self.refused:
            raise refusal(self.refused)
        return self


def _encode(column: Column, numbers: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
    """Return the features that a column becomes, NaN in empty cells."""
    if not column.values:
        return [numbers]
    hole = np.where(np.isnan(numbers), np.nan, 0.0)
    return [(numbers == code) + hole for code in range(1, len(column.values))]
