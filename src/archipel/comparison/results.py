# SPDX-License-Identifier: Apache-2.0
"""What came of a comparison: every run, and rows of means and deviations over seeds.

One file, since rows are made of runs and a comparison of rows, all written and read as one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from archipel.metrics import larger_is_better
from archipel.report.tables import Table, as_text, html
from archipel.runs.history import Round, rounds_to

if TYPE_CHECKING:
    from pandas import DataFrame

    from archipel.picture import Picture

LOCAL, CENTRAL = "every party alone", "data pooled"
RANKS = ("auc", "average_precision", "c_index")  # of one model: others' have no common order
JOINING = ("messages", "gradients", "bytes", "seconds")  # what a new party needs for a model
NEAR = 0.95  # of the best final value: the target where the study names none

_QUANTILES = 101


@dataclass(frozen=True)
class Stat:
    """A number of each seed, None where there is none."""

    values: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        return [each for each in self.values if each is not None]

    @property
    def mean(self) -> float | None:
        """None unless every seed has a number: a mean over those that got there would flatter."""
        return fmean(self.known) if self.values and len(self.known) == len(self.values) else None

    @property
    def sd(self) -> float | None:
        """Of a sample (n - 1); None for one seed."""
        return stdev(self.known) if self.mean is not None and len(self.values) > 1 else None

    def to_json(self) -> dict[str, Any]:
        return {"mean": self.mean, "sd": self.sd, "values": list(self.values)}


@dataclass(frozen=True)
class Result:
    """One run, or one baseline, of one seed, as plain values."""

    label: str
    seed: int
    run: str | None = None  # the folder's name in the comparison's
    algorithm: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # every field of the algorithm
    wire: dict[str, Any] = field(default_factory=dict)  # what the study's [wire] says
    chosen: dict[str, Any] = field(default_factory=dict)  # those that the grid chose
    edges: dict[str, str] = field(default_factory=dict)  # where that was the largest or smallest
    own_models: bool = False  # each party uses its own model
    served: bool = False  # and there is a server, unlike among peers
    tried: int | None = None  # settings of the grid
    joining: dict[str, Any] | None = None  # `Run.joining`: what a new party needs for a model
    history: list[Round] = field(default_factory=list)
    curve: list[list[Any]] = field(default_factory=list)  # `Run.curve`: rounds and values
    spread: list[float] = field(default_factory=list)  # of the seen parties' last values, sorted
    bytes: dict[str, int] | None = None  # up, down
    epsilon: float | None = None  # spent, where privacy is promised
    gradients: int | None = None
    seconds: float | None = None
    notes: list[str] = field(default_factory=list)
    failed: str | None = None  # why

    @property
    def last(self) -> Round:
        return self.history[-1] if self.history and self.failed is None else {}

    def score(self, part: str, name: str) -> float | None:
        """A number of the last evaluation."""
        value = (self.last.get(part) or {}).get(name)
        return None if value is None else float(value)

    @property
    def final(self) -> float | None:
        """Where the curve ends."""
        return self.curve[-1][1] if self.curve and self.failed is None else None

    def points(self, metric: str) -> float | None:
        """Over all test points, with the models that parties use."""
        return None if self.own_models and metric in RANKS else self.final

    def new_points(self, metric: str) -> float | None:
        """Over all test points of new parties, with the models that they use."""
        part = "own_new" if self.last.get("own_new") else "new"
        unlike = self.own_models or self.label == LOCAL
        return None if unlike and metric in RANKS else self.score(part, metric)

    def carried(self, entry: Round) -> int:
        """Bytes over the network up to a round: what one peer sends, another receives."""
        sent: Mapping[str, int] = entry["bytes"]
        return sent["up"] if self.own_models and not self.served else sent["up"] + sent["down"]

    def sent(self, way: str, rounds: Sequence[float]) -> list[float]:
        """Bytes "up" or "down" until each of these rounds."""
        return self._until(rounds, lambda entry: entry["bytes"][way])

    def rounds_to(self, target: float, metric: str) -> float | None:
        """`Run.rounds_to`, of a curve that was stored."""
        counts = self.failed is None and self.bytes is not None
        known = [(t, value) for t, value in self.curve if value is not None] if counts else []
        rounds, values = [t for t, _ in known], [value for _, value in known]
        return rounds_to(rounds, values, target, larger_is_better(metric))

    def bytes_to(self, target: float, metric: str) -> float | None:
        rounds = self.rounds_to(target, metric)
        if rounds is None:
            return None
        return self._until([rounds], self.carried)[0]

    def simulated_to(self, target: float, metric: str) -> float | None:
        """Seconds of the simulated clock to a target; None where there is no clock."""
        rounds = self.rounds_to(target, metric)
        if rounds is None or "simulated" not in self.last:
            return None
        return self._until([rounds], lambda entry: entry["simulated"]["seconds"])[0]

    def _until(self, rounds: Sequence[float], count: Callable[[Round], float]) -> list[float]:
        at = [0, *(entry["round"] for entry in self.history)]
        sums = [0, *map(count, self.history)]
        return [float(each) for each in np.interp(rounds, at, sums)]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    label: str
    results: Sequence[Result]  # one per seed
    figures: Mapping[str, Stat]

    @property
    def failed(self) -> dict[int, str]:
        """Seeds whose run failed, and why."""
        return {each.seed: each.failed for each in self.results if each.failed is not None}


@dataclass(frozen=True)
class Comparison:
    """Algorithms on the same splits, seed by seed; made by `archipel.comparison`."""

    name: str
    folder: Path | None
    facts: dict[str, Any]  # data, partition, parties, new_parties, model, rounds, sample
    metric: str
    asked: float | None  # the study's target
    seeds: tuple[int, ...]
    grid: dict[str, list[Any]]
    work: str | None  # what the baselines train with
    results: tuple[Result, ...]  # algorithm by algorithm, seed by seed
    levels: tuple[Result, ...] = ()  # the baselines

    @property
    def rows(self) -> list[Row]:
        """The algorithms, in the order they were named."""
        return self._rows(self.results)

    @property
    def baselines(self) -> list[Row]:
        """Every party alone, and all data in one place."""
        return self._rows(self.levels)

    @property
    def target(self) -> float | None:
        """The study's, or one near the best final mean over all test points."""
        if self.asked is not None:
            return float(self.asked)
        up = larger_is_better(self.metric)
        final = self._stats(self.results, lambda each: each.final)
        means = [stat.mean for stat in final.values() if stat.mean is not None]
        if not means:
            return None
        best = max(means) if up else min(means)
        return float(f"{best - (1 if up else -1) * (1 - NEAR) * abs(best):.3g}")

    @property
    def personal(self) -> bool:
        """Whether an algorithm with a server gives parties models of their own."""
        return any(each.served for each in self.results)

    @property
    def wires(self) -> bool:
        """Whether rows differ in what stands between parties and server, and so in bytes."""
        ran = [each for each in self.results if each.bytes is not None]
        return any(each.wire != ran[0].wire and each.bytes != ran[0].bytes for each in ran)

    @property
    def private(self) -> bool:
        """Whether a row promises privacy."""
        return any(each.epsilon is not None for each in self.results)

    @property
    def failed(self) -> bool:
        """Whether a run failed."""
        return any(each.failed is not None for each in self.results)

    def _stats(
        self, results: Sequence[Result], value: Callable[[Result], float | None]
    ) -> dict[str, Stat]:
        labels = dict.fromkeys(each.label for each in results)
        return {
            label: Stat(tuple(value(each) for each in results if each.label == label))
            for label in labels
        }

    def _rows(self, results: Sequence[Result]) -> list[Row]:
        found = {name: self._stats(results, value) for name, value in self._figures().items()}
        return [
            Row(
                label,
                [each for each in results if each.label == label],
                {name: stats[label] for name, stats in found.items()},
            )
            for label in dict.fromkeys(each.label for each in results)
        ]

    def _figures(self) -> dict[str, Callable[[Result], float | None]]:
        """The numbers of a row, each from one run."""
        metric, target = self.metric, self.target

        def to_target(way: Callable[[Result, float, str], float | None]) -> Any:
            return lambda each: None if target is None else way(each, target, metric)

        def points(each: Result) -> float | None:
            if each.label == LOCAL and self.personal:  # as for the others: each on its own points
                return None if metric in RANKS else each.score("own", metric)
            return each.points(metric)

        def sent(way: str) -> Any:
            return lambda each: None if each.failed else (each.bytes or {}).get(way)

        def joining(name: str) -> Any:
            return lambda each: None if each.failed else (each.joining or {}).get(name)

        return {
            "points": points,
            "parties": lambda each: each.score("seen_parties", "mean"),
            "worst_tenth": lambda each: each.score("seen_parties", "worst_tenth"),
            "new_points": lambda each: each.new_points(metric),
            "new_parties": lambda each: each.score("new_parties", "mean"),
            "new_worst_tenth": lambda each: each.score("new_parties", "worst_tenth"),
            "mean_model": lambda each: (
                each.score("metrics", metric) if each.own_models and each.bytes else None
            ),
            "rounds_to_target": to_target(Result.rounds_to),
            "bytes_to_target": to_target(Result.bytes_to),
            "simulated_to_target": to_target(Result.simulated_to),
            "bytes": lambda each: (
                None if each.failed or not each.bytes else each.carried({"bytes": each.bytes})
            ),
            "epsilon": lambda each: None if each.failed else each.epsilon,
            "bytes_up": sent("up"),
            "bytes_down": sent("down"),
            "gradients": lambda each: None if each.failed else each.gradients,
            "seconds": lambda each: None if each.failed else each.seconds,
            **{f"joining_{name}": joining(name) for name in JOINING},
        }

    # -- out -------------------------------------------------------------------------------------

    def table(self, form: str = "md") -> str:
        """The table as "md", "csv" or "latex"."""
        from archipel.comparison.table import table

        return table(self).render(form)

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the metric against rounds with bands over seeds, and its spread over parties."""
        from archipel.report.comparison import curves_and_spread

        return curves_and_spread(self, path)

    def plot_privacy(self, path: str | Path | None = None) -> Picture:
        """Draw the metric against the ε that was spent, a point for each row."""
        from archipel.report.comparison import against_privacy

        return against_privacy(self, path)

    def plot_bytes(self, path: str | Path | None = None) -> Picture:
        """Draw the metric against megabytes sent, a curve for each row."""
        from archipel.report.comparison import against_bytes

        return against_bytes(self, path)

    def to_frame(self) -> DataFrame:
        """A pandas frame with a row per algorithm, or baseline, and seed."""
        from archipel.report.frames import of_comparison

        return of_comparison(self)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values: the rows, and every run with its history."""
        levels = {row.label: self._row_json(row) for row in self.baselines}
        document: dict[str, Any] = {
            "comparison": self.name,
            "folder": None if self.folder is None else str(self.folder),
            **self.facts,
            "metric": self.metric,
            "larger_is_better": larger_is_better(self.metric),
            "target": {"value": self.target, "of_the_study": self.asked is not None},
            "seeds": list(self.seeds),
            "grid": self.grid,
            "algorithms": [self._row_json(row) for row in self.rows],
            "baselines": {
                "work": self.work,
                "local": levels.get(LOCAL),
                "central": levels.get(CENTRAL),
            },
        }
        return document

    def _row_json(self, row: Row) -> dict[str, Any]:
        names = dict.fromkeys(
            name for each in row.results for name in (each.last.get("metrics") or {})
        )
        figures = {name: stat.to_json() for name, stat in row.figures.items()}
        return {
            "label": row.label,
            "metrics": {
                name: Stat(tuple(each.score("metrics", name) for each in row.results)).to_json()
                for name in names
            },
            "points": figures["points"],
            "new_points": figures["new_points"],
            "seen_parties": {"mean": figures["parties"], "worst_tenth": figures["worst_tenth"]},
            "new_parties": {
                "mean": figures["new_parties"],
                "worst_tenth": figures["new_worst_tenth"],
            },
            "bytes": {
                "up": figures["bytes_up"],
                "down": figures["bytes_down"],
                "carried": figures["bytes"],
                "to_target": figures["bytes_to_target"],
            },
            "epsilon": figures["epsilon"],
            "rounds_to_target": figures["rounds_to_target"],
            "simulated_to_target": figures["simulated_to_target"],
            "gradients": figures["gradients"],
            "seconds": figures["seconds"],
            "joining": {name: figures[f"joining_{name}"] for name in JOINING},
            "failed": {str(seed): why for seed, why in row.failed.items()},
            "runs": [asdict(each) for each in row.results],
        }

    @classmethod
    def of_json(cls, document: Mapping[str, Any], folder: Path | None) -> Self:
        """Read back what `to_json` wrote."""
        target, levels = document["target"], document["baselines"]
        facts = ("data", "partition", "parties", "new_parties", "model", "rounds", "sample")
        return cls(
            document["comparison"],
            folder,
            {name: document[name] for name in facts},
            document["metric"],
            target["value"] if target["of_the_study"] else None,
            tuple(document["seeds"]),
            document["grid"],
            levels["work"],
            tuple(Result(**each) for row in document["algorithms"] for each in row["runs"]),
            tuple(
                Result(**each)
                for name in ("local", "central")
                if levels[name] is not None
                for each in levels[name]["runs"]
            ),
        )

    # -- for terminals and notebooks -------------------------------------------------------------

    def __rich__(self) -> Table:
        from archipel.comparison.table import table

        return table(self)

    def __repr__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return html(self.__rich__())


def quantiles(values: Tensor) -> list[float]:
    """Parties' values, sorted; of many parties, every hundredth part."""
    known = values[torch.isfinite(values)].double().sort().values
    if len(known) > _QUANTILES:
        known = known.quantile(torch.linspace(0, 1, _QUANTILES, dtype=torch.float64))
    return [float(each) for each in known]


def dumps(document: Mapping[str, Any]) -> bytes:
    """Strict JSON."""
    return (json.dumps(document, allow_nan=False) + "\n").encode()
