# SPDX-License-Identifier: Apache-2.0
"""Runs on the disk: list them, open one, go on with one. Only the latter two wait for torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from archipel.errors import ArchipelError
from archipel.store.folder import Folder, runs_in

if TYPE_CHECKING:
    from archipel.data.federation import Federation
    from archipel.runs.run import Run
    from archipel.runs.simulation import Watch, Where
    from archipel.study.file import Study


_SHOWN = ("done", "rounds", "started", "seconds", "summary")


class Listed(NamedTuple):
    """One line of a list of runs."""

    name: str
    state: str  # running, done, stopped, failed, interrupted (killed: resume it) or broken
    done: int
    rounds: int
    started: str
    seconds: float
    summary: dict[str, Any]  # algorithm, data, parties, seed, metric, value; empty if broken


def list_runs(out: str | Path = "runs") -> list[Listed]:
    """The runs in a folder, the newest first."""
    listed = []
    for path in runs_in(Path(out)):
        folder = Folder(path)
        try:
            row = folder.row("state", *_SHOWN)
        except ArchipelError:
            listed.append(Listed(str(path.relative_to(out)), "broken", 0, 0, "", 0.0, {}))
            continue
        listed.append(
            Listed(
                str(path.relative_to(out)),
                state_of(folder, row),
                *(row[name] for name in _SHOWN),
            )
        )
    return sorted(listed, key=lambda each: (each.started, each.name), reverse=True)


def state_of(folder: Folder, row: dict[str, Any]) -> str:
    """The state that is true: one that says "running" without a process was interrupted."""
    if row["state"] == "running" and not folder.at_work:
        return "interrupted"
    return str(row["state"])


def open_run(name: str | Path, out: str | Path = "runs") -> Run:
    """Return a run as its folder tells it: by path, name, part of its name, or "last"."""

    folder = Folder.find(str(name), Path(out))
    description = folder.journal.row()["description"]
    if "facts" in description:
        run = _of_sites(folder)
    else:
        run = _of_study(folder)
    run.state = state_of(folder, folder.journal.row())
    return run


def read_run(name: str | Path, out: str | Path = "runs") -> Run:
    """Return a run to tell of; one that is over without its vector, model and an engine.

    Data that is where it was is read, for a report draws it; without it nothing waits for torch.
    """
    from archipel.runs import past

    folder = Folder.find(str(name), Path(out))
    found = past.read(folder, lambda: _data_of(folder))
    return open_run(name, out) if found is None else found


def _data_of(folder: Folder) -> Federation | None:
    """The data of a run where it is as it was."""
    if not _has_data(folder):
        return None
    try:
        return study_of(folder).federation()
    except ArchipelError:
        return None


def _has_data(folder: Folder) -> bool:
    """Whether the data of a run is where it was, as it was.

    That of sites never is, nor what was made in Python.
    """
    row = folder.row("description", "environment")
    if "study" not in row["description"]:
        return False
    prints = row["description"]["study"].get("sources", {})
    base = Path(row["environment"]["folder"])
    files = {base / name: hashed for name, hashed in prints.items() if not name.endswith(".py")}
    return all(path.is_file() and _print(path) == hashed for path, hashed in files.items())


def _print(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _of_study(folder: Folder) -> Run:
    """A run of a study; without its data, where that changed or is gone, as the folder tells it."""
    from archipel.runs.simulation import recall

    try:
        study = study_of(folder)
        parts = study.parts()
    except ArchipelError:
        row = folder.journal.row()
        outline = row["description"].get("outline")
        if "study" not in row["description"] or outline is None:
            raise
        study = _recorded(folder)
        told = row["description"].get("record", {})
        fed = _outlined(folder, outline, told)
        built = study
        if (
            weights := told.get("class_weights")
        ) is not None:  # balanced over targets that are gone
            built = study.with_set({"model.class_weights": weights})
        parts = study.algorithm_object, fed, built.build_model(fed)
    return recall(folder, *parts, study, **study.options())


def _recorded(folder: Folder) -> Study:
    """The study of a run with the code it began with, whatever became of its data."""
    from archipel.study.file import Study

    row = folder.journal.row()
    tables = dict(row["description"]["study"])
    prints = tables.pop("sources", {})
    places = [folder.path / "code", Path(row["environment"]["folder"])]
    code = [name for name in prints if name.endswith(".py")]
    for place in places:
        files = [place / name for name in code]
        found = [sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
        if found == [prints[name] for name in code]:
            return Study.recorded(tables, place, prints)
    raise ArchipelError(
        f"run '{folder.path.name}': its code ({', '.join(code)}) is neither in {places[1]} as it "
        "was nor in the run's folder; put it back."
    )


def _outlined(folder: Folder, outline: Mapping[str, Any], told: Mapping[str, Any]) -> Federation:
    """The data of a run in numbers and shapes, without a value."""
    import torch

    from archipel.data.about import About
    from archipel.data.features import Features
    from archipel.data.shadow import Facts, shadow

    facts, roster = Facts.of_json({**outline, "n": 0, "n_test": 0}), folder.journal.roster()
    sites = {  # one without training points is none that does not tell theirs
        each["name"]: replace(facts, n=each["training_points"] or -1, n_test=each["test_points"])
        for each in roster
    }
    fed = shadow(outline["name"], sites)
    dtype, features = getattr(torch, outline["dtype"]), fed.features
    if "features" in told:
        features = Features.of_json(told["features"], fed.shape)
    return replace(
        fed,
        features=features,
        x=fed.x.to(dtype) if fed.x.is_floating_point() else fed.x,
        y=fed.y.to(dtype) if fed.y.is_floating_point() else fed.y,
        training=sum(each["trains"] for each in roster),
        about=About(outline["name"], gone=True, note="Its data changed since, or is gone."),
        scan=False,
    )


def _of_sites(folder: Folder) -> Run:
    """A run between institutions: the study's text is here, and of the data what sites told."""
    from archipel.data.shadow import Facts, shadow
    from archipel.engines.network.fitting import told_plan
    from archipel.runs.simulation import recall
    from archipel.study.file import Study

    row = folder.journal.row()
    text, facts = row["description"]["text"], Facts.of_json(row["description"]["facts"])
    study = Study.parse(text, elsewhere=True)
    least = 1 if row["version"] >= 3 else 2  # before, who did not tell had 1
    sites = {}
    for each in folder.journal.roster():
        told = each["training_points"] >= least
        n, n_test = (each["training_points"], each["test_points"]) if told else (0, 0)
        sites[each["name"]] = replace(facts, n=n, n_test=n_test)
    fed = shadow(study.name, sites)
    parts, options = (study.algorithm_object, fed, study.build_model(fed)), study.policy()
    if (promise := study.promise) is not None:  # its plan is found below, as sites have it
        options["privacy"] = replace(promise, epsilon=None, noise=1.0, delta=1e-15)
    run = recall(folder, *parts, study, elsewhere=True, **options)
    if promise is not None:
        about = study.study
        how: Any = {"seed": about.seed, "rounds": about.rounds, "wire": options.get("wire")}
        how |= {"separation": study.round.separation or 1}
        run.promise, run.kept = promise, told_plan(promise, *parts, **how)
    run.approved = text.encode()
    return run


