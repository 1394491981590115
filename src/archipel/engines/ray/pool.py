# SPDX-License-Identifier: Apache-2.0
"""Workers on a Ray cluster, as the pool of an engine.

A round is cut into as many shares as the plan has workers, so what comes of it does not depend on
how many processes there are to run them: any worker runs any share. Where one is lost, its shares
are run again, from their first message, by another; every draw is keyed, so to the same bits.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from archipel.engines.local.memory import Memory
from archipel.engines.local.pool import Json, raise_error
from archipel.engines.local.share import Job
from archipel.engines.ray import parcels
from archipel.engines.ray.crew import Crew, Seat, last_line
from archipel.engines.ray.worker import memory_used
from archipel.errors import ArchipelError, RunFailed

_TRIES = 4  # times that a share is lost in one message before it is given up


@dataclass
class Sent:
    """A message to a share, with what came with it: all that it takes to have it run again."""

    message: Json
    first: Json
    parts: list[Any] = field(default_factory=list)


class RayPool:
    """As many shares as the plan has workers, run by the workers that there are."""

    def __init__(self, crew: Crew, job: Job, memory: Memory) -> None:
        self._crew, self._ray, self._job, self._memory = crew, crew.ray, job, memory
        self._key = crew.job()
        self._at: dict[int, Seat] = {}  # who runs a share
        self._log: dict[int, list[Sent]] = {}  # the messages of a share since it began
        self._suspect: Seat | None = None  # whose answer is waited for
        self.closed = False
        self._parcel = self._ray.put(parcels.packed((job, memory.mixed.shape[-1])))
        crew.gather(len(self))

    def __len__(self) -> int:
        return self._job.plan.workers

    @property
    def said(self) -> str:
        """How it is doing, in words."""
        there = self._crew.there
        used = sum(seat.used for seat in there) + memory_used()
        return f"Ray: {len(there)} of {len(self)} workers, {used / 2**30:.1f} GB"

    def run(self, messages: list[Json]) -> list[Json]:
        """Give each share a message, with what it needs, and wait for every answer."""
        try:
            return self._run(messages)
        except ArchipelError:
            self.close()
            raise
        except BaseException as error:
            for seat in self._crew.there:  # they may be in the middle of something
                self._crew.dismiss(seat)
            self.close()
            if isinstance(error, self._ray.exceptions.RayError):
                raise RunFailed(f"the Ray cluster failed: {last_line(error)}.") from error
            raise

    def close(self) -> None:
        """Have the workers forget the job."""
        if self.closed:
            return
        self.closed = True
        if self._ray.is_initialized():
            for seat in self._crew.there:
                if self._key in seat.jobs:
                    seat.handle.forget.remote(self._key)
                    seat.jobs.remove(self._key)
        self._at, self._log, self._parcel = {}, {}, None

    # -- messages --------------------------------------------------------------------------------

    def _run(self, messages: list[Json]) -> list[Json]:
        job, memory = self._job, self._memory
        begun = parcels.begins(job, messages[0])
        if begun:
            self._deal()
            secret = os.urandom(32).hex()
            messages = [{**message, "secret": secret} for message in messages]
        common = parcels.to_all(job, memory, messages[0])
        told = [self._ray.put(common)] if common else []
        for index, message in enumerate(messages):
            if begun:
                self._log[index] = []
            first = message if begun else self._log[index][0].message
            own = parcels.to_share(job, memory, message, first)
            self._log[index].append(Sent(message, first, [*told, *([own] if own else [])]))
        mixing = job.topology is not None and messages[0]["do"] == "round"
        found = self._mixed() if mixing else self._gathered()
        for index in range(len(messages)):
            raise_error(found[index][0])
        for index, (answer, back) in found.items():
            last = self._log[index][-1]
            parcels.bring(job, memory, last.message, last.first, index, back)
            self._at[index].used = answer.pop("memory")
        return [found[index][0] for index in range(len(messages))]

    def _gathered(self) -> dict[int, Any]:
        """The answers of all shares, whoever gives them."""
        waiting = {self._submit(index, self._log[index][-1:]): index for index in self._log}
        found: dict[int, Any] = {}
        tries: Counter[int] = Counter()
        while waiting:
            come, _ = self._ray.wait([*waiting], timeout=5.0)
            for reference in come:
                index = waiting.pop(reference)
                try:
                    found[index] = self._ray.get(reference)
                except self._crew.lost as error:
                    tries[index] += 1
                    self._give_up(self._at[index], tries[index], error)
                    self._at[index] = self._free()
                    waiting[self._submit(index, self._log[index])] = index
        return found

    def _submit(self, index: int, several: list[Sent]) -> Any:
        """Send a share's messages to its worker; a reference to the last one's answer."""
        do, reference = self._hand(index).do, None
        for sent in several:
            reference = do.remote(self._key, index, sent.message, *sent.parts)
        return reference

    def _mixed(self) -> dict[int, Any]:
        """The answers of shares that mix: all as far as an exchange, and then on.

        Each wrote its rows for the others; they go from machine to machine, and not through here.
        Where a worker is lost, the round is run again by all.
        """
        whose = {index: parcels.parties_of(log[-1].first) for index, log in self._log.items()}
        tries = 0
        while True:
            found: dict[int, Any] = {}
            boards: dict[int, Any] = {}  # of those that wait
            going = [*self._log]
            try:
                while going:
                    said = [self._step(index, boards, whose) for index in going]
                    boards = {}
                    for index, (answer, rows) in zip(going, said, strict=True):
                        self._suspect = self._at[index]
                        got = self._ray.get(answer)
                        if "waits" in got:
                            boards[index] = rows
                        else:
                            raise_error(got[0])
                            found[index] = got
                    going = [*boards]
                return found
            except self._crew.lost as error:
                tries += 1
                assert self._suspect is not None
                self._give_up(self._suspect, tries, error)
                self._deal()

    def _step(self, index: int, boards: dict[int, Any], whose: dict[int, Any]) -> Any:
        """Have a share go on to its next exchange: references to its answer and to its rows."""
        worker, sent = self._hand(index), self._log[index][-1]
        at = (self._key, index)
        if not boards:
            return worker.begin.options(num_returns=2).remote(*at, sent.message, *sent.parts)
        others = [whose[other] for other in boards]
        return worker.go_on.options(num_returns=2).remote(*at, others, [*boards.values()])

    # -- workers ---------------------------------------------------------------------------------

    def _deal(self) -> None:
        """Deal the shares out to the workers that are there."""
        self._crew.fill(len(self))
        there = self._crew.look()
        self._at = {index: there[index % len(there)] for index in range(len(self))}

    def _free(self) -> Seat:
        """The worker with the fewest shares."""
        busy = Counter(map(id, self._at.values()))
        return min(self._crew.look(), key=lambda seat: busy[id(seat)])

    def _hand(self, index: int) -> Any:
        """The worker of a share, with the job."""
        seat = self._at[index]
        if self._key not in seat.jobs:
            seat.handle.load.remote(self._key, self._parcel)
            seat.jobs.add(self._key)
        return seat.handle

    def _give_up(self, seat: Seat, tries: int, error: Exception) -> None:
        """Let a lost worker go, and ask for another."""
        if tries >= _TRIES:
            raise RunFailed(
                f"a share of the round was lost {tries} times ({last_line(error)}), most likely "
                "for want of memory: use more workers, a smaller cohort or larger machines."
            ) from error
        self._crew.dismiss(seat)
        self._crew.fill(len(self))
