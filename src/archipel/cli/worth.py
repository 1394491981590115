# SPDX-License-Identifier: Apache-2.0
"""`archipel worth`: who contributed to a run's model, and who took it for nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from archipel.cli import options as o
from archipel.errors import ArchipelError


def worth(
    what: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run's name, folder or 'last'.", show_default=False),
    ],
    permutations: Annotated[
        int, typer.Option(min=2, help="Of more than 8 parties, in every round.")
    ] = 50,
    out: o.Out = Path("runs"),
    as_json: o.Json = False,
) -> None:
    """Say what each party of a simulated run was worth: Shapley values, with one left out.

    The run is repeated, in memory; no party's data or upload is written anywhere. The run's next
    'archipel report' has it.

    \b
    Examples:
      archipel worth last
      archipel worth heart --permutations 200 --json
    """
    from archipel.runs.listing import study_of
    from archipel.store.folder import WORTH, Folder
    from archipel.worth.measuring import measure, told

    folder = Folder.find(what, out)
    row = folder.journal.row()
    if "facts" in row["description"]:
        raise ArchipelError(
            f"run '{folder.path.name}' was between sites: their uploads were not kept and their "
            "test points are elsewhere, so who contributed cannot be measured from its record; "
            "simulate the study on tables that are here ('archipel run') and measure that run."
        )
    if not row["done"]:
        raise ArchipelError(f"run '{folder.path.name}' has no round yet: let it go on first.")
    study = study_of(folder)
    data = study.federation()
    options = study.options()
    for name in ("metric", "target"):
        options.pop(name, None)  # type: ignore[misc]
    parts = (study.algorithm_object, data, study.build_model(data), options)
    found = told(measure(*parts, permutations, row["done"]))
    (folder.path / WORTH).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if as_json:
        o.print_json(found)
        return
    _print(found, row["done"])


def _print(found: dict[str, Any], done: int) -> None:
    from archipel.report.worth import caption, rows

    console = Console()
    table = Table(box=None, pad_edge=False)
    for name in ("party", "examples", "rounds", "Shapley value", "±", "left out", ""):
        table.add_column(name, justify="left" if name in ("party", "") else "right")
    for name, *cells, suspicion in rows(found):
        table.add_row(Text(name, "bold"), *cells, Text(suspicion, "bold red"))
    console.print(table)
    console.print(f"\n{caption(found, done)}", highlight=False, soft_wrap=True, markup=False)
