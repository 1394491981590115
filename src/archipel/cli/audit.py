# SPDX-License-Identifier: Apache-2.0
"""`archipel audit`: attack a study, and say what an attacker could learn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from archipel.cli import options as o
from archipel.errors import clean

if TYPE_CHECKING:
    from archipel.audit.work import Say
    from archipel.study.file import Study


def audit(
    what: Annotated[
        str,
        typer.Argument(
            metavar="STUDY.toml|RUN",
            help="A study file, or a run's name, folder or 'last'.",
            show_default=False,
        ),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer runs, in less than a minute for small studies.")
    ] = False,
    attacks: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Only these, or these families: membership, inversion, property, ...",
        ),
    ] = None,
    sets: o.Set = None,
    out: o.Out = Path("runs"),
    to: Annotated[
        Path | None, typer.Option(help="Where audit.html goes; audits/, or the run's folder.")
    ] = (None),
    as_json: o.Json = False,
) -> None:
    """Attack a study as every adversary could, and write audit.html.

    The same command again goes on where it was stopped.

    \b
    Examples:
      archipel audit heart.toml --quick
      archipel audit last --attacks membership,inversion
    """
    from archipel.audit import page, words
    from archipel.audit.auditing import audit as attack
    from archipel.audit.auditing import folder_of

    study, run = _study(what, out, sets)
    wanted = [each.strip() for each in (attacks or "").split(",") if each.strip()]
    folder = folder_of(study, quick, run)
    with _progress() as say:
        found = attack(study, attacks=wanted, quick=quick, folder=folder, say=say)
    target = to or folder / "audit.html"
    with o.writing(target):
        written = page.write(found, target)
    document = {**found.to_json(), "report": str(written)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "audit.json").write_text(json.dumps(document, indent=1, ensure_ascii=False))
    if as_json:
        o.print_json(document)
        return
    console = Console()
    said = f"{found.sentence} {words.bound(found)}"
    console.print(escape(clean(said)), highlight=False, soft_wrap=True)
    console.print()
    console.print(words.table(found))
    console.print(f"\n{escape(clean(str(written)))}", highlight=False, soft_wrap=True)


def _study(what: str, out: Path, sets: list[str] | None) -> tuple[Study, Path | None]:
    """The study of a file, or that of a run, with its folder."""
    if what.endswith(".toml"):
        return o.study_of_flags(what, sets=sets), None
    from archipel.runs.listing import study_of
    from archipel.store.folder import Folder

    folder = Folder.find(what, out)
    study = study_of(folder)
    return study.with_set(o.changes_of(sets)) if sets else study, folder.path


@contextmanager
def _progress() -> Iterator[Say]:
    """A line on standard error that goes away; nothing where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(escape(clean(text)))
