# SPDX-License-Identifier: Apache-2.0
"""A few rounds of a study for real, each part of them timed by itself.

They are the run's first rounds: the same engine, parties and loop, recorded in a folder that is
gone afterwards. Whoever records the run is told when a round, an evaluation and a checkpoint are
done, so that is where the watch stands.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines.local.engine import LocalEngine
from archipel.errors import BelowQuorum
from archipel.models.model import Model
from archipel.runs import identity, processes, recording
from archipel.runs.loop import Loop, Watch
from archipel.runs.recording import Recorder
from archipel.runs.run import Description, Run, Spent
from archipel.runs.simulation import Options, build
from archipel.store.folder import JOURNAL, OWN
from archipel.wire.wire import Wire

if TYPE_CHECKING:
    from archipel.engines.ray.cluster import Ray

LEAST, MOST = 4, 1000  # rounds that are measured, unless the study has fewer
LONG, FEW = 60.0, 2  # seconds after which so few of them are enough
_EVALUATED = 3  # rounds from one evaluation to the next, at most, while they are measured
_CALIBRATED = 0.5  # seconds: what takes longer to build is built again, as the run will


@dataclass
class Laps:
    """Seconds of each part, as often as it came."""

    rounds: list[float] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)  # of each round
    evaluations: list[float] = field(default_factory=list)
    checkpoints: list[float] = field(default_factory=list)
    held: processes.Held | None = None
    checkpoint: int = 0  # bytes of the last one
    journal: tuple[int, int] = (0, 0)  # bytes before the first round and after the last


class Stopwatch(Recorder):
    """Records a run, and how long each part of its loop takes."""

    def start(self, laps: Laps) -> None:
        self._laps, self._at = laps, time.perf_counter()
        laps.journal = (self._bytes(JOURNAL), 0)

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        taken, self._at = now - self._at, now
        return taken

    def round(self, spent: Spent) -> None:
        self._laps.rounds.append(self.lap())
        self._laps.spent.append(spent)
        super().round(spent)
        self.lap()

    def evaluated(self) -> None:
        self._laps.evaluations.append(self.lap())
        super().evaluated()
        self.lap()

    def save_in_time(self) -> None:
        self.lap()
        self.save()
        self._laps.checkpoints.append(self.lap())

    def end(self, state: str, text: str, scorecard: Mapping[str, Any] | None = None) -> None:
        super().end(state, text, scorecard)
        laps = self._laps
        laps.held = processes.held()
        laps.checkpoint = self._bytes("checkpoint-")
        laps.journal = (laps.journal[0], self._bytes(JOURNAL))

    def _bytes(self, name: str) -> int:
        """Of the files in the run's folder that are called so, a journal's others with it."""
        return sum(path.stat().st_size for path in self._folder.path.glob(f"{name}*"))


@dataclass(frozen=True)
class Measured:
    """What a few rounds took."""

    run: Run
    laps: Laps
    start: float  # seconds until the first round, data and imports apart
    calibration: float  # the same the first time, on top of it: afterwards it is remembered
    ending: float  # after the last round: scorecard, model, last checkpoint
    workers: int
    keeps_much: bool  # whether what parties keep lies in files, and in no checkpoint
    wire: Wire | None  # with what a promise of privacy asks of it

    @property
    def whole(self) -> bool:
        """Whether all rounds of the study were measured."""
        return self.run.done == self.run.rounds


class _Enough:
    """Looks on, and stops when enough is measured."""

    def __init__(self, stopwatch: Stopwatch, laps: Laps, seconds: float, watch: Watch) -> None:
        self._stopwatch, self._laps, self._watch = stopwatch, laps, watch
        self._began = time.perf_counter()
        self._until = self._began + seconds

    def __call__(self, run: Run) -> bool:
        if self._watch(run):
            raise KeyboardInterrupt
        now = time.perf_counter()
        least = LEAST if now - self._began < LONG else FEW
        enough = run.done >= least and bool(self._laps.evaluations)
        over = now > self._until or run.done >= MOST
        self._stopwatch.lap()  # whoever looks on costs the run nothing
        return enough and over

    def say(self, text: str) -> None:
        self._watch.say(text)


def measure(
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    options: Options,
    study: Description,
    watch: Watch,
    seconds: float,
    ray: Ray | None = None,
) -> Measured:
    """Do the study's first rounds for about so many seconds, and say what each part took.

    `ray` is where the workers are, unless they are processes of this machine.
    """
    every = min(options.get("evaluate_every", 1), _EVALUATED)
    asked: Any = {**options, "evaluate_every": every}
    watch.say("getting ready to measure")
    engine, loop, first = _built(algorithm, data, model, asked, ray)
    again = first
    if first > _CALIBRATED:
        engine, loop, again = _built(algorithm, data, model, asked, ray)
    (run,) = loop.runs
    run.study = study
    run.environment = recording.environment(study, options.get("device", "cpu"), options)
    described = identity.describe(algorithm, data, model, options, study)
    row = {
        "description": {**described, "baselines": False, "outline": identity.outline(data)},
        "hash": identity.digest(described),
    }
    laps = Laps()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="archipel-") as place, ExitStack() as stack:
        path, own = Path(place) / "run", Path(place) / OWN
        if engine.keeps_much:
            own.mkdir()
            engine.keep_in(own)
        stack.enter_context(engine)
        with recording.create(path, run, row, study.files()) as folder:
            stopwatch = Stopwatch(folder, run, loop.state, 1.0, engine.committed)
            loop.recorder = stopwatch
            stopwatch.start(laps)
            start = again + time.perf_counter() - began
            try:
                loop.go(_Enough(stopwatch, laps, seconds, watch), None)
            except BelowQuorum as error:  # of which a forecast warns, unless there is none to make
                if not laps.evaluations:
                    raise
                stopwatch.end("failed", str(error))
            ending = stopwatch.lap()
    wire = options.get("wire")
    if engine.protection is not None:
        wire = engine.protection.on(wire or Wire())
    much, calibration = engine.keeps_much, max(0.0, first - again)
    return Measured(run, laps, start, calibration, ending, engine.plan.workers, much, wire)


def _built(
    algorithm: Algorithm, data: Federation, model: Model, options: Options, ray: Ray | None
) -> tuple[LocalEngine, Loop, float]:
    began = time.perf_counter()
    engine, loop = build(algorithm, data, model, options, cluster=ray)
    return engine, loop, time.perf_counter() - began
