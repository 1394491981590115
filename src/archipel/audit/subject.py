# SPDX-License-Identifier: Apache-2.0
"""What is audited: a study's parts, and runs of it with a recorder at the server's place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from archipel.adversaries.adversary import Adversary as Malicious
from archipel.aggregation.summation import groups_of
from archipel.audit.recorder import Recorder, Tamper
from archipel.core import Algorithm, Vector
from archipel.data.federation import Federation
from archipel.engines.plan import Plan, ways
from archipel.errors import ArchipelError
from archipel.models.model import Model
from archipel.runs.run import Run
from archipel.runs.simulation import Options, build
from archipel.study.file import Study

_SOME = 4096  # records that ranges are taken of


class Ranges(NamedTuple):
    """What everybody knows of a feature: how large it is and how it varies, each `[*shape]`."""

    low: Tensor
    high: Tensor
    mean: Tensor
    sd: Tensor


@dataclass(frozen=True, eq=False)
class Subject:
    """A study's algorithm, data and model, with the options of its runs."""

    study: Study
    algorithm: Algorithm
    data: Federation
    model: Model
    options: Options
    plan: Plan

    @classmethod
    def of(cls, study: Study) -> Subject:
        """The parts that a study names, if there is something to audit."""
        study.refuse_asynchronous()
        if (groups := groups_of(study.wire_object.sum)) > 1:
            raise ArchipelError(
                f"audit: wire.sum, groups = {groups}: what sums of groups tell is not measured; it "
                'is between what is told by one sum (--set wire.sum="secure", without round.rule) '
                'and by single uploads (--set wire.sum="plain").'
            )
        algorithm, data, model = study.parts()
        if data.origin is not None:
            raise ArchipelError(
                "audit: this federation has virtual parties or folds, whose records are several "
                "parties' at once; leave data.virtual and data.folds out."
            )
        data = data.here
        way = "stacked" if "stacked" in ways(model, data) else "one"
        return cls(study, algorithm, data, model, study.options(), Plan(cast(Any, way), 16, 1))

    @cached_property
    def ranges(self) -> Ranges:
        """Of the features, from some of all records."""
        random = torch.Generator().manual_seed(self.study.study.seed)
        some = torch.randperm(self.data.points, generator=random)[:_SOME]
        x = self.data.x[some].flatten(1)
        x = x if x.is_floating_point() else x.double()
        low, high = x.amin(dim=0), x.amax(dim=0)
        sd, mean = torch.std_mean(x, dim=0)
        return Ranges(*(each.view(self.data.shape) for each in (low, high, mean, sd)))

    def run(
        self,
        rounds: frozenset[int],
        seed: int,
        data: Federation | None = None,
        tamper: Tamper | None = None,
        until: int | None = None,
        adversary: Malicious | None = None,
    ) -> tuple[Run, Recorder]:
        """Run the study on these points, by another seed, with these rounds written down.

        The model begins as the study's does. Noise and batches are the seed's, so that they are as
        fresh in every run as they would be outside a simulation. `until` stops it early;
        `adversary` is a party that acts.
        """
        fed = self.data if data is None else data
        options = cast(Options, dict(self.options))
        options["seed"], options["plan"], options["workers"] = seed, self.plan, 1
        options["evaluate_every"] = options.get("rounds", 100)
        if adversary is not None:
            options["adversary"] = adversary
        recorder = Recorder(rounds, tamper)
        engine, loop = build(self.algorithm, fed, self.model, options, watched=recorder.watched)
        (run,) = loop.runs
        run.study = self.study
        stop: Callable[[Run], bool] | None = None
        if until is not None:
            stop = lambda done: done.done >= until  # noqa: E731
        with engine:
            recorder.start(engine.anatomy, fed.points)
            loop.go(None if stop is None else _Stopping(stop), None)
        return run, recorder

    def losses(self, w: Vector, rows: Tensor, buffers: Tensor | None) -> tuple[Tensor, Tensor]:
        """Each record's loss `[N]`, and how sure the model is of it, `[N, 3]`."""
        found, sure = [], []
        for part in rows.split(1024):
            outputs = self.model.predict(w, self.data.x[part], buffers)
            y, one = self.data.y[part], outputs.new_ones(len(part), 1)
            found.append(self.model.loss_function(outputs.unsqueeze(1), y.unsqueeze(1), one))
            sure.append(_sure(outputs))
        return torch.cat(found), torch.cat(sure)


class _Stopping:
    """Looks on, and ends a run."""

    def __init__(self, stop: Callable[[Run], bool]) -> None:
        self._stop = stop

    def __call__(self, run: Run) -> bool:
        return self._stop(run)

    def say(self, text: str) -> None:
        pass


def _sure(outputs: Tensor) -> Tensor:
    """The largest log-probabilities of a record, falling, `[N, 3]`; of text their mean."""
    if outputs.dim() < 2 or outputs.shape[-1] < 2:
        return outputs.new_zeros(len(outputs), 3)
    top = outputs.log_softmax(dim=-1).topk(min(3, outputs.shape[-1]), dim=-1).values
    top = top.flatten(1, -2).mean(dim=1) if top.dim() > 2 else top
    wide = top.new_full((len(top), 3), float(top.min()))
    wide[:, : top.shape[-1]] = top
    return wide
