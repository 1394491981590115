# SPDX-License-Identifier: Apache-2.0
"""A study under way at the coordinator: the loop of a simulation, with sites that are elsewhere.

The loop, the journal, the history and the report are those of a simulation. The data is not here:
in its place stands a federation of the same names, sizes and shapes without a single value. The
loop runs in a thread of its own; the engine and its letters in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import numpy as np

from archipel.aggregation.roster import SIGNED
from archipel.core import ServerAlgorithm
from archipel.data.federation import Federation
from archipel.data.shadow import Facts
from archipel.engines.engine import Cause, Outcome
from archipel.engines.network.answers import Answers
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted, keepable, protected, told_plan
from archipel.engines.network.letters import Letter, Sealed
from archipel.engines.network.opened import Patience
from archipel.engines.network.remote import Remote
from archipel.engines.protection import Protection, protecting
from archipel.errors import ArchipelError, BelowQuorum, BudgetSpent, unknown
from archipel.exchange.boxes import Boxes, buffer_of, is_asynchronous
from archipel.exchange.statistics import averages
from archipel.federation.coordinator.sites import Sites
from archipel.federation.scale import Scale
from archipel.metrics import PRIMARY, may_leave, name_of, pool
from archipel.models.model import Model
from archipel.privacy.promise import Kept, Privacy
from archipel.runs.beginning import Beginning
from archipel.runs.buffering import check_buffer
from archipel.runs.loop import Loop
from archipel.runs.participation import Cohort
from archipel.runs.run import Run
from archipel.runs.simulation import Options

_SIGNED = Cause.read(SIGNED)
_OTHER_SUM = "wire.sum: sites that signed a sum of this round before are in no other one."
_AGAIN = 2.0  # seconds until a round below the quorum is tried again


class SiteAttendance:
    """Who takes part among sites: those that are there, until a round has enough of them."""

    def __init__(self, engine: Remote, sites: Sites, run: Run) -> None:
        self._engine, self._sites, self._run = engine, sites, run

    def take_part(self, t: int, clock: int) -> tuple[Cohort, Outcome]:
        """Ask sites that are there, until the round counts or the study says to go on without."""
        sites = self._sites
        sites.find_scale()
        waited, blocked, why = 0, dict[int, Cause](), ""
        while True:
            sites.take_in()
            self._refuse_spent(t)
            cohort, outcome, needed = self._try(t)
            cohort = cohort._replace(waited=waited, blocked=blocked)
            arrived, sampled = len(cohort.present), len(cohort.sampled)
            over = _SIGNED in cohort.missing.values()  # who signed a sum is in no other of a round
            why = outcome.given_up or (_OTHER_SUM if over else why)
            over = over or (bool(outcome.given_up) and is_asynchronous(self._run.algorithm))
            answer = f"{arrived} of {sampled} sites answer"
            needs = outcome.given_up.rstrip(".") or f"{answer}, {needed} are needed"
            word = "its sum was given up" if outcome.given_up else "below quorum"
            sites.waits("" if cohort.counted else word, needs)
            if not cohort.counted:
                self._refuse_spent(t)
            on_missing = sites.policy()[0].on_missing
            if cohort.counted or on_missing == "continue" or over:
                return cohort, outcome._replace(given_up=why)
            if on_missing == "abort":
                causes = ", ".join(
                    f"{self._run.data.name(k)} {cause}"
                    for k, cause in [*cohort.missing.items()][:5]
                )
                below = f"below the quorum of {needed}: lower round.quorum, or"
                below = f"{why.rstrip('.')}:" if why else below
                raise BelowQuorum(
                    f"round {t + 1}: {answer} ({causes}), {below} say on_missing = 'wait'."
                )
            waited, blocked = waited + 1, cohort.missing
            sites.presence.pause(_AGAIN)

    def _refuse_spent(self, t: int) -> None:
        """End a study whose sites say that they have no privacy left for as many as it needs."""
        sites, presence, data = self._sites, self._sites.presence, self._run.data
        eligible, needed = sites.eligible.tolist(), max(1, sites.needed)
        spent = [k for k in eligible if presence.cause(k).why == "spent"]
        if spent and len(eligible) - len(spent) < needed:
            names = ", ".join(data.name(k) for k in spent[:5])
            raise BudgetSpent(
                f"round {t + 1}: the privacy budget of {len(spent)} of {len(eligible)} sites is "
                f"spent ({names}) and a round needs {needed}: what was learnt in {t} rounds is "
                "kept; go on with 'archipel coordinator start' when sites have more, or lower "
                "round.quorum in another study."
            )

    def _try(self, t: int) -> tuple[Cohort, Outcome, int]:
        """Ask the sites that are there once; also, how many uploads are needed."""
        sites, presence = self._sites, self._sites.presence
        (who, needed), eligible = sites.policy(), sites.eligible
        sites.wait_for(min(needed, len(eligible)))
        if is_asynchronous(self._run.algorithm):
            return *self._step(t, who.count(len(eligible)), needed), needed
        awake = who.awake(eligible, self._run.participation)
        sampled, here = who.ask(eligible, self._run.seed, t, presence.here(eligible), awake)
        missing = {int(k): presence.cause(int(k)) for k in sampled[~here]}
        outcome = Outcome(sampled[:0])
        if int(here.sum()) >= max(1, needed):
            sites.waiting = ""
            enough = who.count(len(eligible))
            outcome = self._engine.round(t, sampled[here], needed=needed, enough=enough)
            missing |= outcome.missing
        else:
            self._engine.skip(t)
        effort = np.broadcast_to(1.0, outcome.arrived.shape)
        counted = len(outcome.arrived) >= max(1, needed)
        return Cohort(sampled, outcome.arrived, effort, missing, counted), outcome, needed

    def _step(self, t: int, at_once: int, needed: int) -> tuple[Cohort, Outcome]:
        """Have the server take a step, with uploads of whichever versions come first."""
        sites, eligible = self._sites, self._sites.eligible
        buffer = min(buffer_of(self._run.algorithm, at_once), len(eligible))
        sites.waiting = ""
        outcome = self._engine.take_step(t, eligible, buffer, at_once, needed)
        missing = dict(outcome.missing)
        sampled = np.array(sorted({*outcome.arrived.tolist(), *missing}), np.int64)
        effort = np.broadcast_to(1.0, outcome.arrived.shape)
        counted = len(outcome.arrived) >= max(1, needed)
        cohort = Cohort(sampled, outcome.arrived, effort, missing, counted, stale=outcome.stale)
        return cohort, outcome

    def before_evaluation(self) -> None:
        self._sites.wait_for(1)


class ServerStudy:
    """A study of an algorithm that has a server: its loop, and its answers to sites."""

    def __init__(
        self,
        algorithm: ServerAlgorithm,
        fed: Federation,
        model: Model,
        options: Options,
        study: str,
        sites: Mapping[str, Facts | None],
        events: asyncio.AbstractEventLoop,
        silence: float = 60.0,
        scale: Scale | None = None,
    ) -> None:
        """`sites` are those of `fed`, which is their shadow; they may need a scale first."""
        self._study = study
        self.members: Callable[[], bytes] = bytes  # who the sites are, as sites are told
        begun = Beginning(algorithm, fed, model, options)
        metric, wire = _metric(fed, model, options), options.get("wire")
        how, averaged = None if wire is None else wire.sum, averages(Boxes(algorithm), model)
        averaged = averaged and len(model.running) > 0
        check_buffer(algorithm, begun.who, how, fed.training, averaged)
        at = (algorithm, fed, model)
        kept_by = _protection(options.get("privacy"), *at, begun.seed, options)
        boxes, anatomy = fitted(*at, 0, begun.seed, wire, fed.training, kept_by)
        network = NetworkEngine(boxes, model, anatomy, fed.training, study, begun.seed)
        patience = Patience(begun.who.deadline, silence)
        limit = silence if boxes.asynchronous else patience.limit
        self.answers = Answers(network, self.judged, silence, limit, metric)
        kept = _planned(options.get("privacy"), *at, begun.seed, options)
        self.engine = Remote(network, self.answers, events, metric, patience, kept)
        (self.run,) = begun.runs(self.engine, {})
        self.run.uploaded = network.points  # grows with the uploads
        self.sites = Sites(self.run, begun.who, sites, self.engine, scale, silence)
        attendance = SiteAttendance(self.engine, self.sites, self.run)
        self.loop = Loop(self.engine, attendance, [self.run], begun.every)

    def judged(self, t: int, party: int) -> bool | None:
        """Whether a party counted in round t; None until that is on the disk.

        Where nobody waits for anybody, whether what it made of version t did, in whichever round.
        """
        recorder, buffered = self.loop.recorder, self.engine.engine.buffered
        done = self.run.done if recorder is None else recorder.rounds
        if buffered is not None:
            later = self.run.participation[max(0, t) : done]
            if any(cohort.counted and party in cohort.present for cohort in later):
                return True
            over = self.answers.rounds_done is not None
            return None if not over and buffered.holds(party, t) else False
        if t >= done:
            return None
        cohort = self.run.participation[t]
        return bool(cohort.counted and party in cohort.present)

    async def answer(self, party: int, letter: Letter) -> Letter | Sealed:
        """Answer a letter of a site that has this number."""
        if letter.kind in ("away", "scale", "sums"):
            return self.sites.answer(party, letter)
        if letter.kind == "members":
            return Letter("known", {"study": self._study, "members": self.members()})
        self.sites.presence.seen(party)
        scale = self.sites.scale
        if letter.kind == "next" and scale is not None and not scale.is_(letter):
            return Letter("rescaled", {"study": self._study})
        return await self.answers.answer(party, letter)

    def moved(self, site: str) -> None:
        """Bytes of a large letter pass to or from a site."""
        party = self.sites.seen(site)
        if party is not None:
            self.answers.moved(party)

    def change(self, site: str, party: int, facts: Facts | None) -> None:
        """A site approved the study, which is under way; without facts it has left."""
        self.sites.change(site, party, facts)

    def presence(self) -> dict[str, str]:
        """What every site does now, by name."""
        return self.sites.shown(self.engine.doing)

    def keep_log(self, anchor: str) -> None:
        """Have the sites keep the end of the coordinator's audit log."""
        self.engine.engine.log = anchor

    def end(self) -> None:
        """Tell all who ask that the study is over."""
        self.answers.end(self.run.done)


