# SPDX-License-Identifier: Apache-2.0
"""The baselines of a comparison, once per seed: every party alone, and all data in one place."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archipel.algorithms.fedavg import FedAvg
from archipel.comparison.design import Design, Entry, chosen
from archipel.comparison.results import CENTRAL, LOCAL, Result, quantiles
from archipel.core import LocalWork
from archipel.data.federation import Federation
from archipel.engines.engine import Evaluation
from archipel.engines.local.engine import Pools
from archipel.engines.local.pool import ForkedPool, cores, each_block
from archipel.errors import RunFailed
from archipel.metrics import PRIMARY, larger_is_better
from archipel.plain import plain
from archipel.runs import baselines
from archipel.runs.history import spread
from archipel.study.file import Study
from archipel.tree import nbytes

Level = dict[str, Any]  # a Result's fields
Points = dict[str, float]  # metrics of one model on all test points; of every party's, their mean


class Levels:
    """Trains baselines with the local work of one of the algorithms.

    `stored`, seed -> name -> level, is where they are kept; what is there is not trained again.
    """

    at = ""  # as a worker's words

    def __init__(
        self,
        plan: Design,
        stored: dict[str, dict[str, Level]],
        workers: int | None,
        pools: Pools | None = None,
    ) -> None:
        """`pools` makes the workers of parties alone; on this machine unless given."""
        self._plan, self._stored, self._workers, self._pools = plan, stored, workers, pools
        self._entry = worker(plan.entries)

    @property
    def words(self) -> str:
        """Whose work it is, and what that is."""
        entry = self._entry
        work = FedAvg() if entry is None else entry.study.algorithm_object
        tried = {} if entry is None else self._plan.settings(entry)[0]
        facts = [
            f"{name} {'as chosen' if name in tried else getattr(work, name)}"
            for name in ("lr", "local_epochs", "local_steps", "batch_size")
            if getattr(work, name, None) is not None
        ]
        whose = "FedAvg, as no algorithm has an lr" if entry is None else entry.label
        return (
            f"the local work of {whose} ({', '.join(facts)}), with a third or three times the lr "
            "where that is better on points held out; linear models of pooled data, and of "
            "numbers, are solved"
        )

    def local(self, seed: int, data: Federation, settings: Mapping[str, Any]) -> bool:
        """Train every party alone; return whether it had to be done."""
        if "local" in self._stored.get(str(seed), {}):
            return False
        study, work = self._work(seed, settings)

        def train() -> tuple[Evaluation, Points]:
            scores, elsewhere, _ = baselines.alone(
                work,
                data,
                study.build_model(data),
                **_budget(study),
                workers=self._workers,
                pools=self._pools,
            )
            seen = {name: values[: data.training] for name, values in elsewhere.items()}
            return scores, {name: float(values.nanmean()) for name, values in seen.items()}

        level = _trained(train, study, data) | {"joining": {"messages": 0, "bytes": 0}}
        self._stored.setdefault(str(seed), {})["local"] = level
        return True

    def central(self, settings: Mapping[int, Mapping[str, Any]]) -> bool:
        """Train on all data, the seeds side by side: each on one core, so it takes the longest."""
        missing = [s for s in self._plan.seeds if "central" not in self._stored.get(str(s), {})]
        count = cores() if self._workers is None else self._workers
        for seeds in each_block(missing, 1 if count == 1 else 2 * count):
            pool = ForkedPool(len(seeds), lambda index, call: self)
            try:
                found = pool.run([{"seed": seed, "settings": settings[seed]} for seed in seeds])
            finally:
                pool.close()
            for seed, level in zip(seeds, found, strict=True):
                self._stored.setdefault(str(seed), {})["central"] = level
        return bool(missing)

    def handle(self, message: dict[str, Any]) -> Level:
        """Train on all data of one seed."""
        study, work = self._work(message["seed"], message["settings"])
        data = study.federation()
        model = study.build_model(data)

        def train() -> tuple[Evaluation, Points]:
            scores = baselines.pooled(work, data, model, **_budget(study)).scores
            return scores, scores.pooled

        needs = {"messages": 1, "bytes": nbytes(model.w), "gradients": 0, "seconds": 0.0}
        return _trained(train, study, data) | {"joining": needs}

    def results(self) -> tuple[Result, ...]:
        """All of them, as rows of the table."""
        return tuple(
            Result(label, seed, **self._stored[str(seed)][name])
            for name, label in (("local", LOCAL), ("central", CENTRAL))
            for seed in self._plan.seeds
        )

    def _work(self, seed: int, settings: Mapping[str, Any]) -> tuple[Study, LocalWork]:
        if self._entry is None:
            return chosen(self._plan.entries[0].study, {}, seed), FedAvg()
        study = chosen(self._entry.study, settings, seed)
        return study, study.algorithm_object  # type: ignore[return-value]


def worker(entries: Sequence[Entry]) -> Entry | None:
    """Whose local work the baselines do: the first that trains locally, else that has an lr."""
    having = [each for each in entries if hasattr(each.study.algorithm_object, "lr")]
    local = [each for each in having if hasattr(each.study.algorithm_object, "local_epochs")]
    return next(iter([*local, *having]), None)


def _budget(study: Study) -> dict[str, Any]:
    about = study.study
    budget = {"rounds": about.rounds, "sample": study.round.sample, "seed": about.seed}
    return budget | {"tuned": True}


def _trained(
    train: Callable[[], tuple[Evaluation, Points]], study: Study, data: Federation
) -> Level:
    """A baseline as the last round of a run would be."""
    metric, began = study.study.metric or PRIMARY[data.task], time.perf_counter()
    try:
        scores, points = train()
    except RunFailed as error:
        return {"failed": str(error)}
    values, up = scores.parties[metric], larger_is_better(metric)
    entry = {
        "round": study.study.rounds,
        "metrics": points,
        "own": scores.pooled or None,  # whoever's models they are: at a party, that party's
        "new": scores.new or None,
        "seen_parties": spread(values[: data.training], up),
        "new_parties": spread(values[data.training :], up),
    }
    return {
        "history": [plain(entry)],
        "curve": plain([[study.study.rounds, points[metric]]] if metric in points else []),
        "spread": quantiles(values[: data.training]),
        "seconds": time.perf_counter() - began,
    }
