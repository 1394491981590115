# SPDX-License-Identifier: Apache-2.0
"""A federation in one process, letter by letter: the network engine, and peers, without one."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from archipel.core import Algorithm, PeerAlgorithm, ServerAlgorithm
from archipel.data.federation import Federation
from archipel.engines.engine import Outcome
from archipel.engines.network.answers import Answers
from archipel.engines.network.company import most_edges
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted, protected
from archipel.engines.network.in_memory import MemoryLink
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import Words
from archipel.engines.network.opened import Patience
from archipel.engines.network.party_loop import PartyLoop
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.peers import Peer, Report
from archipel.engines.network.transport import Cut, Partials
from archipel.engines.protection import protecting, simulated
from archipel.graphs import Topology
from archipel.models.model import Model
from archipel.privacy.promise import Privacy
from archipel.wire.wire import Wire


class Played(NamedTuple):
    """What became of some rounds."""

    engine: NetworkEngine
    party_states: list[PartyState]  # one per party
    outcomes: list[Outcome]  # of every round
    scores: dict[int, Letter]  # of every party, at the end


async def play(
    algorithm: ServerAlgorithm,
    data: Federation,
    model: Model,
    cohorts: Sequence[Sequence[int]],
    cuts: Sequence[tuple[float, float]] = (),
    patience: Patience | None = None,
    wire: Wire | None = None,
    privacy: Privacy | None = None,
    private: bool = False,
    pace: Callable[[int], Awaitable[None]] | None = None,
) -> Played:
    """Run rounds with these parties; each party's first streams are cut after so many bytes.

    Every party has a copy of the model: they compute in threads, where a site is a process. Where
    it is `private`, noise is that of institutions; else it is drawn from the seed. Where nobody
    waits for anybody, `pace` is awaited of each party when it has trained, and a round takes the
    uploads of all its parties unless `patience` says how many.
    """
    count = data.training
    kept_by = None
    if privacy is not None and privacy.unit == "party":
        kept_by = protected(
            privacy, algorithm, data, model, range(count), seed=0, rounds=len(cohorts), wire=wire,
            parties=count, noise=protecting() if private else simulated(0),
        )  # fmt: skip
    boxes, anatomy = fitted(algorithm, data, model, 0, 0, wire, count, kept_by)
    engine = NetworkEngine(boxes, model, anatomy, count, "twin")
    answers, partials = Answers(engine), Partials()

    async def answer(who: str, letter: Letter) -> Any:
        return await answers.answer(int(who), letter)

    party_states, tasks, everybody = [], [], list(range(count))
    for k in everybody:
        promised = {"private": private, **_promised(privacy, len(cohorts))}
        party_states.append(_party(algorithm, data, model, k, wire, **promised))
        link = MemoryLink(str(k), answer, partials)
        link.cuts += cuts
        tasks.append(
            asyncio.create_task(
                PartyLoop(
                    party_states[k],
                    link,
                    "twin",
                    pause=0.01,
                    pace=None if pace is None else partial(pace, k),
                ).run()
            )
        )
    outcomes = []
    try:
        for t, cohort in enumerate(cohorts):
            outcomes.append(await engine.round(t, cohort, patience))
            answers.verdicts[t] = frozenset(outcomes[-1].arrived.tolist())
        scores = await answers.evaluate(len(cohorts), everybody)
        answers.end(len(cohorts))
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Played(engine, party_states, outcomes, scores)


def _promised(privacy: Privacy | None, rounds: int) -> dict[str, Any]:
    """What a party is told of a promise, which holds for a number of rounds."""
    return {} if privacy is None else {"privacy": privacy, "rounds": rounds}


def _party(
    algorithm: Algorithm, data: Federation, model: Model, k: int, wire: Wire | None, **options: Any
) -> PartyState:
    """Party k, which draws noise as a simulation does, unless it is told otherwise."""
    mine, copied = data.select(np.array([k])), copy.deepcopy(model)
    told = {"private": False, **options}
    return PartyState(
        algorithm, mine, copied, party=k, wire=wire, parties=data.training, study="twin", **told
    )  # fmt: skip


class Disk:
    """What would be on a peer's disk."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Tensor]] = {}

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self._kept[name] = {key: tensor.clone() for key, tensor in tensors.items()}

    def kept(self) -> dict[str, dict[str, Tensor]]:
        return {name: dict(tensors) for name, tensors in self._kept.items()}

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._kept.pop(name, None)

    def copied(self) -> Disk:
        """The disk as it is now, whatever is written on this one later."""
        copied = Disk()
        copied._kept = self.kept()
        return copied


