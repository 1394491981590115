# SPDX-License-Identifier: Apache-2.0
"""The coordinator's answers to the parties of one study, letter by letter."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from archipel.engines.network.bounds import LONGEST, MOST_REFUSED, check_scores, defined
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.letters import Letter, Sealed
from archipel.engines.network.transport import BEAT, POLL, Refused
from archipel.exchange.statistics import handed_over
from archipel.exchange.varying import travelling
from archipel.tree import leaves

_NOTHING = Letter("wait", {"seconds": 0.0})  # ask again


class Answers:
    """What parties get when they ask; they are known by number here."""

    def __init__(
        self,
        engine: NetworkEngine,
        judged: Callable[[int, int], bool | None] | None = None,
        silence: float = 60.0,
        limit: float = LONGEST,
        metric: str | None = None,
    ) -> None:
        """`judged(round, party)`: whether it counted, or None while the round is open.

        In an evaluation, a party of which nothing is heard for `silence` seconds is not waited for,
        and nobody longer than `limit` seconds. Scores have the study's `metric`.
        """
        self.engine, self._silence, self._limit = engine, silence, limit
        self._metric = metric
        self.judged = judged or self._judged
        self.verdicts: dict[int, frozenset[int]] = {}  # round -> who counted
        self.rounds_done: int | None = None  # set when the study is over
        self.scores: dict[int, dict[int, Letter]] = {}  # round -> party -> what it measured
        self.points: dict[int, int] = {}  # party -> test points that it told
        self._refused = Counter[int]()  # scores of this evaluation that were none, by party
        self._scored: tuple[int, Sealed] | None = None
        self._given: Sealed | None = None  # what was learnt, to all who ask
        self._heard: dict[int, float] = {}  # party -> when it last gave a sign of life
        self._came = asyncio.Event()  # scores

    def _judged(self, t: int, party: int) -> bool | None:
        if self.engine.buffered is None:
            return party in self.verdicts[t] if t in self.verdicts else None
        if any(party in who for later, who in self.verdicts.items() if later >= t):
            return True
        return None if self.engine.buffered.holds(party, t) else False

    def moved(self, party: int) -> None:
        """Bytes of a large letter pass to or from a party."""
        self._heard[party] = self.engine.clock()
        self.engine.moved(party)

    async def answer(self, party: int, letter: Letter) -> Letter | Sealed:
        self._heard[party] = self.engine.clock()
        match letter.kind:
            case "next":
                return await self._next(party, letter)
            case "ready":
                return await self._ready(party, letter)
            case "upload":
                self.engine.upload(party, letter)
                return Letter("thanks")
            case "scores":
                self._score(party, letter)
                return Letter("thanks")
            case "model":
                if self.rounds_done is None:
                    raise Refused("the study is not done yet.")
                if self._given is None:
                    fields = {"study": self.engine.study, "rounds": self.rounds_done}
                    learnt = self._learnt(self.rounds_done)
                    self._given = Sealed(Letter("learnt", fields, learnt))
                return self._given
            case "ask":
                number = letter["number"]
                if not 0 <= number < len(self.engine.anatomy.personal):
                    raise Refused(f"the algorithm takes no question {number + 1}.")
                reply = self.engine.advise(number, letter.arrays)
                return Letter("advice", {"study": self.engine.study, "number": number}, reply)
        raise Refused(f"a {letter.kind} is nothing that a party of a study sends.")

    async def _next(self, party: int, letter: Letter) -> Letter | Sealed:
        if letter["busy"] is not None:
            self.engine.note(party, letter["busy"], letter.fields.get("reached"))
            return await self._beside(party)
        last = letter.fields.get("last")
        asked = (letter["pending"], -1 if last is None else last)
        found = self._due(party, *asked)
        if found is None:
            await self.engine.bell.wait(party, POLL)
            found = self._due(party, *asked)
        return found or _NOTHING

    async def _beside(self, party: int) -> Letter | Sealed:
        """What a party at work may do beside it: score a model, where nobody waits for it."""
        if self.engine.buffered is None:
            return _NOTHING
        if self._scored is None or not self._lacks(party):
            await self.engine.ears.wait(party, BEAT)
        if self._scored is None or not self._lacks(party):
            return _NOTHING
        return self._scored[1]

    async def _ready(self, party: int, letter: Letter) -> Letter:
        """Which round the upload of a party that has trained is for."""
        buffered = self.engine.buffered
        if buffered is None:
            raise Refused("in this study's rounds no party says that it is ready.")
        if self.rounds_done is not None:
            raise Refused("the study is over.")
        found = buffered.ready(party, letter)
        if found is None:
            await self.engine.bell.wait(party, POLL)
            found = buffered.ready(party, letter)
        return found or _NOTHING

    def _due(self, party: int, pending: int, last: int) -> Letter | Sealed | None:
        """What a party is to do now: verdicts first, then evaluation, then work."""
        study, counted = self.engine.study, None if pending < 0 else self.judged(pending, party)
        if counted is not None:
            return Letter("verdict", {"study": study, "round": pending, "counted": counted})
        if self._scored is not None and self._lacks(party):
            return self._scored[1]
        if self.rounds_done is not None:
            return Letter("done", {"study": study, "rounds": self.rounds_done})
        return self.engine.work_for(party, pending, last)

    def end(self, rounds: int) -> None:
        """Tell all who ask that the study is over."""
        self.rounds_done = rounds
        self.engine.bell.ring()
        self.engine.ears.ring()

    # -- what was learnt ---------------------------------------------------------------------------

    def _learnt(self, t: int) -> list[Tensor]:
        """What a party needs after t rounds: the model, or what its own one is made of."""
        engine = self.engine
        if engine.boxes.has_personal:
            return travelling(engine.boxes.broadcast(engine.shared, t))
        return leaves(handed_over(engine.shared))

    def _score(self, party: int, letter: Letter) -> None:
        """Take a party's scores: for the evaluation that is open."""
        if self._scored is None or self._scored[0] != letter["round"]:
            raise Refused(f"nobody evaluates after round {letter['round']} now.")
        try:
            self._check_scores(party, letter)
        except Refused:
            self._refused[party] += 1
            self._came.set()
            raise
        found = {name: letter[name] and defined(letter[name]) for name in ("metrics", "own")}
        self.scores[letter["round"]][party] = replace(letter, fields={**letter.fields, **found})
        self._came.set()

    def _check_scores(self, party: int, letter: Letter) -> None:
        """Refuse scores that are none, or that lack what the study is judged by."""
        points, told = letter["points"], self.points.get(party)
        if points and told is not None and points != told:
            raise Refused(f"the scores are not of the {told} points that the party told before.")
        if letter["own"] is not None and not self.engine.boxes.has_personal:
            raise Refused("the scores are not those of this algorithm: parties have no own model.")
        own = ["own"] if self.engine.boxes.has_personal else []
        for scores in (letter[name] for name in ("metrics", *own)):
            check_scores(scores, points)
            has_points = points > 0 or bool(letter["metrics"]) or bool(letter["own"])
            if has_points and self._metric is not None and self._metric not in (scores or {}):
                raise Refused(f"the scores are not whole: {self._metric} is missing.")

    def _lacks(self, party: int) -> bool:
        """Whether a party's scores are still to come."""
        assert self._scored is not None
        return party not in self.scores[self._scored[0]] and self._refused[party] < MOST_REFUSED

    async def evaluate(self, t: int, parties: list[int]) -> dict[int, Any]:
        """Have parties score the model after t rounds; those that fall silent are left out."""
        engine = self.engine
        parties = [k for k in parties if k < engine.parties]  # without those who come later
        self.scores, self._refused = {t: {}}, Counter()
        made_of = self._learnt(t) if engine.boxes.has_personal else []
        arrays = [*leaves(handed_over(engine.shared)), *made_of]
        sealed = Sealed(Letter("evaluate", {"study": engine.study, "round": t}, arrays))
        self._scored, began = (t, sealed), engine.clock()
        engine.bell.ring()
        engine.ears.ring()
        while True:
            self._came.clear()
            waits_for = [k for k in parties if self._lacks(k)]
            ends = [max(began, self._heard.get(k, began)) + self._silence for k in waits_for]
            left = min(max(ends, default=0.0), began + self._limit) - engine.clock()
            if left <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._came.wait()
        self._scored = None
        return {k: self.scores[t][k] for k in parties if k in self.scores[t]}
