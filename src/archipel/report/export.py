# SPDX-License-Identifier: Apache-2.0
"""A run as plain files that other programs read: safetensors, CSV, JSON, TOML."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from archipel.errors import ArchipelError
from archipel.measures import SITES
from archipel.report.tables import text_cell
from archipel.runs.history import absent
from archipel.runs.some import OfSome
from archipel.store.files import write

if TYPE_CHECKING:
    from archipel.runs.run import Run


def export(run: Run, target: Path) -> list[str]:
    """Write into a new folder, or one .zip file; return the names of the files."""
    if target.exists():
        raise ArchipelError(f"--to {target}: is there already; name another, or remove it.")
    files = contents(run)
    if target.suffix == ".zip":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in files.items():
                file.writestr(name, content)
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, archive.getvalue())
    else:
        target.mkdir(parents=True)
        for name, content in files.items():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            write(target / name, content)
    return list(files)


def contents(run: Run) -> dict[str, bytes]:
    """The files by name."""
    files: dict[str, bytes] = {}
    if run.history:
        model = run.model_file
        files |= {} if model is None else {"model.safetensors": model}
    if run.study is not None:
        files |= run.study.files()
    if run.approved is not None:
        files["study.toml"] = run.approved  # byte for byte: its SHA-256 is the study's hash
    files["scorecard.json"] = json.dumps(run.scorecard.to_json(), indent=1).encode()
    files["history.csv"] = _csv(_history(run))
    files["parties.csv"] = _csv(_parties(run))
    files["participation.csv"] = _csv(_participation(run))
    if run.simulated is not None:
        files["events.csv"] = _csv(events(run))
    return files


def _history(run: Run) -> Iterable[Sequence[Any]]:
    names = sorted({name for entry in run.history for name in entry["metrics"]})
    sure = sorted({name for entry in run.history for name in entry.get("intervals", ())})
    between = run.between_sites
    who = ["over", "sites", "absent"] if between else []
    costs = ["sampled", "missing", "bytes_up", "bytes_down", "gradients", "seconds"]
    ends = [f"{name}_{end}" for name in sure for end in ("low", "high")]  # of 95 % intervals
    timed = ["simulated_seconds", "joules_low", "joules_high"] if run.simulated else []
    attacked = ["attack_success"] if any("attack_success" in e for e in run.history) else []
    yield ["round", *names, *ends, *who, *costs, *timed, *attacked]
    for e, without in zip(run.history, absent(run.history), strict=True):
        yield [
            e["round"],
            *(e["metrics"].get(name) for name in names),
            *(end for name in sure for end in e["intervals"].get(name, (None, None))),
            *([e.get("over", SITES), len(e.get("sites", ())), "; ".join(without)] * between),
            e["sampled"],
            e["missing"],
            e["bytes"]["up"],
            e["bytes"]["down"],
            e["gradients"],
            e["seconds"],
            *(_simulated(e["simulated"]) if timed else ()),
            *(e.get(name) for name in attacked),
        ]


def _simulated(told: Mapping[str, Any]) -> list[float]:
    return [told["seconds"], told["energy"]["low"], told["energy"]["high"]]


def _parties(run: Run) -> Iterable[Sequence[Any]]:
    data, names = run.data, sorted(run.parties)
    columns = [run.parties[name] for name in names]
    who = np.flatnonzero(np.asarray(data.stands))
    if isinstance(run.parties, OfSome):  # the others have no row
        who = run.parties.who
    told = ["told"] if run.between_sites else []
    yield ["party", "trains", "training_points", "test_points", *told, *names]
    for k in who.tolist():
        values = [float(column[k]) for column in columns]
        points = run.points(k)  # None, an empty cell, where a site does not tell
        said = [points.told] if run.between_sites else []
        yield [data.name(k), k < data.training, points.training, points.test, *said, *values]


def _participation(run: Run) -> Iterable[Sequence[Any]]:
    late = any(cohort.stale for cohort in run.participation)
    yield ["round", "party", "answered", "cause", "counted", *(["stale"] if late else [])]
    for t, cohort in enumerate(run.participation, 1):
        for k in cohort.sampled.tolist():
            cause = str(cohort.missing.get(k, ""))
            stale = [cohort.stale.get(k, 0)] if late else []
            yield [t, run.data.name(k), not cause, cause, cohort.counted, *stale]


def events(run: Run) -> Iterable[Sequence[Any]]:
    """What happened when, by the simulated clock; of each party where a round asks few."""
    yield ["round", "second", "event", "party", "bytes", "joules_low", "joules_high"]
    for t, cohort in enumerate(run.participation, 1):
        timing = cohort.timing
        if timing is None:
            continue
        yield [t, timing.start, "selection", "", "", "", ""]
        rows: list[list[Any]] = []
        down, up = timing.bytes
        for told in timing.told:
            name, at = run.data.name(told.party), timing.start
            ends = [at + sum(told.seconds[: part + 2]) for part in range(3)]
            if told.party in cohort.missing:
                why = str(cohort.missing[told.party])
                rows.append([t, ends[-1], why, name, "", sum(told.low), sum(told.high)])
                continue
            parts = zip(ends, ("download", "training", "upload"), (down, 0, up), strict=True)
            for (end, what, sent), low, high in zip(parts, told.low, told.high, strict=True):
                rows.append([t, end, what, name, sent, low, high])
        yield from sorted(rows, key=lambda row: row[1])
        yield [t, timing.end, "aggregation", "", "", "", ""]


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [text_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return text.getvalue().encode()
