# SPDX-License-Identifier: Apache-2.0
"""Files with tables: text, compressed or not, and Parquet."""

from __future__ import annotations

import gzip
import io
import itertools
import logging
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from archipel.data import dialect
from archipel.data.dialect import UNSAID, Written
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".parquet")
_EMPTY = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "<NA>", "#N/A", "#NA")
Values = Mapping[str, Sequence[int | str] | None]  # of each column: () numbers, None anything


class Source(Protocol):
    """A file with a table, not read yet."""

    header: list[str]  # without blanks around names
    read_with: dict[str, str]  # separator, decimal mark and encoding of text

    def frame(self) -> pd.DataFrame:
        """All of it, each column as what it looks like."""

    def columns(self, values: Values) -> pd.DataFrame:
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
        self.read_with = {"sep": self._sep, "decimal": ".", "encoding": encoding}

    def frame(self) -> pd.DataFrame:
        decimal = self._decimal(None)
        found = self._read(lambda pd, text: pd.read_csv(text, sep=self._sep, decimal=decimal))
        return found.rename(columns=str.strip)

    def columns(self, values: Values) -> pd.DataFrame:
        places = {name: self.header.index(name) for name in values}
        texts = {name for name, known in values.items() if known and isinstance(known[0], str)}
        numbers = {name for name, known in values.items() if known is not None} - texts
        decimal = self._decimal(numbers)
        empty = {
            at: [e for e in _EMPTY if e not in (values[name] or ())] for name, at in places.items()
        }

        def read(pd: Any, text: io.StringIO) -> Any:
            return pd.read_csv(
                text, sep=self._sep, decimal=decimal, header=0, names=range(len(self.header)),
                usecols=list(places.values()), dtype={places[name]: str for name in texts},
                low_memory=False, keep_default_na=False, na_values=empty,
            )  # fmt: skip

        found = self._read(read)[list(places.values())].set_axis(list(values), axis=1)
        if decimal == ",":  # where one cell is no number, pandas leaves all as text
            for name in numbers:
                if found[name].dtype.kind not in "biuf":
                    found[name] = found[name].str.replace(",", ".")
        return found

    def row(self, index: int) -> int:
        kept = dialect.records(str(self._file), self._text, self._sep)
        return next(itertools.islice(kept, index + 1, None)).row

    def rows(self, count: int) -> list[int]:
        kept = dialect.records(str(self._file), self._text, self._sep)
        return [record.row for record in itertools.islice(kept, 1, count + 1)]

    def _decimal(self, numbers: Collection[str] | None) -> str:
        found = dialect.decimal(
            str(self._file), self._text, self._sep, self._said.decimal, _EMPTY, numbers
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

            return list(read_schema(file).names), read_metadata(file).num_rows

        self._file, self.read_with = file, dict[str, str]()
        self._names, rows = _reading(file, look)
        self.header = [str(name).strip() for name in self._names]
        if rows == 0:
            raise ArchipelError(f"'{file}': has columns and no rows; add rows, or leave it out.")

    def frame(self) -> pd.DataFrame:
        found: pd.DataFrame = _reading(self._file, lambda pd: pd.read_parquet(self._file))
        return found.rename(columns=lambda name: str(name).strip())

    def columns(self, values: Values) -> pd.DataFrame:
        places = [self._names[self.header.index(name)] for name in values]
        found: pd.DataFrame = _reading(
            self._file, lambda pd: pd.read_parquet(self._file, columns=places)
        )
        return found[places].set_axis(list(values), axis=1).reset_index(drop=True)

    def row(self, index: int) -> int:
        return index + 1

    def rows(self, count: int) -> list[int]:
        return list(range(1, count + 1))


class InMemory:
    """A table of pandas."""

    def __init__(self, table: pd.DataFrame) -> None:
        self._table = table.reset_index(drop=True)
        self.header, self.read_with = [str(name) for name in table.columns], dict[str, str]()

    def frame(self) -> pd.DataFrame:
        return self._table

    def columns(self, values: Values) -> pd.DataFrame:
        return self._table.set_axis(self.header, axis=1)[list(values)]

    def row(self, index: int) -> int:
        return index + 1

    def rows(self, count: int) -> list[int]:
        return list(range(1, count + 1))


def as_written(file: Path, column: str) -> list[str]:
    """A column's cells as they are written, empty ones as well."""
    return [str(cell) for cell in opened(file).columns({column: _EMPTY})[column]]


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
