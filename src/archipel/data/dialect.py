# SPDX-License-Identifier: Apache-2.0
"""How a text table is written: its encoding, what separates its cells, and its decimal mark.

What nobody says is found out from the file. Where two readings would both give numbers, the file is
refused by the field that decides; nothing is guessed.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from archipel.errors import ArchipelError

_SEPARATORS = {",": "','", ";": "';'", "\t": "tabs", "|": "'|'"}
_LOOK = 100  # records from which the separator is told
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_UTF8_LETTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}")
_KINDS = {  # of cells that look like numbers; a "?" may be thousands just as well
    "whole": re.compile(r"[+-]?\d+([eE][+-]?\d+)?"),
    ".?": re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}"),
    ",?": re.compile(r"[+-]?[1-9]\d{0,2},\d{3}"),
    ".": re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?"),
    ",": re.compile(r"[+-]?(\d+,\d*|,\d+)([eE][+-]?\d+)?"),
    "grouped": re.compile(r"[+-]?\d{1,3}([.,'\u2019\s]\d{3})+([.,]\d*)?"),
}


_DIGITS = str.maketrans("23456789", "11111111")  # a number is told by where its digits are


class Written(NamedTuple):
    """What is said of how a table is written; what is not said is found out."""

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    @classmethod
    def of(cls, sep: str | None, decimal: str | None, encoding: str | None) -> Written:
        """Check the keys `sep`, `decimal` and `encoding` of [data]."""
        sep = {"tab": "\t", "\\t": "\t"}.get(sep or "", sep)
        if sep is not None and (len(sep) != 1 or sep.isalnum() or sep in "\"'\r\n\0.+-"):
            raise ArchipelError(
                f'data.sep = {sep!r}: give the one character between cells, ",", ";", "|" or "tab".'
            )
        if decimal not in (None, ".", ","):
            raise ArchipelError(f'data.decimal = {decimal!r}: give "." or ",".')
        try:
            with suppress(UnicodeError):  # one byte may be none of its letters
                b"a".decode(encoding or "utf-8")
        except (LookupError, ValueError):
            raise ArchipelError(
                f'data.encoding = {encoding!r}: no such encoding; give "utf-8", "cp1252" or the '
                "like."
            ) from None
        return cls(sep, decimal, encoding)


UNSAID = Written()  # all of it is found out


class NoRows(ArchipelError):
    """A table that has columns and nothing in them."""


class Record(NamedTuple):
    """One record of a text table, which may have several lines."""

    row: int  # as a spreadsheet numbers it
    cells: Sequence[str]


def decoded(name: str, raw: bytes, said: str | None) -> tuple[str, str]:
    """Return a file's text and its encoding: UTF-8 or what its first bytes say, else cp1252."""
    marked = next((known for mark, known in _MARKS if raw.startswith(mark)), None)
    encoding = said or marked or "utf-8"
    if said and codecs.lookup(said).name == "utf-8" and marked == "utf-8-sig":
        encoding = marked
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        if said or marked or _UTF8_LETTER.search(raw):
            what = "neither all UTF-8 nor all cp1252" if not (said or marked) else f"no {encoding}"
            raise ArchipelError(
                f"'{name}': byte {error.start + 1} is {what}; save the file anew as UTF-8, or say "
                "data.encoding (--encoding)."
            ) from None
        encoding = "cp1252"
        text = _western(name, raw)
    if "\0" in text:
        raise ArchipelError(
            f"'{name}': no text in {encoding}, it has zero bytes; if it is UTF-16, say "
            'data.encoding = "utf-16-le" (--encoding).'
        )
    return text, encoding.removesuffix("-sig")


def _western(name: str, raw: bytes) -> str:
    try:
        return raw.decode("cp1252")
    except UnicodeDecodeError as error:
        raise ArchipelError(
            f"'{name}': byte {error.start + 1} is neither UTF-8 nor cp1252; save the file anew as "
            "UTF-8, or say data.encoding (--encoding)."
        ) from None