def resume(
    name: str | Path = "last",
    out: str | Path = "runs",
    *,
    watch: Watch | None = None,
    checkpoint_seconds: float = 1.0,
    **where: Unpack[Where],
) -> Run:
    """Go on with a run to its end; one that is done is returned as it is.

    It is computed where it began, unless `engine` and what goes with it say another place.
    """
    folder = Folder.find(str(name), Path(out))
    if "facts" in folder.journal.row()["description"]:
        raise ArchipelError(
            f"run '{folder.path.name}' is one between institutions: 'archipel coordinator start' "
            "goes on with it."
        )
    try:
        study = study_of(folder, to_go_on=True)
    except ArchipelError:
        if folder.journal.row()["state"] == "done":
            return open_run(name, out)
        raise
    row = folder.journal.row()
    return study.run_in(
        folder.path,
        row["description"]["baselines"],
        watch=watch,
        checkpoint_seconds=checkpoint_seconds,
        device=row["environment"].get("device", "cpu"),  # another gives other last bits
        **elsewhere(row["environment"], where),
    )


def elsewhere(environment: Mapping[str, str], where: Where) -> Where:
    """Where to go on: as it began, but for what is said now."""
    from archipel.runs.recording import engine_of

    began: Where = engine_of(environment)  # type: ignore[assignment]
    if where.get("engine", began.get("engine", "local")) != began.get("engine", "local"):
        return where
    return {**began, **where}


def study_of(folder: Folder, to_go_on: bool = False) -> Study:
    """The study that a run follows, with the code it began with.

    Where a file of the user's own is gone or has changed since, the copy in the run's folder is
    read; to go on, a change is refused.
    """
    from archipel.study.file import Study

    row = folder.journal.row()
    tables = row["description"].get("study")
    if tables is None:
        raise ArchipelError(
            f"run '{folder.path.name}' was made from objects in Python: call ar.simulate with the "
            f"same ones and out='{folder.path}' to open it or to go on."
        )
    sources = tables.get("sources", {})
    tables = {name: table for name, table in tables.items() if name != "sources"}
    base, copies = Path(row["environment"]["folder"]), folder.path / "code"
    gone = [name for name in sources if not (base / name).is_file()]
    changed, why = list[str](), ""
    for place in [copies] if to_go_on and gone and copies.is_dir() else [base, copies]:
        try:
            study = Study.parse(tables, place)
            if study.hash == row["hash"]:
                return study
            found = study.resolved().get("sources", {})
            names = [name for name in {**sources, **found} if found.get(name) != sources.get(name)]
            changed = changed or names
        except ArchipelError as error:
            why = why or str(error)
        if to_go_on:
            break
    run, kept = f"run '{folder.path.name}'", [n for n in sources if (copies / n).is_file()]
    copy = f" ({copies} has a copy)" if set(kept) & {*gone, *changed} else ""
    if gone:
        verb = "is" if len(gone) == 1 else "are"
        raise ArchipelError(
            f"{run}: {', '.join(gone)} {verb} no longer in {base}; put back what was there{copy}, "
            "or start a new run."
        )
    if changed:
        raise ArchipelError(
            f"{run}: {', '.join(changed)} changed since it began; put back what it was{copy}, or "
            "start a new run."
        )
    raise ArchipelError(f"{run} does not open: {why or 'its study reads otherwise now.'}")
