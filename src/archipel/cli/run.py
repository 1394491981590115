# SPDX-License-Identifier: Apache-2.0
"""`archipel run` and `archipel resume`: one study, recorded, with a live picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from archipel.cli import options as o
from archipel.cli.watching import watching

if TYPE_CHECKING:
    from archipel.runs.run import Run


def run(
    what: o.What,
    data: o.Data = None,
    partition: o.Partition = None,
    parties: o.Parties = None,
    model: o.ModelName = None,
    rounds: o.Rounds = None,
    sample: o.Sample = None,
    seed: o.Seed = None,
    engine: o.Engine = None,
    ray_address: o.RayAddress = None,
    ray_cpus: o.RayCpus = None,
    ray_gpus: o.RayGpus = None,
    name: o.Name = None,
    sets: o.Set = None,
    out: o.Out = Path("runs"),
    workers: o.Workers = None,
    device: o.Device = "cpu",
    baselines: o.Baselines = True,
    resume: o.Resume = False,
    as_json: o.Json = False,
) -> None:
    """Run a study and record it.

    \b
    Examples:
      archipel run heart.toml
      archipel run scaffold --data heart_disease --rounds 40 --set algorithm.lr=0.03
      archipel run mine.py --data mnist --partition shards:2 --parties 100 --sample 0.1
      archipel run heart.toml --engine ray --ray-address auto
    """
    where = o.where(engine, ray_address, ray_cpus, ray_gpus)
    study = o.study_of_flags(
        what,
        data=data,
        partition=partition,
        parties=parties,
        model=model,
        rounds=rounds,
        sample=sample,
        seed=seed,
        name=name,
        sets=sets,
    )
    with watching() as watch:
        done = study.run(
            out,
            resume=resume,
            baselines=baselines,
            watch=watch,
            workers=workers,
            device=device,
            **where,
        )
    tell(done, out, as_json)


def resume(
    name: o.RunName = "last",
    out: o.Out = Path("runs"),
    engine: o.Engine = None,
    ray_address: o.RayAddress = None,
    as_json: o.Json = False,
) -> None:
    """Go on with a run, or a comparison, that was stopped or killed.

    \b
    Examples:
      archipel resume
      archipel resume heart-001
    """
    from archipel.cli.compare import progress
    from archipel.cli.compare import tell as tell_comparison
    from archipel.comparison import find_comparison, resume_comparison
    from archipel.runs.listing import resume as go_on

    where = o.where(engine, ray_address)
    compared = find_comparison(name, out)
    if compared is not None:
        with progress() as line:
            found = resume_comparison(compared, line, **where)
        tell_comparison(found, None, as_json)
        return
    with watching() as watch:
        done = go_on(name, out, watch=watch, **where)
    tell(done, out, as_json)


def tell(run: Run, out: Path, as_json: bool) -> None:
    """Print what came of a run; exit with 130 if it was stopped."""
    assert run.folder is not None
    where = "" if out == Path("runs") else escape(f" --out {out}")
    if as_json:
        o.print_json(run.to_json())
    else:
        console = Console()
        console.print(run.scorecard.table())
        place = run.folder if not run.folder.is_relative_to(Path.cwd()) else (
            run.folder.relative_to(Path.cwd())
        )  # fmt: skip
        console.print(
            f"{escape(str(place))} keeps the journal, the model and the study.\n"
            f"  archipel report {escape(run.name)}{where}    one page to send to a colleague",
            highlight=False,
            soft_wrap=True,
        )
        if (check := run.forecast) is not None:
            from archipel.forecast.words import in_a_line

            console.print(escape(in_a_line(check)), highlight=False, soft_wrap=True)
    if run.record.attacked:
        Console(stderr=True).print(
            f"[bold red]Attacked:[/] {escape(run.record.attacked)}", highlight=False, soft_wrap=True
        )
    for said in run.warnings:
        Console(stderr=True).print(
            f"[bold yellow]Warning:[/] {escape(said)}", highlight=False, soft_wrap=True
        )
    if run.state == "stopped":
        Console(stderr=True).print(
            f"Stopped after round {run.done} of {run.rounds}; go on with: "
            f"archipel resume {escape(run.name)}{where}",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130)
