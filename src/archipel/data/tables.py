# SPDX-License-Identifier: Apache-2.0
"""Files with tables: text, compressed or not, and Parquet."""

from __future__ import annotations

import gzip
import io
import itertools
import logging
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from archipel.data import dialect, looks
from archipel.data.dialect import UNSAID, NoRows, Written
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".parquet")
_INDEX = re.compile(r"__index_level_\d+__")  # of pandas, which numbers rows
Values = Mapping[str, Sequence[int | str] | None]  # of each column: () numbers, None anything


class Source(Protocol):
    """A file with a table, not read yet."""

    header: list[str]  # without blanks around names
    read_with: dict[str, str]  # separator, decimal mark and encoding of text
    padded: set[str]  # columns that were read and had blanks around some cells

    def frame(self, texts: Collection[str] = (), empty: Collection[str] = ()) -> pd.DataFrame:
        """All of it as it is written, `texts` to the letter; these words mean an empty cell."""

    def columns(self, values: Values, empty: Collection[str] = ()) -> pd.DataFrame:
        """These columns; a word for nothing that is one of a column's values is a value."""

    def row(self, index: int) -> int:
        """The number of a row in its file, as a spreadsheet shows it."""

    def rows(self, count: int) -> list[int]:
        """The numbers of its first rows."""


def opened(file: Path, written: Written = UNSAID) -> Source:
    """Look at a file; say what is wrong with it."""
    if not file.name.endswith(ENDINGS):
        raise ArchipelError(f"'{file}': is no {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file.")
    return Parquet(file) if file.suffix == ".parquet" else Text(file, written)


def stem(file: Path) -> str:
    """A file's name without its ending."""
    return file.name.removesuffix(".gz").rpartition(".")[0]


def called_alike(file: Path | None, name: str) -> ArchipelError:
    where = "" if file is None else f"'{file}': "
    return ArchipelError(f"{where}two columns are called '{name}'; rename one.")


class Text:
    """A .csv file, in whatever way it is written."""

    def __init__(self, file: Path, written: Written) -> None:
        self._file, self._said = file, written
        self._text, encoding = dialect.decoded(str(file), _content(file), written.encoding)
        if encoding == "cp1252" and not written.encoding:
            _guessed(str(file))
        self._sep = ","
        if self._text.strip():
            self._sep = dialect.separator(str(file), self._text, written.sep)
        self.header, self._rows = dialect.check_widths(str(file), self._text, self._sep)
        self.padded = set[str]()
        self.read_with = {"sep": self._sep, "decimal": ".", "encoding": encoding}

    def frame(self, texts: Collection[str] = (), empty: Collection[str] = ()) -> pd.DataFrame:
        return self._columns(_whole(self.header, texts), empty, self._decimal(None, texts, empty))

    def columns(self, values: Values, empty: Collection[str] = ()) -> pd.DataFrame:
        numbers = {name for name, known in values.items() if known is not None} - _texts(values)
        return self._columns(values, empty, self._decimal(numbers, (), empty))

    def _columns(self, values: Values, empty: Collection[str], decimal: str) -> pd.DataFrame:
        places = {name: self.header.index(name) for name in values}

        def read(pd: Any, text: io.StringIO) -> Any:
            return pd.read_csv(
                text, sep=self._sep, header=0, names=range(len(self.header)), dtype=str,
                usecols=list(places.values()), keep_default_na=False,
            )  # fmt: skip

        found = self._read(read)[list(places.values())].set_axis(list(values), axis=1)
        texts = _texts(values)
        self.padded = set()
        for name, known in values.items():
            cells = looks.emptied(found[name], empty, known or ())
            if name not in texts:
                cells = _as_numbers(cells, decimal, known is not None)
            if cells.dtype == "str" and bool((found[name] != found[name].str.strip()).any()):
                self.padded.add(name)
            found[name] = cells
        return found

    def row(self, index: int) -> int:
        kept = dialect.records(str(self._file), self._text, self._sep)
        return next(itertools.islice(kept, index + 1, None)).row

    def rows(self, count: int) -> list[int]:
        kept = dialect.records(str(self._file), self._text, self._sep)
        return [record.row for record in itertools.islice(kept, 1, count + 1)]

    def _decimal(
        self, numbers: Collection[str] | None, texts: Collection[str], empty: Collection[str]
    ) -> str:
        words = {*looks.EMPTY, *empty}
        found = dialect.decimal(
            str(self._file), self._text, self._sep, self._said.decimal, words, numbers, texts
        )
        self.read_with["decimal"] = found
        return found

    def _read(self, read: Callable[[Any, io.StringIO], Any]) -> pd.DataFrame:
        found: pd.DataFrame = _reading(self._file, lambda pd: read(pd, io.StringIO(self._text)))
        if len(found) != self._rows:  # two ways to read it
            raise ArchipelError(
                f"'{self._file}': {self._rows} rows or {len(found)}; look for quotes that are not "
                "closed and for lines with nothing but quotes."
            )
        return found


