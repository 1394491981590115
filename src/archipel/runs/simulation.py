# SPDX-License-Identifier: Apache-2.0
"""Run an algorithm over a federation on one machine: from names and options to what came of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from torch import nn

from archipel.adversaries.adversary import Adversary
from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines.engine import SteppingEngine
from archipel.engines.local.engine import LocalEngine, Watched
from archipel.engines.local.pool import give_back
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError, unknown
from archipel.graphs import Described, Topology
from archipel.metrics import Own, choose
from archipel.models.losses import Loss
from archipel.models.model import Model, Statistics
from archipel.privacy.promise import Privacy
from archipel.runs import identity, recording
from archipel.runs.attendance import Attendance, DrawnAttendance
from archipel.runs.beginning import Beginning
from archipel.runs.events import EventAttendance
from archipel.runs.loop import Loop, Watch
from archipel.runs.participation import Cohort
from archipel.runs.parts import ClassWeights, build_model, check_learned, federation
from archipel.runs.recording import Recorder
from archipel.runs.run import Description, Run
from archipel.store.folder import OWN, Folder
from archipel.wire.wire import Wire

if TYPE_CHECKING:
    from archipel.engines.ray.cluster import Ray

__all__ = ["Options", "Run", "Watch", "build", "recall", "simulate", "sweep"]


class Where(TypedDict, total=False):
    """Which engine runs a simulation, and what a worker of Ray has; the result is the same."""

    engine: Literal["local", "ray"]  # processes of this machine, or those of a Ray cluster
    ray_address: str  # the cluster's head, HOST:PORT or "auto"; a Ray of the run's own
    ray_cpus: float  # processors of a worker, also a part of one; 1
    ray_gpus: float  # graphics cards of a worker; 1 where the device is one


class Options(Where, total=False):
    """What `simulate` and `sweep` take besides algorithm, data and model."""

    rounds: int  # 100
    seed: int  # 0
    partition: str  # how to deal the data out, such as "dirichlet:0.3"
    parties: int  # to so many
    topology: str | Topology | Described  # for peers, such as "ring"
    loss: str | Loss  # the task's
    class_weights: ClassWeights  # in the loss: a number for each class, or "balanced"; all alike
    statistics: Statistics  # BatchNorm's: "averaged" with the model, or each party's "own"
    evaluate_every: int  # rounds; 1
    evaluate_sample: int  # score at so many parties drawn by the seed, with intervals; all
    metric: str | Own  # by which the run is judged; the task's
    metrics: Sequence[str | Own]  # what is measured, also functions; the task's usual ones
    target: float  # of that metric
    workers: int  # processes; all cores
    plan: Plan  # how to compute; timed unless given
    device: str  # where: cpu, cuda or mps, in one process
    server_sees: Literal["uploads", "sums"]  # "sums" refuses to look at single uploads
    wire: Wire  # steps between parties and server, a rule, and how sums are made
    privacy: Privacy  # what is promised, by record or by party
    adversary: Adversary  # parties that attack the model
    # who takes part; see archipel.runs.participation
    sample: float | int  # rate 0..1, or so many parties a round; 1.0
    over_select: float
    quorum: float | int
    on_missing: Literal["continue", "wait", "abort"]
    deadline: float
    late_joiners: bool
    separation: int  # rounds from one in which a party is asked to the next, at least
    dropouts: float  # chance that a sampled party does not answer
    lost: float  # chance that it is lost between two messages of a round
    stragglers: float  # share of a round's parties that do not finish
    availability: float | str
    away: Mapping[str, str]  # party -> rounds, such as {"Cleveland": "11-20"}
    speed: float
    speed_spread: float
    # devices on a simulated clock; see archipel.devices
    devices: str | Mapping[str, Any]  # "phones", or classes by name
    trace: str | Path  # when they are there: a file of FedScale's, or "phones"
    clock: bool  # whether rounds take simulated time; with devices they do
    time_zones: Sequence[float]  # hours ahead of UTC
    patience: float  # seconds until a round begins with fewer than it asks
    pace: bool  # ask as many as lately were needed for the sample to arrive
    protocols: bool  # whether sums are made by their protocol; False: the same integers added up


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
        say = watch.say if watch is not None else lambda text: None
        cluster = stack.enter_context(cluster_of(options, say, fed))
        engine, loop = build(algorithm, fed, task_model, options, cluster=cluster)
        (run,) = loop.runs
        run.study = study
        run.environment = recording.environment(study, options.get("device", "cpu"), options)
        side = None if out is None else _keep(engine, path, folder is not None, stack)
        stack.enter_context(engine)
        run.said = lambda: engine.said
        if out is not None:
            if folder is None:
                files = {} if study is None else study.files()
                told = {"baselines": baselines, "outline": identity.outline(fed)}
                row: dict[str, Any] = {"description": {**described, **told}}
                row["hash"] = identity.digest(described)
                made = recording.create(path, run, row, files)
                folder = stack.enter_context(made)
                if side is not None:
                    engine.moved(side.rename(path / OWN))
                begins = ("started", f"{run.rounds} rounds of {algorithm!r}")
            else:
                loop.restore(recording.restore(folder, run))
                begins = ("resumed", f"after round {run.done}")
                baselines = baselines and not recording.has_baselines(folder)
                if run.state == "done" and not baselines:
                    return run
            run.folder, run.state = path, "running"
            loop.recorder = Recorder(folder, run, loop.state, checkpoint_seconds, engine.committed)
            run.event(*begins)
            give_back()
        try:
            if baselines:
                sample = options.get("sample")
                pools = None if cluster is None else cluster.pool
                loop.baselines(1.0 if sample is None else sample, say, pools)
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
    engine, loop = build(algorithm, data, model, options)
    (run,) = loop.runs
    state = recording.restore(folder, run)
    if not elsewhere:
        if "slots" in state:
            engine.keep_in(folder.path / OWN, writes=False)
        loop.restore(state)
    elif "shared.0" in state:
        engine.restore_shared(state)
        run.vector, run.buffers = engine.vector().clone(), engine.buffers()
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
    parts = _parts(data, model, options)
    with cluster_of(options, lambda text: None, parts[0]) as cluster:
        engine, loop = build(algorithm, *parts, options, settings, cluster)
        with engine:
            loop.go(None, on_round)
    return loop.runs


def build(
    algorithm: Algorithm,
    fed: Federation,
    model: Model,
    options: Options,
    settings: Mapping[str, Sequence[float]] | None = None,
    cluster: Ray | None = None,
    watched: Watched | None = None,
) -> tuple[LocalEngine, Loop]:
    """What a simulation needs: the engine, and the loop over its rounds; settings are a sweep's.

    With a cluster, that is where the engine's workers are, and where a device is. `watched` is told
    what there is to see.
    """
    workers, plan = options.get("workers"), options.get("plan")
    device = options.get("device", "cpu")
    if cluster is not None:
        workers, device = workers or cluster.count, "cpu"
        plan = plan or cluster.plan(model, fed, workers)
    begun = Beginning(algorithm, fed, model, options)
    topology = begun.topology
    check_learned(topology is not None and topology.learned, algorithm)
    engine = LocalEngine(
        algorithm,
        fed,
        model,
        seed=begun.seed,
        topology=topology,
        workers=workers,
        plan=plan,
        cohort=begun.cohort,
        sweep=settings,
        device=device,
        wire=options.get("wire"),
        protocols=bool(options.get("protocols")),
        privacy=options.get("privacy"),
        rounds=begun.rounds,
        most=begun.most,
        drawn=begun.drawn,
        separation=begun.who.separation,
        pools=None if cluster is None else cluster.pool,
        adversary=options.get("adversary"),
        watched=watched,
    )
    runs = begun.runs(engine, settings or {})
    for run in runs:
        run.topology = topology
    attendance = attendance_of(begun, engine, algorithm, fed, lambda: runs[0].participation)
    return engine, Loop(engine, attendance, runs, begun.every, bool(settings), begun.scored)


def attendance_of(
    begun: Beginning,
    engine: SteppingEngine,
    algorithm: Algorithm,
    fed: Federation,
    past: Callable[[], Sequence[Cohort]],
) -> Attendance:
    """Who takes part in a simulation's rounds, on its clock; `past` are those so far."""
    at, clock = (begun.eligible, begun.seed), begun.clock()
    if begun.asynchronous:
        return EventAttendance(engine, begun.who, *at, begun.cohort, past, clock)
    return DrawnAttendance(engine, begun.who, algorithm, fed, *at, past, clock)


