# SPDX-License-Identifier: Apache-2.0
"""The server's side of a round on one machine, message by message."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from archipel.aggregation.others import Simulated
from archipel.core import Each
from archipel.engines.engine import Cause, Outcome
from archipel.engines.local import personal
from archipel.engines.local.memory import Memory
from archipel.engines.local.pool import Json, Pool
from archipel.engines.local.settings import Serving, Settings
from archipel.engines.local.share import Job
from archipel.errors import ArchipelError, BelowQuorum, RunFailed
from archipel.exchange.anatomy import same_form
from archipel.exchange.uploads import Received
from archipel.exchange.varying import size_of
from archipel.rng import Ints
from archipel.tree import Tree, leaves, tree_map


class Asked(NamedTuple):
    """The parties of a round."""

    ids: Ints
    answers: Ints | None  # messages that each answers before it is lost; None: all
    needed: int
    unheard: int  # parties that are sent the round's work, too


class ServerRound:
    """One round: workers do the parties' part, the algorithm's server answers."""

    def __init__(
        self, job: Job, memory: Memory, settings: Settings, parties: int, t: int, asked: Asked
    ) -> None:
        self._job, self._memory, self._settings = job, memory, settings
        self._parties, self._t, self._asked = parties, t, asked
        self._serving: Serving | None = None
        self.gradients = self.up = self.down = 0
        self.missing: dict[int, Cause] = {}
        self.left: dict[int, Cause] = {}  # after their upload had counted

    def run(self, pool: Pool, shared: Tree, dealt: list[Json]) -> tuple[Tree, Outcome]:
        """The shared state after the round, and what became of it; None where nothing changes."""
        ids, messages = self._asked.ids, self._job.anatomy.messages
        told = size_of(self._memory.sent.shared) // (self._job.sweep or 1)
        self.down = told * (len(ids) + self._asked.unheard)
        for number in range(len(messages)):
            again: Json = {"do": "round", "number": number, "undo": dealt[0]["undo"]}
            answers = pool.run(
                [{**work, **again} for work in dealt] if number == 0 else [again] * len(dealt)
            )
            there = self._there(number, answers)
            in_it = number > self._job.anatomy.counts_at  # whoever goes now is in the round
            if len(there) < (1 if in_it else max(1, self._asked.needed)):
                return None, self._nothing()
            if not in_it:
                counted = ids[there]
            received = self._received(number, there)
            try:
                if self._serving is None:
                    self._serving = self._settings.serve(shared, received)
                else:
                    self._serving.send(received)
            except BelowQuorum as error:  # too few for what stands between them and the server
                return None, self._nothing(str(error))
            last = number == len(messages) - 1
            said = self._serving.said(last)
            if not last:
                self._answer(number, said, there)
        self._check(said, len(there))
        spent = (self.gradients, self.up, self.down)
        return said, Outcome(counted, self.missing, *spent, left=self.left)

    def _nothing(self, why: str = "") -> Outcome:
        """Of a round that changes nothing, `why` where its sum was given up."""
        missing, spent = self.missing | self.left, (self.gradients, self.up, self.down)
        return Outcome(self._asked.ids[:0], missing, *spent, why)

    def _there(self, number: int, answers: list[Json]) -> Ints:
        """Places of the parties whose message came, and was one."""
        asked = self._asked
        self.gradients += sum(answer["gradients"] for answer in answers)
        self.up += sum(answer["bytes"] for answer in answers)
        bad = {k for answer in answers for k in answer["bad"]}
        self.missing |= dict.fromkeys(sorted(bad), Cause("diverged"))
        gone = self.left if number > self._job.anatomy.counts_at else self.missing
        if asked.answers is not None:
            for k in asked.ids[asked.answers == number].tolist():
                detail = f"after message {number}" if number else ""
                if k not in self.missing:
                    gone[k] = Cause("dropped out", detail)
        there = np.flatnonzero(~np.isin(asked.ids, [*self.missing, *self.left]))
        if len(there) == 0 and all(cause.why == "diverged" for cause in self.missing.values()):
            raise RunFailed(
                "the update of every sampled party is not finite: lower lr, "
                "or check the data for extreme values."
            )
        return there

    def _received(self, number: int, there: Ints) -> Received:
        """Upload number `number` of these parties, as the server asks for it."""
        job, memory = self._job, self._memory.returned
        asks = job.anatomy.messages[number].asks
        sums = {
            ask: tree_map(lambda *parts: sum(parts[1:], parts[0].clone()), *by_worker)
            for ask, by_worker in memory.sums[number].items()
        }
        stack, ids = memory.stacks[number], self._asked.ids[there]
        rows = None if stack is None else job.stacked(stack.take(there))
        n = job.data.n[ids].to(job.model.dtype)
        counts = n if "n" in asks else None
        weight = float(n.sum(dtype=torch.float64))
        session = Simulated(0, job.seed).session
        return Received(
            torch.from_numpy(ids), self._parties, sums, weight, rows, counts, len(self._asked.ids),
            session, self._t,
        )  # fmt: skip

    def _answer(self, number: int, reply: Tree, there: Ints) -> None:
        """Put the server's reply where the workers read it, for those who are there."""
        box, swept = self._memory.sent.replies[number], self._job.sweep
        lead = () if swept is None else (swept,)
        form = self._job.anatomy.messages[number].reply
        what = f"reply {number + 1} of {self._settings.together.name}.server"
        if not isinstance(reply, Each):
            personal.put(what, box, reply, form, lead)
            self.down += size_of(box.take()) // (swept or 1) * len(there)
            return
        for rows in leaves(reply.rows):
            if len(rows if swept is None else rows[0]) != len(there):
                raise ArchipelError(
                    f"Each holds {len(rows)} rows for {len(there)} uploads: give one row each."
                )
        rows = self._job.stacked(reply.rows)
        personal.put(what, box, rows, form, (len(there), *lead), there)
        self.down += size_of(rows) // (swept or 1)

    def _check(self, shared: Tree, uploads: int) -> None:
        """Refuse a result of another form, and one of which no setting is finite."""
        swept = self._job.sweep
        what = f"{self._settings.together.name}.server"
        same_form(what, self._job.anatomy.shared, shared, 0 if swept is None else 1)
        finite = torch.ones(swept or 1, dtype=torch.bool)
        for leaf in leaves(shared):
            rows = leaf.reshape(swept or 1, -1)
            if not torch.isfinite(rows.sum(dim=1)).all():  # quicker than a look at every number
                finite &= torch.isfinite(rows).all(dim=1)
        if not finite.any():
            raise RunFailed(
                f"round {self._t + 1}: the shared model is no longer finite after "
                f"{uploads} uploads: lower lr or server_lr."
            )
