# SPDX-License-Identifier: Apache-2.0
"""`archipel list`, `show` and `data`: what there is, its source, and what a dataset holds."""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

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
        console.print(Syntax(_lines(source), "python", theme="ansi_dark", word_wrap=True))
    else:
        print(source, end="")


def _added_file(name: str) -> Path:
    """The file with an algorithm or model of an installed package, or of the user's own."""
    from archipel import plugins
    from archipel.cli import outline
    from archipel.errors import ArchipelError, unknown

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


def data(
    what: Annotated[
        str, typer.Argument(metavar="DATA|STUDY.toml", help="A dataset, a table, or a study's.")
    ],
    partition: o.Partition = None,
    parties: o.Parties = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    plot: Annotated[Path | None, typer.Option(help="Draw who has which targets.")] = None,
    as_json: o.Json = False,
) -> None:
    """Show what a federation's data is: parties, sizes, targets, source and licence.

    \b
    Examples:
      archipel data heart_disease
      archipel data mnist --partition dirichlet:0.3 --parties 20 --plot labels.png
      archipel data patients.csv --set data.by=hospital --set data.target=died
    """
    is_study = what.endswith(".toml")
    study = o.study_of_flags(
        what if is_study else None,
        data=None if is_study else what,
        partition=partition,
        parties=parties,
        seed=seed,
        sets=sets,
    )
    fed = study.federation()
    if plot is not None:
        with o.writing(plot):
            fed.plot(plot)
    if as_json:
        o.print_json(_facts(fed) | {"plot": None if plot is None else str(plot)})
    else:
        print(_lines(fed.summary()))
        if plot is not None:
            print(clean(f"drawn: {plot}"))


def _facts(fed: Any) -> dict[str, Any]:
    return {
        "name": fed.about.name,
        "parties": fed.parties,
        "training_parties": fed.training,
        "training_points": int(fed.n.sum()),
        "test_points": int(fed.n_test.sum()),
        "task": fed.task,
        "classes": fed.classes,
        "shape": list(fed.shape),
        "roster": [
            {"party": fed.name(k), "training_points": n, "test_points": m}
            for k, (n, m) in enumerate(zip(fed.n.tolist(), fed.n_test.tolist(), strict=True))
        ],
        "source": fed.about.source,
        "licence": fed.about.licence,
        "cite": fed.about.citation,
    }


def _rows(kind: Kind) -> list[tuple[str, str]]:
    from archipel import plugins
    from archipel.cli import outline

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


def _lines(text: str) -> str:
    """Text of several lines, each of them clean."""
    return "\n".join(map(clean, text.expandtabs().split("\n")))


def _first_line(found: object) -> str:
    return (inspect.getdoc(found) or "").partition("\n")[0]
