# SPDX-License-Identifier: Apache-2.0
"""A forecast held against what happened, when its study has run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archipel.forecast.figure import Figure
from archipel.forecast.kept import kept
from archipel.plain import plain
from archipel.runs.run import Run
from archipel.store.folder import JOURNAL, MODEL, OWN


@dataclass(frozen=True)
class Line:
    """One figure, and what it turned out to be."""

    name: str
    figure: Figure
    actual: float

    @property
    def holds(self) -> bool:
        """Whether it is in the interval."""
        slack = 1e-9 * abs(self.actual)
        return self.figure.low - slack <= self.actual <= self.figure.high + slack


@dataclass(frozen=True)
class Check:
    """All figures of a forecast of which a run tells what became of them."""

    made: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...]  # what was otherwise than the forecast took it to be

    def to_json(self) -> dict[str, Any]:
        told = {
            line.name: {**line.figure.to_json(), "actual": line.actual, "holds": line.holds}
            for line in self.lines
        }
        made: dict[str, Any] = plain({"made": self.made, "notes": self.notes, "figures": told})
        return made


def check(run: Run) -> Check | None:
    """Compare a run that is over with what was forecast of its study; None where nothing was."""
    if run.folder is None or run.resolved_hash is None or run.done < run.rounds:
        return None
    told = kept(run.folder.parent, run.resolved_hash)
    if told is None:
        return None
    happened = dict(_happened(run))
    lines = tuple(
        Line(name, told.figures[name], value)
        for name, value in happened.items()
        if name in told.figures
    )
    notes = []
    differing = [
        f"{name} ({told.machine.get(name)})"
        for name in ("processor", "cores", "device")
        if told.machine.get(name) != run.environment.get(name)
    ]
    if differing:
        notes.append(f"it was made on another machine: {', '.join(differing)}.")
    if any(event.kind == "resumed" for event in run.events):
        notes.append("the run was resumed: rounds that were computed twice are not in its time.")
    return Check(told.made, lines, tuple(notes))


def _happened(run: Run) -> Iterator[tuple[str, float]]:
    """What a run tells, by the names of a forecast's figures."""
    card = run.scorecard
    yield "time.loop", run.seconds
    if run.memory is not None:
        yield "memory.peak", run.memory
    yield "bytes.up", run.spent.up
    yield "bytes.down", run.spent.down
    yield "gradients", run.spent.gradients
    yield "rounds.counted", sum(cohort.counted for cohort in run.participation)
    trained = [cohort.present for cohort in run.participation if cohort.counted]
    yield "parties.touched", len(np.unique(np.concatenate(trained))) if trained else 0
    if (told := run.simulated) is not None:
        yield "simulated.time", told["seconds"]
    if card.privacy.promise is not None:
        yield "privacy.epsilon", card.privacy.promise.epsilon
    yield "disk.total", _disk(run.folder)


def _disk(folder: Path | None) -> int:
    """Bytes of a run's journal, model and checkpoint."""
    assert folder is not None
    names = (f"{JOURNAL}*", MODEL, "checkpoint-*", f"{OWN}/*")
    return sum(path.stat().st_size for name in names for path in folder.glob(name))
