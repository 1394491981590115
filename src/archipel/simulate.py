# SPDX-License-Identifier: Apache-2.0
"""Run an algorithm over a federation on one machine: the loop over rounds, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from archipel import data as datasets
from archipel import models
from archipel.core import Algorithm, Vector
from archipel.data.federation import Federation
from archipel.engines.evaluation import Evaluation
from archipel.engines.local import LocalEngine
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError, unknown
from archipel.graphs import Topology
from archipel.graphs import topology as topology_of
from archipel.losses import Loss, default_loss
from archipel.metrics import PRIMARY, larger_is_better
from archipel.model import Model
from archipel.participation import Cohort, Participation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Round = dict[str, Any]  # one entry of a run's history


@dataclass
class Run:
    """What a run did and learnt."""

    algorithm: Algorithm
    data: Federation
    task_model: Model
    seed: int
    plan: Plan
    history: list[Round] = field(default_factory=list)
    participation: list[Cohort] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what went on without somebody, and why
    vector: Vector = field(default_factory=lambda: torch.zeros(0))
    buffers: Tensor | None = None  # mean of the parties' BatchNorm statistics
    parties: dict[str, Tensor] = field(default_factory=dict)  # last metrics of each party, [K]
    privacy: None = None

    @property
    def model(self) -> nn.Module:
        """The module with the parameters that were learnt."""
        return self.task_model.to_module(self.vector, self.buffers)

    @property
    def metrics(self) -> dict[str, float]:
        """The last evaluation over all training parties' test points."""
        return dict(self.history[-1]["metrics"]) if self.history else {}

    def curve(self, metric: str | None = None) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric."""
        metric = metric or PRIMARY[self.data.task]
        if metric not in self.metrics:
            if not self.metrics:
                raise ArchipelError("no party has a test point to score: split some off, test=0.2.")
            raise unknown("metric", metric, self.metrics)
        return (
            [entry["round"] for entry in self.history],
            [entry["metrics"][metric] for entry in self.history],
        )

    def rounds_to(self, target: float, metric: str | None = None) -> float | None:
        """Rounds to a target: the best value so far, interpolated [McMahan 2017]; None if never."""
        sign = 1 if larger_is_better(metric or PRIMARY[self.data.task]) else -1
        before, best = 0.0, -float("inf")
        for t, value in zip(*self.curve(metric), strict=True):
            if sign * value >= sign * target:
                if best == -float("inf"):
                    return float(t)
                return before + (t - before) * (sign * target - best) / (sign * value - best)
            best, before = max(best, sign * value), t
        return None

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Figure:
        """Draw a metric against rounds, and the spread over parties of the last evaluation."""
        from archipel.report.plots import curve_and_spread

        return curve_and_spread(self, metric or PRIMARY[self.data.task], path)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        last = self.history[-1]["round"] if self.history else 0
        return f"Run of {type(self.algorithm).__name__} on '{self.data.about.name}': " + (
            f"{last} rounds, {shown}"
        )


class Options(TypedDict, total=False):
    """What `simulate` and `sweep` take besides algorithm, data and model."""

    rounds: int  # 100
    sample: float | int  # rate 0..1, or so many parties a round; 1.0
    seed: int  # 0
    partition: str  # how to deal the data out, such as "dirichlet:0.3"
    parties: int  # to so many
    topology: str | Topology  # for peers, such as "ring"
    dropouts: float  # chance that a sampled party does not answer
    stragglers: float  # share of a round's parties that do not finish
    loss: str | Loss  # the task's
    evaluate_every: int  # rounds; 1
    workers: int  # processes; all cores
    plan: Plan  # how to compute; timed unless given


def simulate(
    algorithm: Algorithm,
    data: str | Federation,
    model: str | nn.Module | Model | None = None,
    *,
    on_round: Callable[[Run], bool | None] | None = None,
    **options: Unpack[Options],
) -> Run:
    """Run rounds of an algorithm and return what came of it.

    `on_round` is called after each evaluated round and stops the run by returning True. The result
    depends on the seed alone: to float tolerance, not on workers, plan or order of parties.

    >>> from archipel.algorithms import FedAvg
    >>> run = simulate(FedAvg(lr=0.1), "heart_disease", rounds=3, workers=1)
    >>> len(run.history)
    3
    """
    each = None if on_round is None else lambda runs: on_round(runs[0])
    return sweep(algorithm, data, model, {}, on_round=each, **options)[0]


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
    for name in options:
        if name not in Options.__annotations__:
            raise unknown("option", name, [*Options.__annotations__, "on_round"])
    rounds, every = options.get("rounds", 100), options.get("evaluate_every", 1)
    seed = options.get("seed", 0)
    if rounds < 1 or every < 1:
        raise ArchipelError(
            f"rounds = {rounds}, evaluate_every = {every}: give whole numbers from 1."
        )
    fed = federation(data, options.get("partition"), options.get("parties"), seed)
    task_model = build_model(model, fed, options.get("loss"), seed)
    who = Participation(
        options.get("sample", 1.0), options.get("dropouts", 0.0), options.get("stragglers", 0.0)
    )
    eligible = np.flatnonzero(fed.n[: fed.training].numpy() > 0)
    notes = _empty(fed, len(eligible))
    engine = LocalEngine(
        algorithm,
        fed,
        task_model,
        seed=seed,
        topology=_topology(options.get("topology"), fed, seed),
        workers=options.get("workers"),
        plan=options.get("plan"),
        sweep=settings,
    )
    values = zip(*settings.values(), strict=True) if settings else [()]
    runs = [
        Run(
            replace(algorithm, **dict(zip(settings, value, strict=True))),  # type: ignore[type-var]
            fed,
            task_model,
            seed,
            engine.plan,
        )
        for value in values
    ]
    partial = getattr(algorithm, "keeps_partial_work", False)
    gradients, up, down, began = 0, 0, 0, time.perf_counter()
    with engine:
        for t in range(rounds):
            cohort = who.draw(eligible, seed, t, partial)
            outcome = engine.round(t, cohort.present, cohort.effort)
            for k in outcome.diverged.tolist():
                cohort.missing[k] = "diverged"
                notes.append(
                    f"round {t + 1}: party {fed.name(k)} diverged and was left out: lower lr."
                )
            gradients += outcome.gradients
            sent, received = engine.traffic(t, outcome, len(cohort.sampled))
            up, down = up + sent, down + received
            last = t == rounds - 1
            for run in runs:
                run.participation.append(cohort)
            if (t + 1) % every and not last:
                continue
            for index, run in enumerate(runs):
                run.vector = engine.vector(index if settings else None).clone()
                scores = engine.evaluate(run.vector)
                own = engine.evaluate(own=True) if engine.peer and not settings else None
                run.parties = (own or scores).parties
                run.notes, run.buffers = list(notes), engine.buffers()
                run.history.append(
                    {
                        **_entry(t + 1, fed, scores, own),
                        "sampled": len(cohort.sampled),
                        "missing": len(cohort.missing),
                        "bytes": {"up": up, "down": down},
                        "gradients": gradients,
                        "seconds": time.perf_counter() - began,
                    }
                )
            if on_round is not None and on_round(runs):
                break
    return runs


def federation(
    data: str | Federation, partition: str | None = None, parties: int | None = None, seed: int = 0
) -> Federation:
    """Return the federation itself, or load the dataset of that name."""
    if isinstance(data, Federation):
        if partition is not None:
            return data.repartition(partition, parties or data.training, seed)
        if parties is not None:
            raise ArchipelError(
                f"parties = {parties}: this federation has {data.parties}; say partition='iid' as "
                "well to deal its points out anew."
            )
        return data
    return datasets.load(data, partition=partition, parties=parties, seed=seed)


def build_model(
    model: str | nn.Module | Model | None,
    fed: Federation,
    loss: str | Loss | None = None,
    seed: int = 0,
) -> Model:
    """Return the model itself, a module with the task's loss, or a reference network by name."""
    if isinstance(model, Model):
        if loss is not None:
            raise ArchipelError(f"loss = {loss!r}: the model has one already; leave it out.")
        return model
    if model is None:
        model = models.default_model(fed.task, fed.shape)
    if isinstance(model, str):
        model = models.build(model, fed.shape, fed.classes or 1, seed)
        if fed.x.is_floating_point():
            model = model.to(fed.x.dtype)
    return Model(model, default_loss(fed.task) if loss is None else loss)