@contextmanager
def cluster_of(
    options: Options, say: Callable[[str], None], fed: Federation | None = None
) -> Iterator[Ray | None]:
    """Where the workers of the Ray engine are, for as long as this lasts; None with the local one.

    Runs that begin in the meantime have the same one.
    """
    if check_engine(options) == "local":
        yield None
        return
    from archipel.engines.ray.cluster import connected

    data = 0 if fed is None or fed.lazy else fed.x.nbytes + fed.y.nbytes
    with connected(
        options.get("ray_address"),
        cpus=options.get("ray_cpus", 1.0),
        gpus=options.get("ray_gpus"),
        device=options.get("device", "cpu"),
        workers=options.get("workers"),
        puts=2 * data,
        say=say,
    ) as cluster:
        yield cluster


def check_engine(options: Mapping[str, Any]) -> str:
    """The engine that options name, if they say nothing of Ray where it is another."""
    engine: str = options.get("engine", "local")
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    for name in ("ray_address", "ray_cpus", "ray_gpus"):
        if engine != "ray" and options.get(name) is not None:
            raise ArchipelError(
                f"{name} = {options[name]!r}: the engine is {engine}; say engine = 'ray', or leave "
                "it out."
            )
    return engine


def _keep(engine: LocalEngine, path: Path, begun: bool, stack: ExitStack) -> Path | None:
    """Have what parties keep on the disk, where it is much: beside a folder that is yet to be."""
    if not engine.keeps_much:
        return None
    if begun:
        engine.keep_in(path / OWN)
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        side = Path(tempfile.mkdtemp(prefix=f".{path.name}.{OWN}.", dir=path.parent))
    except OSError as error:
        raise ArchipelError(
            f"out = '{path}': cannot be made ({error.strerror}); name another folder."
        ) from None
    stack.callback(shutil.rmtree, side, ignore_errors=True)  # unless it was given its name
    engine.keep_in(side)
    return side


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
