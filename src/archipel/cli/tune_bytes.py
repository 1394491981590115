# SPDX-License-Identifier: Apache-2.0
"""`archipel tune-bytes`: the smallest wire that loses little, found on validation points."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archipel.cli import options as o
from archipel.cli.compare import Seeds, progress

if TYPE_CHECKING:
    from archipel.comparison import Search

StudyFile = Annotated[
    Path, typer.Argument(metavar="STUDY.toml", help="A study file.", show_default=False)
]
Loss = Annotated[
    float,
    typer.Option("--loss", min=0, help="The largest loss of the study's metric, on its scale."),
]
Write = Annotated[
    bool, typer.Option("--write", help="Put it into the study file, and change nothing else there.")
]


def tune_bytes(
    study: StudyFile,
    loss: Loss = 0.01,
    seeds: Seeds = 3,
    rounds: o.Rounds = None,
    sets: o.Set = None,
    workers: o.Workers = None,
    write: Write = False,
    as_json: o.Json = False,
) -> None:
    """Find the smallest wire.up that loses little against the study without it.

    \b
    Wires are tried on validation points, a fifth of the training points, those that send the least
    first; the first one whose mean loss over seeds is within --loss is chosen. Exits with 1 where
    none is.

    \b
    Examples:
      archipel tune-bytes heart.toml
      archipel tune-bytes heart.toml --loss 0.02 --seeds 5 --rounds 20
      archipel tune-bytes digits.toml --write
    """
    from archipel.comparison import fewer_bytes
    from archipel.errors import ArchipelError
    from archipel.study.editing import with_field

    if study.suffix != ".toml":
        raise ArchipelError(f"'{study}': is no study file, NAME.toml; 'archipel new' writes one.")
    tuned = o.study_of_flags(str(study), rounds=rounds, sets=sets)
    if write:  # what cannot be written is said before hours of work
        with_field(study.read_bytes().decode(), "wire", "up", ["float16"])
    with progress("stopped: nothing was chosen.") as watch:
        found = fewer_bytes(tuned, loss, seeds, watch, workers)
    written = False
    try:
        if write and found.chosen is not None:
            _set_up(study, list(found.chosen.up))
            written = True
    finally:  # hours of work are told whatever becomes of the file
        _tell(found, study, written, as_json)
    if found.chosen is None:
        raise typer.Exit(1)


def _set_up(study: Path, up: list[str]) -> None:
    """Put the wire into the file as it is by now."""
    from archipel.store.files import write
    from archipel.study.editing import with_field

    place = study.resolve()  # a link stays one
    with o.writing(study):
        write(place, with_field(place.read_bytes().decode(), "wire", "up", up).encode())


def _tell(found: Search, study: Path, written: bool, as_json: bool) -> None:
    if as_json:
        o.print_json({**found.to_json(), "written": str(study) if written else None})
        return
    said = f"No wire stays within a loss of {found.limit:g}: allow more, or leave wire.up as it is."
    if found.chosen is not None:
        whose = f"{study} now says" if written else f"For {study} (--write puts it there)"
        said = f"{whose}:\n\n{found.lines}"
    console = Console()
    console.print(found)
    console.print(f"\n{said}", highlight=False, markup=False, soft_wrap=True)