class Parquet:
    """A .parquet file."""

    def __init__(self, file: Path) -> None:
        def look(_: Any) -> tuple[list[str], int]:
            from pyarrow.parquet import read_metadata, read_schema

            names = [name for name in read_schema(file).names if not _INDEX.fullmatch(name)]
            return names, read_metadata(file).num_rows

        self._file, self.read_with, self.padded = file, dict[str, str](), set[str]()
        self._names, rows = _reading(file, look)
        self.header = [str(name).strip() for name in self._names]
        if rows == 0:
            raise NoRows(f"'{file}': has columns and no rows; add rows, or leave it out.")

    def frame(self, texts: Collection[str] = (), empty: Collection[str] = ()) -> pd.DataFrame:
        return self.columns(_whole(self.header, texts), empty)

    def columns(self, values: Values, empty: Collection[str] = ()) -> pd.DataFrame:
        places = [self._names[self.header.index(name)] for name in values]
        found: pd.DataFrame = _reading(
            self._file, lambda pd: pd.read_parquet(self._file, columns=places)
        )
        if any(name is not None for name in found.index.names):  # a column like any other
            found = found.reset_index()
        found = found[places].set_axis(list(values), axis=1).reset_index(drop=True)
        self.padded = _padded(found)
        return _emptied(found, values, empty)

    def row(self, index: int) -> int:
        return index + 1

    def rows(self, count: int) -> list[int]:
        return list(range(1, count + 1))


class InMemory:
    """A table of pandas."""

    def __init__(
        self, table: pd.DataFrame, row: Callable[[int], int] = lambda index: index + 1
    ) -> None:
        self._table, self.row = table.reset_index(drop=True), row
        self.header, self.read_with = [str(name) for name in table.columns], dict[str, str]()
        self.padded = set[str]()

    def frame(self, texts: Collection[str] = (), empty: Collection[str] = ()) -> pd.DataFrame:
        return self.columns(_whole(self.header, texts), empty)

    def columns(self, values: Values, empty: Collection[str] = ()) -> pd.DataFrame:
        found = self._table.set_axis(self.header, axis=1)[list(values)]
        self.padded = _padded(found)
        return _emptied(found, values, empty)

    def rows(self, count: int) -> list[int]:
        return [self.row(index) for index in range(count)]


def _whole(header: Sequence[str], texts: Collection[str]) -> Values:
    """All columns, these as text."""
    return {name: ("",) if name in texts else None for name in header}


def _texts(values: Values) -> set[str]:
    """The columns whose values are text."""
    return {name for name, known in values.items() if known and isinstance(known[0], str)}


def _padded(found: pd.DataFrame) -> set[str]:
    """The columns of text with blanks around some cells."""
    texts = [name for name in found if found[name].dtype.kind not in "biufMm"]
    cells = {str(name): looks.as_text(found[name]) for name in texts}
    return {name for name, text in cells.items() if (text != text.str.strip())[text.notna()].any()}


def _emptied(found: pd.DataFrame, values: Values, empty: Collection[str]) -> pd.DataFrame:
    return found.assign(
        **{name: looks.emptied(found[name], empty, known or ()) for name, known in values.items()}
    )


def _as_numbers(column: pd.Series[Any], decimal: str, wanted: bool) -> pd.Series[Any]:
    """A column as numbers if all of its cells are, else as it is; `wanted` with decimal points."""
    import pandas as pd

    pointed = column.str.replace(",", ".") if decimal == "," else column
    try:
        return pd.to_numeric(pointed)
    except ValueError:
        return pointed if wanted else column


def as_written(file: Path, column: str, written: Written = UNSAID) -> list[str]:
    """A column's cells as they are written, empty ones as well."""
    cells = opened(file, written).columns({column: looks.EMPTY})[column]
    return [str(cell) if there else "" for cell, there in zip(cells, cells.notna(), strict=True)]


@cache
def _guessed(name: str) -> None:
    """Say once per file that its encoding is a guess: bytes do not tell western ones apart."""
    logging.getLogger("archipel").warning(
        "'%s': is not UTF-8 and is read as cp1252; if that is wrong, say data.encoding "
        "(--encoding).", name,
    )  # fmt: skip


def _content(file: Path) -> bytes:
    try:
        raw = file.read_bytes()
        return gzip.decompress(raw) if file.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ArchipelError(f"'{file}': cannot be read as a table ({why}).") from None


def _reading(file: Path, read: Callable[[Any], Any]) -> Any:
    """Call `read` with pandas; say of the file what goes wrong."""
    try:
        import pandas as pd

        return read(pd)
    except ImportError:
        raise ArchipelError(
            f"'{file}': tables need pandas; install it with pip install 'archipel[frames]'."
        ) from None
    except (OSError, ValueError, Warning) as error:
        reason = str(error).splitlines()[0]
        raise ArchipelError(f"'{file}': cannot be read as a table ({reason}).") from None
