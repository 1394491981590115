# SPDX-License-Identifier: Apache-2.0
"""A study between peers, as the coordinator sees it: it hears what peers tell, and does nothing.

The loop, the journal and the live picture are those of other studies. There is no model here: every
peer has its own, and no vector of theirs ever comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.data.federation import Federation
from archipel.data.shadow import Facts
from archipel.engines.engine import Evaluation, Outcome
from archipel.engines.network.bounds import check_scores
from archipel.engines.network.fitting import fitted
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.engines.plan import Plan
from archipel.errors import clean
from archipel.exchange.anatomy import Anatomy
from archipel.federation.coordinator.server_study import Remote, ServerStudy
from archipel.federation.roster import Signed
from archipel.models.model import Model
from archipel.runs.participation import Cohort


class PeerReports(Remote):
    """What peers told, as the loop wants it."""

    def __init__(
        self, anatomy: Anatomy, parties: int, loop: asyncio.AbstractEventLoop, task: str
    ) -> None:
        self.anatomy, self.plan, self._loop, self._task = anatomy, Plan("one", 1, 1), loop, task
        self.engine: Any = SimpleNamespace(
            opened=None, parties=parties, lose=lambda *_: None, points={}
        )
        self.answers: Any = SimpleNamespace(end=lambda _: None, moved=lambda _: None)
        self.has_own = False  # the models that are scored are the peers' own
        self.asked: dict[int, float] = {}  # party -> when it last told something
        self.away: dict[int, str] = {}
        self.told: dict[int, dict[int, Letter]] = {}  # round -> party -> what it told
        self.last: dict[int, int] = {}  # party -> the last round it told of
        self.heard: dict[int, float] = {}  # party -> when it first told of that
        self._done, self._letters, self._waiting, self._adjourned = 0, {}, None, False

    def tell(self, party: int, letter: Letter) -> None:
        """Note what a peer tells of a round; of all it may say, what is used and no more."""
        t = letter["round"]
        if t > self._done:
            missing = {k: clean(str(why)[:80]) for k, why in letter["missing"].items()}
            kept = Letter("told", {**letter.fields, "missing": missing, "signature": b""})
            self.told.setdefault(t, {})[party] = kept
        if t > self.last.get(party, 0):  # a round that was told before is no sign of life
            self.last[party], self.heard[party] = t, time.monotonic()

    def wait_for(self, t: int, parties: Sequence[int], silence: float) -> None:
        """Wait until all have told of round t, but for those that others went on without."""
        until = time.monotonic() + silence
        while True:
            told = dict(self.told.get(t, {}))
            dropped = {name for letter in told.values() for name in letter["missing"]}
            waits = [
                k
                for k in parties
                if k not in told and k not in self.away and self.last.get(k, 0) < t
            ]
            if not waits:
                return
            here = [k for k in waits if str(k) not in dropped]
            heard = max((self.heard.get(k, 0.0) for k in here), default=0.0) + silence
            if time.monotonic() >= (max(until, heard) if here else 0.0):
                return
            self.pause(0.02)

    def hear(self, t: int, parties: Sequence[int]) -> tuple[Outcome, dict[int, str]]:
        """Who took part in round t, and why others did not."""
        told = self._letters = self.told.pop(t, {})
        self._done = t
        causes: dict[int, str] = {}
        for letter in told.values():
            causes |= {int(k): why for k, why in letter["missing"].items()}
        missing = {k: self.away.get(k) or causes.get(k, "silent") for k in parties if k not in told}
        arrived = np.array(sorted(set(told) & set(parties)), np.int64)
        gradients = sum(letter["gradients"] for letter in told.values())
        return Outcome(arrived, {}, gradients), missing

    def traffic(self, t: int, outcome: Outcome, sampled: int) -> tuple[int, int]:
        letters = self._letters.values()
        return sum(each["up"] for each in letters), sum(each["down"] for each in letters)

    def evaluate(self, w: Tensor | None = None, *, own: bool = False) -> Evaluation:
        """The peers' own models, each scored by its peer on its own test points."""
        return self._evaluation("metrics")

    def vector(self, setting: int | None = None) -> Tensor:
        return torch.zeros(0)

    def buffers(self) -> None:
        return None

    own_statistics = False  # those of the peers' own models are the peers' own anyway

    def state(self) -> dict[str, Tensor]:
        return {"done": torch.tensor([self._done])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._done = int(state["done"])


class PeerStudy(ServerStudy):
    """The loop over rounds that peers have among themselves."""

    roster: Signed
    excluded: Callable[[], Signed]  # the members that peers go on without, as of now

    def _engine(
        self,
        algorithm: Any,
        fed: Federation,
        model: Model,
        settings: Mapping[str, Sequence[float]],
    ) -> PeerReports:
        _, anatomy = fitted(algorithm, fed, model, 0, self.seed)
        return PeerReports(anatomy, fed.training, self._events, fed.task)

    async def answer(self, party: int, letter: Letter) -> Any:
        match letter.kind:
            case "told":
                self.engine.seen(party)
                if not 1 <= letter["round"] <= self.rounds:
                    raise Refused(f"round {letter['round']}: there is none.")
                self._check_told(letter)
                self.engine.tell(party, letter)
                return Letter("thanks")
            case "roster":
                gone = self.excluded()
                fields = {
                    "study": letter["study"],
                    "roster": self.roster.text,
                    "signature": self.roster.signature,
                    "revoked": gone.text,
                    "revoked_signature": gone.signature,
                }
                return Letter("peers", fields)
            case "scale" | "sums" | "away":
                return await super().answer(party, letter)
        name = type(self.runs[0].algorithm).__name__
        raise Refused(f"{name} has no server: take part with 'archipel peer up'.")

    def _check_told(self, letter: Letter) -> None:
        """Refuse counts that are none, and peers that are not in the study."""
        metrics = letter["metrics"] or {}  # None is one that is undefined there
        defined = {name: value for name, value in metrics.items() if value is not None}
        check_scores(dict.fromkeys(metrics, 0.0) | defined, letter["points"])
        counts = [letter[name] for name in ("gradients", "up", "down")]
        known = {str(k) for k in range(self.engine.engine.parties)}
        if not known.issuperset(letter["missing"]) or any(not 0 <= n < 1 << 53 for n in counts):
            raise Refused(f"round {letter['round']}: what the peer tells of it cannot be.")

    def change(self, site: str, party: int, facts: Facts | None) -> None:
        if facts is None:
            self.engine.gone(party, "left")

    def _take_part(self, t: int) -> tuple[Cohort, Outcome]:
        self._find_scale()
        parties = self.eligible.tolist()
        self.engine.wait_for(t + 1, parties, self._silence)
        outcome, missing = self.engine.hear(t + 1, parties)
        effort = np.broadcast_to(1.0, outcome.arrived.shape)
        return Cohort(self.eligible, outcome.arrived, effort, missing), outcome

    def _evaluate(self, t: int, seconds: float) -> None:
        super(ServerStudy, self)._evaluate(t, seconds)
