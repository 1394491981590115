# SPDX-License-Identifier: Apache-2.0
"""`archipel plan`: what a study will take, from a few measured rounds; and whether it held."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from archipel.cli import options as o
from archipel.cli.compare import progress
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from archipel.forecast.cluster import Cluster
    from archipel.forecast.forecast import Forecast
    from archipel.runs.simulation import Options
    from archipel.study.file import Study

What = Annotated[
    str,
    typer.Argument(
        metavar="STUDY.toml|ALGORITHM|RUN",
        help="A study file, an algorithm's name, or a run that is over: was its forecast right?",
        autocompletion=o.complete_algorithm,
        show_default=False,
    ),
]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds", min=0, help="How long rounds are measured: at least four of them, or two."
    ),
]
Nodes = Annotated[int | None, typer.Option(min=1, help="Of a cluster: machines.")]
Cores = Annotated[int | None, typer.Option(min=1, help="Of each of them.")]
Memory = Annotated[str | None, typer.Option(help='Of each of them, "64GB".')]
Bandwidth = Annotated[str | None, typer.Option(help='Of each one\'s link, "10Gbit".')]
ClusterFile = Annotated[
    Path | None, typer.Option("--cluster", help="The same four in a file, CLUSTER.toml.")
]
Budget = Annotated[
    float | None, typer.Option(min=0, help="Epsilon that is left: warn where it does not last.")
]
Sites = Annotated[
    int, typer.Option(min=2, help="Of a study between institutions, whose data is at sites.")
]


def plan(
    what: What,
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
    sets: o.Set = None,
    out: o.Out = Path("runs"),
    workers: o.Workers = None,
    device: o.Device = "cpu",
    baselines: o.Baselines = True,
    seconds: Seconds = 10.0,
    nodes: Nodes = None,
    cores: Cores = None,
    memory: Memory = None,
    bandwidth: Bandwidth = None,
    cluster: ClusterFile = None,
    budget: Budget = None,
    sites: Sites = 4,
    as_json: o.Json = False,
) -> None:
    """Tell what a study will take: time, memory, bytes, energy.

    \b
    Its first rounds are done for real, for some seconds, and forgotten; who takes part in all the
    others is drawn. The forecast is kept beside the runs: once the study has run, its report and
    'archipel plan RUN' hold it against what happened.

    \b
    Examples:
      archipel plan heart.toml
      archipel plan heart.toml --nodes 4 --cores 16 --memory 64GB --bandwidth 10Gbit
      archipel plan heart-001
    """
    if _is_run(what, out):
        _check(what, out, as_json)
        return
    where = o.where(engine, ray_address, ray_cpus, ray_gpus)
    described = _cluster(cluster, nodes, cores, memory, bandwidth)
    elsewhere = _between_sites(what, sets, rounds, sample, seed)
    if elsewhere is not None:
        _tell(_of_sites(elsewhere, sites), None, as_json)
        return
    study = o.study_of_flags(
        what, data=data, partition=partition, parties=parties, model=model, rounds=rounds,
        sample=sample, seed=seed, sets=sets,
    )  # fmt: skip
    from archipel.forecast.kept import keep
    from archipel.forecast.making import make
    from archipel.runs.processes import age

    study.refuse_asynchronous()
    options: Options = {**study.options(), **where}
    options["device"] = device
    if workers is not None:
        options["workers"] = workers
    with progress("stopped: nothing was forecast.") as watch:
        began = time.perf_counter()
        parts = study.parts()
        loaded = age() or time.perf_counter() - began  # with imports
        made = make(
            study, parts, options, watch, seconds=seconds, baselines=baselines, loaded=loaded,
            out=out, cluster=described, budget=budget,
        )  # fmt: skip
    _tell(made, keep(made, out), as_json)


def _is_run(what: str, out: Path) -> bool:
    """Whether a run is meant: a folder of one, its name, or the last."""
    from archipel.store.folder import Folder

    if what.endswith(".toml"):
        return False
    return what == "last" or Folder.exists(Path(what)) or (bool(what) and Folder.exists(out / what))


def _cluster(
    file: Path | None,
    nodes: int | None,
    cores: int | None,
    memory: str | None,
    bandwidth: str | None,
) -> Cluster | None:
    from archipel.forecast.cluster import Cluster

    given = {"nodes": nodes, "cores": cores, "memory": memory, "bandwidth": bandwidth}
    flags = [f"--{name}" for name, value in given.items() if value is not None]
    if file is not None:
        if flags:
            raise ArchipelError(f"--cluster {file}: {flags[0]} says the same; leave one out.")
        return Cluster.read(file)
    if not flags:
        return None
    if nodes is None or cores is None:
        lacks = "--nodes" if nodes is None else "--cores"
        raise ArchipelError(f"{flags[0]}: a cluster has nodes and cores; add {lacks}.")
    return Cluster.of(nodes, cores, memory, bandwidth)


def _between_sites(
    what: str, sets: list[str] | None, rounds: int | None, sample: str | None, seed: int | None
) -> Study | None:
    """The study of a file that describes tables which are elsewhere; None for others."""
    if not what.endswith(".toml") or not Path(what).is_file():
        return None
    from archipel.comparison.design import value_of
    from archipel.study.file import Study, changed
    from archipel.study.reading import read_tables

    flags = {"study.rounds": rounds, "study.seed": seed}
    flags |= {"round.sample": None if sample is None else value_of(sample)}
    changes = {name: value for name, value in flags.items() if value is not None}
    changes |= o.changes_of(sets)
    try:
        tables = changed(read_tables(Path(what).read_bytes().decode()), changes)
    except (OSError, UnicodeDecodeError, ArchipelError):
        return None  # which is said when it is read
    data = tables.get("data", {})
    if not isinstance(data, dict) or "schema" not in data or {"file", "folder", "name"} & {*data}:
        return None
    return Study.parse(tables, Path(what).resolve().parent, elsewhere=True)


def _of_sites(study: Study, sites: int) -> Forecast:
    from archipel.forecast.making import make_between_sites
    from archipel.study.checks import schema_of

    kind, _, edges = (study.topology.name or "").partition(":")
    if kind == "edges" and re.search(r"[^\d\s,*.-]", edges):
        raise ArchipelError(
            f'topology.name = "edges:{edges[:60]}": a forecast does not know the sites\' names; '
            "give it numbers, --set topology.name=edges:0-1,1-2."
        )
    empty = schema_of(study.data).empty()
    model = study.build_model(empty)
    return make_between_sites(study, study.algorithm_object, empty, model, study.policy(), sites)


def _tell(made: Forecast, kept: Path | None, as_json: bool) -> None:
    from archipel.forecast.words import table

    if as_json:
        o.print_json({**made.to_json(), "kept": None if kept is None else str(kept)})
        return
    console = Console()
    console.print(table(made))
    for text in made.assumptions:
        console.print(f"Assumed: {escape(text)}.", highlight=False, soft_wrap=True)
    for said in made.warnings:
        Console(stderr=True).print(
            f"[bold yellow]Warning:[/] {escape(said)}", highlight=False, soft_wrap=True
        )


def _check(name: str, out: Path, as_json: bool) -> None:
    from archipel.forecast.words import checked
    from archipel.runs.listing import read_run

    run = read_run(name, out)
    if run.done < run.rounds:
        raise ArchipelError(
            f"run '{run.name}' has done {run.done} of {run.rounds} rounds: go on with 'archipel "
            "resume', and check its forecast then."
        )
    found = run.forecast
    if found is None:
        raise ArchipelError(
            f"run '{run.name}': nothing was forecast of its study; 'archipel plan STUDY.toml' does "
            "so before a run."
        )
    if as_json:
        o.print_json({"run": run.name, **found.to_json()})
        return
    console = Console()
    console.print(checked(found))
    for note in found.notes:
        console.print(f"Note: {escape(note)}", highlight=False, soft_wrap=True)
