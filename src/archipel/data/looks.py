# SPDX-License-Identifier: Apache-2.0
"""What the cells of a column look like: numbers, dates, words, or nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from archipel.data.rows import Bools
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.float64]

EMPTY = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A", "#NA")
_TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = f"({'|'.join(_MONTHS)})[a-z]*"
_FORMS = {  # of dates, by what stands first
    "year": re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}})({_TIME})", re.I),
    "point": re.compile(rf"(\d{{1,2}})\.(\d{{1,2}})\.(\d{{4}}|\d{{2}})({_TIME})", re.I),
    "slash": re.compile(rf"(\d{{1,2}})[-/](\d{{1,2}})[-/](\d{{4}}|\d{{2}})({_TIME})", re.I),
    "day": re.compile(rf"(\d{{1,2}})[ .-]+{_MONTH}[ .,-]+(\d{{4}}|\d{{2}})({_TIME})", re.I),
    "month": re.compile(rf"{_MONTH}[ .-]+(\d{{1,2}})[ ,.-]+(\d{{4}}|\d{{2}})({_TIME})", re.I),
}
_FIRST, _LAST = 19000101, 21001231  # dates written as one number


class Date(NamedTuple):
    """A date as it is written; the two numbers of 3/4/2016 may change places."""

    year: int
    month: int
    day: int
    time: str
    by_slash: bool = False  # which of month and day comes first is not known

    def days(self) -> float:
        """Days since 1970, NaN where there is no such day."""
        try:
            stamp = np.datetime64(f"{self.year:04}-{self.month:02}-{self.day:02}", "D")
        except ValueError:
            return np.nan
        return float(stamp.astype(np.int64)) + _part_of_a_day(self.time)


@dataclass(frozen=True)
class Looks:
    """A column, cell by cell."""

    name: str
    cells: pd.Series[Any]  # text without blanks around it, or numbers; None or NaN where empty

    @cached_property
    def empty(self) -> Bools:
        return np.asarray(self.cells.isna().to_numpy(), np.bool_)

    @cached_property
    def is_text(self) -> bool:
        return self.cells.dtype.kind not in "iuf"

    @cached_property
    def numbers(self) -> Numbers:
        """What it has of numbers, NaN elsewhere."""
        return numbers(self.cells)

    @cached_property
    def is_number(self) -> Bools:
        """Which cells look like numbers; with a decimal comma as well."""
        found = ~np.isnan(self.numbers)
        if self.is_text and not (found | self.empty).all():
            texts = self.cells[~found & ~self.empty].astype(str)
            found[~found & ~self.empty] = texts.str.fullmatch(r"[+-]?(\d+,\d*|,\d+)").to_numpy()
        return found

    @cached_property
    def values(self) -> tuple[Any, ...]:
        """Its different values in order: whole numbers if all cells are, else texts."""
        if self.whole:
            return tuple(int(v) for v in np.unique(self.numbers[~self.empty]))
        return tuple(sorted(map(str, self.cells[~self.empty].unique())))

    @property
    def whole(self) -> bool:
        """Whether all cells that have something have a whole number."""
        known = self.numbers[~self.empty]
        return bool((np.abs(known) < 2**53).all() and (known == np.round(known)).all())

    @cached_property
    def dates(self) -> Bools:
        """Which cells look like dates."""
        if not self.is_text:
            return np.zeros(len(self.cells), np.bool_)
        read = [text for text in self.cells[~self.empty].unique() if _date(text) is not None]
        return self.cells.isin(read).to_numpy()

    @property
    def dated(self) -> bool:
        """Whether it is evidently made of dates: as text, or as numbers such as 20160131."""
        some = ~self.empty
        if not some.any():
            return False
        if self.is_text and not self.is_number[some].any():
            return bool(self.dates[some].all())
        known = self.numbers[some]
        if not (self.whole and (known >= _FIRST).all() and (known <= _LAST).all()):
            return False
        return not np.isnan(days(self.cells)[some]).any()


def look(name: str, column: pd.Series[Any], words: Collection[str] = ()) -> Looks:
    """Look at a column; `words` mean an empty cell, as the usual ones do."""
    return Looks(name, emptied(column, words))


def emptied(
    column: pd.Series[Any], words: Collection[str] = (), keep: Collection[Any] = ()
) -> pd.Series[Any]:
    """Return texts without blanks around them, nothing in cells that have a word for nothing.

    What is in `keep` is a value. Numbers stay numbers; a word such as "-999" is one of them.
    """
    import pandas as pd

    numeric = [float(w) for w in words if is_number(w) and not {w, float(w)} & {*keep}]
    if column.dtype.kind == "M":
        column = column.dt.strftime("%Y-%m-%d %H:%M:%S.%f").where(column.notna())
    if column.dtype.kind in "iuf":
        return column.mask(column.isin(numeric)) if numeric else column
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return emptied(column.astype("Float64").astype(np.float64), words, keep)
    texts = as_text(column).str.strip()
    gone = {word.strip() for word in (*EMPTY, *words)} - {str(value) for value in keep if value}
    empty = texts.isin(gone)
    if numeric:
        empty |= pd.to_numeric(texts, errors="coerce").isin(numeric)
    return texts.mask(empty)


def as_text(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column as text, empty cells as they are."""
    return column if column.dtype == "str" else column.map(str, na_action="ignore").astype("str")


