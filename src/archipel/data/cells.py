# SPDX-License-Identifier: Apache-2.0
"""Checks of a table's cells against what a study says of its columns; a row names a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from archipel.data import looks, tables
from archipel.data.column import Column
from archipel.data.rows import Bools
from archipel.data.summary import outside, reason
from archipel.data.tables import InMemory, Source
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    import pandas as pd


class Cells(NamedTuple):
    """The rows of a table that are used, as they are written."""

    path: Path | None  # of its file; None in memory
    source: Source
    frame: pd.DataFrame

    @classmethod
    def of(cls, frame: pd.DataFrame, row: Callable[[int], int] = lambda i: i + 1) -> Cells:
        """All of a table in memory; `row` is the number that a row has in a file."""
        return cls(None, InMemory(frame, row), frame)

    @property
    def where(self) -> str:
        """Which file a sentence is about."""
        return "" if self.path is None else f"'{self.path}': "

    def numbers(self, column: Column) -> npt.NDArray[np.float64]:
        """Return a column's numbers, or the places of its values in their list; NaN if empty."""
        series = self.frame[column.name]
        if column.values:
            numbers = looks.codes(series, column.values)
        elif column.date:
            numbers = looks.days(series, column.name)
        else:
            numbers = looks.numbers(looks.told(series))
            numbers[np.abs(numbers) > 3e38] = np.nan
        among = ", ".join(map(str, column.values))
        kinds = {"category": f"is not among {among}", "date": "is no date such as 2016-01-31"}
        wrong = np.isnan(numbers) & series.notna().to_numpy()
        self.refuse(column, wrong, kinds.get(column.kind, "is no number below 3e38"))
        return numbers

    def refuse(self, column: Column, wrong: Bools, said: str) -> None:
        if wrong.any():
            what = "table" if self.path is None else "file"
            raise ArchipelError(self._said(column, wrong, said, f"correct the {what}"))

    def out_of_range(self, column: Column, numbers: npt.NDArray[np.float64]) -> list[str]:
        """What is said of numbers that are out of the range that was agreed."""
        wrong = outside(column, numbers)
        if column.values or not wrong.any():
            return []
        why = reason(column, float(numbers[wrong][0]), numbers)
        remedy = why or "correct the file, or have the study allow it"
        return [self._said(column, wrong, f"is out of range, {column.range}", remedy)]

    def _said(self, column: Column, wrong: Bools, said: str, remedy: str) -> str:
        found = np.flatnonzero(wrong)
        row = self.source.row(int(self.frame.index[found[0]]))
        value = str(self.frame[column.name].iloc[found[0]])
        many = in_all(len(found))
        return f"{self.where}column '{column.name}', row {row}: {value!r} {said}{many}; {remedy}."


def check_header(path: Path | None, there: Sequence[str], named: Sequence[str]) -> None:
    """Refuse a table without one of these columns, or with two of a name."""
    absent = [name for name in named if name not in there]
    if absent:
        rest = {name.lower(): name for name in there if name not in named}
        near = {name: get_close_matches(name.lower(), rest, n=1) for name in absent}
        where = "" if path is None else f"'{path}': "
        asked = [f"'{k}'" + (f" (is it '{rest[v[0]]}'?)" if v else "") for k, v in near.items()]
        raise ArchipelError(
            f"{where}no column {', '.join(asked)}; name columns as the study does, the "
            f"{'table' if path is None else 'file'} has {', '.join(there)}."
        )
    for name in named:
        if there.count(name) > 1:
            raise tables.called_alike(path, name)


def too_empty(
    where: str, columns: Sequence[Column], missing: Mapping[str, int], total: int
) -> list[str]:
    """What is said of columns with more empty cells than were agreed."""
    return [
        f"{where}column '{c.name}' is empty in {missing[c.name]} of {total} rows, a share of "
        f"{missing[c.name] / total:.3g} where the study allows {c.missing:g}; fill cells in, or "
        f"have the study allow more."
        for c in columns
        if c.missing is not None and missing.get(c.name, 0) > c.missing * total
    ]


def in_all(many: int) -> str:
    """How many rows are meant where one is named."""
    return f" ({many} such rows in all)" if many > 1 else ""


def refusal(sentences: Sequence[str]) -> ArchipelError:
    """The error of a table that is not as agreed: the first column, and how many more there are."""
    more = len(sentences) - 1
    return ArchipelError(sentences[0] + (f" {more} more columns are wrong, too." if more else ""))
