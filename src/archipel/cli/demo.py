# SPDX-License-Identifier: Apache-2.0
"""`archipel demo`: four real hospitals learn together, and what each gained."""

from __future__ import annotations

import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from archipel.cli import options as o
from archipel.cli.watching import watching
from archipel.errors import RunFailed

if TYPE_CHECKING:
    from archipel.demo import Gain
    from archipel.runs.run import Run

_DIES_AFTER = 17  # rounds


def demo(
    splits: Annotated[
        int, typer.Option(min=1, help="Random splits of the patients to average over.")
    ] = 5,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the run in the middle, resume, and compare.")
    ] = False,
    pace: Annotated[
        float, typer.Option(min=0, help="Seconds a round is shown for in a terminal.")
    ] = 0.15,
    plot: Annotated[Path | None, typer.Option(help="Also draw the table to this file.")] = None,
    out: o.Out = Path("runs"),
    as_json: o.Json = False,
) -> None:
    """Train on the heart-disease data of four hospitals: each alone, together, and pooled.

    \b
    Examples:
      archipel demo
      archipel demo --kill
    """
    from archipel.demo import Paced, measure, study
    from archipel.runs.listing import resume
    from archipel.store.folder import reserve

    err = Console(stderr=True)
    path = reserve(out, "demo")
    try:
        if kill:
            _kill(path, err)
        with watching() as view:
            watch = Paced(view, pace if err.is_terminal else 0.0, time.sleep)
            run = resume(path, watch=watch) if kill else study().run_in(path, watch=watch)
    finally:
        if not any(path.iterdir()):
            path.rmdir()
    if run.state == "stopped":
        raise KeyboardInterrupt
    same = _compare(run, err) if kill else None
    with err.status(f"{splits} splits of the patients") if err.is_terminal else nullcontext():
        gain = measure(run, splits)
    if plot is not None:
        with o.writing(plot):
            draw(gain, plot)
    report = run.report()
    if as_json:
        document = {**gain.to_json(), "report": str(report), "identical_after_kill": same}
        o.print_json({**document, "run": run.to_json()})
    else:
        show(gain)
        _next_steps(run, report)


def _kill(path: Path, err: Console) -> None:
    """Have a process of its own run the study and kill itself, as a power cut would."""
    from archipel.demo import command_to_die
    from archipel.store.folder import Folder

    ended = subprocess.run(command_to_die(path, _DIES_AFTER), capture_output=True, text=True)
    if ended.returncode != -9:
        raise RunFailed(f"the run to be killed ended by itself: {ended.stderr.strip()[-500:]}")
    kept = Folder.open(path).journal.row()["done"]
    err.print(f"Killed with signal 9; the journal knows {kept} rounds. Going on.", highlight=False)


def _compare(run: Run, err: Console) -> bool:
    """Run the same study without the kill, and look for a difference."""
    from archipel.demo import study
    from archipel.runs.simulation import simulate

    options = study().options()
    options["plan"] = run.plan
    whole = simulate(*study().parts(), **options)
    same = bool((whole.vector == run.vector).all()) and [
        {**entry, "seconds": 0} for entry in whole.history
    ] == [{**entry, "seconds": 0} for entry in run.history]
    if not same:
        raise RunFailed("the resumed run differs from one that was never killed: a defect.")
    err.print("The resumed run equals one that was never killed, bit for bit.", highlight=False)
    return same


def draw(gain: Gain, path: Path) -> None:
    """Draw what each hospital gains on its own patients, and the levels on everybody's."""
    from archipel.report.plots import alone_and_together

    alone_and_together(
        [f"{name} ({n})" for name, n in zip(gain.names, gain.patients, strict=True)],
        gain.alone_own.nanmean(dim=0).tolist(),
        gain.together_own.nanmean(dim=0).tolist(),
        {
            "all patients, a hospital alone": float(gain.alone.mean()),
            "all patients, together": float(gain.together.mean()),
            "all patients, data pooled": float(gain.pooled.mean()),
        },
        "AUC on the hospital's own test patients",
        path,
    )


def show(gain: Gain) -> None:
    """Print the table and what was gained."""
    console = Console()
    table = Table(title="Heart disease, four hospitals: area under the ROC curve (AUC)")
    table.add_column("Hospital")
    for heading in ("Patients", "Alone,\nown patients", "Together,\nown patients"):
        table.add_column(heading, justify="right")
    table.add_column("Alone,\nall patients", justify="right")
    alone, own = gain.alone.mean(dim=0), gain.alone_own.nanmean(dim=0)
    together_own = gain.together_own.nanmean(dim=0)
    for k, name in enumerate(gain.names):
        better = "[green]" if together_own[k] > own[k] else ""
        table.add_row(
            escape(name),
            str(gain.patients[k]),
            f"{own[k]:.3f}",
            f"{better}{together_own[k]:.3f}",
            f"{alone[k]:.3f}",
        )
    console.print(table)
    mean, together, pooled = (float(v.mean()) for v in (gain.alone, gain.together, gain.pooled))
    splits = "one split" if len(gain.together) == 1 else f"mean of {len(gain.together)} splits"
    console.print(
        f"Tested on the patients of all four hospitals, {splits}:\n"
        f"  a hospital alone  {mean:.3f}\n"
        f"  [bold]together          {together:.3f}[/bold]  "
        f"{100 * (together - mean):+.1f} points; no record left its hospital\n"
        f"  data pooled       {pooled:.3f}  {100 * (pooled - together):+.1f} points more, "
        "had all records been copied to one place",
        soft_wrap=True,
    )


def _next_steps(run: Run, report: Path) -> None:
    away = sorted({run.data.name(k) for cohort in run.participation for k in cohort.missing})
    rounds = sum(bool(cohort.missing) for cohort in run.participation)
    assert run.study is not None
    lines = [
        f"{', '.join(away)} was away for {rounds} rounds and came back; the study went on.",
        "",
        f"  {report}    open it in a browser",
        "  archipel demo --kill    kill the run in the middle; it goes on where it was",
        "  archipel new mine       a study file of your own: archipel run mine.toml",
        "  archipel compare fedavg scaffold --data heart_disease --seeds 3",
    ]
    Console().print(escape("\n".join(lines)), highlight=False, soft_wrap=True)
