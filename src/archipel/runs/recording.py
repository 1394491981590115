# SPDX-License-Identifier: Apache-2.0
"""Writes a run into its folder while it goes on, and reads it back.

A checkpoint is written to the side first; the journal's transaction then names it and holds all
that happened up to it. Whatever moment a process is killed at, the journal and the checkpoint it
names agree, and the rounds after it are computed again, to the same bits.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.data.federation import Federation
from archipel.engines.engine import Cause, Evaluation
from archipel.engines.local.pool import cores
from archipel.engines.plan import Plan
from archipel.errors import BelowQuorum
from archipel.rng import Ints
from archipel.runs import past, processes
from archipel.runs.participation import Cohort
from archipel.runs.past import MAKING
from archipel.runs.run import Description, Run, Spent
from archipel.runs.some import WHO, OfSome
from archipel.store.files import now
from archipel.store.folder import Folder
from archipel.store.journal import ROSTER_COLUMNS as ROSTER
from archipel.store.journal import TEST, TRAINING

State = Callable[[], Mapping[str, Tensor]]

_LOOK = 5.0  # seconds between two looks at the memory in use
ENGINE = ("engine", "ray_address", "ray_cpus", "ray_gpus")  # options: where it is computed
_MANY = 2000  # parties; with more, their metrics of earlier rounds are not kept
_CROWD = 50_000  # parties; with more, the roster has columns in place of rows
SHARE = 20  # a checkpoint costs at most one part in so many of a run's time


def environment(
    study: Description | None, device: str = "cpu", options: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """What the numbers may depend on besides the study, and where its paths begin."""
    ray = {name: str(value) for name, value in (options or {}).items() if name in ENGINE}
    return {
        "folder": str(Path.cwd() if study is None else study.base),
        "archipel": version("archipel"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": str(cores()),
        "device": device,
        **ray,
    }


def engine_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """The options that say where a run was computed, as its environment has them."""
    found = {name: environment[name] for name in ENGINE if name in environment}
    return {
        name: float(value) if name in ("ray_cpus", "ray_gpus") else value
        for name, value in found.items()
    }


def create(
    path: Path,
    run: Run,
    row: Mapping[str, Any],
    files: Mapping[str, bytes],
    database: str | None = None,
) -> Folder:
    """Make the folder of a run that is about to begin, its journal there or in a database."""
    row = {
        **row,
        "description": {**row["description"], "record": run.record.to_json()},
        "plan": asdict(run.plan),
        "environment": run.environment,
        "rounds": run.rounds,
        "summary": _summary(run),
    }
    return Folder.create(path, row, _roster(run.data), files, database, _crowd(run.data))


def _roster(data: Federation, first: int = 0) -> Iterator[dict[str, Any]]:
    """What the journal says of the parties one by one, from the first of these on.

    Of a crowd without names it has columns in place of rows (`_crowd`).
    """
    if is_crowd(data):
        return
    sizes: Iterable[tuple[int, int]] = (told or (-1, -1) for told in data.about.counts[first:])
    if not data.about.elsewhere:
        sizes = zip(data.n[first:].tolist(), data.n_test[first:].tolist(), strict=True)
    for k, (n, n_test) in enumerate(sizes, first):
        yield {
            "party": k,
            "name": data.name(k),
            "training_points": n,
            "test_points": n_test,
            "trains": k < data.training,
        }


def is_crowd(data: Federation) -> bool:
    """Whether parties are so many that nobody reads of each."""
    return data.parties > _CROWD and data.names is None and not data.about.elsewhere


def _crowd(data: Federation) -> list[tuple[int, str, Tensor]]:
    """What the journal says of such parties: their sizes, in two columns."""
    if not is_crowd(data):
        return []
    return [(ROSTER, TRAINING, data.n), (ROSTER, TEST, data.n_test)]


def plan_of(folder: Folder) -> Plan:
    """How the run was computed: another plan would give other last bits."""
    return Plan(**folder.journal.row()["plan"])


def has_baselines(folder: Folder) -> bool:
    """Whether what the run is compared with was trained, or could not be."""
    return folder.journal.row()["baselines"] is not None


class Recorder:
    """Keeps a run's folder up to date, at a small share of its time."""

    def __init__(
        self,
        folder: Folder,
        run: Run,
        state: State,
        every: float,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        """`committed` is called when the last `state` is what a resumed run begins with."""
        self._committed = committed
        self._folder, self._run, self._state, self._every = folder, run, state, every
        self._rounds: list[dict[str, Any]] = []
        self._metrics: list[tuple[int, str, Tensor]] = []
        self._clock: list[dict[str, Any]] = []
        self._roster = run.data.parties if is_crowd(run.data) else folder.journal.parties()
        self._entries = len(run.history)
        self._events = len(run.events)
        self._notes = sum(event.kind == "note" for event in run.events)
        self._saved, self._cost, self._looked = time.perf_counter(), 0.0, 0.0
        self.rounds = run.done  # on the disk
        folder.forget_checkpoints(but=run.done)

    def baselines(self) -> None:
        """Write down what the run is compared with."""
        found = self._run.baselines
        self._metrics += [
            (0, f"{name} {metric}", values)
            for name, scores in found.items()
            for metric, values in scores.parties.items()
        ]
        self._metrics += [
            (0, f"elsewhere {metric}", values) for metric, values in self._run.elsewhere.items()
        ]
        pooled = {name: {"pooled": e.pooled, "new": e.new} for name, e in found.items()}
        self._take_notes()
        self._commit({"baselines": pooled})

    def round(self, spent: Spent) -> None:
        """Take down the last round; it is on the disk from the next checkpoint on.

        With a checkpoint every 0 seconds that is now: parties elsewhere may be told of it.
        """
        run = self._run
        self._rounds.append(
            {
                "round": run.done,
                **_cohort_to_json(run.participation[-1]),
                "gradients": spent.gradients,
                "bytes_up": spent.up,
                "bytes_down": spent.down,
            }
        )
        if (timing := run.participation[-1].timing) is not None:
            self._clock.append({"round": run.done, "timing": timing.to_json()})
        self._take_notes()
        if not self._every:
            self.save()

    def evaluated(self) -> None:
        """Take down the last evaluation."""
        run = self._run
        if run.data.parties > _MANY:  # the last evaluation's are kept
            self._metrics = [each for each in self._metrics if each[0] == 0]
        parties, making = run.parties, run.making
        by_party: dict[str, Tensor] = {}
        if isinstance(parties, OfSome):
            by_party = {WHO: torch.from_numpy(parties.who)}
            parties, making = parties.rows, making.rows if isinstance(making, OfSome) else {}
        by_party |= {**parties, **{f"{MAKING}{name}": each for name, each in making.items()}}
        self._metrics += [(run.done, name, values) for name, values in by_party.items()]

    def save_in_time(self) -> None:
        """Save, if the last time was long enough ago."""
        pause = max(self._every, SHARE * self._cost) if self._every else 0.0
        if time.perf_counter() - self._saved >= pause:
            self.save()

    def save(self, **row: Any) -> None:
        """Write a checkpoint, then the journal up to it, then forget the checkpoint before."""
        began, run = time.perf_counter(), self._run
        if began - self._looked >= _LOOK or row:
            self._look()
        fresh = bool(self._rounds) or run.done == 0
        if fresh:
            self._folder.save_checkpoint(run.done, self._state())
        self._commit({"done": run.done, "seconds": run.seconds, "summary": _summary(run), **row})
        self.rounds = run.done
        self._folder.forget_checkpoints(but=run.done)
        if fresh:
            self._committed()
        self._saved = time.perf_counter()
        self._cost = self._saved - began

    def end(self, state: str, text: str, scorecard: Mapping[str, Any] | None = None) -> None:
        """Write the last checkpoint, the model and how it ended."""
        run = self._run
        run.state = state
        self._take_notes()
        self._run.event(state, text)
        if run.done and run.vector.numel():  # peers keep their models to themselves
            facts = {"run": run.name, "round": str(run.done), "algorithm": repr(run.algorithm)}
            if (unit := run.data.features.target) is not None:  # of the network's output
                facts |= {"mean": repr(float(unit.mean)), "scale": repr(float(unit.scale))}
            self._folder.save_model(run.weights, facts)
        self.save(state=state, ended=now(), scorecard=scorecard)

    def fail(self, error: BaseException) -> None:
        """Say why a run ended early; in the middle of a round the last checkpoint stays."""
        if isinstance(error, BelowQuorum):  # between two rounds
            self.save()
        self._run.state = "failed"
        self._run.event("failed", str(error) or type(error).__name__)
        self._folder.journal.commit(
            {"state": "failed", "ended": now()}, events=self._run.events[-1:]
        )

    def _look(self) -> None:
        """See how much memory this process and its workers have taken by now."""
        self._looked = time.perf_counter()
        if (held := processes.held()) is not None:
            self._run.memory = max(self._run.memory or 0, held.total)

    def _take_notes(self) -> None:
        """Make an event of every new note."""
        for note in self._run.notes[self._notes :]:
            self._run.event("note", note)
        self._notes = len(self._run.notes)

    def _commit(self, row: Mapping[str, Any]) -> None:
        run = self._run
        self._folder.journal.commit(
            row,
            self._rounds,
            run.history[self._entries :],
            self._metrics,
            run.events[self._events :],
            keep_last=run.data.parties > _MANY,
            joined=_roster(run.data, self._roster),
            clock=self._clock,
        )
        self._roster = run.data.parties
        self._rounds, self._metrics, self._clock = [], [], []
        self._entries, self._events = len(run.history), len(run.events)


def restore(folder: Folder, run: Run) -> dict[str, Tensor]:
    """Put a run back to its last checkpoint; return that, empty before the first round."""
    row = folder.journal.row()
    past.restore(folder, run, row)
    for name in ("parties", "making"):
        values = getattr(run, name)
        some = isinstance(values, OfSome)
        setattr(run, name, values.each(torch.from_numpy) if some else _tensors(values))
    run.elsewhere = _tensors(run.elsewhere)
    for name, found in run.baselines.items():
        run.baselines[name] = Evaluation(_tensors(found.parties), found.pooled, found.new)
    return folder.load_checkpoint(row["done"]) if row["done"] else {}


def _tensors(values: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(each) for name, each in values.items()}


def pad(run: Run) -> None:
    """Give NaN to parties that joined after something was measured; numbers stay.

    The next commit enters them in the roster.
    """
    count = run.data.parties
    for found in (
        run.parties,
        run.making,
        run.elsewhere,
        *(scores.parties for scores in run.baselines.values()),
    ):
        if not isinstance(found, dict):  # of a sample, which is of a simulation
            continue
        for name, values in found.items():
            missing = count - len(values)
            if missing > 0:
                found[name] = torch.cat([values.double(), torch.full((missing,), torch.nan)])


def _cohort_to_json(cohort: Cohort) -> dict[str, Any]:
    slow = np.flatnonzero(cohort.effort < 1)
    late: dict[str, Any] = {str(cohort.present[i]): float(cohort.effort[i]) for i in slow}
    if cohort.stale:
        late["stale"] = {str(k): steps for k, steps in cohort.stale.items()}
    missing = _causes_to_json(cohort.missing)
    if len(cohort.present) + len(missing) < len(cohort.sampled):
        known = [*cohort.present.tolist(), *cohort.missing]
        unknown = np.setdiff1d(cohort.sampled, known)
        missing |= dict.fromkeys(map(str, unknown.tolist()), "")
    return {
        "sampled": _sampled_to_json(cohort.sampled),
        "missing": missing,
        "late": late,
        "counted": cohort.counted,
        "waited": cohort.waited,
        "blocked": _causes_to_json(cohort.blocked),
    }


def _causes_to_json(causes: Mapping[int, Cause]) -> dict[str, str]:
    return {str(k): str(cause) for k, cause in causes.items()}


def _sampled_to_json(sampled: Ints) -> list[int] | str:
    """Parties one by one, or from where to where in case that is much shorter."""
    ends = np.append(np.flatnonzero(np.diff(sampled) != 1), len(sampled) - 1)
    if 8 * len(ends) > len(sampled):
        each: list[int] = sampled.tolist()
        return each
    firsts = sampled[np.append(0, ends[:-1] + 1)]
    spans = zip(firsts.tolist(), sampled[ends].tolist(), strict=True)
    return ", ".join(f"{first}-{last}" for first, last in spans)


def _summary(run: Run) -> dict[str, Any]:
    """What a list of runs shows, and the training points that sites told with their uploads."""
    uploaded = {str(k): n for k, n in sorted(dict(run.uploaded).items())}
    own = run.history[-1].get("own") if run.history else None  # which the scorecard has first, too
    return {
        "algorithm": type(run.algorithm).__name__,
        "data": run.data.about.name,
        "parties": run.data.parties,
        **({"training": run.data.training} if is_crowd(run.data) else {}),
        "seed": run.seed,
        "metric": run.metric,
        "value": (own or run.metrics).get(run.metric),
        **({} if run.memory is None else {"memory": run.memory}),
        **({"uploaded": uploaded} if uploaded else {}),
    }