def numbers(column: pd.Series[Any]) -> Numbers:
    """Return a column as numbers, NaN where it has none."""
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column.dtype):
        column = pd.to_numeric(column.astype(object).astype(str), errors="coerce")
    return np.array(column.to_numpy(dtype=np.float64, na_value=np.nan))


def told(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of nothing but true and false as 1 and 0, any other as it is."""
    if column.dtype.kind in "iuf":
        return column
    lower = column.astype("str").str.lower()
    if not lower[column.notna()].isin(["true", "false"]).all():
        return column
    return lower.map({"true": 1.0, "false": 0.0})


def codes(column: pd.Series[Any], values: Sequence[int | str]) -> npt.NDArray[np.float64]:
    """Return where in `values` each cell's value is, NaN where it is not there."""
    import pandas as pd

    if isinstance(values[0], int):
        known: pd.Index[Any] = pd.Index(np.array(values, np.float64))
        cells: npt.NDArray[Any] = numbers(told(column))
    else:
        texts = as_text(column)
        cells = texts.where(texts.isin(list(values)), texts.str.strip()).to_numpy(dtype=object)
        known = pd.Index(np.array(values, object))
    places = known.get_indexer(pd.Index(cells))
    found = np.where(places < 0, np.nan, places.astype(np.float64))
    found[column.isna().to_numpy()] = np.nan
    return found


# -- dates -----------------------------------------------------------------------------------------


def days(column: pd.Series[Any], name: str = "") -> Numbers:
    """Return a column's dates as days since 1970, NaN where there is none.

    Of 3/4/2016 the other rows have to tell which is the month.
    """
    texts = [None if each is None or each != each else _text(each) for each in column]
    read = {text: _date(text) for text in set(texts) if text is not None}
    unsure = [date for date in read.values() if date is not None and date.by_slash]
    if unsure:
        swapped = _month_first(name, unsure)
        for text, date in read.items():
            if date is not None and date.by_slash and swapped:
                read[text] = date._replace(month=date.day, day=date.month)
    short = next((t for t, date in read.items() if date is not None and date.year < 100), None)
    if short is not None:
        raise ArchipelError(
            f"column '{name}': {short!r} has a year of two digits; write dates as 2016-01-31."
        )
    found = {text: date.days() for text, date in read.items() if date is not None}
    return np.array([found.get(text, np.nan) if text else np.nan for text in texts], np.float64)


def day(text: str) -> float | None:
    """The days since 1970 of a date that starts with its year; None if it is none."""
    date = _date(text) if _FORMS["year"].fullmatch(text) else None
    return None if date is None or np.isnan(date.days()) else date.days()


def shown_day(number: float) -> str:
    """A date of days since 1970, as it is written."""
    return str(np.datetime64(int(np.floor(number)), "D"))


def _month_first(name: str, dates: Collection[Date]) -> bool:
    """Whether the month comes first in dates with slashes, which were read with the day first."""
    american = any(date.month > 12 for date in dates)
    european = any(date.day > 12 for date in dates)
    if american == european:
        why = "no row tells whether the day or the month comes first"
        why = "the day comes first in some rows and the month in others" if american else why
        raise ArchipelError(f"column '{name}': {why}; write dates as 2016-01-31.")
    return american


def _date(text: str) -> Date | None:
    """Read a date; the day first where it has slashes."""
    if re.fullmatch(r"\d{8}", text) and _FIRST <= int(text) <= _LAST:
        return _possible(Date(int(text[:4]), int(text[4:6]), int(text[6:]), ""))
    for form, pattern in _FORMS.items():
        if match := pattern.fullmatch(text):
            one, two, three, time = match.groups()
            if form == "year":
                return _possible(Date(int(one), int(two), int(three), time))
            if form == "month":
                return _possible(Date(int(three), 1 + _MONTHS.index(one.lower()), int(two), time))
            if form == "day":
                return _possible(Date(int(three), 1 + _MONTHS.index(two.lower()), int(one), time))
            return _possible(Date(int(three), int(two), int(one), time, form == "slash"))
    return None


def _possible(date: Date) -> Date | None:
    low, high = sorted((date.month, date.day))
    fits = low >= 1 and high <= 31 and (date.month <= 12 or (date.by_slash and low <= 12))
    return date if fits else None


def _part_of_a_day(time: str) -> float:
    clock = re.match(r"[T ](\d+):(\d+)(?::([\d.]+))?", time, re.I)
    if not clock:
        return 0.0
    hours, minutes, seconds = (float(part or 0) for part in clock.groups())
    return (hours + (minutes + seconds / 60) / 60) / 24


def _text(cell: Any) -> str:
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def alike(texts: Iterable[Any]) -> tuple[str, str] | None:
    """The first two texts that differ in capitals alone."""
    found: dict[str, str] = {}
    for text in map(str, texts):
        if (other := found.setdefault(text.casefold(), text)) != text:
            return other, text
    return None


def is_number(text: str) -> bool:
    """Whether a text can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
