# SPDX-License-Identifier: Apache-2.0
"""`archipel predict`: apply a bundle's model to a table."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archipel.cli import options as o
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    from archipel.bundle import Bundle, Predictions
    from archipel.data.dialect import Written


def predict(
    bundle: Annotated[
        Path, typer.Argument(help="A folder of 'archipel export RUN --bundle'.", metavar="BUNDLE")
    ],
    table: Annotated[
        Path,
        typer.Argument(
            help="A table (.csv, .csv.gz, .parquet), or an array (.npy).", metavar="TABLE"
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write there; standard output.")] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Carry this column along.")
    ] = None,
    score: Annotated[
        bool, typer.Option("--score", help="Also score, where the table has the target.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run a Python file that the model is made of.")
    ] = False,
    sep: o.Sep = None,
    decimal: o.Decimal = None,
    encoding: o.Encoding = None,
    as_json: o.Json = False,
) -> None:
    """Apply a finished model to a table, anywhere: a row of CSV for each of its rows.

    \b
    Examples:
      archipel predict heart-model patients.csv
      archipel predict heart-model patients.csv --id patient --score --out predicted.csv
    """
    from archipel.bundle import load_bundle
    from archipel.data.dialect import Written

    written = Written.of(sep, decimal, encoding)
    loaded = load_bundle(bundle, trust_code)
    points = loaded.read(table, outcomes=score, written=written)
    outputs = loaded.outputs(points.x)
    found = loaded.told(outputs)
    name, ids = _ids(table, id_column, len(points.x), written)
    ignored = [each for each in points.ignored if each != id_column]
    scores = {} if points.y is None else loaded.score(outputs, points.y)
    if as_json:
        _print(_document(loaded, found, name, ids, ignored, scores), out)
    else:
        _write(_csv(_rows(loaded, found, name, ids)), out)
    if ignored:
        _say(f"not used: {', '.join(ignored)}")
    if scores and not as_json:
        shown = ", ".join(f"{metric} {value:.6g}" for metric, value in scores.items())
        _say(f"on {len(points.x)} rows: {shown}")


def _ids(table: Path, column: str | None, rows: int, written: Written) -> tuple[str, Sequence[Any]]:
    """What rows are called: a column's cells as they are written, or the rows' numbers."""
    from archipel.data import tables

    if column is None:
        is_array = table.suffix == ".npy"
        return "row", range(1, rows + 1) if is_array else tables.opened(table, written).rows(rows)
    there = [] if table.suffix == ".npy" else tables.opened(table, written).header
    if column not in there:
        raise ArchipelError(
            f"--id {column}: '{table}' has no such column; name one of its columns."
        )
    if there.count(column) > 1:
        raise ArchipelError(f"--id {column}: '{table}' has two such columns; rename one.")
    return column, tables.as_written(table, column, written)


def _heading(bundle: Bundle) -> list[str]:
    """What is said of a row, in the order of the cells."""
    if bundle.about.task == "survival":
        return ["log_risk"]
    return ["predicted", *(f"p({label})" for label in bundle.classes)]


def _rows(bundle: Bundle, found: Predictions, name: str, ids: Sequence[Any]) -> Iterator[list[Any]]:
    yield [name, *_heading(bundle)]
    for i, value in enumerate(found.values.tolist()):
        chances = [] if found.probabilities is None else found.probabilities[i].tolist()
        yield [ids[i], value, *chances]


def _csv(rows: Iterator[list[Any]]) -> str:
    from archipel.report.tables import text_cell

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [text_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue()


def _document(
    bundle: Bundle,
    found: Predictions,
    name: str,
    ids: Sequence[Any],
    ignored: list[str],
    scores: dict[str, float],
) -> dict[str, Any]:
    about, kind = bundle.about, _heading(bundle)[0]
    rows: list[dict[str, Any]] = []
    for i, value in enumerate(found.values.tolist()):
        rows.append({name if name == "row" else "id": ids[i], kind: value})
        if found.probabilities is not None:
            chances = zip(map(str, bundle.classes), found.probabilities[i].tolist(), strict=True)
            rows[-1]["probabilities"] = dict(chances)
    return {
        "bundle": {"digest": bundle.digest, "study": about.study.hash, "model": about.model},
        "task": about.task,
        "target": bundle.targets,
        "classes": bundle.classes,
        "rows": rows,
        "not_used": ignored,
        "metrics": scores or None,
    }


def _print(document: dict[str, Any], out: Path | None) -> None:
    import json

    from archipel.plain import plain

    _write(json.dumps(plain(document), allow_nan=False) + "\n", out)


def _write(text: str, out: Path | None) -> None:
    from archipel.store.files import write

    if out is None:
        sys.stdout.write(text)
        return
    with o.writing(out):
        write(out, text.encode())


def _say(text: str) -> None:
    print(clean(text), file=sys.stderr)