def _topology(topology: str | Topology | None, fed: Federation, seed: int) -> Topology | None:
    if topology is None or isinstance(topology, Topology):
        return topology
    if not isinstance(topology, str):
        raise ArchipelError(f"topology = {topology!r}: give a name such as 'ring'.")
    return topology_of(topology, fed.training, seed)


def _empty(fed: Federation, eligible: int) -> list[str]:
    """Say who cannot take part for want of training points."""
    empty = torch.nonzero(fed.n[: fed.training] == 0)[:, 0]
    if eligible == 0:
        raise ArchipelError("no party has a training point: check the train/test split.")
    if len(empty) == 0:
        return []
    shown = ", ".join(fed.name(int(k)) for k in empty[:5]) + (", ..." if len(empty) > 5 else "")
    return [f"{len(empty)} parties have no training point and are left out: {shown}."]


def _entry(t: int, fed: Federation, scores: Evaluation, own: Evaluation | None) -> Round:
    """One evaluated round: over all points, and over parties (mean, worst tenth, spread)."""
    metric = PRIMARY[fed.task]
    per_party = (own or scores).parties[metric]
    return {
        "round": t,
        "metrics": scores.pooled,
        "new": scores.new or None,
        "own": None if own is None else own.pooled,
        "seen_parties": spread(per_party[: fed.training], larger_is_better(metric)),
        "new_parties": spread(per_party[fed.training :], larger_is_better(metric)),
    }


def spread(values: Tensor, larger_is_better: bool = True) -> dict[str, float] | None:
    """Mean, standard deviation and mean of the worst tenth over parties that have a value."""
    values = values[~values.isnan()].sort(descending=not larger_is_better).values
    if len(values) == 0:
        return None
    tenth = values[: max(1, len(values) // 10)]
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(correction=0)),
        "worst_tenth": float(tenth.mean()),
        "parties": len(values),
    }
