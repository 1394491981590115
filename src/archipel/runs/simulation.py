# SPDX-License-Identifier: Apache-2.0
"""Run an algorithm over a federation on one machine: the loop over rounds, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, Unpack

import numpy as np
import torch
from torch import nn

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines.engine import Evaluation, Outcome
from archipel.engines.local.engine import LocalEngine
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError, RunFailed, unknown
from archipel.exchange.boxes import Boxes
from archipel.exchange.statistics import notes_of
from archipel.graphs import Topology
from archipel.metrics import Own, choose, larger_is_better, name_of
from archipel.models.losses import Loss
from archipel.models.model import Model, Statistics
from archipel.rng import Ints
from archipel.runs import baselines as baseline
from archipel.runs import identity, recording
from archipel.runs.history import Round, spread
from archipel.runs.participation import DIVERGED, Cohort, Floats, Participation
from archipel.runs.parts import ClassWeights, build_away, build_model, build_topology, federation
from archipel.runs.recording import Recorder
from archipel.runs.run import Description, Run, Spent
from archipel.store.folder import Folder
from archipel.training.descent import work_of
from archipel.wire.wire import Wire

__all__ = ["Options", "Run", "Watch", "simulate", "sweep"]


class Watch(Protocol):
    """Who looks on: told before the first round and after every one; True stops the run."""

    def __call__(self, run: Run) -> bool | None: ...
    def say(self, text: str) -> None:
        """What goes on before the first round."""


class Options(TypedDict, total=False):
    """What `simulate` and `sweep` take besides algorithm, data and model."""

    rounds: int  # 100
    seed: int  # 0
    partition: str  # how to deal the data out, such as "dirichlet:0.3"
    parties: int  # to so many
    topology: str | Topology  # for peers, such as "ring"
    loss: str | Loss  # the task's
    class_weights: ClassWeights  # in the loss: a number for each class, or "balanced"; all alike
    statistics: Statistics  # BatchNorm's: "averaged" with the model, or each party's "own"
    evaluate_every: int  # rounds; 1
    metric: str | Own  # by which the run is judged; the task's
    metrics: Sequence[str | Own]  # what is measured, also functions; the task's usual ones
    target: float  # of that metric
    workers: int  # processes; all cores
    plan: Plan  # how to compute; timed unless given
    device: str  # where: cpu, cuda or mps, in one process
    server_sees: Literal["uploads", "sums"]  # "sums" refuses to look at single uploads
    wire: Wire  # steps between parties and server, a rule, and how sums are made
    # who takes part; see archipel.runs.participation
    sample: float | int  # rate 0..1, or so many parties a round; 1.0
    over_select: float
    quorum: float | int
    on_missing: Literal["continue", "wait", "abort"]
    deadline: float
    late_joiners: bool
    dropouts: float  # chance that a sampled party does not answer
    stragglers: float  # share of a round's parties that do not finish
    availability: float | str
    away: Mapping[str, str]  # party -> rounds, such as {"Cleveland": "11-20"}
    speed: float
    speed_spread: float


def simulate(
    algorithm: Algorithm,
    data: str | Federation,
    model: str | nn.Module | Model | None = None,
    *,
    on_round: Callable[[Run], bool | None] | None = None,
    watch: Watch | None = None,
    baselines: bool = False,
    out: str | Path | None = None,
    checkpoint_seconds: float = 1.0,
    study: Description | None = None,
    **options: Unpack[Options],
) -> Run:
    """Run rounds of an algorithm and return what came of it.

    `on_round` is called after each evaluated round and stops the run by returning True; `watch` is
    called after every round. With `out`, a folder, the run is written there as it goes on, at most
    `checkpoint_seconds` behind; the same call again goes on where that run ended, or returns it
    when it was done. `baselines` trains every party alone and all data in one place first. The
    result depends on the seed alone: to float tolerance, not on workers, plan or order of parties.

    >>> from archipel.algorithms import FedAvg
    >>> run = simulate(FedAvg(lr=0.1), "heart_disease", rounds=3, workers=1)
    >>> len(run.history)
    3
    """
    folder = None
    with ExitStack() as stack:
        fed, task_model = _parts(data, model, options)
        if out is not None:
            path = Path(out).absolute()
            described = identity.describe(algorithm, fed, task_model, options, study)
            if Folder.exists(path):
                folder = stack.enter_context(Folder.open(path))
                identity.check_same(folder, described)
                options["plan"] = recording.plan_of(folder)
        loop = Loop(algorithm, fed, task_model, {}, options)
        run = loop.runs[0]
        run.study = study
        run.environment = recording.environment(study, options.get("device", "cpu"))
        stack.enter_context(loop.engine)
        if out is not None:
            if folder is None:
                files = {} if study is None else study.files()
                told = {"baselines": baselines, "outline": identity.outline(fed)}
                row: dict[str, Any] = {"description": {**described, **told}}
                row["hash"] = identity.digest(described)
                made = recording.create(path, run, row, files)
                folder = stack.enter_context(made)
                begins = ("started", f"{run.rounds} rounds of {algorithm!r}")
            else:
                loop.restore(recording.restore(folder, run))
                begins = ("resumed", f"after round {run.done}")
                baselines = baselines and not recording.has_baselines(folder)
                if run.state == "done" and not baselines:
                    return run
            run.folder, run.state = path, "running"
            loop.recorder = Recorder(folder, run, loop.engine.state, checkpoint_seconds)
            loop.recorder.event(*begins)
        try:
            if baselines:
                loop.baselines(watch.say if watch is not None else lambda text: None)
            loop.go(watch, None if on_round is None else lambda runs: on_round(runs[0]))
        except Exception as error:
            if loop.recorder is not None:
                loop.recorder.fail(error)
            raise
    return run


def recall(
    folder: Folder,
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    study: Description | None = None,
    elsewhere: bool = False,
    **options: Unpack[Options],
) -> Run:
    """Return a run as its folder tells it, without going on; its parties may be elsewhere."""
    options["plan"] = recording.plan_of(folder)
    loop = Loop(algorithm, data, model, {}, options)
    (run,) = loop.runs
    state = recording.restore(folder, run)
    if not elsewhere:
        loop.restore(state)
    elif "shared.0" in state:
        loop.engine.restore_shared(state)
        loop._take_model(run, 0)
    run.study = study
    return run


def sweep(
    algorithm: Algorithm,
    data: str | Federation,
    model: str | nn.Module | Model | None,
    settings: Mapping[str, Sequence[float]],
    *,
    on_round: Callable[[list[Run]], bool | None] | None = None,
    **options: Unpack[Options],
) -> list[Run]:
    """Run one algorithm with several settings side by side, `{"lr": [0.1, 0.03]}`: a run each.

    Each equals the run of that setting alone, except where a party diverges: alone, the run goes on
    without it; in a sweep that setting goes on as NaN.
    """
    loop = Loop(algorithm, *_parts(data, model, options), settings, options)
    with loop.engine:
        loop.go(None, on_round)
    return loop.runs


class Loop:
    """The loop over rounds: of one run, or of a sweep's runs side by side."""

    def __init__(
        self,
        algorithm: Algorithm,
        fed: Federation,
        model: Model,
        settings: Mapping[str, Sequence[float]],
        options: Options,
    ) -> None:
        self.rounds, self.every = options.get("rounds", 100), options.get("evaluate_every", 1)
        self.seed, self.swept = options.get("seed", 0), bool(settings)
        if self.rounds < 1 or self.every < 1:
            raise ArchipelError(
                f"rounds = {self.rounds}, evaluate_every = {self.every}: give whole numbers from 1."
            )
        policy: dict[str, Any] = {
            name: value for name, value in options.items() if name in _POLICY and value is not None
        }
        if "away" in policy:
            policy["away"] = build_away(policy["away"], fed)
        self.who = Participation(**policy)
        self.options = options
        self.eligible = np.flatnonzero(fed.n[: fed.training].numpy() > 0)
        notes = _empty(fed, len(self.eligible))
        if self.who.deadline is not None and self.who.speed is None and not fed.about.elsewhere:
            notes.append(
                f"deadline = {self.who.deadline:g} has no effect in this simulation, where nobody "
                "takes time: give simulate.speed, in examples per second."
            )
        self.who.count(len(self.eligible))
        self.engine = self._engine(algorithm, fed, model, settings)
        notes += notes_of(Boxes(algorithm), self.engine.own_statistics)
        if options.get("server_sees") == "sums" and not self.engine.anatomy.sums_only:
            raise ArchipelError(
                f'privacy.server_sees = "sums": {type(algorithm).__name__} looks at single uploads '
                "(uploads.stack()); take an algorithm that needs their mean alone."
            )
        values = zip(*settings.values(), strict=True) if settings else [()]
        self.runs = [
            Run(
                replace(algorithm, **dict(zip(settings, value, strict=True))),  # type: ignore[type-var]
                fed,
                model,
                self.seed,
                self.engine.plan,
                self.engine.anatomy,
                self.rounds,
                name_of(options.get("metric") or ""),
                options.get("target"),
                notes=list(notes),
            )
            for value in values
        ]
        self.recorder: Recorder | None = None
        self._partial = getattr(algorithm, "keeps_partial_work", False)
        self._work = _work(algorithm, fed, self.eligible)
        self._clock = 0  # rounds so far, and those that were waited for

    def _engine(
        self,
        algorithm: Algorithm,
        fed: Federation,
        model: Model,
        settings: Mapping[str, Sequence[float]],
    ) -> Any:
        """What does the rounds."""
        return LocalEngine(
            algorithm,
            fed,
            model,
            seed=self.seed,
            topology=build_topology(self.options.get("topology"), fed, self.seed),
            workers=self.options.get("workers"),
            plan=self.options.get("plan"),
            sweep=settings,
            device=self.options.get("device", "cpu"),
            wire=self.options.get("wire"),
        )

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a checkpoint of the one run, whose history was put back already."""
        (run,) = self.runs
        self._clock = sum(1 + cohort.waited for cohort in run.participation)
        if state:
            self.engine.restore(state)
        self._take_model(run, 0)

    def baselines(self, say: Callable[[str], None]) -> None:
        """Train what the run is compared with, as well as can be (`archipel.runs.baselines`)."""
        (run,) = self.runs
        try:
            work_of(run.algorithm)  # type: ignore[arg-type]
        except ArchipelError:
            run.notes.append("no baselines: the algorithm has no lr to train a party alone with.")
            if self.recorder is not None:
                self.recorder.baselines()
            return
        budget: dict[str, Any] = {
            "rounds": self.rounds,
            "sample": self.who.sample,
            "seed": self.seed,
            "plan": run.plan,
            "tuned": True,
            "say": say,
        }
        parts: Any = (run.algorithm, run.data, run.task_model)
        try:
            run.baselines["local"], run.elsewhere, how = baseline.alone(*parts, **budget)
            run.notes.append(f"compared with every party alone: {how}.")
        except RunFailed as error:
            run.notes.append(f"no baseline of parties alone: {error}")
        try:
            run.baselines["central"], how = baseline.pooled(*parts, **budget)
            run.notes.append(f"compared with all data in one place: {how}.")
        except RunFailed as error:
            run.notes.append(f"no baseline of pooled data: {error}")
        if self.recorder is not None:
            self.recorder.baselines()

    def go(self, watch: Watch | None, on_round: Callable[[list[Run]], bool | None] | None) -> None:
        """Do the rounds that are left."""
        run = self.runs[0]
        stopped = watch is not None and bool(watch(run))
        began = time.perf_counter() - run.seconds
        if self._due(run.done) and (not run.history or run.history[-1]["round"] < run.done):
            self._evaluate(run.done - 1, run.seconds)  # the process ended before it could
            if self.recorder is not None:
                self.recorder.evaluated()
        for t in range(run.done, self.rounds):
            if stopped:
                break
            evaluated = self._due(t + 1)
            spent = self._round(t)
            for each in self.runs:
                each.spent = Spent(*map(sum, zip(each.spent, spent, strict=True)))
            run.seconds = time.perf_counter() - began
            if self.recorder is not None:
                self.recorder.round(spent)
            if evaluated:
                self._evaluate(t, time.perf_counter() - began)
                run.seconds = time.perf_counter() - began
            if self.recorder is not None:
                if evaluated:
                    self.recorder.evaluated()
                self.recorder.save_in_time()
            looks = time.perf_counter()
            stopped = evaluated and on_round is not None and bool(on_round(self.runs))
            stopped = (watch is not None and bool(watch(run))) or stopped
            began += time.perf_counter() - looks  # whoever looks on costs the run nothing
        for index, each in enumerate(self.runs):
            each.state = "done" if each.done == self.rounds else "stopped"
            self._take_model(each, index)
            each.notes += [said for said in each.warnings if said not in each.notes]
        if self.recorder is not None:
            text = f"{run.done} of {self.rounds} rounds"
            self.recorder.end(run.state, text, run.scorecard.to_json())

    def _due(self, done: int) -> bool:
        """Whether there is an evaluation after so many rounds."""
        return done > 0 and (done % self.every == 0 or done == self.rounds)

    def _take_part(self, t: int) -> tuple[Cohort, Outcome]:
        """Do round t with those who take part, where they are enough."""
        needed = self.who.needed(len(self.eligible))
        waited, blocked = 0, dict[int, str]()
        tried: dict[bytes, Outcome] = {}  # the same parties diverge again
        while True:
            clock = self._clock + waited
            drawn = self.who.draw(self.eligible, self.seed, t, self._partial, self._work, clock)
            cohort = drawn._replace(
                waited=waited + drawn.waited, blocked=drawn.blocked if drawn.waited else blocked
            )
            if not cohort.counted:
                return cohort, Outcome(cohort.present[:0], cohort.present[:0], 0)
            who = cohort.present.tobytes() + cohort.effort.tobytes()
            if who not in tried:
                tried[who] = self.engine.round(t, cohort.present, cohort.effort, needed)
            outcome = tried[who]
            if len(outcome.diverged):
                left = ~np.isin(cohort.present, outcome.diverged)
                cohort = cohort._replace(
                    present=cohort.present[left],
                    effort=cohort.effort[left],
                    missing=cohort.missing | dict.fromkeys(outcome.diverged.tolist(), DIVERGED),
                    counted=int(left.sum()) >= needed,
                )
            if cohort.counted or self.who.on_missing == "continue":
                return cohort, outcome
            self.who.may_wait(t, cohort, len(self.eligible))
            waited, blocked = cohort.waited + 1, cohort.missing

    def _round(self, t: int) -> Spent:
        """One round; return what it cost."""
        data = self.runs[0].data
        cohort, outcome = self._take_part(t)
        self._clock += 1 + cohort.waited
        notes, spent = [], Spent()
        if cohort.counted:
            spent = Spent(outcome.gradients, *self.engine.traffic(t, outcome, cohort.reached))
        else:
            notes.append(f"round {t + 1}: below the quorum, not counted.")
        if cohort.waited:
            who = ", ".join(f"{data.name(k)} {cause}" for k, cause in [*cohort.blocked.items()][:5])
            notes.append(f"round {t + 1}: waited {cohort.waited} times for the quorum ({who}).")
        notes += [
            f"round {t + 1}: party {data.name(k)} diverged and was left out: lower lr."
            for k in outcome.diverged.tolist()
        ]
        for run in self.runs:
            run.participation.append(cohort)
            run.notes += notes
        return spent

    def _take_model(self, run: Run, index: int) -> None:
        run.vector = self.engine.vector(index if self.swept else None).clone()
        run.buffers = self.engine.buffers()

    def _evaluate(self, t: int, seconds: float) -> None:
        """Score every run after round t."""
        engine = self.engine
        for index, run in enumerate(self.runs):
            self._take_model(run, index)
            scores = engine.evaluate(run.vector)
            own = engine.evaluate(own=True) if engine.has_own and not self.swept else None
            run.parties = (own or scores).parties
            if own is not None and own.costs is not None:
                run.making = {"gradients": own.costs.gradients, "seconds": own.costs.seconds}
            if scores.pooled and run.metric not in scores.pooled:
                raise unknown("metric", run.metric, scores.pooled)
            cohort = run.participation[-1]
            run.history.append(
                {
                    **_entry(t + 1, run, scores, own),
                    "sampled": len(cohort.sampled),
                    "missing": len(cohort.missing),
                    "bytes": {"up": run.spent.up, "down": run.spent.down},
                    "gradients": run.spent.gradients,
                    "seconds": seconds,
                }
            )


_POLICY = {field.name for field in fields(Participation)}


def _parts(
    data: str | Federation, model: str | nn.Module | Model | None, options: Options
) -> tuple[Federation, Model]:
    for name in options:
        if name not in Options.__annotations__:
            named = ["on_round", "watch", "baselines", "out", "checkpoint_seconds", "study"]
            raise unknown("option", name, [*Options.__annotations__, *named])
    seed = options.get("seed", 0)
    fed = federation(data, options.get("partition"), options.get("parties"), seed)
    rest = options.get("statistics"), options.get("class_weights")
    built = build_model(model, fed, options.get("loss"), seed, None, *rest)
    if built.metrics is None or "metrics" in options:
        built = built.judged_by(choose(options.get("metrics"), options.get("metric")))
    return fed, built


def _empty(fed: Federation, eligible: int) -> list[str]:
    """Say who cannot take part for want of training points."""
    empty = torch.nonzero(fed.n[: fed.training] == 0)[:, 0]
    if eligible == 0:
        raise ArchipelError("no party has a training point: check the train/test split.")
    if len(empty) == 0:
        return []
    shown = ", ".join(fed.name(int(k)) for k in empty[:5]) + (", ..." if len(empty) > 5 else "")
    return [f"{len(empty)} parties have no training point and are left out: {shown}."]


def _work(algorithm: Algorithm, fed: Federation, eligible: Ints) -> Floats:
    """How many examples each party works through in a round."""
    n = fed.n.numpy()[eligible].astype(np.float64)
    if not hasattr(algorithm, "lr"):
        return n
    work = work_of(algorithm)  # type: ignore[arg-type]
    if work.local_steps is None:
        return n * work.local_epochs
    size = n if work.batch_size is None else work.batch_size
    examples: Floats = work.local_steps * (
        size * n if isinstance(size, float) else np.minimum(size, n)
    )
    return examples


def _entry(t: int, run: Run, scores: Evaluation, own: Evaluation | None) -> Round:
    """One evaluated round: over all points, and over parties (mean, worst tenth, spread)."""
    training, better = run.data.training, larger_is_better(run.metric)
    per_party = (own or scores).parties[run.metric]
    found: Round = {
        "round": t,
        "metrics": scores.pooled,
        "new": scores.new or None,
        "own": None if own is None else own.pooled,
        "own_new": None if own is None else own.new or None,
        "seen_parties": spread(per_party[:training], better),
        "new_parties": spread(per_party[training:], better),
    }
    if run.between_sites:
        there = torch.nonzero(per_party.isfinite())[:, 0].tolist()
        found |= {"over": scores.over, "sites": [run.data.name(k) for k in there]}
    return found
