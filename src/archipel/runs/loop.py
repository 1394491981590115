# SPDX-License-Identifier: Apache-2.0
"""The loop over rounds: have them done, evaluate, write down, show."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from archipel.engines.engine import Engine, Evaluation, Some
from archipel.engines.local.engine import Pools
from archipel.errors import ArchipelError, BudgetSpent, RunFailed, unknown
from archipel.metrics import larger_is_better
from archipel.metrics.intervals import of_mean
from archipel.runs import baselines as baseline
from archipel.runs import graph
from archipel.runs.attendance import Attendance, KeepingAttendance
from archipel.runs.history import Round, spread
from archipel.runs.recording import Recorder
from archipel.runs.run import Run, Spent
from archipel.runs.some import OfSome
from archipel.training.descent import work_of


class Watch(Protocol):
    """Who looks on: told before the first round and after every one; True stops the run."""

    def __call__(self, run: Run) -> bool | None: ...
    def say(self, text: str) -> None:
        """What goes on before the first round."""


class Loop:
    """The loop over rounds: of one run, or of a sweep's runs side by side."""

    recorder: Recorder | None = None  # writes the run down, where it has a folder

    def __init__(
        self,
        engine: Engine,
        attendance: Attendance,
        runs: Sequence[Run],
        every: int = 1,
        swept: bool = False,
        who: Some | None = None,
    ) -> None:
        """`every` so many rounds there is an evaluation, and after the last one.

        The runs are one, or those of a sweep, whose settings the engine has side by side. Models
        are scored at every party, or at a sample, `who`.
        """
        self.engine, self.attendance, self.runs = engine, attendance, list(runs)
        self._every, self._swept, self._who = every, swept, who
        self._clock = 0  # rounds so far, and those that were waited for

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint of the one run, whose history was put back already."""
        (run,) = self.runs
        self._clock = sum(1 + cohort.waited for cohort in run.participation)
        if state:
            self.engine.restore(state)
            if isinstance(self.attendance, KeepingAttendance):
                self.attendance.restore(state)
        self._take_model(run, 0)

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on besides its number: a checkpoint."""
        found = self.engine.state()
        if isinstance(self.attendance, KeepingAttendance):
            found |= self.attendance.state()
        return found

    def baselines(
        self, sample: float | int, say: Callable[[str], None], pools: Pools | None = None
    ) -> None:
        """Train what the run is compared with, as well as can be (`archipel.runs.baselines`).

        `sample` is the share of parties that a round has, or how many; `pools` makes the workers.
        """
        (run,) = self.runs
        why = ""
        try:
            work_of(run.algorithm)
        except ArchipelError:
            why = "the algorithm has no lr to train a party alone with"
        if run.data.lazy:
            why = "parties' points come when they are asked for, and nobody has all of them"
        if why:
            run.notes.append(f"no baselines: {why}.")
            if self.recorder is not None:
                self.recorder.baselines()
            return
        budget: dict[str, Any] = {
            "rounds": run.rounds,
            "sample": sample,
            "seed": run.seed,
            "plan": run.plan,
            "tuned": True,
            "say": say,
        }
        parts: Any = (run.algorithm, run.data, run.task_model)
        try:
            run.baselines["local"], run.elsewhere, how = baseline.alone(
                *parts, **budget, pools=pools
            )
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
        """Do the rounds that are left; what was done is kept where a budget does not last."""
        run, over = self.runs[0], None
        stopped = watch is not None and bool(watch(run))
        began = time.perf_counter() - run.seconds
        if self._due(run.done) and (not run.history or run.history[-1]["round"] < run.done):
            self._evaluate(run.done - 1, run.seconds)  # the process ended before it could
            if self.recorder is not None:
                self.recorder.evaluated()
        for t in range(run.done, run.rounds):
            if stopped:
                break
            evaluated = self._due(t + 1)
            try:
                spent = self._round(t)
            except BudgetSpent as error:
                over = error
                break
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
            each.state = "done" if each.done == each.rounds else "stopped"
            self._take_model(each, index)
            each.notes += [said for said in each.warnings if said not in each.notes]
        if self.recorder is not None:
            text = f"{run.done} of {run.rounds} rounds"
            self.recorder.end(run.state, text, run.scorecard.to_json())
        if over is not None:
            raise over

    def _due(self, done: int) -> bool:
        """Whether there is an evaluation after so many rounds."""
        return done > 0 and (done % self._every == 0 or done == self.runs[0].rounds)

    def _round(self, t: int) -> Spent:
        """One round; return what it cost."""
        cohort, outcome = self.attendance.take_part(t, self._clock)
        data = self.runs[0].data  # with those who came for this round
        self._clock += 1 + cohort.waited
        notes, spent = [], Spent()
        if cohort.counted:
            spent = Spent(outcome.gradients, outcome.up, outcome.down)
            if outcome.given_up:
                why = outcome.given_up.rstrip(".")
                notes.append(f"round {t + 1}: before it counted, its sum was given up: {why}.")
        else:
            why = outcome.given_up.rstrip(".") or "below the quorum"
            notes.append(f"round {t + 1}: {why}, not counted.")
        if cohort.waited:
            who = ", ".join(f"{data.name(k)} {cause}" for k, cause in [*cohort.blocked.items()][:5])
            notes.append(f"round {t + 1}: waited {cohort.waited} times for the quorum ({who}).")
        notes += [
            f"round {t + 1}: party {data.name(k)} {cause}, when its upload was in the sum already."
            for k, cause in [*outcome.left.items()][:5]
        ]
        notes += [
            f"round {t + 1}: party {data.name(k)} diverged and was left out: lower lr."
            for k in outcome.diverged.tolist()
        ]
        for run in self.runs:
            run.participation.append(cohort)
            run.notes += notes
        return spent

    def _take_model(self, run: Run, index: int) -> None:
        run.vector = self.engine.vector(index if self._swept else None).clone()
        run.buffers = self.engine.buffers()

    def _evaluate(self, t: int, seconds: float) -> None:
        """Score every run after round t."""
        engine = self.engine
        self.attendance.before_evaluation()
        for index, run in enumerate(self.runs):
            self._take_model(run, index)
            scores = engine.evaluate(run.vector, who=self._who)
            own = None
            if engine.has_own and not self._swept:
                own = engine.evaluate(own=True, who=self._who)
            run.parties = self._by_party(run, (own or scores).parties)
            if own is not None and own.costs is not None:
                made = {"gradients": own.costs.gradients, "seconds": own.costs.seconds}
                run.making = self._by_party(run, made)
            if scores.pooled and run.metric not in scores.pooled:
                raise unknown("metric", run.metric, scores.pooled)
            cohort = run.participation[-1]
            run.history.append(
                {
                    **entry(t + 1, run, scores, own),
                    "sampled": len(cohort.sampled),
                    "missing": len(cohort.missing),
                    "bytes": {"up": run.spent.up, "down": run.spent.down},
                    "gradients": run.spent.gradients,
                    "seconds": seconds,
                    **({"simulated": run.simulated} if run.simulated else {}),
                    **_staleness(run),
                    **graph.recorded(engine, run, t, self._every),
                    **_attack(run),
                }
            )

    def _by_party(self, run: Run, values: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """Values with a row for each party, also where some were scored."""
        if self._who is None:
            return values
        return OfSome(self._who.parties, run.data.parties, values)


def _staleness(run: Run) -> dict[str, Any]:
    """How many versions ago parties began whose uploads came since the evaluation before."""
    before = run.history[-1]["round"] if run.history else 0
    rounds = run.participation[before:]
    late = [tau for each in rounds if each.timing is not None for tau in each.timing.staleness]
    if not late:
        return {}
    return {"staleness": {"mean": sum(late) / len(late), "max": max(late)}}


def _attack(run: Run) -> dict[str, Any]:
    """How often test points are taken for what adversaries want; their attack may want nothing."""
    if run.adversary is None:
        return {}
    found = run.adversary.success(run.data, run.task_model, run.vector, run.buffers)
    return {} if found is None else {"attack_success": found}


def entry(t: int, run: Run, scores: Evaluation, own: Evaluation | None) -> Round:
    """One evaluated round: over all points, and over parties (mean, worst tenth, spread)."""
    training, better = run.data.training, larger_is_better(run.metric)
    per_party, who = (own or scores).parties[run.metric], scores.who
    if who is not None:
        training = int(np.searchsorted(who.parties, training))
    found: Round = {
        "round": t,
        "metrics": scores.pooled,
        "new": scores.new or None,
        "own": None if own is None else own.pooled,
        "own_new": None if own is None else own.new or None,
        "seen_parties": spread(per_party[:training], better),
        "new_parties": spread(per_party[training:], better),
    }
    if who is not None:
        groups = (per_party[:training], per_party[training:])
        found |= {"scored": {"parties": [len(each) for each in groups], "of": list(who.of)}}
        sure_of = {"intervals": scores.intervals, "new_intervals": scores.new_intervals}
        sure_of |= {} if own is None else {"own_intervals": own.intervals}
        found |= {name: _listed(intervals) for name, intervals in sure_of.items()}
        for name, values, of in zip(("seen_parties", "new_parties"), groups, who.of, strict=True):
            sure = of_mean(values.double().numpy(), of)
            if found[name] is not None and sure is not None:
                found[name] |= {"interval": list(sure)}
    if run.between_sites:
        there = torch.nonzero(per_party.isfinite())[:, 0].tolist()
        found |= {"over": scores.over, "sites": [run.data.name(k) for k in there]}
    return found


def _listed(intervals: Mapping[str, tuple[float, float]]) -> dict[str, list[float]]:
    """As a journal has them."""
    return {name: list(each) for name, each in intervals.items()}
