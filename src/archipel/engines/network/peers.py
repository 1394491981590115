# SPDX-License-Identifier: Apache-2.0
"""Peers without a server: who asks whom for a vector, and how rounds go on without somebody.

An exchange is one call of `me.mix`: (round, how many came before it in the round). Of the two ends
of an edge the higher number asks, with its vector, and the lower answers with its own for the same
exchange, as soon as it has it: then the edge counts on both sides. Whoever is not ready says where
it is, and is asked again. An edge that does not come about counts on neither side and its weight
goes to the diagonal, so that the W of every exchange is symmetric and doubly stochastic.

- A peer that sees the other end beyond its own exchange drops the edge at once.
- One without a sign of life for `silence` seconds is dropped, and waited for again once it is seen.
- A peer that reaches nobody waits: it is away itself.
- A peer that comes back finishes its open round with what was exchanged already. Where nothing was,
  and others went on without it, it was away: it leaves the round, keeps its state, and goes on in
  the round after the last that they tell.

What was exchanged is on the disk before it is told, so a peer may be killed at any moment. One gap
is left, as in every such protocol: a lower end that answers and is then cut off, alive, before its
answer arrives has counted an edge that the higher end drops. One that was killed asks about it.

Without rounds in common, see `gossip.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from archipel.core import Vector
from archipel.engines.network.contacts import SILENCE, At, Contacts, Place, Words, why_not
from archipel.engines.network.gossip import Gossip
from archipel.engines.network.letters import Letter
from archipel.engines.network.seat import Seat
from archipel.engines.network.transport import POLL, Cut, Link, Refused
from archipel.errors import ArchipelError, RunFailed
from archipel.graphs import Topology
from archipel.tree import first, leaves

_TRIES = 3  # to tell a peer that is done that this one is, too


class Behind(ArchipelError):
    """The others went on in the meantime."""

    def __init__(self, round: int) -> None:
        super().__init__(f"the others are in round {round + 1}.")
        self.round = round


class Store(Protocol):
    """What survives a peer's process: tensors by name, each name all at once."""

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None: ...

    def kept(self) -> dict[str, dict[str, Tensor]]: ...

    def forget(self, names: Iterable[str]) -> None: ...


class Report(NamedTuple):
    """What a peer tells about a round."""

    round: int  # done, from 1
    metrics: dict[str, float] | None  # of its own model on its own test points; None between
    missing: dict[int, str]  # peers it went on without, and why
    gradients: int
    up: int  # bytes of vectors
    down: int


# -- rounds in common ------------------------------------------------------------------------------


@dataclass
class Exchange:
    """An exchange that is under way."""

    at: At
    x: Tensor
    open: set[int]
    got: dict[int, Tensor] = field(default_factory=dict)
    unsure: dict[int, Tensor] = field(default_factory=dict)  # counted before a restart
    lost: dict[int, str] = field(default_factory=dict)  # peer -> cause


