# SPDX-License-Identifier: Apache-2.0
"""`archipel list` and `show`: what there is, and its source."""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from archipel.cli import options as o
from archipel.errors import clean


class Kind(StrEnum):
    algorithms = "algorithms"
    data = "data"
    models = "models"
    topologies = "topologies"
    wire = "wire"


def list_(
    kind: Annotated[Kind, typer.Argument(help="Of what.")] = Kind.algorithms,
    as_json: o.Json = False,
) -> None:
    """List what there is by name.

    \b
    Examples:
      archipel list algorithms
      archipel list data --json
    """
    rows = _rows(kind)
    if as_json:
        o.print_json({kind.value: [{"name": name, "about": about} for name, about in rows]})
        return
    console = Console()
    if not rows:
        console.print("There are no wire steps in this version.")
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, about in rows:
        table.add_row(Text(clean(name), "bold"), Text(clean(about)))
    console.print(table)


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="An algorithm, a model, or a Python file.", autocompletion=o.complete_algorithm
        ),
    ],
    as_json: o.Json = False,
) -> None:
    """Print the source of an algorithm or a model: what runs is what you read.

    \b
    Example:
      archipel show scaffold
    """
    from archipel.cli import outline

    path = outline.file_of(name) or _added_file(name)
    source = path.read_text()
    if as_json:
        o.print_json({"name": name, "file": path.name, "source": source})
        return
    console = Console()
    if console.is_terminal:
        console.print(Syntax(lines(source), "python", theme="ansi_dark", word_wrap=True))
    else:
        print(source, end="")


def _added_file(name: str) -> Path:
    """The file with an algorithm or model of an installed package, or of the user's own."""
    from archipel.cli import outline
    from archipel.errors import ArchipelError, unknown
    from archipel.study import plugins

    known = {*outline.names("algorithm"), *outline.names("model")}
    if name not in known and plugins.file_of(name) is None:
        raise unknown("algorithm or model", name, known)
    try:
        found = plugins.find("algorithm", name)
    except ArchipelError:
        found = plugins.find("model", name)
    path = inspect.getsourcefile(found)
    assert path is not None
    return Path(path)


def _rows(kind: Kind) -> list[tuple[str, str]]:
    from archipel.cli import outline
    from archipel.study import plugins

    if kind is Kind.wire:
        return []
    if kind is Kind.topologies:
        return sorted(outline.topologies().items())
    if kind is Kind.data:
        added = dict.fromkeys(plugins.added("data"), "from an installed package")
        return sorted((added | outline.data()).items())
    singular: plugins.Kind = "algorithm" if kind is Kind.algorithms else "model"
    found = {name: _first_line(plugins.find(singular, name)) for name in plugins.added(singular)}
    return sorted((found | outline.bundled_of(singular)).items())


def lines(text: str) -> str:
    """Text of several lines, each of them clean."""
    return "\n".join(map(clean, text.expandtabs().split("\n")))


def _first_line(found: object) -> str:
    return (inspect.getdoc(found) or "").partition("\n")[0]
