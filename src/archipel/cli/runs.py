# SPDX-License-Identifier: Apache-2.0
"""`archipel runs`, `report` and `export`: what is on the disk."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from archipel.cli import options as o
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    from archipel.runs.run import Run

_AGAIN = 2  # seconds between two looks at a run that goes on


def runs(out: o.Out = Path("runs"), as_json: o.Json = False) -> None:
    """List the runs, the newest first.

    \b
    Example:
      archipel runs
    """
    from archipel.runs.listing import list_runs

    listed = list_runs(out)
    if as_json:
        o.print_json({"runs": [each._asdict() for each in listed]})
        return
    console = Console(width=None if sys.stdout.isatty() else 200)
    if not listed:
        console.print(f"No run in '{escape(clean(str(out)))}' yet: archipel demo, or archipel run.")
        return
    table = Table(box=None, pad_edge=False)
    longest = max(len(each.name) for each in listed)
    table.add_column("run", overflow="fold", min_width=min(longest, max(10, console.width - 52)))
    for heading in ("state", "rounds", "result", "started (UTC)"):
        side: Literal["left", "right"] = "right" if heading == "rounds" else "left"
        table.add_column(heading, justify=side, no_wrap=True)
    room = console.width - longest - 52
    if room >= 20:
        table.add_column("what", overflow="ellipsis", no_wrap=True, max_width=room)
    colours = {"done": "green", "running": "cyan", "failed": "red"}
    for each in listed:
        about, colour = each.summary, colours.get(each.state, "yellow")
        value = about.get("value")
        what = f"{about['algorithm']} on {about['data']}, seed {about['seed']}" if about else ""
        table.add_row(
            Text(clean(each.name)),
            Text(clean(each.state), colour),
            f"{each.done}/{each.rounds}",
            Text("" if value is None else clean(f"{about['metric']} {value:.3f}")),
            Text(clean(each.started[5:16].replace("T", " "))),
            *([Text(clean(what))] if room >= 20 else []),
        )
    console.print(table)


def report(
    name: o.RunName = "last",
    out: o.Out = Path("runs"),
    to: Annotated[Path | None, typer.Option(help="Where to; into the run's folder.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also write every figure there, as PNG and SVG.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Write it again with every evaluation until the run ends."),
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Write report.html: one page, with all of a run in it.

    \b
    Examples:
      archipel report
      archipel report last --follow
      archipel report heart-001 --to heart.html --figures figures/
    """
    from archipel.report.figures import save_figures
    from archipel.runs.listing import read_run

    if follow:
        _follow(name, out, to)
    run = read_run(name, out)
    assert run.folder is not None
    with o.writing(to or run.folder):
        written = run.report(to)
    if figures is not None:
        with o.writing(figures):
            save_figures(run, figures)
    if as_json:
        check = run.forecast
        told = {"run": run.name, "report": str(written), "scorecard": run.scorecard.to_json()}
        forecast = None if check is None else check.to_json()
        o.print_json({**told, "forecast": forecast, "worth": run.worth})
    else:
        Console().print(escape(clean(str(written))), soft_wrap=True, highlight=False)


def _follow(name: str, out: Path, to: Path | None) -> None:
    """Write the page of a run that goes on whenever its journal has more, until it ends."""
    from archipel.report.html import write
    from archipel.runs.listing import open_run, state_of
    from archipel.store.folder import Folder

    folder, shown = Folder.find(name, out), -1
    while state_of(folder, row := folder.row("state", "done")) == "running":
        try:
            run = open_run(folder.path) if row["done"] != shown else None
        except ArchipelError:
            if folder.row("done") == {"done": row["done"]}:
                raise
            continue  # its journal went on meanwhile
        if run is not None:
            page = to or folder.path / "report.html"
            with o.writing(page):
                write(run, page, again=_AGAIN)
            if shown < 0:
                print(f"{clean(str(page))}: open it; it follows the run.", file=sys.stderr)
            shown = row["done"]
        time.sleep(_AGAIN / 2)


def export(
    name: o.RunName = "last",
    to: Annotated[
        Path | None, typer.Option(help="A folder, or a .zip file; RUN-export here.")
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Instead, a folder to apply the model with: 'archipel predict'."),
    ] = None,
    party: Annotated[
        str | None, typer.Option(help="With --bundle: the model that this party uses.")
    ] = None,
    out: o.Out = Path("runs"),
    as_json: o.Json = False,
) -> None:
    """Write a run's model and numbers as plain files: safetensors, CSV, JSON, TOML.

    \b
    Examples:
      archipel export heart-001
      archipel export last --to heart.zip
      archipel export last --bundle heart-model
    """
    from archipel.report.export import export as write
    from archipel.runs.listing import open_run, read_run

    if bundle is None and party is not None:
        raise ArchipelError(f"--party {party}: say --bundle FOLDER as well.")
    if bundle is not None and to is not None:
        raise ArchipelError(f"--to {to}: the bundle goes to {bundle}; leave one of the two out.")
    run = (read_run if bundle is None else open_run)(name, out)
    if bundle is not None:
        _bundle(run, bundle, party, as_json)
        return
    target = to or Path(f"{run.name}-export")
    with o.writing(target):
        files = write(run, target)
    if as_json:
        o.print_json({"run": run.name, "to": str(target), "files": files})
    else:
        Console().print(escape(clean(f"{target}: {', '.join(files)}")), highlight=False)


def _bundle(run: Run, folder: Path, party: str | None, as_json: bool) -> None:
    """Write the run's model as a bundle."""
    from archipel.bundle import load_bundle, writing
    from archipel.federation import bundles

    make = bundles.of_run if run.data.about.elsewhere else writing.of_run
    with o.writing(folder):
        files = writing.write(make(run, party), folder)
    about = load_bundle(folder, trust_code=True).about  # it can be read back
    if as_json:
        told = {"run": run.name, "to": str(folder), "files": files, "model": about.model}
        o.print_json({**told, "metrics": about.metrics, "reported": about.reported})
        return
    said = f"{folder}: {about.model}; read {folder / 'card.md'}, apply it with 'archipel predict'."
    Console().print(escape(clean(said)), highlight=False, soft_wrap=True)