def _protection(
    promise: Privacy | None,
    algorithm: ServerAlgorithm,
    fed: Federation,
    model: Model,
    seed: int,
    options: Options,
) -> Protection | None:
    """What keeps a promise here: noise in sums, where parties trust the server with it.

    By record every site keeps it by itself, with noise that depends on how many records it has.
    """
    if promise is None:
        return None
    rounds, wire = options.get("rounds", 100), options.get("wire")
    if promise.unit == "record":
        keepable(promise, algorithm, fed, model, seed=seed, rounds=rounds, wire=wire)
        return None
    return protected(
        promise, algorithm, fed, model, range(fed.training), seed=seed, rounds=rounds, wire=wire,
        parties=fed.training, noise=protecting(), separation=options.get("separation", 1),
    )  # fmt: skip


def _planned(
    promise: Privacy | None,
    algorithm: ServerAlgorithm,
    fed: Federation,
    model: Model,
    seed: int,
    options: Options,
) -> Kept | None:
    """What sites plan to spend, where that is known here; found before anybody looks."""
    if promise is None:
        return None
    rounds, wire = options.get("rounds", 100), options.get("wire")
    kept = told_plan(
        promise, algorithm, fed, model, seed=seed, rounds=rounds, wire=wire,
        separation=options.get("separation", 1),
    )  # fmt: skip
    if kept is not None:
        kept.at_most(1)
    return kept


def _metric(fed: Federation, model: Model, options: Options) -> str:
    """What the study is judged by; refused where sites do not measure or tell it."""
    metric = name_of(options.get("metric") or PRIMARY[fed.task])
    if metric not in (known := metrics_of(fed, model)):
        raise unknown("metric", metric, known)
    if not may_leave(fed.task, fed.classes, metric):
        told = [name for name in known if may_leave(fed.task, fed.classes, name)]
        raise ArchipelError(
            f'study.metric = "{metric}": how far one record moves it is not known, so no site '
            f"tells it; judge the study by one of {', '.join(told)}."
        )
    return metric


def metrics_of(fed: Federation, model: Model) -> list[str]:
    """Names of the metrics that parties measure."""
    buffers = model.buffers.clone() if model.buffer_spec.size else None
    outputs = model.one.outputs(model.w, fed.x[:2], buffers)
    return sorted(pool(fed.task, outputs, fed.y[:2], model.loss_function, model.metrics))
