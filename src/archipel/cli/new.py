# SPDX-License-Identifier: Apache-2.0
"""`archipel new`: a commented study file to start from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from archipel.cli import options as o
from archipel.errors import ArchipelError

SCHEMA = "study.schema.json"


def new(
    name: Annotated[str, typer.Argument(help="The study's name; NAME.toml is written.")],
    algorithm: Annotated[
        str, typer.Option(help="Its fields are listed.", autocompletion=o.complete_algorithm)
    ] = "fedavg",
    data: o.Data = "heart_disease",
    sets: o.Set = None,
    schema: Annotated[
        bool, typer.Option("--schema", help=f"Also write {SCHEMA}, with which an editor checks.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Write a study file with every field, its default and what it is for.

    \b
    Examples:
      archipel new heart
      archipel new digits --algorithm scaffold --data mnist --schema
      archipel new mine --data patients.csv --set data.by=hospital --set data.target=died
    """
    from archipel.store.files import write
    from archipel.study.file import Study
    from archipel.study.template import template

    if not re.fullmatch(r"\w[\w.-]{0,79}", name.removesuffix(".toml")):
        raise ArchipelError(f"'{name}': name a study with letters, digits, '-', '_' and '.'.")
    path = Path(f"{name.removesuffix('.toml')}.toml")
    if path.exists():
        raise ArchipelError(f"'{path}' is there already: name another, or remove it.")
    study = o.study_of_flags(algorithm, data=data, name=path.stem, sets=sets)
    text = template(study.given(), SCHEMA if schema else None)
    Study.parse(text, Path.cwd())
    with o.writing(path):
        write(path, text.encode())
        if schema:
            write(Path(SCHEMA), json.dumps(Study.json_schema(), indent=1).encode())
    if as_json:
        o.print_json({"study": str(path), "schema": SCHEMA if schema else None})
    else:
        Console().print(f"{escape(str(path))} is there: archipel run {escape(str(path))}")
