# SPDX-License-Identifier: Apache-2.0
"""One peer of a study without a server: its rounds, its answers to others, its state on the disk.

Peers mix in rounds that all have in common (`peer_rounds.py`), or each at its own pace
(`gossip.py`); or they have turns by clocks of their own, and talk as the algorithm says: they wake
(`waking.py`), meet (`meeting.py`), or a token walks (`walking.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from archipel.aggregation.mixing import mixing_rule
from archipel.core import Vector
from archipel.engines.network.coding import Coding
from archipel.engines.network.company import PAUSE, Pace
from archipel.engines.network.exchanges import Behind, Store
from archipel.engines.network.gossip import Gossip
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import SILENCE, Liveness, Over, Words
from archipel.engines.network.meeting import Meeting
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.peer_rounds import Rounds
from archipel.engines.network.transport import Link, Refused
from archipel.engines.network.turn import Own
from archipel.engines.network.waking import Waking
from archipel.engines.network.walking import Walking
from archipel.errors import ArchipelError, RunFailed
from archipel.graphs import Topology
from archipel.tree import leaves, nbytes

_TRIES = 3  # to tell a peer that is done that this one is, too


class Report(NamedTuple):
    """What a peer tells about a round."""

    round: int  # done, from 1
    metrics: dict[str, float] | None  # of its own model on its own test points; None between
    missing: dict[int, str]  # peers it went on without, and why
    gradients: int
    up: int  # bytes of vectors
    down: int
    edges: dict[int, float] | None = None  # its own, with their weights: as learned, or given


Clocked = Waking | Meeting | Walking  # by clocks of their own


class Peer:
    """One party of a study without a server: its rounds, and its answers to others."""

    def __init__(
        self,
        party_state: PartyState,
        topology: Topology | None,
        links: Mapping[int, Link],
        words: Words,
        store: Store,
        *,
        asynchronous: bool = False,
        evaluate_every: int = 1,
        silence: float = SILENCE,
        deadline: float | None = None,
        paused: Callable[[], bool] = lambda: False,
        report: Callable[[Report], None] = lambda _: None,
        counts: bool = True,
        pause: float = PAUSE,
    ) -> None:
        """`links` lead to all other peers of the study, by number.

        `deadline` is how long another is waited for in an exchange, in seconds. Without `counts`
        nobody is told of gradients, whose number is that of points. `pause` are the seconds between
        two turns of a peer with a clock of its own, on average.
        """
        self.party_state, self.words, self._store, self._report = party_state, words, store, report
        self._every, self._counts, self._topology = evaluate_every, counts, topology
        self._told: Report | None = None  # the last
        self._grown = 0, 0  # gradients when they were last asked for, and how often they had grown
        self.liveness = Liveness(links, silence, deadline, paused)
        self._coding = Coding.of(party_state.boxes, party_state.seed)
        if asynchronous and any(map(self._coding.is_change, range(len(self._coding.chains)))):
            raise ArchipelError(
                f"topology.asynchronous = true: {party_state.boxes.name} adds up changes of copies "
                "in rounds that all have in common; leave it out, or wire.up."
            )
        if asynchronous and party_state.rule is not None:
            raise ArchipelError(
                f"topology.asynchronous = true: {party_state.rule!r} is a rule over all neighbours "
                "of a peer, which then averages with one at a time; leave one of the two out."
            )
        self.mixing = self._mixing(topology, asynchronous, pause)
        kept = store.kept()
        self.round = 0  # that the own state on the disk is from before
        if "own" in kept:
            party_state.restore(kept["own"])
            self.round = int(kept["own"]["round"])
        if asynchronous:  # a round that is done again mixes other vectors: with other noise
            party_state.secrets = None
        self._secrets = party_state.secrets  # on the disk
        self.mixing.restore(kept, (self.round, 0))

    def _mixing(
        self, topology: Topology | None, asynchronous: bool, pause: float
    ) -> Rounds | Gossip | Clocked:
        """How this peer talks to others."""
        state, liveness, words = self.party_state, self.liveness, self.words
        clock, party = state.boxes.clock, state.party
        pace = Pace(state.seed, party, pause)
        if clock == "wakes":
            return Waking(state, topology, liveness, words, self._keep, pace)
        if topology is None:
            raise ArchipelError(f'{state.boxes.name} needs a topology: give one, such as "ring".')
        if clock == "walk":
            return Walking(state, topology, liveness, words, self._keep)
        if clock == "meetings":
            return Meeting(state, topology, liveness, words, self._keep, pace)
        if asynchronous:
            seed, coding = state.seed, self._coding
            return Gossip(party, topology, liveness, words, self._keep, seed, coding)
        rule = mixing_rule(state.rule, state.boxes, topology)
        return Rounds(party, topology, liveness, words, self._store, self._coding, rule)

    @property
    def done(self) -> bool:
        return self.round >= self.words.rounds

    @property
    def is_alone(self) -> bool:
        """Whether nobody is there that has rounds to go."""
        liveness, around = self.liveness, self.mixing.around()
        unfinished = [j for j in around if liveness.of[j].at[0] < self.words.rounds]
        return not self.done and liveness.alone(unfinished)

    @property
    def most(self) -> int:
        """Bytes of the largest letter that a peer may send."""
        plain = (self.party_state.model.w, *(chain.form for chain in self._coding.chains))
        return (1 << 16) + max(*map(nbytes, plain), nbytes(tuple(self.party_state.anatomy.between)))

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Answer a letter of peer j, whom TLS has told apart."""
        if j not in self.liveness.of:
            raise Refused("not a peer of this study.")
        if self.liveness.of[j].gone:
            raise Refused("revoked: this peer goes on without it.")
        t, number = self.words.place(letter, self.mixing.kinds)
        if letter["study"] != self.words.study:
            raise Refused("a letter of another study.")
        if "signature" in letter.fields:
            self.words.check(j, letter)
        self.liveness.note(j, letter)
        if letter.kind != "beat":
            return await self.mixing.answer(j, letter)
        is_last = letter.fields.get("gave_up") == [t, number]
        return (self.mixing.last(j, (t, number)) if is_last else None) or self.told(j)

    def told(self, j: int) -> Letter:
        letter = self.mixing.told(j)
        me, doing = self.party_state.me, letter["doing"]
        if self.done:
            doing = "done"
        elif doing == "trains" and me is not None:
            doing = f"trains, {self._far(me.gradients)}"
        return Letter("beat", {**letter.fields, "doing": doing})

    def _far(self, gradients: int) -> str:
        """Words that change as long as the work moves on."""
        if self._counts:
            return f"{gradients} gradients"
        before, grown = self._grown
        self._grown = gradients, grown + (gradients != before)
        return f"{self._grown[1]} times further"

    async def run(self) -> Any:
        """Take part until the rounds are done; return the own state."""
        if isinstance(self.mixing, Clocked):
            self.mixing.start()
        beats = asyncio.create_task(self.liveness.beat(self.mixing.around, self.told))
        try:
            while not self.done:
                await self._one()
            await self._part()
            self._tell_edges()
            self.party_state.own.state = self.mixing.end(self.party_state.own.state)
            self._keep()
            return self.party_state.own.state
        finally:
            self.liveness.leave()
            under_way: list[asyncio.Task[Any]] = [beats]
            if isinstance(self.mixing, Clocked):
                under_way += self.mixing.under_way()
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _part(self) -> None:
        """Say that this peer is done, and stay until nobody needs it any more."""
        liveness, rounds = self.liveness, self.words.rounds
        until = liveness.clock() + liveness.limit + liveness.silence  # whatever they say
        unaware = dict.fromkeys(self.mixing.around(), 0)  # how often they were told in vain
        while True:
            unaware = {j: tries for j, tries in unaware.items() if not liveness.of[j].gone}
            asked = list(unaware)
            heard = await asyncio.gather(*(liveness.tell(j, self.told(j)) for j in asked))
            for j, yes in zip(asked, heard, strict=True):
                unaware[j] += 1
                has_left = liveness.of[j].at[0] >= rounds and unaware[j] >= _TRIES
                if yes or has_left or liveness.silent(j):
                    del unaware[j]
            if (not unaware and self.mixing.settled()) or liveness.clock() >= until:
                return
            await liveness.moved(0.2 if unaware else liveness.every)

    async def _one(self) -> None:
        """One round, or the jump to where the others are."""
        t, mixing = self.round, self.mixing
        mixing.begin(t)
        if isinstance(mixing, Clocked):
            await self._turn(mixing)
            return
        self.party_state.draw(t)
        if self.party_state.secrets is not self._secrets:
            self._keep()  # before it is charged: after a kill the round has the same noise
        try:
            own, gradients = await asyncio.to_thread(self.party_state.alone, t, self._mix())
        except (Behind, Over) as ahead:
            rounds = self.words.rounds
            self.round = min(ahead.round, rounds) if isinstance(ahead, Behind) else rounds
            self._keep()
            mixing.begin(self.round)
            if isinstance(ahead, Over):
                await self._tell({}, 0, 0, 0)
            return
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves(own.state)):
            remedy = self.party_state.boxes.remedy
            raise RunFailed(f"round {t + 1}: the model is no longer finite: {remedy}.")
        self.party_state.own = own
        told = (dict(mixing.missing), self._counts * gradients, mixing.up, mixing.down)
        self.round = t + 1
        mixing.begin(self.round)
        self._keep()
        await self._tell(*told)

    async def _turn(self, mixing: Clocked) -> None:
        """One turn by this peer's own clock, which stands still in a pause."""
        t = self.round
        await self.liveness.unpaused()

        def commit(own: Own) -> None:
            self.party_state.own, self.round = own, mixing.after(t)
            mixing.at = (self.round, 0)
            self._keep()

        self.party_state.draw(t)
        if self.party_state.secrets is not self._secrets:
            self._keep()  # before it is charged: after a kill the turn has the same noise
        try:
            gradients = await mixing.turn(t, commit)
        except Over:
            self.round = self.words.rounds
            mixing.begin(self.round)
            self._keep()
            await self._tell({}, 0, 0, 0)
            return
        if self.round > t:
            await self._tell(dict(mixing.missing), self._counts * gradients, mixing.up, mixing.down)

    async def _tell(self, missing: dict[int, str], gradients: int, up: int, down: int) -> None:
        """Report the last round, with the metrics of the model now where they are due."""
        t, metrics = self.round, None
        if t % self._every == 0 or self.done:
            metrics = await asyncio.to_thread(self.party_state.told, self.party_state.mine(), t)
        learnt = self._learnt
        edges = None if metrics is None else self._given if learnt is None else learnt
        self._told = Report(t, metrics, missing, gradients, up, down, edges)
        self._report(self._told)

    def _tell_edges(self) -> None:
        """Report the last round once more where others changed an edge after it."""
        edges = self._learnt
        if self._told is not None and edges is not None and edges != self._told.edges:
            self._report(self._told._replace(edges=edges))

    @property
    def _learnt(self) -> dict[int, float] | None:
        return self.mixing.learnt() if isinstance(self.mixing, Waking) else None

    @property
    def _given(self) -> dict[int, float] | None:
        """Its edges in the graph that the study says, as of the last round; None without one."""
        if self._topology is None:
            return None
        row = self._topology.affinity(self.round - 1)[[self.party_state.party]]
        return dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))

    def _mix(self) -> Callable[..., Vector]:
        """`me.mix`, which the algorithm calls in its own thread."""
        loop = asyncio.get_running_loop()

        async def mixed(x: Vector, *coded: Any) -> Vector:
            if self.party_state.secrets is not self._secrets:
                self._keep()  # before anything of this round leaves
            assert isinstance(self.mixing, Rounds | Gossip)
            return await self.mixing.mix(x, *coded)

        def mix(x: Vector, *coded: Any) -> Vector:
            if not bool(torch.isfinite(x).all()):
                t, remedy = self.round + 1, self.party_state.boxes.remedy
                raise RunFailed(f"round {t}: the model is no longer finite: {remedy}.")
            return asyncio.run_coroutine_threadsafe(mixed(x, *coded), loop).result()

        return mix

    def _keep(self) -> None:
        state = {
            **self.party_state.state(),
            **self.mixing.state(),
            "round": torch.tensor(self.round),
        }
        self._store.keep("own", state)
        self._secrets = self.party_state.secrets