class Rounds:
    """Mixing in rounds that all peers have in common."""

    def __init__(
        self, party: int, topology: Topology, contacts: Contacts, words: Words, store: Store
    ) -> None:
        self.party, self.graph = party, Place(topology, party, contacts.of)
        self.contacts, self.words, self._store = contacts, words, store
        self.at: At = (0, 0)
        self.open: Exchange | None = None
        self.missing: dict[int, str] = {}  # in this round
        self.up = self.down = 0  # bytes of vectors, in this round
        self._used = 0  # edges that counted in this round
        self._told: list[int] = []  # rounds of those that went on without this peer
        self._gave_up: dict[int, At] = {}  # the last exchange that a lower end left unanswered
        self._answered: dict[int, tuple[At, Tensor, Tensor]] = {}  # the last: mine, theirs
        self._mixed: dict[At, dict[int, Tensor | None]] = {}  # before a restart: None where lost

    def restore(self, kept: Mapping[str, Mapping[str, Tensor]], at: At) -> None:
        self.at = at
        for name, tensors in kept.items():
            kind, *numbers = name.split("-")
            if kind == "edge":
                position = tensors["at"].tolist()
                self._answered[int(numbers[0])] = (
                    (position[0], position[1]), tensors["mine"], tensors["theirs"]
                )  # fmt: skip
            elif kind == "mixed":
                found: dict[int, Tensor | None] = dict.fromkeys(tensors["lost"].tolist())
                found |= {int(j): x for j, x in tensors.items() if j != "lost"}
                self._mixed[int(numbers[0]), int(numbers[1])] = found

    def around(self) -> Sequence[int]:
        return self.graph.around(self.at[0])

    def begin(self, t: int) -> None:
        """Go to the start of round t."""
        self.at, self.open, self._used, self._told = (t, 0), None, 0, []
        self.missing, self.up, self.down = {}, 0, 0
        old = [at for at in self._mixed if at[0] < t - 1]  # the disk may be a round behind
        self._store.forget(f"mixed-{at[0]}-{at[1]}" for at in old)
        for at in old:
            del self._mixed[at]
        self.contacts.ring()

    def told(self, j: int) -> Letter:
        return self.words.beat(self._position(j), self.doing, self._gave_up.get(j))

    @property
    def doing(self) -> str:
        return "waits" if self.open is not None else "trains"

    def _position(self, j: int) -> At:
        """How far this peer is for peer j: beyond an exchange in which j was dropped."""
        exchange = self.open
        if exchange is not None and j in exchange.lost:
            return exchange.at[0], exchange.at[1] + 1
        return self.at

    async def mix(self, x: Vector) -> Vector:
        """sum_j W_ij x_j over the neighbours that exchange with this peer, and itself."""
        (t, number), weights = self.at, self.graph.row(self.at[0])
        found = self._mixed.get(self.at)
        if found is None:
            found = await self._exchange(x)
        else:
            lost = [j for j, theirs in found.items() if theirs is None]
            self.missing |= dict.fromkeys(lost, "lost before a restart")
        got = {j: theirs for j, theirs in found.items() if theirs is not None}
        self._used += len(got)
        self.up += len(got) * x.numel() * x.element_size()
        self.down = self.up
        self.at, self.open = (t, number + 1), None
        self.contacts.ring()
        mixed = x * (1 - sum(weights[j] for j in got))
        for j in sorted(got):
            mixed = mixed + weights[j] * got[j]
        return mixed

    async def _exchange(self, x: Vector) -> dict[int, Tensor | None]:
        t = self.at[0]
        exchange = Exchange(self.at, x.detach(), set(self.graph.neighbours(t)))
        for j, (at, _, theirs) in self._answered.items():
            if at == self.at:  # before a restart
                exchange.unsure[j] = theirs
        self.open = exchange
        self.contacts.ring()
        asks = [
            asyncio.create_task(self._ask(exchange, i))
            for i in sorted(exchange.open)
            if i < self.party
        ]
        asks += [asyncio.create_task(self._make_sure(exchange, j)) for j in exchange.unsure]
        try:
            await self._settle(exchange)
        finally:
            for task in asks:
                task.cancel()
            await asyncio.gather(*asks, return_exceptions=True)
        if self._told and not exchange.got and not self._used:
            most = min(self._told) + self.graph.parties  # peers wait for each other: none is beyond
            raise Behind(max(told for told in self._told if told <= most))
        self.missing |= exchange.lost
        found: dict[int, Tensor | None] = {**exchange.got, **dict.fromkeys(exchange.lost)}
        lost = torch.tensor(sorted(exchange.lost), dtype=torch.int64)
        kept = {str(j): theirs for j, theirs in exchange.got.items()}
        self._store.keep(f"mixed-{t}-{self.at[1]}", {**kept, "lost": lost})
        self._mixed[self.at] = found
        return found

    async def _settle(self, exchange: Exchange) -> None:
        """Wait until every edge counts or is dropped."""
        contacts = self.contacts
        while True:
            for j in sorted(exchange.unsure):
                self._judge(exchange, j)
            for j in sorted(exchange.open - exchange.unsure.keys()):
                # the lower end may have counted the edge before it went on: it is asked
                if j > self.party and contacts.of[j].at > exchange.at:
                    self._went_on(exchange, j)
                elif contacts.silent(j) and (exchange.got or not contacts.alone(self.around())):
                    doing = contacts.of[j].doing
                    if not contacts.of[j].away:  # it was asked
                        self._gave_up[j] = exchange.at
                    contacts.of[j].away = True
                    self._lose(exchange, j, f"silent ({doing})" if doing else "silent")
            if not exchange.open:
                return
            ends = [contacts.of[j].alive + contacts.silence for j in exchange.open]
            left = min(ends) - contacts.clock()
            await contacts.moved(left if left > 0 else contacts.every)

    async def _make_sure(self, exchange: Exchange, j: int) -> None:
        """Hear from the higher end whether an edge that counted before a restart does so there."""
        while j in exchange.unsure:
            await self.contacts.tell(j, self.told(j))
            await asyncio.sleep(0.2)

    def _judge(self, exchange: Exchange, j: int) -> None:
        """The edge counts if the higher end went on with it, or asks again; not if it gave up."""
        contact = self.contacts.of[j]
        if contact.gave_up == exchange.at:
            del exchange.unsure[j], self._answered[j]
            self._store.forget([f"edge-{j}"])
            self._went_on(exchange, j)
        elif self.contacts.silent(j) or (contact.gave_up is not None and contact.at > exchange.at):
            self._count(exchange, j, exchange.unsure.pop(j))

    def _count(self, exchange: Exchange, j: int, theirs: Tensor) -> None:
        exchange.open.discard(j)
        exchange.got[j] = theirs
        self.contacts.ring()

    def _went_on(self, exchange: Exchange, j: int) -> None:
        t = self.contacts.of[j].at[0]
        self._told.append(t)
        self._lose(exchange, j, f"went on without this peer, to round {t + 1}")

    def _lose(self, exchange: Exchange, j: int, cause: str) -> None:
        if j in exchange.open:
            exchange.open.discard(j)
            exchange.lost[j] = cause
            self.contacts.ring()

    async def _ask(self, exchange: Exchange, i: int) -> None:
        """Ask the lower end of an edge until the edge counts or is dropped."""
        contacts, letter, pause = self.contacts, self.words.vector(exchange.at, exchange.x), 0.05
        while i in exchange.open:
            if contacts.silent(i):
                await contacts.moved(contacts.every)
                continue
            try:
                answer = await contacts.links[i].ask(letter)
                self.words.place(answer)
                if answer.kind == "vector":
                    theirs = self.words.read(i, answer, exchange.x)
                    if (answer["round"], answer["number"]) != exchange.at:
                        raise Refused("a vector of another exchange.")
            except Cut:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            except ArchipelError as no:
                self._lose(exchange, i, why_not(no))
                return
            contacts.note(i, answer)
            if answer.kind == "vector" and i in exchange.open:
                self._count(exchange, i, theirs)
            elif contacts.of[i].at > exchange.at:
                self._went_on(exchange, i)

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Answer peer j, which sends its vector, with this peer's of the same exchange."""
        at, contacts = (letter["round"], letter["number"]), self.contacts
        if j < self.party:
            raise Refused("of an edge the higher number asks.")
        if j not in self.graph.neighbours(at[0]):
            raise Refused(f"round {at[0] + 1}: there is no edge between the two peers.")
        until = contacts.clock() + POLL
        while True:
            answered, mine, _ = self._answered.get(j, ((-1, 0), None, None))
            exchange, left = self.open, until - contacts.clock()
            if mine is not None and answered == at:
                if exchange is not None and j in exchange.unsure:
                    self._count(exchange, j, exchange.unsure.pop(j))
                return self.words.vector(at, mine)
            if self._position(j) > at or left <= 0:
                return self.told(j)
            if exchange is not None and exchange.at == at and j in exchange.open:
                theirs = self.words.read(j, letter, exchange.x)
                edge = {"at": torch.tensor(at), "mine": exchange.x, "theirs": theirs}
                self._store.keep(f"edge-{j}", edge)
                self._answered[j] = (at, exchange.x, theirs)
                self._count(exchange, j, theirs)
                return self.words.vector(at, exchange.x)
            await contacts.moved(left)

    def settled(self) -> bool:
        """Whether nobody may ask for anything any more."""
        contacts = self.contacts
        return all(
            contacts.silent(j) or contacts.of[j].at[0] >= self.words.rounds for j in self.around()
        )

    def end(self, own: Any) -> Any:
        return own

    def state(self) -> dict[str, Tensor]:
        return {}