class Circle:
    """Peers in one process; each may be ended at any moment and begun again."""

    def __init__(
        self,
        algorithm: PeerAlgorithm,
        data: Federation,
        model: Model,
        topology: Topology | None,
        rounds: int,
        *,
        asynchronous: bool = False,
        silence: float = 60.0,
        deadline: float | None = None,
        cuts: Sequence[tuple[float, float]] = (),
        wire: Wire | None = None,
        privacy: Privacy | None = None,
        pause: float = 0.0,
    ) -> None:
        self._pause = pause
        self._promised = _promised(privacy, rounds)
        self._parts, self._wire = (algorithm, data, model, topology), wire
        self._rounds, self._asynchronous, self._silence = rounds, asynchronous, silence
        self._cuts, self._deadline = cuts, deadline
        count = data.training
        self.disks = [Disk() for _ in range(count)]
        self.up: dict[int, Peer] = {}
        self.tasks: dict[int, asyncio.Task[Any]] = {}
        self.reports: list[list[Report]] = [[] for _ in range(count)]
        self.cut_off: set[int] = set()  # alive, but nobody reaches them nor they anybody
        self.watch: Callable[[int, Report], None] = lambda k, report: None
        self.fault: Callable[[int, int, Letter], None] = lambda k, j, letter: None  # may raise Cut

    def begin(self, k: int) -> Peer:
        """Start peer k from what is on its disk."""
        algorithm, data, model, topology = self._parts
        edges = 0 if topology is None else most_edges(topology)
        party_state = _party(algorithm, data, model, k, self._wire, edges=edges, **self._promised)
        links = {j: self._link(k, j) for j in range(data.training) if j != k}
        peer = self.up[k] = Peer(
            party_state, topology, links, Words("twin", self._rounds), self.disks[k],
            asynchronous=self._asynchronous, silence=self._silence, deadline=self._deadline,
            pause=self._pause, report=lambda report: self._reported(peer, report),
        )  # fmt: skip
        self.tasks[k] = asyncio.create_task(peer.run())
        return peer

    def _reported(self, peer: Peer, report: Report) -> None:
        for k in [k for k, up in self.up.items() if up is peer]:  # not of one that was killed
            self.reports[k].append(report)
            self.watch(k, report)

    def _link(self, k: int, j: int) -> MemoryLink:
        async def answer(who: str, letter: Letter) -> Letter:
            if not {j, k} <= self.up.keys() or {j, k} & self.cut_off:
                raise Cut("nobody is there.")
            reply = await self.up[j].answer(int(who), letter)
            self.fault(k, j, reply)
            return reply

        link = MemoryLink(str(k), answer, Partials())
        link.cuts += self._cuts
        return link

    def kill(self, k: int) -> asyncio.Task[Any]:
        """Kill peer k: what it does after this moment reaches neither its disk nor anybody."""
        self.up.pop(k, None)
        self.disks[k] = self.disks[k].copied()
        task = self.tasks.pop(k)
        task.cancel()
        return task

    async def end(self, k: int) -> None:
        """Kill peer k, and wait until it is gone."""
        await asyncio.gather(self.kill(k), return_exceptions=True)

    async def done(self) -> list[Any]:
        """Wait for all peers that are up, and return their own states."""
        try:
            states: list[Any] = await asyncio.gather(*(self.tasks[k] for k in sorted(self.tasks)))
        finally:
            for k in list(self.tasks):
                await self.end(k)
        return states


async def meet(
    algorithm: PeerAlgorithm,
    data: Federation,
    model: Model,
    topology: Topology,
    rounds: int,
    cuts: Sequence[tuple[float, float]] = (),
    wire: Wire | None = None,
    privacy: Privacy | None = None,
) -> list[Any]:
    """The own states of peers after so many rounds."""
    circle = Circle(algorithm, data, model, topology, rounds, cuts=cuts, wire=wire, privacy=privacy)
    for k in range(data.training):
        circle.begin(k)
    return await circle.done()
