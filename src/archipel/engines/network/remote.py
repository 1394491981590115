# SPDX-License-Identifier: Apache-2.0
"""The network engine as the loop wants it: calls that return when parties elsewhere are done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from archipel.core import Vector
from archipel.engines.engine import Cause, Evaluation, Floats, Outcome, Some
from archipel.engines.network.answers import Answers
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.letters import Letter
from archipel.engines.network.opened import Patience
from archipel.engines.network.presence import Adjourned, Presence
from archipel.engines.plan import Plan
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.statistics import keep_own
from archipel.measures import ALIKE, WEIGHTED
from archipel.privacy.promise import Kept
from archipel.rng import Ints

T = TypeVar("T")


class Remote:
    """Runs rounds with parties that are elsewhere.

    The loop over rounds is in a thread of its own, the engine and its letters in the event loop.
    """

    plan = Plan("one", 1, 1)  # a site computes as its own machine does best

    def __init__(
        self,
        engine: NetworkEngine,
        answers: Answers,
        events: asyncio.AbstractEventLoop,
        metric: str,
        patience: Patience,
        kept: Kept | None = None,
    ) -> None:
        """`metric` is what the study is judged by; `patience` says how long a party may take.

        `kept` is what is promised and can be told here: each site keeps the rest by itself.
        """
        self.kept = kept
        self.engine, self.answers, self.presence = engine, answers, Presence()
        engine.away = self.presence.away  # also between two messages of a round
        if engine.buffered is not None:
            engine.buffered.here = lambda k: bool(self.presence.here([k])[0])
        self._events, self._metric, self._patience = events, metric, patience
        self._weighs = any(m.asks & {"n", "mean by examples"} for m in engine.anatomy.messages)
        self._done = 0
        self._letters: dict[int, Letter] = {}  # scores of the last evaluation
        self._waiting: Future[Any] | None = None

    @property
    def anatomy(self) -> Anatomy:
        return self.engine.anatomy

    @property
    def has_own(self) -> bool:
        return self.engine.boxes.has_personal

    @property
    def own_statistics(self) -> bool:
        return keep_own(self.engine.boxes, self.engine.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Sites stay up without the study."""

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the event loop do something, and wait for it."""
        if self.presence.adjourned:
            work.close()
            raise Adjourned
        future = self._waiting = asyncio.run_coroutine_threadsafe(work, self._events)
        try:
            found: T = future.result()
            return found
        except CancelledError:
            raise Adjourned from None

    def adjourn(self) -> None:
        """Leave the round that is under way; whoever waits for it is told so."""
        self.presence.adjourn()
        if self._waiting is not None:
            self._waiting.cancel()

    def gone(self, party: int, cause: Cause) -> None:
        """A party will not ask for a while, or ever: nobody waits for it."""
        self.presence.gone(party, cause)
        self.engine.lose(party, cause)

    def knows(self, party: int, n: int, n_test: int) -> None:
        """A party told how much data it has, or 0: it says the same later on."""
        self.engine.parties = max(self.engine.parties, party + 1)
        self.engine.rows.pop(party, None)
        self.answers.points.pop(party, None)
        if n > 0:
            self.answers.points[party] = n_test
            if self._weighs:
                self.engine.rows[party] = float(n)

    @property
    def doing(self) -> dict[int, str]:
        """What the parties do that the round waits for, or that are at work at their own pace."""
        opened = self.engine.opened
        if self.engine.buffered is not None:
            return self.engine.buffered.doing
        return {} if opened is None else {k: opened.doing.get(k, "works") for k in opened.waits_for}

    def round(
        self,
        t: int,
        parties: Sequence[int] | Ints,
        effort: Floats | None = None,
        *,
        answers: Ints | None = None,
        needed: int = 1,
        enough: int | None = None,
        unheard: int = 0,
    ) -> Outcome:
        """Do round t with these parties: `archipel.engines.engine.Engine.round`.

        How far they get, and how many messages they answer, is up to them.
        """
        outcome = self._round(t, parties, replace(self._patience, enough=enough, needed=needed))
        return outcome._replace(down=outcome.down + unheard * self.anatomy.bytes_down)

    def take_step(self, t: int, parties: Ints, buffer: int, at_once: int, needed: int) -> Outcome:
        """Do round t in which nobody waits for anybody: a step with `buffer` uploads.

        So many of the parties train at once.
        """
        how = replace(self._patience, buffer=buffer, at_once=at_once, needed=needed)
        return self._round(t, parties, how)

    def _round(self, t: int, parties: Sequence[int] | Ints, patience: Patience) -> Outcome:
        self._done = t + 1
        outcome = self._wait(self.engine.round(t, parties, patience))
        for k, cause in [*outcome.missing.items(), *outcome.left.items()]:
            if cause.why == "silent":
                self.presence.silent(k)
        return outcome

    def skip(self, t: int) -> None:
        """Leave round t out, for which too few are there: what is scored next is after it."""
        self._done = t + 1

    def evaluate(
        self, w: Vector | None = None, *, own: bool = False, who: Some | None = None
    ) -> Evaluation:
        """Have the parties that are there score the shared model, and with `own` their own ones."""
        if not own:
            there = [k for k in list(self.presence.asked) if self.presence.here([k])[0]]
            self._letters = self._wait(self.answers.evaluate(self._done, there))
        field = "own" if own else "metrics"
        return over_sites(self._letters, field, self.engine.parties, self._metric)

    def vector(self, setting: int | None = None) -> Vector:
        return self.engine.vector()

    def buffers(self) -> Tensor | None:
        return self.engine.buffers()

    def state(self) -> dict[str, Tensor]:
        return {**self.engine.state(), "done": torch.tensor([self._done])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.engine.restore(state)
        self._done = int(state["done"])


def over_sites(letters: Mapping[int, Letter], field: str, parties: int, metric: str) -> Evaluation:
    """The mean over sites of what they measured, weighted by their test points.

    Where a site that scored does not tell how many it has, every site weighs the same.
    """
    names = {metric, *(name for letter in letters.values() for name in letter[field] or ())}
    nothing = torch.full((parties,), torch.nan, dtype=torch.float64)
    scores = {name: nothing.clone() for name in sorted(names)}
    weights = torch.zeros(parties, dtype=torch.float64)
    untold = any(letter["points"] <= 0 and letter["metrics"] for letter in letters.values())
    for k, letter in letters.items():
        weights[k] = 1.0 if untold else letter["points"]
        for name, value in (letter[field] or {}).items():
            scores[name][k] = torch.nan if value is None else float(value)
    pooled = {}
    for name, values in scores.items():
        there = torch.isfinite(values) & (weights > 0)
        share = weights[there] / weights[there].sum()
        pooled[name] = float((values[there] * share).sum()) if there.any() else float("nan")
    return Evaluation(scores, pooled, {}, over=ALIKE if untold else WEIGHTED)