def records(name: str, text: str, sep: str) -> Iterator[Record]:
    """The records of a text table that are not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=sep)
    try:
        for row, cells in enumerate(reader, 1):
            if len(cells) > 1 or "".join(cells).strip(" \t"):
                yield Record(row, cells)
    except csv.Error as error:
        raise ArchipelError(
            f"'{name}': line {reader.line_num} is no line of a table ({error}); look for a quote "
            "that is never closed."
        ) from None


def separator(name: str, text: str, said: str | None) -> str:
    """Return what separates cells: what splits the header, and all records into as many cells."""
    found: dict[str, bool] = {}  # those that split the header; whether they split records alike
    for sep in [said] if said else _SEPARATORS:
        first = itertools.islice(records(name, text, sep), _LOOK)
        widths = [len(cells) for _, cells in first]
        if widths and widths[0] > 1:
            found[sep] = len(set(widths)) == 1
    even = [sep for sep, alike in found.items() if alike]
    if len(even) == 1 or len(found) == 1:
        return (even or list(found))[0]
    if not found:
        line = next((line for line in text.splitlines() if line.strip()), "")[:60]
        tried = f"'{said}'" if said else "',', ';', tab or '|'"
        raise ArchipelError(
            f"'{name}': one column only where {tried} separates cells, {line!r}; say which "
            "character does in data.sep (--sep)."
        )
    known = " and ".join(_SEPARATORS[sep] for sep in found)
    raise ArchipelError(
        f"'{name}': both {known} may separate its cells; say which in data.sep (--sep)."
    )


def check_widths(name: str, text: str, sep: str) -> tuple[list[str], int]:
    """Return the header and the number of rows, all with a cell for each column."""
    header: Sequence[str] | None = None
    rows = 0
    for row, cells in records(name, text, sep):
        if header is None:
            header = cells
            continue
        if len(cells) != len(header):
            raise ArchipelError(
                f"'{name}': cells in row {row}: {len(cells)}, in the header: {len(header)}, with "
                f"{_SEPARATORS.get(sep, sep)} between them; correct the row, or say data.sep "
                "(--sep)."
            )
        rows += 1
    if header is None:
        raise ArchipelError(f"'{name}': is empty; add rows, or leave the file out.")
    if rows == 0:
        raise NoRows(f"'{name}': has a header and no rows; add rows, or leave the file out.")
    return [cell.strip() for cell in header], rows


# -- the decimal mark ------------------------------------------------------------------------------


class _Cell(NamedTuple):
    row: int
    column: str
    text: str

    def __str__(self) -> str:
        return f"column '{self.column}', row {self.row}: {self.text!r}"


def decimal(
    name: str, text: str, sep: str, said: str | None, empty: Collection[str],
    numbers: Collection[str] | None = None, texts: Collection[str] = (),
) -> str:  # fmt: skip
    """Return the decimal mark of a table's numbers: "." or ",".

    `numbers` names the columns that must be numbers; without it those count in which every cell
    looks like one, but for `texts`.
    """
    if sep == "," and '"' not in text:
        return "."  # no cell has a comma
    columns = _columns(name, text, sep, empty, numbers, texts)
    found: dict[str, _Cell] = {}  # an example of each kind
    for kinds in columns.values():
        for kind, cell in kinds.items():
            found.setdefault(kind, cell)
        marks = [kinds.get(mark) or kinds.get(f"{mark}?") for mark in ".,"]
        if said and all(marks):
            raise _both(name, marks)
    if "grouped" in found:
        raise ArchipelError(
            f"'{name}': {found['grouped']} has a mark between thousands; write numbers without."
        )
    point, comma = (found.get(mark) or found.get(f"{mark}?") for mark in ".,")
    if said:
        other = point if said == "," else comma
        if other and numbers is not None:
            raise ArchipelError(
                f"'{name}': {other} is no number where data.decimal (--decimal) = {said!r}; "
                "correct the file, or say otherwise."
            )
        return said
    if point and comma:
        raise _both(name, (point, comma))
    doubtful = comma if comma and "," not in found else None
    if sep != "," and point and "." not in found:
        doubtful = point
    if doubtful:
        raise ArchipelError(
            f"'{name}': {doubtful} may be {doubtful.text.replace(',', '.')} or thousands; say "
            'which in data.decimal (--decimal), "." or ",".'
        )
    return "," if comma else "."


def _both(name: str, cells: Sequence[_Cell | None]) -> ArchipelError:
    point, comma = cells
    return ArchipelError(
        f"'{name}': {point}, and {comma}: two decimal marks; write all numbers alike, or say "
        "data.decimal (--decimal)."
    )


def _columns(
    name: str, text: str, sep: str, empty: Collection[str], numbers: Collection[str] | None,
    texts: Collection[str],
) -> Mapping[int, Mapping[str, _Cell]]:  # fmt: skip
    """The kinds of number in each column that counts, with the first cell of each kind."""
    rows = records(name, text, sep)
    header = [cell.strip() for cell in next(rows).cells]
    columns: dict[int, dict[str, _Cell]] = {
        at: {}
        for at, column in enumerate(header)
        if (column not in texts if numbers is None else column in numbers)
    }
    for row, cells in rows:
        for at in [*columns]:
            kind = _kind(cells[at].translate(_DIGITS))
            if kind not in columns[at] and (cell := cells[at].strip()) not in empty:
                columns[at][kind] = _Cell(row, header[at], cell)
                if kind == "text" and numbers is None:
                    del columns[at]
    return columns


@lru_cache(1 << 12)
def _kind(cell: str) -> str:
    """What a cell looks like, of which only the places of its digits matter (`_DIGITS`)."""
    return next((kind for kind, form in _KINDS.items() if form.fullmatch(cell.strip())), "text")
