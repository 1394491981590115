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
from archipel.errors import clean


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

    The run is repeated, in memory; no party's data or upload is written anywhere.

    \b
    Examples:
      archipel worth last
      archipel worth heart --permutations 200 --json
    """
    from archipel.runs.listing import study_of
    from archipel.store.folder import Folder
    from archipel.worth.measuring import measure, told

    folder = Folder.find(what, out)
    study = study_of(folder)
    data = study.federation()
    options = study.options()
    for name in ("metric", "target"):
        options.pop(name, None)  # type: ignore[misc]
    found = told(
        measure(study.algorithm_object, data, study.build_model(data), options, permutations)
    )
    (folder.path / "worth.json").write_text(json.dumps(found, indent=1) + "\n")
    if as_json:
        o.print_json(found)
        return
    _print(found)


def _print(found: dict[str, Any]) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    for name in ("party", "examples", "rounds", "Shapley value", "±", "left out", ""):
        table.add_column(name, justify="left" if name in ("party", "") else "right")
    for row in found["parties"]:
        table.add_row(
            Text(clean(row["party"]), "bold"),
            str(row["examples"]),
            str(row["rounds"]),
            f"{row['shapley']:.4f}",
            f"{row['error']:.4f}",
            f"{row['leave_one_out']:.4f}",
            Text(row["suspicion"], "bold red"),
        )
    console.print(table)
    exact = "exact" if found["exact"] else "with one standard error"
    console.print(
        f"\nIn {found['of']} on test points: {found['total']:.4f} in all, {exact}, of "
        f"{found['evaluated']:,} models. Mind: {found['notes'][0]}",
        highlight=False,
        soft_wrap=True,
    )
