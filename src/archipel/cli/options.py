# SPDX-License-Identifier: Apache-2.0
"""Flags that several verbs share, and the study they make."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    from archipel.runs.simulation import Where
    from archipel.study.file import Study
    from archipel.study.plugins import Kind


def _names(*kinds: Kind) -> Callable[[str], list[str]]:
    """Complete a name of one of these kinds in the shell."""

    def complete(incomplete: str) -> list[str]:
        from archipel.cli import outline

        names = sorted({name for kind in kinds for name in outline.names(kind)})
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _runs(incomplete: str) -> list[str]:
    from archipel.store.folder import runs_in

    names = ["last", *(str(path.relative_to("runs")) for path in runs_in(Path("runs")))]
    return [name for name in names if name.startswith(incomplete)]


complete_algorithm = _names("algorithm")
complete_shown = _names("algorithm", "model", "step", "rule", "sum", "attack", "adversary")

What = Annotated[
    str,
    typer.Argument(
        metavar="STUDY.toml|ALGORITHM",
        help="A study file, an algorithm's name, or a Python file with one.",
        autocompletion=complete_algorithm,
        show_default=False,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's name, folder, part of its name, or 'last'.",
        autocompletion=_runs,
    ),
]  # fmt: skip
Data = Annotated[
    str | None,
    typer.Option(
        help="A dataset, a table (.csv, .csv.gz, .parquet), a folder of tables, or mine.py:load.",
        autocompletion=_names("data"),
    ),
]
Partition = Annotated[
    str | None, typer.Option(help="How to deal points out: iid, shards:2, dirichlet:0.3 ...")
]
Parties = Annotated[int | None, typer.Option(help="How many parties the data is dealt out to.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="A model, or mine.py:net.", autocompletion=_names("model")),
]
Rounds = Annotated[int | None, typer.Option(help="Rounds.")]
Sample = Annotated[str | None, typer.Option(help="Parties of a round: a rate 0..1, or a number.")]
Seed = Annotated[int | None, typer.Option(help="All randomness of a simulation.")]
Engine = Annotated[
    str | None,
    typer.Option(
        help="local: processes of this machine; ray: those of a Ray cluster; "
        "local, or where the run began.",
        show_default=False,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The Ray cluster's head, HOST:PORT, or auto; without, Ray is started here.",
    ),
]
RayCpus = Annotated[
    float | None, typer.Option(help="Processors of a Ray worker, also a part of one; 1.")
]
RayGpus = Annotated[
    float | None, typer.Option(help="Graphics cards of a Ray worker; 1 with --device cuda.")
]
Name = Annotated[str | None, typer.Option(help="Names the run's folder.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Set any field of the study."),
]
Out = Annotated[Path, typer.Option(help="The folder that holds the runs.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda or mps, as far as torch has them.")
]
Workers = Annotated[int | None, typer.Option(help="Processes; all cores.")]
Baselines = Annotated[
    bool, typer.Option(help="Also train every party alone and on pooled data, to compare with.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with this study's last run, if there is one.")
]
Sep = Annotated[
    str | None, typer.Option(help="What separates its cells, ; or tab; found out without.")
]
Decimal = Annotated[str | None, typer.Option(help="Its decimal mark, . or ,; found out without.")]
Encoding = Annotated[
    str | None, typer.Option(help="Its encoding, such as cp1252; found out without.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def study_of_flags(
    what: str | None,
    *,
    data: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    model: str | None = None,
    rounds: int | None = None,
    sample: str | None = None,
    seed: int | None = None,
    name: str | None = None,
    sets: list[str] | None = None,
) -> Study:
    """The study of a file or an algorithm's name, with what the flags say."""
    from archipel.comparison.design import value_of
    from archipel.study.file import Study, changed

    flags: dict[str, Any] = {
        "data.partition": partition,
        "data.parties": parties,
        "model.name": model,
        "study.rounds": rounds,
        "round.sample": None if sample is None else value_of(sample),
        "study.seed": seed,
        "study.name": name,
        **_data(data),
    }
    changes = {path: value for path, value in flags.items() if value is not None}
    changes |= changes_of(sets)
    if what is not None and what.endswith(".toml"):
        return Study.read_changed(what, changes)
    if what is not None and (not what or Path(what).is_dir()):
        there = ", ".join(sorted(path.name for path in Path(what or ".").glob("*.toml"))[:5])
        raise ArchipelError(
            f"'{what}': is no study file; name one{f' ({there})' * bool(there)}, or an algorithm."
        )
    given = {} if what is None else {"algorithm": {"name": what}}
    if what is not None and name is None:
        stem = Path(what.partition(":")[0]).stem
        shown = Path(data.partition(":")[0]).stem if data else ""
        changes.setdefault("study.name", f"{stem}-{shown}" if shown else stem)
    return Study.parse(changed(given, changes))


def changes_of(sets: list[str] | None) -> dict[str, Any]:
    """Fields of a study by their values, as `--set` gives them."""
    from archipel.comparison.design import value_of

    changes = {}
    for each in sets or []:
        path, equals, value = each.partition("=")
        if not equals:
            raise ArchipelError(f"--set {each}: write section.field=value, algorithm.lr=0.05.")
        changes[path.strip()] = value_of(value)
    return changes


def _data(data: str | None) -> dict[str, Any]:
    """Where data comes from: a name, a table or a folder."""
    if data is None:
        return {}
    if data.endswith((".csv", ".csv.gz", ".parquet")):
        return {"data.file": data}
    return {"data.folder": data} if data and Path(data).is_dir() else {"data.name": data}


def where(
    engine: str | None, address: str | None, cpus: float | None = None, gpus: float | None = None
) -> Where:
    """Which engine runs it, as the flags say."""
    if engine == "network":
        raise ArchipelError(
            "--engine network: a study between sites is run by 'archipel coordinator', and tried "
            "on this machine with 'archipel rehearse STUDY.toml'."
        )
    if engine not in (None, "local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    flags = {"engine": engine, "ray_address": address, "ray_cpus": cpus, "ray_gpus": gpus}
    said: Where = {name: value for name, value in flags.items() if value is not None}  # type: ignore[assignment]
    return said


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have what keeps a file from being written be one sentence."""
    try:
        yield
    except ArchipelError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ArchipelError(f"'{path}': cannot be written ({why}); name another.") from None


def print_json(document: Mapping[str, Any]) -> None:
    """Print one strict JSON document: NaN and infinity become null."""
    from archipel.plain import plain

    json.dump(plain(document), sys.stdout, allow_nan=False)
    print()
