# SPDX-License-Identifier: Apache-2.0
"""A run: what was done, who took part, and what came of it.

A run that is read when it is over needs no torch (`runs.past`): what does is imported in place.

One file, since it is one class, the one that users hold in their hands when a run is over.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from archipel.errors import ArchipelError, unknown
from archipel.measures import ALL_POINTS, PRIMARY, SITES, larger_is_better
from archipel.runs.history import Round, absent, rounds_to, spread
from archipel.runs.record import Record
from archipel.store.files import now

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandas import DataFrame
    from torch import Tensor, nn

    from archipel.adversaries.adversary import Adversary
    from archipel.core import Algorithm, Vector
    from archipel.data.federation import Federation
    from archipel.devices.timing import Timing
    from archipel.engines.engine import Evaluation
    from archipel.engines.plan import Plan
    from archipel.exchange.anatomy import Anatomy
    from archipel.forecast.checking import Check
    from archipel.graphs import Topology
    from archipel.models.model import Model
    from archipel.picture import Picture
    from archipel.privacy.promise import Kept, Privacy
    from archipel.runs.participation import Cohort
    from archipel.scorecard import Scorecard
    from archipel.store.journal import Event


class Spent(NamedTuple):
    """What rounds cost."""

    gradients: int = 0  # of single examples
    up: int = 0  # bytes sent by all parties
    down: int = 0  # bytes received by all parties


class Joining(NamedTuple):
    """What a party that comes along after training needs before it has a model, in the mean."""

    messages: int  # the shared state, and a question and its answer each
    up: int  # bytes it sends
    down: int  # bytes it receives
    gradients: float  # of single examples
    seconds: float  # on one core, at the party and at the server, where parties work in stacks
    parties: int  # that it was measured at: new ones, or those seen where none is new


class Points(NamedTuple):
    """How many points a party has, as far as that is known here."""

    training: int | None
    test: int | None
    told: str  # "here", or by a site "on approval", "with uploads", "not told"


class Description(Protocol):
    """What a run was asked to do: `archipel.study.file.Study`."""

    @property
    def name(self) -> str: ...
    @property
    def purpose(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def base(self) -> Path: ...
    @property
    def scaled(self) -> int: ...
    @property
    def summed(self) -> int: ...
    def toml(self) -> str: ...
    def resolved(self) -> dict[str, Any]: ...
    def files(self) -> dict[str, bytes]: ...


def _no_vector() -> Vector:
    import torch

    return torch.zeros(0)


@dataclass
class Run:
    """What a run did and learnt."""

    algorithm: Algorithm
    data: Federation
    task_model: Model
    seed: int
    plan: Plan
    anatomy: Anatomy  # what a round sends
    kept: Kept | None = field(default=None, kw_only=True)  # what is promised, with its plan
    promise: Privacy | None = field(default=None, kw_only=True)  # where the plans are elsewhere
    adversary: Adversary | None = field(default=None, kw_only=True)  # parties that attack
    rounds: int = 0  # planned
    metric: str = ""  # by which it is judged
    target: float | None = None  # of that metric
    history: list[Round] = field(default_factory=list)  # an entry per evaluated round
    participation: list[Cohort] = field(default_factory=list)  # of every round
    notes: list[str] = field(default_factory=list)  # what went on without somebody, and why
    vector: Vector = field(default_factory=_no_vector)
    buffers: Tensor | None = None  # that go with `vector`, BatchNorm's statistics among them
    parties: Mapping[str, Tensor] = field(default_factory=dict)  # last metrics of each party, [K]
    making: Mapping[str, Tensor] = field(default_factory=dict)  # [K] gradients, seconds: own models
    baselines: dict[str, Evaluation] = field(default_factory=dict)  # local, central
    elsewhere: dict[str, Tensor] = field(default_factory=dict)  # [K] own models on all test points
    study: Description | None = None  # None for a run of objects made in Python
    approved: bytes | None = None  # between sites: the study file, as every site approved it
    uploaded: dict[int, int] = field(default_factory=dict)  # between sites: party -> its n
    folder: Path | None = None  # None for a run that is only in memory
    state: str = "running"  # or done, stopped, failed
    spent: Spent = Spent()
    seconds: float = 0.0
    memory: int | None = None  # bytes of its processes, at most; None where that is not known
    topology: Topology | None = None  # who talks to whom; None with a server
    events: list[Event] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    said: Callable[[], str] = str  # how workers that are elsewhere are doing, in words

    def __post_init__(self) -> None:
        self.metric = self.metric or PRIMARY[self.data.task]

    @property
    def name(self) -> str:
        """The folder's name, or algorithm and data."""
        if self.folder is not None:
            return self.folder.name
        return f"{self.record.algorithm.lower()} on {self.data.about.name}"

    @property
    def done(self) -> int:
        """Rounds done."""
        return len(self.participation)

    def event(self, kind: str, text: str) -> None:
        """Note what happened, and when."""
        from archipel.store.journal import Event

        self.events.append(Event(now(), self.done, kind, text))

    @property
    def model(self) -> nn.Module:
        """The module with the parameters that were learnt.

        Where a number to predict was scaled for training, it is in an `InUnits`, which turns
        outputs back. Between sites the scale of tables is not in the run but in its bundle.
        """
        from archipel.models.units import InUnits

        module = self.task_model.to_module(self.vector, self.buffers)
        unit = self.data.features.target
        return module if unit is None else InUnits(module, unit)

    @property
    def weights(self) -> dict[str, Tensor]:
        """What was learnt, by the names that the module itself has."""
        return self.task_model.to_module(self.vector, self.buffers).state_dict()

    @property
    def model_file(self) -> bytes | None:
        """What was learnt, as a file of safetensors."""
        from safetensors.torch import save

        return save({name: tensor.clone() for name, tensor in self.weights.items()})

    @property
    def metrics(self) -> dict[str, float]:
        """The last evaluation over all training parties; `over` says how."""
        return dict(self.history[-1]["metrics"]) if self.history else {}

    @property
    def warnings(self) -> list[str]:
        """What went wrong though the run ended: it diverged, or learnt nothing."""
        from archipel.runs import divergence

        return divergence.warnings(self)

    @cached_property
    def record(self) -> Record:
        """What it is, in plain values."""
        return Record.of(self)

    @property
    def between_sites(self) -> bool:
        """Whether the parties are sites on the network, with their data."""
        return self.data.about.elsewhere

    @property
    def over(self) -> str:
        """What the last evaluation is taken over: all test points, or a mean over sites."""
        if not self.between_sites:
            return ALL_POINTS
        return str(self.history[-1].get("over", SITES)) if self.history else SITES

    @property
    def study_hash(self) -> str | None:
        """SHA-256 of the study file that sites approved; None for a simulation."""
        return None if self.approved is None else sha256(self.approved).hexdigest()

    @property
    def resolved_hash(self) -> str | None:
        """Stands for the study with every default and each file it names; None between sites."""
        return None if self.study is None or self.between_sites else self.study.hash

    def points(self, k: int) -> Points:
        """How many points party k has; None where it is elsewhere and does not tell."""
        if not self.between_sites:
            return Points(int(self.data.n[k]), int(self.data.tested[k]), "here")
        told = self.data.about.counts[k]
        if told is not None:
            return Points(*told, "on approval")
        if k in self.uploaded:
            return Points(self.uploaded[k], None, "with uploads")
        return Points(None, None, "not told")

    @property
    def counted(self) -> dict[int, int]:
        """How many rounds of what was promised count for each party that any counts for."""
        if self.kept is None:
            return {}
        if self.kept.always:
            return dict.fromkeys(self.kept.uses, self.done) if self.done else {}
        if self.kept.wakes and not self.between_sites:
            return self._woken(self.kept)
        asked = Counter(int(k) for cohort in self.participation for k in cohort.sampled)
        if self.kept.wakes:
            asked = Counter({k: min(woke, self.kept.rounds) for k, woke in asked.items()})
        return {k: rounds for k, rounds in asked.items() if k in self.kept.uses}

    def _woken(self, kept: Kept) -> dict[int, int]:
        """Wake-ups of each party so far; it rests when its budget is spent."""
        from archipel.engines.schedule import woken

        woke = Counter[int]()
        for t, cohort in enumerate(self.participation):
            if cohort.counted:
                woke.update(woken(self.seed, t, np.sort(cohort.present)).tolist())
        return {k: min(times, kept.rounds) for k, times in woke.items() if k in kept.uses}

    @property
    def scorecard(self) -> Scorecard:
        """Efficacy, efficiency, robustness and privacy."""
        from archipel.scorecard import scorecard

        return scorecard(self)

    @property
    def forecast(self) -> Check | None:
        """What was forecast of its study, held against what happened; None where nothing was."""
        from archipel.forecast.checking import check

        return check(self)

    @property
    def worth(self) -> dict[str, Any] | None:
        """What each party was worth, as `archipel worth` found it; None where it did not."""
        from archipel.store.folder import WORTH

        path = None if self.folder is None else self.folder / WORTH
        if path is None or not path.is_file():
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found if "models" in found else None  # of another version

    @property
    def simulated(self) -> dict[str, Any] | None:
        """Seconds of the simulated clock and joules of the devices so far; None without one."""
        timing = self.participation[-1].timing if self.participation else None
        if timing is None:
            return None
        return {"seconds": timing.end, "energy": {"low": timing.low, "high": timing.high}}

    @property
    def graph(self) -> dict[str, Any] | None:
        """Edges, spectral gap and share within clusters, as last evaluated; None with a server."""
        found = next((e["graph"] for e in reversed(self.history) if "graph" in e), None)
        return None if found is None else {k: v for k, v in found.items() if k != "drawn"}

    @property
    def by_party(self) -> bool:
        """Whether baselines are compared as means over parties, each tested on its own points.

        Over all points at once, models that parties trained alone would seem better than they are:
        they know how their parties differ. Where each of them was tested on all points as well
        (`elsewhere`), one model for everybody is compared with that.
        """
        return bool(self.baselines) and (
            not self.elsewhere or self.record.peer or self.record.personal
        )

    @property
    def levels(self) -> dict[str, float]:
        """What the metric is compared with, on the same points: alone and pooled."""
        return self.levels_of(self.metric)

    def levels_of(self, metric: str) -> dict[str, float]:
        """`levels` of any metric."""
        training, found = self.data.training, {}
        if self.by_party:
            for label, name in (("alone", "local"), ("pooled", "central")):
                if name in self.baselines and metric in self.baselines[name].parties:
                    found[label] = _mean(self.baselines[name].parties[metric][:training])
        elif self.baselines:
            found["alone"] = _mean(self.elsewhere[metric][:training])
            if "central" in self.baselines:
                found["pooled"] = self.baselines["central"].pooled[metric]
        return {label: value for label, value in found.items() if math.isfinite(value)}

    @property
    def joining(self) -> Joining | None:
        """What a new party needs for a model; None for peers, and where none was measured."""
        import torch

        if self.record.peer or not self.history:
            return None
        able, training = self.data.n > 0, self.data.training
        new = able & (torch.arange(len(able)) >= training)
        spent = {"gradients": 0.0, "seconds": 0.0}  # the shared model is used as it is
        if self.record.personal:
            if not self.making or not new.any():  # nobody is new, or nobody looked
                return None
            spent = {name: float(values[new].mean()) for name, values in self.making.items()}
        messages, up, down = self.record.joining
        return Joining(messages, up, down, parties=int(new.sum()), **spent)

    def curve(self, metric: str | None = None, new: bool = False) -> tuple[list[int], list[float]]:
        """Rounds and values of a metric over all test points, or the mean over sites.

        Of parties' own models where they have them, but for metrics of order: scores of different
        models have none in common. With `new`, of parties never seen in training.
        """
        metric = metric or self.metric
        own = metric not in ("auc", "c_index")
        if self.history and metric not in self.metrics:
            if not self.metrics:
                raise ArchipelError("no party has a test point to score: split some off, test=0.2.")
            raise unknown("metric", metric, self.metrics)
        mine, shared = ("own_new", "new") if new else ("own", "metrics")
        parts = [(own and entry.get(mine)) or entry[shared] or {} for entry in self.history]
        return (
            [entry["round"] for entry in self.history],
            [part.get(metric, math.nan) for part in parts],
        )

    def rounds_to(self, target: float, metric: str | None = None) -> float | None:
        """Rounds to a target: the best value so far, interpolated [McMahan 2017]; None if never.

        Evaluations without a site that others have in their mean do not count.
        """
        rounds, values = self.curve(metric)
        whole = [k for k, without in enumerate(absent(self.history)) if not without]
        return rounds_to(
            [rounds[k] for k in whole],
            [values[k] for k in whole],
            target,
            larger_is_better(metric or self.metric),
        )

    def plot(self, path: str | Path | None = None, metric: str | None = None) -> Picture:
        """Draw a metric against rounds, and the spread over parties of the last evaluation."""
        from archipel.report.plots import curve_and_spread

        return curve_and_spread(self, metric or self.metric, path)

    def to_frame(self) -> DataFrame:
        """A pandas frame with a row per evaluated round: metrics, and what it cost so far.

        Columns begin with `own_` for parties' own models, `new_` for parties never seen in training
        and `parties_` for the spread over parties.
        """
        from archipel.report.frames import of_run

        return of_run(self)

    def report(self, path: str | Path | None = None) -> Path:
        """Write report.html, one file to send on, into the run's folder or to `path`."""
        from archipel.report.html import write

        if path is None:
            if self.folder is None:
                raise ArchipelError("the run is in memory only: say where, report('report.html').")
            path = self.folder / "report.html"
        return write(self, Path(path))

    def _named(self, of: Mapping[int, int]) -> dict[str, int]:
        return {self.data.name(k): value for k, value in of.items()}

    def to_json(self) -> dict[str, Any]:
        """What came of it, as plain values."""
        last = self.history[-1] if self.history else {}
        rounds = [
            {
                "round": t,
                "sampled": len(cohort.sampled),
                "arrived": len(cohort.present),
                "missing": {self.data.name(k): str(cause) for k, cause in cohort.missing.items()},
                "counted": cohort.counted,
                "waited": cohort.waited,
                **({} if cohort.timing is None else {"simulated": _brief(cohort.timing)}),
                **({"stale": self._named(cohort.stale)} if cohort.stale else {}),
            }
            for t, cohort in enumerate(self.participation, 1)
        ]
        card = self.scorecard.to_json()
        return {
            "run": self.name,
            "folder": None if self.folder is None else str(self.folder),
            "study_hash": self.study_hash,
            "resolved_hash": self.resolved_hash,
            "state": self.state,
            "algorithm": repr(self.algorithm),
            "data": self.data.about.name,
            "model": type(self.task_model.module).__name__,
            "engine": "network" if self.between_sites else self.environment.get("engine", "local"),
            "seed": self.seed,
            "rounds": self.done,
            "parties": self.data.parties,
            "metric": self.metric,
            "metrics": self.metrics,
            "over": self.over,
            "warnings": self.warnings,
            "sites": self._sites(),
            "personal": self._personal(last),
            "baselines": {
                name: self._baseline(self.baselines.get(name)) for name in ("local", "central")
            },
            "elsewhere": {name: values.tolist() for name, values in self.elsewhere.items()} or None,
            "participation": rounds,
            **({} if self.graph is None else {"graph": self.graph}),
            "bytes": {"up": self.spent.up, "down": self.spent.down},
            "seconds": {
                "total": self.seconds,
                "per_round": self.seconds / self.done if self.done else None,
            },
            "memory": self.memory,
            "forecast": None if self.forecast is None else self.forecast.to_json(),
            **({"simulated": self.simulated} if self.simulated else {}),
            "privacy": card["privacy"]["promise"],
            "scorecard": card,
            "history": self.history,
        }

    def _sites(self) -> list[dict[str, Any]] | None:
        """What is known of each site; None for a simulation."""
        if not self.between_sites:
            return None
        known = [(self.data.name(k), self.points(k)) for k in range(self.data.parties)]
        return [
            {"site": site, "training_points": n, "test_points": n_test, "told": told}
            for site, (n, n_test, told) in known
        ]

    def _personal(self, last: Round) -> dict[str, Any] | None:
        joining = self.joining
        told = None if joining is None else joining._asdict()
        if not last.get("own"):
            return None
        return {"seen": last["own"], "unseen": last["own_new"], "joining": told}

    def _baseline(self, scores: Evaluation | None) -> dict[str, Any] | None:
        if scores is None:
            return None
        values, training = scores.parties[self.metric], self.data.training
        better = larger_is_better(self.metric)
        return {
            "metrics": scores.pooled,
            "new": scores.new or None,
            "seen_parties": spread(values[:training], better),
            "new_parties": spread(values[training:], better),
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"Run of {type(self.algorithm).__name__} on '{self.data.about.name}': " + (
            f"{self.done} rounds, {shown}"
        )


def _brief(timing: Timing) -> dict[str, Any]:
    """What the clock says of a round, without each party's part in it."""
    return {name: value for name, value in timing.to_json().items() if name != "told"}


def _mean(values: Tensor) -> float:
    """Over parties that have a value."""
    found = np.asarray(values, np.float64)
    known = found[~np.isnan(found)]
    return float(known.mean()) if len(known) else math.nan