# -- one peer --------------------------------------------------------------------------------------


class Peer:
    """One party of a study without a server: its rounds, and its answers to others."""

    def __init__(
        self,
        seat: Seat,
        topology: Topology,
        links: Mapping[int, Link],
        words: Words,
        store: Store,
        *,
        asynchronous: bool = False,
        evaluate_every: int = 1,
        silence: float = SILENCE,
        report: Callable[[Report], None] = lambda _: None,
    ) -> None:
        """`links` lead to all other peers of the study, by number."""
        self.seat, self.words, self._store, self._report = seat, words, store, report
        self._every = evaluate_every
        self.contacts = Contacts(links, silence)
        party, contacts = seat.party, self.contacts
        self.mixing: Rounds | Gossip = (
            Gossip(party, topology, contacts, words, self._keep, seat.seed)
            if asynchronous
            else Rounds(party, topology, contacts, words, store)
        )
        kept = store.kept()
        self.round = 0  # that the own state on the disk is from before
        if "own" in kept:
            seat.restore(kept["own"])
            self.round = int(kept["own"]["round"])
        self.mixing.restore(kept, (self.round, 0))

    @property
    def done(self) -> bool:
        return self.round >= self.words.rounds

    @property
    def is_alone(self) -> bool:
        """Whether nobody gives a sign of life."""
        return not self.done and self.contacts.alone(self.mixing.around())

    @property
    def most(self) -> int:
        """Bytes of the largest letter that a peer may send."""
        vectors = [self.seat.model.w, *self.seat.mixed]
        return (1 << 16) + max(x.numel() * x.element_size() for x in vectors)

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Answer a letter of peer j, whom TLS has told apart."""
        if j not in self.contacts.of:
            raise Refused("not a peer of this study.")
        self.words.place(letter)
        if letter["study"] != self.words.study:
            raise Refused("a letter of another study.")
        if letter.kind == "vector":
            self.words.check(j, letter)
        self.contacts.note(j, letter)
        return self.told(j) if letter.kind == "beat" else await self.mixing.answer(j, letter)

    def told(self, j: int) -> Letter:
        letter = self.mixing.told(j)
        me, doing = self.seat.me, letter["doing"]
        if self.done:
            doing = "done"
        elif doing == "trains" and me is not None:
            doing = f"trains, {me.gradients} gradients"
        return Letter("beat", {**letter.fields, "doing": doing})

    async def run(self) -> Any:
        """Take part until the rounds are done; return the own state."""
        beats = asyncio.create_task(self.contacts.beat(self.mixing.around, self.told))
        try:
            while not self.done:
                await self._one()
            await self._part()
            self.seat.own.state = self.mixing.end(self.seat.own.state)
            self._keep()
            return self.seat.own.state
        finally:
            self.contacts.leave()
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _part(self) -> None:
        """Say that this peer is done, and stay until nobody needs it any more."""
        contacts, rounds = self.contacts, self.words.rounds
        unaware = dict.fromkeys(self.mixing.around(), 0)  # how often they were told in vain
        while True:
            asked = list(unaware)
            heard = await asyncio.gather(*(contacts.tell(j, self.told(j)) for j in asked))
            for j, yes in zip(asked, heard, strict=True):
                unaware[j] += 1
                has_left = contacts.of[j].at[0] >= rounds and unaware[j] >= _TRIES
                if yes or has_left or contacts.silent(j):
                    del unaware[j]
            if not unaware and self.mixing.settled():
                return
            await contacts.moved(0.2 if unaware else contacts.every)

    async def _one(self) -> None:
        """One round, or the jump to where the others are."""
        t, mixing = self.round, self.mixing
        mixing.begin(t)
        try:
            own, gradients = await asyncio.to_thread(self.seat.alone, t, self._mix())
        except Behind as behind:
            self.round = min(behind.round + 1, self.words.rounds)
            self._keep()
            mixing.begin(self.round)
            return
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves(own.state)):
            raise RunFailed(f"round {t + 1}: the model is no longer finite: lower lr.")
        self.seat.own = own
        told = (dict(mixing.missing), gradients, mixing.up, mixing.down)
        self.round = t + 1
        mixing.begin(self.round)
        self._keep()
        metrics = None
        if (t + 1) % self._every == 0 or self.done:
            metrics = await asyncio.to_thread(self.seat.told, first(own.state), t + 1)
        self._report(Report(t + 1, metrics, *told))

    def _mix(self) -> Callable[[Vector], Vector]:
        """`me.mix`, which the algorithm calls in its own thread."""
        loop = asyncio.get_running_loop()

        def mix(x: Vector) -> Vector:
            if not bool(torch.isfinite(x).all()):
                t = self.round + 1
                raise RunFailed(f"round {t}: the model is no longer finite: lower lr.")
            return asyncio.run_coroutine_threadsafe(self.mixing.mix(x), loop).result()

        return mix

    def _keep(self) -> None:
        state = {**self.seat.state(), **self.mixing.state(), "round": torch.tensor(self.round)}
        self._store.keep("own", state)
