# SPDX-License-Identifier: Apache-2.0
"""A site's own tables on its own screen: what is in each column, and what looks wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from archipel.cli import options as o
from archipel.cli.logs import say, show, table
from archipel.errors import clean

if TYPE_CHECKING:
    from archipel.data.schema import Report
    from archipel.data.summary import Summary
    from archipel.federation.site.binding import Bound
    from archipel.study.file import Study

_SEPARATORS = {"\t": "tabs"}
_DECIMALS = {".": "decimal points", ",": "decimal commas"}


def show_report(file: Path, study: Study, report: Report, as_json: bool) -> None:
    """What is in a table: rows, columns, and what is wrong or looks so."""
    if as_json:
        columns = [each._asdict() for each in report.columns]
        o.print_json({"file": str(file), **report._asdict(), "columns": columns})
        return
    say(f"{file}: {report.rows} rows, {report.used} of them used")
    if report.read_with:
        sep, decimal, encoding = report.read_with.values()
        between = _SEPARATORS.get(sep, f"'{sep}'")
        say(f"  read with {between} between cells, {_DECIMALS[decimal]}, encoding {encoding}")
    if report.classes:
        counts = ", ".join(f"{name} in {count} rows" for name, count in report.classes.items())
        say(f"  {study.data.target}: {counts}")
    if report.ignored:
        say(f"  not read, for the study does not name them: {', '.join(report.ignored)}")
    shown = table("column", "unit", "min", "25 %", "median", "75 %", "max", "empty", "values")
    for each in report.columns:
        shown.add_row(*(Text(clean(cell)) for cell in _cells(each)))
    show(shown)
    for each in report.columns:
        for note in each.notes:
            say(f"! {each.name}: {note}")


def _cells(column: Summary) -> list[str]:
    quartiles = [f"{q:.4g}" for q in column.quartiles] or [""] * 5
    empty = f"{column.missing} ({column.share:.1%})" if column.missing else "0"
    counts = ", ".join(f"{value}: {count}" for value, count in column.counts.items())
    return [column.name, column.unit, *quartiles, empty, counts]


def show_bound(bound: Sequence[Bound], studies: Mapping[str, Study], as_json: bool) -> None:
    """Which table is bound to which studies."""
    from archipel.federation.site.binding import schema_of

    hashes = {study: schema_of(read).hash for study, read in studies.items() if read.data.schema}
    rows = [
        {
            "file": str(each.file),
            "unchanged": each.unchanged,
            "studies": {
                s: studies[s].name for s, schema in hashes.items() if schema == each.schema
            },
        }
        for each in bound
    ]
    if as_json:
        o.print_json({"tables": rows})
        return
    shown = table("table", "studies", "state")
    for row, each in zip(rows, bound, strict=True):
        names = [f"{studies[s].name} ({s[:12]})" for s, h in hashes.items() if h == each.schema]
        state = "as it was bound" if row["unchanged"] else "changed or gone: bind it again"
        cells = (str(each.file), ", ".join(names) or "none that is known here", state)
        shown.add_row(*(Text(clean(cell)) for cell in cells))
    show(shown) if rows else say("No table is bound. Next: archipel site data add STUDY TABLE")
