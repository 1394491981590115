# SPDX-License-Identifier: Apache-2.0
"""A study under way at the coordinator: the loop of a simulation, with sites that are elsewhere.

The loop, the journal, the history and the report are those of a simulation. The data is not here:
in its place stands a federation of the same names, sizes and shapes without a single value. The
loop runs in a thread of its own; the engine and its letters in the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.data.shadow import Facts, shadow
from archipel.engines.local.engine import Outcome
from archipel.engines.local.evaluation import Evaluation
from archipel.engines.network.answers import Answers
from archipel.engines.network.engine import NetworkEngine, Patience
from archipel.engines.network.letters import Letter
from archipel.engines.network.party_state import anatomy_of
from archipel.engines.network.transport import POLL, Refused
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError, BelowQuorum, RunFailed, clean, unknown
from archipel.exchange.anatomy import has_personal, is_peer
from archipel.exchange.statistics import keep_own
from archipel.federation.scale import Scale
from archipel.metrics import PRIMARY, may_leave, name_of, pool
from archipel.metrics.measures import ALIKE, WEIGHTED
from archipel.models.model import Model
from archipel.rng import Ints
from archipel.runs.participation import Cohort, Participation
from archipel.runs.simulation import Loop

T = TypeVar("T")


class Adjourned(ArchipelError):
    """The coordinator went down; the study goes on from its last round when it is up again."""


_HERE = 2.5 * POLL  # seconds since it last asked in which a site counts as there
_AGAIN = 2.0  # seconds until a round below the quorum is tried again


class Remote:
    """The network engine as the loop wants it: calls that return when all is done."""

    metric = ""  # by which the study is judged

    def __init__(
        self, engine: NetworkEngine, answers: Answers, loop: asyncio.AbstractEventLoop, task: str
    ) -> None:
        self.engine, self.answers, self._loop, self._task = engine, answers, loop, task
        self.anatomy, self.plan = engine.anatomy, Plan("one", 1, 1)
        self.has_own = has_personal(engine.algorithm)
        self._weighs = any("mean by examples" in m.asks for m in engine.anatomy.messages)
        self.asked: dict[int, float] = {}  # party -> when it last asked for work
        self.away: dict[int, str] = {}  # party -> why it said that it would be
        self._done = 0
        self._letters: dict[int, Letter] = {}
        self._waiting: Future[Any] | None = None
        self._adjourned = False

    @property
    def uploaded(self) -> dict[int, int]:
        """Training points that parties told with their uploads."""
        return self.engine.points

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the event loop do something, and wait for it."""
        if self._adjourned:
            work.close()
            raise Adjourned("the study was adjourned.")
        future = self._waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            found: T = future.result()
            return found
        except CancelledError:
            raise Adjourned("the study was adjourned.") from None

    def adjourn(self) -> None:
        """Leave the round that is under way; whoever waits for it is told so."""
        self._adjourned = True
        if self._waiting is not None:
            self._waiting.cancel()

    def pause(self, seconds: float) -> None:
        if self._adjourned:
            raise Adjourned("the study was adjourned.")
        time.sleep(seconds)

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def here(self, parties: Ints) -> Any:
        """Which parties asked for work of late."""
        now = time.monotonic()
        return np.array([now - self.asked.get(int(k), -1e9) < _HERE for k in parties], bool)

    def seen(self, party: int) -> None:
        """A party asks for work, so it is there."""
        self.asked[party] = time.monotonic()
        self.away.pop(party, None)

    def gone(self, party: int, why: str) -> None:
        """A party says that it will not ask for a while, or ever: nobody waits for it."""
        self.asked.pop(party, None)
        self.away[party] = why
        self.engine.lose(party, why)

    def knows(self, party: int, facts: Facts) -> None:
        """A party told how much data it has, or keeps it to itself: it says the same later on."""
        self.engine.rows.pop(party, None)
        self.answers.points.pop(party, None)
        if facts.n > 0:
            self.answers.points[party] = facts.n_test
            if self._weighs:
                self.engine.rows[party] = float(facts.n)

    def round(self, t: int, parties: Ints, patience: Patience) -> tuple[Outcome, dict[int, str]]:
        self._done = t + 1
        outcome, missing = self._wait(self.engine.round(t, parties, patience))
        for k, cause in missing.items():
            if cause.startswith("silent"):  # it is away until it asks again
                self.asked.pop(k, None)
        return outcome, missing

    def traffic(self, t: int, outcome: Outcome, sampled: int) -> tuple[int, int]:
        """Bytes that all parties sent and received in a round."""
        anatomy = self.anatomy
        return anatomy.bytes_up * len(outcome.arrived), anatomy.bytes_down * sampled

    def evaluate(self, w: Tensor | None = None, *, own: bool = False) -> Evaluation:
        """Have the sites that are there score the model, and with `own` their own ones."""
        if not own:
            parties = [k for k in self.asked if self.here(np.array([k]))[0]]
            self._letters = self._wait(self.answers.evaluate(self._done, parties))
        return self._evaluation("own" if own else "metrics")

    def _evaluation(self, field: str) -> Evaluation:
        """The mean over sites of what they measured, weighted by their test points.

        Where a site that scored does not tell how many it has, every site weighs the same.
        """
        total = self.engine.parties
        names = {name for letter in self._letters.values() for name in letter[field] or ()}
        names |= {self.metric or PRIMARY[self._task]}
        nothing = torch.full((total,), torch.nan, dtype=torch.float64)
        scores = {name: nothing.clone() for name in sorted(names)}
        weights = torch.zeros(total, dtype=torch.float64)
        untold = any(each["points"] <= 0 and each["metrics"] for each in self._letters.values())
        for k, letter in self._letters.items():
            weights[k] = 1.0 if untold else letter["points"]
            for name, value in (letter[field] or {}).items():
                scores[name][k] = torch.nan if value is None else float(value)
        pooled = {}
        for name, values in scores.items():
            there = torch.isfinite(values) & (weights > 0)
            share = weights[there] / weights[there].sum()
            pooled[name] = float((values[there] * share).sum()) if there.any() else float("nan")
        return Evaluation(scores, pooled, {}, over=ALIKE if untold else WEIGHTED)

    def vector(self, setting: int | None = None) -> Tensor:
        return self.engine.vector()

    def buffers(self) -> Tensor | None:
        return self.engine.buffers()

    @property
    def own_statistics(self) -> bool:
        return keep_own(self.engine.algorithm, self.engine.model)

    def state(self) -> dict[str, Tensor]:
        return {**self.engine.state(), "done": torch.tensor([self._done])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.engine.restore(state)
        self._done = int(state["done"])


class ServerStudy(Loop):
    """The loop over rounds with sites that are elsewhere."""

    def __init__(
        self,
        algorithm: Algorithm,
        fed: Federation,
        model: Model,
        options: Any,
        study: str,
        sites: Mapping[str, Facts | None],
        events: asyncio.AbstractEventLoop,
        silence: float = 60.0,
        scale: Scale | None = None,
    ) -> None:
        """`sites` are those of `fed`, which is their shadow; they may need a scale first."""
        self._study, self._events, self._silence = study, events, silence
        self.sites, self._scale = dict(sites), scale
        self._changes: deque[tuple[str, Facts | None]] = deque()  # from the next round on
        self._began = False  # sites have had time to come
        self.waiting = ""  # what the study waits for, in words; empty while it goes on
        self._since: datetime | None = None  # when it began to wait
        self.revoked: Callable[[], Mapping[str, str]] = dict  # who was shut out, and why
        self._out: dict[str, str] = {}  # those that were noticed
        super().__init__(algorithm, fed, model, {}, options)
        self.engine.metric = self.runs[0].metric
        self.runs[0].uploaded = self.engine.uploaded  # grows with the uploads
        left = (k for k, facts in enumerate(self.sites.values()) if facts is None)
        self.engine.away |= dict.fromkeys(left, "left")

    def _engine(
        self,
        algorithm: Any,
        fed: Federation,
        model: Model,
        settings: Mapping[str, Sequence[float]],
    ) -> Remote:
        if is_peer(algorithm):
            raise ArchipelError(
                f"{type(algorithm).__name__} has no server: peers run it among themselves."
            )
        anatomy = anatomy_of(algorithm, fed, model, 0, self.seed)
        engine = NetworkEngine(algorithm, model, anatomy, fed.training, self._study)
        metric = name_of(self.options.get("metric") or PRIMARY[fed.task])
        if metric not in (known := metrics_of(fed, model)):
            raise unknown("metric", metric, known)
        if not may_leave(fed.task, fed.classes, metric):
            told = [name for name in known if may_leave(fed.task, fed.classes, name)]
            raise ArchipelError(
                f'study.metric = "{metric}": how far one record moves it is not known, so no site '
                f"tells it; judge the study by one of {', '.join(told)}."
            )
        limit = Patience(self.who.deadline).limit
        answers = Answers(engine, self.judged, self._silence, limit, metric)
        remote = Remote(engine, answers, self._events, fed.task)
        for party, facts in enumerate(self.sites.values()):
            if facts is not None:
                remote.knows(party, facts)
        return remote

    @property
    def answers(self) -> Answers:
        answers: Answers = self.engine.answers
        return answers

    def judged(self, t: int, party: int) -> bool | None:
        """Whether a party counted in round t; None until that is on the disk."""
        (run,) = self.runs
        if t >= (run.done if self.recorder is None else self.recorder.rounds):
            return None
        cohort = run.participation[t]
        return bool(cohort.counted and party in cohort.present)

    async def answer(self, party: int, letter: Letter) -> Any:
        """Answer a letter of a site that has this number."""
        if letter.kind == "away":
            self.engine.gone(party, clean(letter["reason"])[:80])
            return Letter("thanks")
        self.engine.seen(party)
        if letter.kind in ("scale", "sums"):
            if self._scale is None:
                raise Refused("the study needs no scale.")
            known = list(self.sites)
            site = known[party] if party < len(known) else ""  # one that comes late
            return self._scale.answer(party, letter, site)
        if letter.kind == "next" and self._scale is not None and not self._scale.is_(letter):
            return Letter("rescaled", {"study": self._study})
        return await self.answers.answer(party, letter)

    def moved(self, site: str) -> None:
        """Bytes of a large letter pass to or from a site."""
        if site in self.sites:
            party = list(self.sites).index(site)
            self.engine.seen(party)
            self.answers.moved(party)

    # -- sites that come late, and sites that leave ------------------------------------------------

    def change(self, site: str, party: int, facts: Facts | None) -> None:
        """From the next round on, a site takes part; without facts it has left, at once."""
        if facts is not None:
            shadow("", {**self.sites, site: facts})  # refuses data of another kind
        else:
            self.engine.gone(party, "left")
        self._changes.append((site, facts))

    def presence(self) -> dict[str, str]:
        """What every site does now, by name."""
        opened, (run,) = self.engine.engine.opened, self.runs
        found = {}
        for k in range(run.data.training):
            here = bool(self.engine.here(np.array([k]))[0])
            if here and opened is not None and k in opened.waits_for:
                found[run.data.name(k)] = opened.doing.get(k, "works")
            else:
                found[run.data.name(k)] = "here" if here else self.engine.away.get(k, "away")
        return found

    def look(self) -> None:
        """See who was shut out since: it has left the study, and is shown as revoked."""
        out = self.revoked()
        self._out = {site: why for site, why in self._out.items() if site in out}  # or came back
        for party, (site, facts) in enumerate(list(self.sites.items())):
            if site in out and site not in self._out:
                self._out[site] = out[site]
                self.engine.gone(party, f"revoked: {clean(out[site])}"[:80])
                if facts is not None:
                    self._changes.append((site, None))

    def _change(self) -> None:
        """Take those in who came since the last round, and those out who left."""
        self.look()
        if not self._changes:
            return
        (run,) = self.runs
        while self._changes:
            site, facts = self._changes.popleft()
            text = f"{site} {'takes part' if facts is not None else 'left'}"
            if site in self._out and facts is None:
                text = f"{site} was revoked: {self._out[site]}"
            self.sites[site] = facts
            if facts is not None:
                self.engine.knows(list(self.sites).index(site), facts)
            if self.recorder is not None:
                self.recorder.event("left" if facts is None else "joined", text)
        if not any(self.sites.values()):
            raise RunFailed(f"round {run.done + 1}: every site has left the study.")
        run.data = shadow(run.data.about.name, self.sites)
        self.eligible = np.flatnonzero(run.data.n[: run.data.training].numpy() > 0)
        self.engine.engine.parties = run.data.training
        if self.recorder is not None:
            self.recorder.joined()

    @property
    def needed(self) -> int:
        """Uploads that a round needs."""
        return self._policy()[1]

    def _policy(self) -> tuple[Participation, int]:
        """The study's policy for the sites there are now, and how many uploads a round needs."""
        sample, quorum = self.who.sample, self.who.quorum
        if isinstance(sample, int):
            sample = min(sample, len(self.eligible))
        who = replace(self.who, sample=sample, quorum=0)
        if isinstance(quorum, int):
            return who, quorum
        return who, replace(who, quorum=quorum).needed(len(self.eligible))

    def _take_part(self, t: int) -> tuple[Cohort, Outcome]:
        """Ask sites that are there, until the round counts or the study says to go on without."""
        self._find_scale()
        waited, blocked = 0, dict[int, str]()
        while True:
            self._change()
            (who, needed), away = self._policy(), self.engine.away
            self._wait_for(min(needed, len(self.eligible)))
            sampled, here = who.ask(self.eligible, self.seed, t, self.engine.here(self.eligible))
            missing = {int(k): away.get(int(k), "away") for k in sampled[~here]}
            patience = Patience(who.deadline, self._silence, who.count(len(self.eligible)), needed)
            outcome = Outcome(sampled[:0], sampled[:0], 0)
            if int(here.sum()) >= max(1, needed):
                self.waiting = ""
                outcome, lost = self.engine.round(t, sampled[here], patience)
                missing |= lost
            counted = len(outcome.arrived) >= max(1, needed)
            answered = f"{len(outcome.arrived)} of {len(sampled)} sites answer, {needed} are needed"
            self._waits("" if counted else "below quorum", answered)
            if counted or who.on_missing == "continue":
                effort = np.broadcast_to(1.0, outcome.arrived.shape)
                return (
                    Cohort(sampled, outcome.arrived, effort, missing, counted, waited, blocked),
                    outcome,
                )
            if who.on_missing == "abort":
                causes = ", ".join(
                    f"{self.runs[0].data.name(k)} {cause}" for k, cause in [*missing.items()][:5]
                )
                raise BelowQuorum(
                    f"round {t + 1}: {len(outcome.arrived)} of {len(sampled)} sites answer "
                    f"({causes}), below the quorum of {needed}: lower round.quorum, or say "
                    "on_missing = 'wait'."
                )
            waited, blocked = waited + 1, missing
            self.engine.pause(_AGAIN)

    def _evaluate(self, t: int, seconds: float) -> None:
        self._wait_for(1)
        super()._evaluate(t, seconds)

    def _find_scale(self) -> None:
        """Have the sites send the sums that the scale is made of, before the first round.

        All that approved are waited for as long as one may be silent, then those of the quorum.
        """
        if self._scale is None or self._scale.made is not None:
            return
        until = time.monotonic() + self._silence
        while True:
            self._change()
            asked = [k for k in self.eligible.tolist() if not self._left_out(k)]
            sent = [k for k in asked if k in self._scale.sent]
            if not asked:
                raise RunFailed("the scale: no site is left whose sums it could be made of.")
            enough = min(len(asked), max(1, self._policy()[1]))
            if len(sent) == len(asked) or (time.monotonic() >= until and len(sent) >= enough):
                break
            self._waits("waits for sums", f"{len(sent)} of {len(asked)} sites have sent theirs")
            self.engine.pause(0.1)
        self._scale.make(sent)
        self._waits("")
        if self.recorder is not None:
            self.recorder.event("note", f"features are scaled by sums of {len(sent)} sites")

    def _left_out(self, party: int) -> bool:
        """Whether the operator said to make the scale without a site's sums."""
        return self._scale is not None and [*self.sites][party] in self._scale.without

    def _waits(self, why: str, detail: str = "") -> None:
        """Say what the study waits for; nothing where it goes on."""
        self._since = (self._since or datetime.now(UTC)) if why else None
        self.waiting = f"{why} since {self._since:%Y-%m-%d %H:%M} UTC: {detail}" if why else ""

    def _wait_for(self, sites: int) -> None:
        """Give sites that are away some time to come: as long as one may be silent.

        The first time it is all of them that are waited for.
        """
        sites = max(1, sites) if self._began else len(self.eligible)
        why = "below quorum" if self._began else "waits for sites"
        self._began, until = True, time.monotonic() + self._silence
        while time.monotonic() < until and (here := self.engine.here(self.eligible).sum()) < sites:
            self._waits(why, f"{here} of {len(self.eligible)} sites are here, {sites} are needed")
            self.engine.pause(0.1)


def metrics_of(fed: Federation, model: Model) -> list[str]:
    """Names of the metrics that parties measure."""
    buffers = model.buffers.clone() if model.buffer_spec.size else None
    outputs = model.one.outputs(model.w, fed.x[:2], buffers)
    return sorted(pool(fed.task, outputs, fed.y[:2], model.loss_function, model.metrics))
