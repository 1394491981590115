# SPDX-License-Identifier: Apache-2.0
"""`archipel compare`: algorithms over seeds on the same splits, in one table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from archipel.cli import options as o
from archipel.cli.watching import Stoppable, stoppable
from archipel.errors import unknown

if TYPE_CHECKING:
    from archipel.comparison import Comparison
    from archipel.runs.run import Run
    from archipel.study.file import Study

Algorithms = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ALGORITHM...",
        help="Names, names with settings (fedprox:mu=0.1), Python files, or study files.",
        autocompletion=o.complete_algorithm,
        show_default=False,
    ),
]
StudyFile = Annotated[
    Path | None, typer.Option("--study", help="A study file that all algorithms start from.")
]
First = Annotated[int | None, typer.Option("--seed", min=0, help="The first seed; 0.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, one after the other.")]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="[ALGORITHM.]FIELD=VALUE,...",
        help="Choose a setting on validation points, for all algorithms or for one; "
        "of wire.up, wire.down, round.rule or wire.sum, every value is a row.",
    ),
]
Name = Annotated[str | None, typer.Option(help="Names the comparison's folder.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the last comparison like this one, if any.")
]
Format = Annotated[
    str | None, typer.Option("--format", help="Print the table as md, csv or latex instead.")
]


def compare(
    algorithms: Algorithms = None,
    study: StudyFile = None,
    data: o.Data = None,
    partition: o.Partition = None,
    parties: o.Parties = None,
    model: o.ModelName = None,
    rounds: o.Rounds = None,
    sample: o.Sample = None,
    seed: First = None,
    seeds: Seeds = 3,
    grid: Grid = None,
    engine: o.Engine = None,
    ray_address: o.RayAddress = None,
    name: Name = None,
    sets: o.Set = None,
    out: o.Out = Path("runs"),
    workers: o.Workers = None,
    baselines: o.Baselines = True,
    resume: Resume = False,
    form: Format = None,
    as_json: o.Json = False,
) -> None:
    """Compare algorithms over seeds on the same splits, with every party alone and data pooled.

    \b
    Examples:
      archipel compare fedavg scaffold fedprox:mu=0.1 --data heart_disease --rounds 40
      archipel compare fedavg mine.py --data mnist --partition shards:2 --sample 0.1
      archipel compare fedavg scaffold --data heart_disease --grid lr=0.01,0.03,0.1 --format md
      archipel compare fedavg ditto --data femnist --grid lr=0.03,0.1 --grid ditto.lam=0.1,1
      archipel compare fedavg --data mnist --grid 'wire.up=[],["float16"],["rotate","quantise:4"]'
      archipel compare fedavg --data mnist --set privacy.unit=record --grid privacy.epsilon=1,4
    """
    where = o.where(engine, ray_address)
    if form is not None and form not in ("md", "csv", "latex"):
        raise unknown("format", form, ("md", "csv", "latex"))
    from archipel.comparison import compare as run_all
    from archipel.comparison import read_grid
    from archipel.comparison.design import value_of

    tried = read_grid(grid or [])
    given = {each.partition("=")[0].strip() for each in sets or []}
    budgets = [name for name in tried if name.startswith("privacy.") and name not in given]
    sets = [*(sets or []), *(f"{name}={tried[name][0]}" for name in budgets)]
    shared = [each for each in sets if each.startswith("algorithm.")]
    flags: dict[str, Any] = {
        "data": data,
        "partition": partition,
        "parties": parties,
        "model": model,
        "rounds": rounds,
        "sample": sample,
        "seed": seed,
        "sets": [each for each in sets or [] if each not in shared],
    }
    specs: list[str | Study] = [
        o.study_of_flags(each, **{**flags, "sets": sets}) if each.endswith(".toml") else each
        for each in algorithms or []
    ]
    if not specs and study is not None:
        specs = [o.study_of_flags(str(study), **{**flags, "sets": sets})]
    names = any(isinstance(each, str) for each in specs)
    base = o.study_of_flags(None if study is None else str(study), **flags) if names else None
    fields = (each.removeprefix("algorithm.").partition("=") for each in shared)
    with progress() as watch:
        done = run_all(
            specs,
            study=base if names else None,
            algorithm={field.strip(): value_of(value) for field, _, value in fields if names},
            seeds=seeds,
            grid=tried,
            baselines=baselines,
            out=out,
            name=name,
            resume=resume,
            watch=watch,
            workers=workers,
            **where,
        )
    tell(done, form, as_json)


def tell(done: Comparison, form: str | None, as_json: bool) -> None:
    """Print the table and where it is kept; exit with 1 if a run failed."""
    if as_json:
        o.print_json(done.to_json())
    elif form is not None:
        typer.echo(done.table(form), nl=False)
    else:
        console = Console()
        console.print(done)
        if done.folder is not None:
            here = Path.cwd()
            inside = done.folder.is_relative_to(here)
            place = done.folder.relative_to(here) if inside else done.folder
            console.print(
                f"\n{escape(str(place))} keeps table.md, .csv and .tex, plot.png and .svg, "
                f"{'bytes.png and .svg, ' if done.wires else ''}"
                f"{'privacy.png and .svg, ' if done.private else ''}and every run.",
                highlight=False,
                soft_wrap=True,
            )
    if done.failed:
        raise typer.Exit(1)


class Line:
    """One line on standard error: which run, and how far it is."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._drawn, self.quiet = bar, 0.0, bar.disable
        self._task = bar.add_task("", total=None, rounds="")

    def __call__(self, run: Run) -> None:
        now = time.perf_counter()
        last = run.done == run.rounds
        if last or now - self._drawn > 0.1:
            rounds = f"{run.done} of {run.rounds} rounds"
            self._bar.update(self._task, completed=run.done, total=run.rounds, rounds=rounds)
            self._bar.refresh()
            self._drawn = now

    def say(self, text: str) -> None:
        self._bar.update(self._task, description=escape(text), completed=0, total=None, rounds="")
        self._bar.refresh()


@contextmanager
def progress(
    stopped: str = "stopped: the same command with --resume goes on.",
) -> Iterator[Stoppable]:
    """A line that goes away at the end; nothing where standard error is no terminal.

    It is drawn between rounds, by no thread: workers are forked in the meantime.
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("{task.fields[rounds]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as bar:
        try:
            with stoppable(Line(bar)) as watch:
                yield watch
        except KeyboardInterrupt:
            from archipel.comparison import Stopped

            raise Stopped(stopped) from None
