# SPDX-License-Identifier: Apache-2.0
"""Text tables, however they are written: recognised, or refused by the field that decides."""

import csv
import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.data import frames, looks, tables
from archipel.data.dialect import Written
from archipel.data.schema import Schema
from archipel.errors import ArchipelError
from archipel.study.file import Study

from .strategies import QUICK

ROWS = [["age", "dose", "ward", "ill"], ["50", "0.5", "Süd", "0"], ["61", "12.25", "Nord", "1"]]
SCHEMA = Schema.of(
    {"age": "number", "dose": "number", "ward": ["Süd", "Nord"], "ill": [0, 1]}, "ill"
)


def written(
    rows: list[list[str]], sep: str = ",", decimal: str = ".", quoting: Any = csv.QUOTE_MINIMAL
) -> str:
    """The text of a table in a dialect; a comma in a cell has it quoted where commas separate."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=sep, quoting=quoting)
    writer.writerow(rows[0])
    for row in rows[1:]:
        writer.writerow([cell.replace(".", decimal) for cell in row])
    return text.getvalue()


def put(folder: Path, content: str | bytes, name: str = "lille.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read_numbers(path: Path, column: str) -> list[float]:
    return looks.numbers(frames.read_table(path).frame[column]).tolist()


# -- recognised ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize(("sep", "decimal"), [(",", "."), (",", ","), (";", ","), ("\t", ","),
                                              (";", "."), ("\t", "."), ("|", ",")])  # fmt: skip
def test_a_table_in_any_usual_dialect_is_read_and_said(
    sep: str, decimal: str, encoding: str, tmp_path: Path
) -> None:
    """E12: ';', tabs, decimal commas and encodings are recognised."""
    path = put(tmp_path, written(ROWS, sep, decimal).encode(encoding))

    read, report = SCHEMA.read(path, 0.0), SCHEMA.report(path)

    assert read.x.tolist() == [[50, 0.5, 0], [61, 12.25, 1]]
    said = {"sep": sep, "decimal": decimal, "encoding": encoding.removesuffix("-sig")}
    assert report.read_with == said
    assert read_numbers(path, "dose") == [0.5, 12.25]


def test_an_encoding_that_was_guessed_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(tmp_path, written(ROWS).encode("cp1252"))

    for said in (Written(), Written(), Written(encoding="cp1252")):
        frames.read_table(path, said)

    (record,) = caplog.records
    assert "is not UTF-8 and is read as cp1252; if that is wrong, say" in record.getMessage()


def test_a_compressed_table_is_read(tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(written(ROWS, ";", ",").encode()), "lille.csv.gz")
    fed = SCHEMA.federation([path], test=0.0)

    assert SCHEMA.read(path, 0.0).x.tolist() == [[50, 0.5, 0], [61, 12.25, 1]]
    assert list(fed.names or ()) == ["lille"]
    with pytest.raises(ArchipelError, match=r"cannot be read as a table \("):
        tables.opened(put(tmp_path, b"no archive", "lyon.csv.gz"))


def test_blanks_around_names_quotes_and_empty_lines_do_no_harm(tmp_path: Path) -> None:
    path = put(tmp_path, '"hospital ", "age"\n\n a,1\n \nb,2\n\n\n'.replace(', "', ',"'))

    table = frames.read_table(path).frame

    assert list(table.columns) == ["hospital", "age"]
    assert read_numbers(path, "age") == [1, 2]
    assert tables.opened(path).row(1) == 5


def test_a_study_says_how_its_tables_are_written(tmp_path: Path) -> None:
    put(tmp_path, "by age;y\n1.234;0\n5.678;1\n9.012;1\n1.234;0\n".replace("by age", "age"))
    asked = {"file": "lille.csv", "target": "y", "partition": "iid", "parties": 1}

    with pytest.raises(ArchipelError, match=r"'1\.234' may be 1\.234 or thousands; say which in "):
        Study.parse({"data": asked}, tmp_path).federation()
    fed = Study.parse({"data": {**asked, "decimal": ".", "standardise": False}}, tmp_path)
    assert sorted(fed.federation().x[:, 0].tolist()) == pytest.approx([1.234, 1.234, 5.678, 9.012])


# -- refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said", "words"),
    [
        ("age\n1\n", Written(), r"one column only where ',', ';', tab or '\|' .* data\.sep"),
        ("a b\n1 2\n", Written(), "one column only"),
        ("age;y\n1;2\n", Written(sep=","), "one column only where ',' separates"),
        ("a,b;c\n1,2;3\n", Written(), "both ',' and ';' may separate its cells; say which in data"),
        ("age,y\n", Written(), "has a header and no rows"),
        ("\n \n", Written(), "is empty"),
        ("age,age ,y\n1,2,3\n", Written(), "two columns are called 'age'"),
        ("age,y\n1,2\n3\n", Written(), "cells in row 3: 1, in the header: 2"),
        ("age,y\n1,2\n3,4,5\n", Written(), "cells in row 3: 3, in the header: 2"),
        ('age,y\n1,2\n""\n3,4\n', Written(), "2 rows or 3; look for quotes"),
        ('age,y\n1,"2\n3,4\n', Written(), "cells in row|cannot be read as a table"),
        ("age;y\n1,5;0\n1.234,5;1\n", Written(), "row 3: '1.234,5' has a mark between thousands"),
        ("age;y\n1.5;0\n1,234.5;1\n", Written(), "row 3: '1,234.5' has a mark between thousands"),
        ("age;y\n1.5;0\n1 234;1\n", Written(), "row 3: '1 234' has a mark between thousands"),
        ("age;y\n1,5;0\n1.234.567;1\n", Written(), "row 3: '1.234.567' has a mark between"),
        ("age;y\n1,5;0\n1.5;1\n", Written(), "row 3: '1.5', and column 'age', row 2: '1,5': two"),
        ("age;y\n1,5;2.5\n", Written(), "two decimal marks"),
        ("age;y\n1,5;0\n1.5;1\n", Written(decimal=","), "two decimal marks"),
        ('age,y\n"1,5",0\n2.5,1\n', Written(), "two decimal marks"),
        ('age,y\n"1,234",0\n', Written(), "'1,234' may be 1.234 or thousands; say which in data.d"),
        ("age;y\n1.234;0\n", Written(), "'1.234' may be 1.234 or thousands"),
    ],
)
def test_what_may_be_read_in_two_ways_is_refused(
    text: str, said: Written, words: str, tmp_path: Path
) -> None:
    """E12: the sentence names the field that decides."""
    with pytest.raises(ArchipelError, match=words):
        frames.read_table(put(tmp_path, text), said)


def test_a_column_of_numbers_has_one_decimal_mark(tmp_path: Path) -> None:
    """Other columns may have what they like: a code such as 410.1 is no number here."""
    schema = Schema.of({"age": "number", "y": [0, 1]}, "y")
    path = put(tmp_path, "icd;age;y\n410.1;70,5;0\n410.2;1.234;1\n")
    other = put(tmp_path, "icd;age;y\n410.1;70,5;0\n410.2;80;1\n", "lyon.csv")

    with pytest.raises(ArchipelError, match="two decimal marks"):
        schema.read(path)
    assert schema.read(other, 0.0).x.tolist() == [[70.5], [80]]
    with pytest.raises(ArchipelError, match=r"'70,5' is no number where data\.decimal"):
        replace(schema, written=Written(decimal=".")).read(other)


def test_the_column_that_says_whose_row_it_is_stays_as_it_is(tmp_path: Path) -> None:
    schema = Schema.of({"age": "number", "y": [0, 1]}, "y")
    path = put(tmp_path, "site;age;y\nLille, Nord;70,5;0\n1.5;80;1\nLille, Nord;1,5;1\n")

    fed = schema.federation([path], by="site", test=0.0)

    assert list(fed.names or ()) == ["1.5", "Lille, Nord"]
    assert fed.party("Lille, Nord")[0].tolist() == [[70.5], [1.5]]


@pytest.mark.parametrize(
    ("content", "said", "words"),
    [
        ("a,b\ncafé,é\n".encode("utf-16-le"), None, "zero bytes; if it is UTF-16, say data.enc"),
        ("a,b\nSüd,1\n".encode() + b"S\xfcd,2\n", None, "byte 13 is neither all UTF-8 nor all cp"),
        (b"a,b\nS\x81,1\n", None, "byte 6 is neither UTF-8 nor cp1252"),
        (b"a,b\nS\xfcd,1\n", "utf-8", "byte 6 is no utf-8; save the file anew as UTF-8, or say"),
        (b"\xff\xfea", None, "is no utf-16"),
    ],
)
def test_an_encoding_that_is_none_is_refused(
    content: bytes, said: str | None, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ArchipelError, match=words):
        frames.read_table(put(tmp_path, content), Written(encoding=said))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"sep": ";;"}, "data.sep = ';;': give the one character"),
        ({"sep": "x"}, "data.sep = 'x': give the one"),
        ({"decimal": ";"}, "data.decimal = ';': give"),
        ({"encoding": "utf-nine"}, "data.encoding = 'utf-nine': no such encoding"),
        ({"encoding": "zlib"}, "data.encoding = 'zlib': no such encoding"),
        ({"name": "heart_disease", "sep": ";"}, "data.sep: 'heart_disease' has its own"),
    ],
)
def test_a_wrong_key_is_named(keys: dict[str, str], words: str, tmp_path: Path) -> None:
    put(tmp_path, "a,y\n1,0\n")
    where = {} if "name" in keys else {"file": "lille.csv", "target": "y", "partition": "iid"}

    with pytest.raises(ArchipelError, match=words):
        Study.parse({"data": {**where, **keys}}, tmp_path)


def test_a_table_without_rows_does_not_turn_numbers_into_text(tmp_path: Path) -> None:
    put(tmp_path, "age,y\n50,0\n61,1\n")
    put(tmp_path, "age,y\n", "lyon.csv")

    sheet = frames.read_tables(frames.party_files(tmp_path))

    assert looks.numbers(sheet.frame["age"]).tolist() == [50, 61]
    assert sheet.notes == ("party 'lyon' has a table without rows: left out",)
    (tmp_path / "lille.csv").unlink()
    with pytest.raises(ArchipelError, match="has a row"):
        frames.read_tables(frames.party_files(tmp_path))


# -- in general ------------------------------------------------------------------------------------


CELLS = st.one_of(
    st.integers(-5000, 5_000_000).map(str),
    st.decimals(-5000, 5000, places=1).map(str),
    st.decimals(-5000, 5000, places=3).map(str),
    st.just(""),
)
WORDS = st.text("abc,;\t|.é' ", max_size=6).map(lambda word: f"<{word}>")


@settings(QUICK, max_examples=150)
@given(
    st.lists(st.tuples(CELLS, CELLS, WORDS), min_size=1, max_size=6),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from([".", ","]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_a_table_reads_back_equal_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str, str]],
    sep: str,
    decimal: str,
    encoding: str,
    quoting: int,
) -> None:
    """E12: never silently wrong, whatever the dialect."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=sep, quoting=quoting)
    writer.writerow(["a", "b", "word"])
    writer.writerows([a.replace(".", decimal), b.replace(".", decimal), w] for a, b, w in rows)
    path = put(tmp_path_factory.mktemp("x"), text.getvalue().encode(encoding))
    wanted = [[float(cell) if cell else None for cell in row[:2]] for row in rows]

    try:
        by_schema = tables.opened(path).columns({"a": (), "b": ()})
        whole = frames.read_table(path).frame
    except ArchipelError:
        return
    for read in (by_schema, whole[["a", "b"]]):
        found = [[None if pd.isna(c) else float(c) for c in r] for r in read.to_numpy().tolist()]
        assert found == wanted
    assert whole["word"].tolist() == [word for *_, word in rows]


@settings(QUICK, max_examples=60)
@given(
    st.lists(st.decimals(-500, 500, places=2).map(str), min_size=1, max_size=6),
    st.sampled_from([";", "\t"]),
    st.sampled_from([".", ","]),
)
def test_two_decimals_leave_no_doubt(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], sep: str, decimal: str
) -> None:
    rows = "".join(f"{cell.replace('.', decimal)}{sep}1\n" for cell in cells)
    path = put(tmp_path_factory.mktemp("x"), f"a{sep}b\n{rows}")

    assert read_numbers(path, "a") == [float(cell) for cell in cells]
