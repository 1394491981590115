# SPDX-License-Identifier: Apache-2.0
"""`archipel list` and `show`: what there is, and its source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from archipel.cli import options as o
from archipel.errors import clean

if TYPE_CHECKING:
    from archipel.study.plugins import Kind as PluginKind


class Kind(StrEnum):
    algorithms = "algorithms"
    attacks = "attacks"
    data = "data"
    models = "models"
    rules = "rules"
    topologies = "topologies"
    wire = "wire"


_KINDS: dict[Kind, PluginKind] = {
    Kind.algorithms: "algorithm",
    Kind.models: "model",
    Kind.rules: "rule",
}


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
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, about in rows:
        table.add_row(Text(clean(name), "bold"), Text(clean(about)))
    console.print(table)


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="An algorithm, a model, a step of a wire, or a Python file.",
            autocompletion=o.complete_shown,
        ),
    ],
    as_json: o.Json = False,
) -> None:
    """Print the source of an algorithm, a model or a step: what runs is what you read.

    \b
    Examples:
      archipel show scaffold
      archipel show float16
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
    """The file with what an installed package or the user's own file adds."""
    from archipel.cli import outline
    from archipel.errors import ArchipelError, unknown
    from archipel.study import plugins

    kinds: list[plugins.Kind] = ["algorithm", "step", "rule", "sum", "attack", "adversary", "model"]
    known = {each for kind in kinds for each in outline.names(kind)}
    if name not in known and plugins.file_of(name) is None:
        raise unknown("algorithm, model or step", name, known)
    for kind in kinds[:-1]:
        with suppress(ArchipelError):
            return _source(plugins.find(kind, name))
    return _source(plugins.find("model", name))


def _source(found: Callable[..., object]) -> Path:
    path = inspect.getsourcefile(found)
    assert path is not None
    return Path(path)


def _rows(kind: Kind) -> list[tuple[str, str]]:
    from archipel.cli import outline
    from archipel.study import plugins

    if kind is Kind.wire:
        return _wire()
    if kind is Kind.attacks:
        return _attacks()
    if kind is Kind.topologies:
        return sorted(outline.topologies().items())
    if kind is Kind.data:
        added = dict.fromkeys(plugins.added("data"), "from an installed package")
        return sorted((added | outline.data()).items())
    return _described(_KINDS[kind])


def _wire() -> list[tuple[str, str]]:
    """Steps and sums, each with what it is."""
    kinds: list[PluginKind] = ["step", "sum"]
    found = [(name, f"{kind}: {about}") for kind in kinds for name, about in _described(kind)]
    return sorted([*found, ("plain", "sum: Add up uploads as they arrive.")])


def _attacks() -> list[tuple[str, str]]:
    """Attacks of an audit, on privacy, and of a study's adversaries, on the model."""
    kinds: dict[PluginKind, str] = {"attack": "audit", "adversary": "adversary"}
    found = {kind: _described(kind) for kind in kinds}
    return sorted(
        (name, f"{kinds[kind]}: {about}") for kind in found for name, about in found[kind]
    )


def _described(kind: PluginKind) -> list[tuple[str, str]]:
    from archipel.cli import outline
    from archipel.study import plugins

    found = {name: _first_line(plugins.find(kind, name)) for name in plugins.added(kind)}
    return sorted((found | outline.bundled_of(kind)).items())


def lines(text: str) -> str:
    """Text of several lines, each of them clean."""
    return "\n".join(map(clean, text.expandtabs().split("\n")))


def _first_line(found: object) -> str:
    return (inspect.getdoc(found) or "").partition("\n")[0]
