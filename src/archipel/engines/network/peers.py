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
- A peer that comes back finishes its open round with what was exchanged already, or leaves it where
  nothing was, and goes on in the round after the last that it hears of.

What was exchanged is on the disk before it is told, so a peer may be killed at any moment. One gap
is left, as in every such protocol: a lower end that answers and falls silent before its answer
arrives has counted an edge that the higher end drops.

Without rounds in common (`Gossip`), `me.mix` averages with one neighbour that is there [AD-PSGD:
Lian et al., ICML 2018, https://arxiv.org/abs/1710.06952].
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from archipel import rng
from archipel.core import Vector
from archipel.engines.network.letters import Letter
from archipel.engines.network.seat import Seat
from archipel.engines.network.transport import Cut, Link, Refused
from archipel.errors import ArchipelError, RunFailed, clean
from archipel.graphs import Topology
from archipel.tree import first, leaves

At = tuple[int, int]  # an exchange: its round, and its number in the round

POLL = 20.0  # seconds that a question is held before it is answered with "not yet"
SILENCE = 60.0  # seconds without a sign of life after which a peer counts as away
_ASKING = 2.0  # seconds that gossip waits for an answer before it goes on
_MOST = 1 << 16  # exchanges in a round
_WORDS = 80  # characters of what a peer says that it does
_AHEAD = 16  # rounds of a changing graph whose neighbours are kept in touch with


class Left(Cut):
    """The peer leaves; it goes on from here when it is started again."""


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


# -- who is there ----------------------------------------------------------------------------------


@dataclass
class Contact:
    """What a peer knows of another."""

    alive: float  # when it last got further, or waited
    heard: float = -1e9
    at: At = (0, 0)  # how far it said it is
    doing: str = ""
    away: bool = False


class Contacts:
    """Whom a peer hears of, how far they are, and a bell for those who wait for any of it."""

    def __init__(
        self, links: Mapping[int, Link], silence: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.links, self.silence, self.clock = links, silence, clock
        self.every = min(5.0, silence / 5)  # seconds between two signs of life
        self.of = {j: Contact(clock()) for j in links}
        self.left = False
        self._moved = asyncio.Event()

    def note(self, j: int, letter: Letter) -> None:
        """Peer j said something; it is alive unless it trains and got no further."""
        contact, now = self.of[j], self.clock()
        doing = clean(letter.fields.get("doing", "")[:_WORDS])
        if not doing.startswith("trains") or doing != contact.doing:
            contact.alive = now
        contact.heard, contact.doing = now, doing
        contact.at, contact.away = (letter["round"], letter["number"]), False
        self.ring()

    def silent(self, j: int) -> bool:
        contact = self.of[j]
        return contact.away or self.clock() - contact.alive >= self.silence

    def alone(self, around: Iterable[int]) -> bool:
        return all(self.silent(j) for j in around)

    def ring(self) -> None:
        """Wake all that wait."""
        self._moved.set()
        self._moved = asyncio.Event()

    def leave(self) -> None:
        self.left = True
        self.ring()

    async def moved(self, seconds: float) -> None:
        """Return when something has changed, or after some time."""
        if self.left:
            raise Left("the peer leaves.")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), max(0.005, seconds))
        if self.left:
            raise Left("the peer leaves.")

    async def beat(
        self, around: Callable[[], Iterable[int]], told: Callable[[int], Letter]
    ) -> None:
        """Say where this peer is to those that have not heard of it for a while, for ever."""
        under_way: dict[int, asyncio.Task[bool]] = {}
        try:
            while True:
                for j in around():
                    if self.clock() - self.of[j].heard >= self.every and (
                        j not in under_way or under_way[j].done()
                    ):
                        under_way[j] = asyncio.create_task(self.tell(j, told(j)))
                await asyncio.sleep(self.every / 2)
        finally:
            for task in under_way.values():
                task.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)

    async def tell(self, j: int, letter: Letter) -> bool:
        """Say to peer j where this peer is, and hear where that one is; whether it answered."""
        try:
            answer = await asyncio.wait_for(self.links[j].ask(letter), max(1.0, self.every))
        except (ArchipelError, TimeoutError):
            return False
        if answer.kind == "beat":
            self.note(j, answer)
        return True


@dataclass(frozen=True)
class Words:
    """How a peer's letters are made and checked."""

    study: str
    rounds: int
    sign: Callable[[Letter], bytes] = lambda _: b""
    check: Callable[[int, Letter], None] = lambda _, __: None  # raises where j did not sign it

    def beat(self, at: At, doing: str) -> Letter:
        fields = {"study": self.study, "round": at[0], "number": at[1], "doing": doing}
        return Letter("beat", fields)

    def vector(self, at: At, x: Tensor) -> Letter:
        fields = {"study": self.study, "round": at[0], "number": at[1]}
        letter = Letter("vector", fields, [x.detach()])
        return Letter("vector", {**fields, "signature": self.sign(letter)}, letter.arrays)

    def read(self, j: int, letter: Letter, like: Tensor) -> Tensor:
        """The vector in a letter of peer j, of the form that is expected."""
        self.check(j, letter)
        if len(letter.arrays) != 1:
            raise Refused(f"{len(letter.arrays)} arrays where one vector is expected.")
        (x,) = letter.arrays
        if x.shape != like.shape or x.dtype != like.dtype:
            raise Refused(
                f"a vector of shape {list(x.shape)} and {x.dtype} where {list(like.shape)} and "
                f"{like.dtype} are expected."
            )
        if not bool(torch.isfinite(x).all()):
            raise Refused("a vector with numbers that are not finite.")
        return x.clone()


class Place:
    """A peer's place in the graph; rounds that were looked at of late are remembered."""

    def __init__(self, topology: Topology, party: int, others: Iterable[int]) -> None:
        """`others` are the peers that there are; the graph may have places for more."""
        there = frozenset(others)
        period = topology.period
        self._ahead = min(period, _AHEAD) or _AHEAD
        self.row = lru_cache(4 * _AHEAD)(lambda t: topology.row(party, t % period if period else t))
        self.neighbours = lru_cache(4 * _AHEAD)(
            lambda t: tuple(sorted(j for j, w in self.row(t).items() if j in there and w > 0))
        )
        self.around = lru_cache(2)(self._around)

    def _around(self, t: int) -> Sequence[int]:
        """Those that the peer exchanges with, now and in rounds to come."""
        return sorted({j for each in range(t, t + self._ahead) for j in self.neighbours(each)})


# -- rounds in common ------------------------------------------------------------------------------


@dataclass
class Exchange:
    """An exchange that is under way."""

    at: At
    x: Tensor
    open: set[int]
    got: dict[int, Tensor] = field(default_factory=dict)
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
        self._told = 0  # the last round of those that went on without this peer
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
        self.at, self.open, self._used, self._told = (t, 0), None, 0, 0
        self.missing, self.up, self.down = {}, 0, 0
        old = [at for at in self._mixed if at[0] < t - 1]  # the disk may be a round behind
        self._store.forget(f"mixed-{at[0]}-{at[1]}" for at in old)
        for at in old:
            del self._mixed[at]
        self.contacts.ring()

    def after(self) -> int:
        """The round to go on with: the next one, or the one after the last that was heard of.

        Who still exchanged with somebody is not behind, whatever another peer says.
        """
        t = self.at[0]
        return (
            t + 1 if self._used or self._told <= t + 1 else min(self._told + 1, self.words.rounds)
        )

    def told(self, j: int) -> Letter:
        return self.words.beat(self._position(j), self.doing)

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
                exchange.got[j] = theirs
                exchange.open.discard(j)
        self.open = exchange
        self.contacts.ring()
        asks = [
            asyncio.create_task(self._ask(exchange, i))
            for i in sorted(exchange.open)
            if i < self.party
        ]
        try:
            await self._settle(exchange)
        finally:
            for task in asks:
                task.cancel()
            await asyncio.gather(*asks, return_exceptions=True)
        if not exchange.got and not self._used and self._told > t:
            raise Behind(self._told)
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
            for j in sorted(exchange.open):
                # the lower end may have counted the edge before it went on: it is asked
                if j > self.party and contacts.of[j].at > exchange.at:
                    self._went_on(exchange, j)
                elif contacts.silent(j) and (exchange.got or not contacts.alone(self.around())):
                    doing = contacts.of[j].doing
                    contacts.of[j].away = True
                    self._lose(exchange, j, f"silent ({doing})" if doing else "silent")
            if not exchange.open:
                return
            ends = [contacts.of[j].alive + contacts.silence for j in exchange.open]
            left = min(ends) - contacts.clock()
            await contacts.moved(left if left > 0 else contacts.every)

    def _went_on(self, exchange: Exchange, j: int) -> None:
        t = self.contacts.of[j].at[0]
        self._told = max(self._told, t)
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
                answer = await asyncio.wait_for(contacts.links[i].ask(letter), 2 * POLL)
                if answer.kind == "vector":
                    theirs = self.words.read(i, answer, exchange.x)
                    if (answer["round"], answer["number"]) != exchange.at:
                        raise Refused("a vector of another exchange.")
            except (Cut, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            except ArchipelError as no:
                self._lose(exchange, i, f"refused: {no}")
                return
            contacts.note(i, answer)
            if answer.kind == "vector" and i in exchange.open:
                exchange.open.discard(i)
                exchange.got[i] = theirs
                contacts.ring()
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
            if mine is not None and answered == at:
                return self.words.vector(at, mine)
            exchange, left = self.open, until - contacts.clock()
            if self._position(j) > at or left <= 0:
                return self.told(j)
            if exchange is not None and exchange.at == at and j in exchange.open:
                theirs = self.words.read(j, letter, exchange.x)
                edge = {"at": torch.tensor(at), "mine": exchange.x, "theirs": theirs}
                self._store.keep(f"edge-{j}", edge)
                self._answered[j] = (at, exchange.x, theirs)
                exchange.open.discard(j)
                exchange.got[j] = theirs
                contacts.ring()
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


# -- without rounds in common ----------------------------------------------------------------------


class Gossip:
    """Mixing with one neighbour at a time, whoever is there.

    The peer that asks and the one that answers both move half of the way to each other: the asker
    at once, the answering one with its next `me.mix`, which adds the changes that came. So the sum
    over peers stays. An answer may be lost; the question is repeated, and is answered the same, so
    that a change is made on both sides in the end.

    Vectors are averaged with those of the same number in a round. A change that comes after a
    peer's last mix goes to its model where it has the model's form.
    """

    def __init__(
        self,
        party: int,
        topology: Topology,
        contacts: Contacts,
        words: Words,
        keep: Callable[[], None],
        seed: int,
    ) -> None:
        """`keep` writes this and the peer's state to the disk, at once."""
        self.party, self.seed = party, seed
        self.graph = Place(topology, party, contacts.of)
        self.contacts, self.words, self._keep = contacts, words, keep
        self.at: At = (0, 0)
        self.missing: dict[int, str] = {}
        self.up = self.down = 0
        self.public: dict[int, Tensor] = {}  # number -> what neighbours average with
        self.pending: dict[int, Tensor] = {}  # number -> changes for the next mix
        self._taken: dict[int, Tensor] = {}  # changes that mixes of this round took
        self._asked: dict[int, int] = {}  # number -> round in which it last asked
        self._questions: dict[At, tuple[int, Tensor]] = {}  # unanswered: whom, and what
        self._answered: dict[At, tuple[int, Tensor]] = {}  # (peer, number) -> round, its change
        self._tasks: dict[At, asyncio.Task[None]] = {}

    doing = "trains"

    def around(self) -> Sequence[int]:
        return self.graph.around(self.at[0])

    def begin(self, t: int) -> None:
        self.at, self._taken = (t, 0), {}
        self.missing, self.up, self.down = {}, 0, 0

    def after(self) -> int:
        return self.at[0] + 1

    def told(self, j: int) -> Letter:
        return self.words.beat(self.at, "gossips")

    async def mix(self, x: Vector) -> Vector:
        """Average with one neighbour that is there; add what others averaged in the meantime."""
        t, number = self.at
        if self.contacts.left:
            raise Left("the peer leaves.")
        x = self._take(number, x.detach())
        self.public[number] = x
        for at in self._questions:
            self._pursue(at)
        there = []
        for j in self.graph.neighbours(t):
            if self.contacts.silent(j):
                self.missing[j] = "silent"
            elif self.contacts.of[j].at[0] < self.words.rounds:
                there.append(j)
        busy = {j for (_, n), (j, _) in self._questions.items() if n == number}
        there = [j for j in there if j not in busy]
        if there and self._asked.get(number, -1) < t:
            draw = rng.generator(self.seed, t, self.party, "gossip", number)
            self._questions[self.at] = (int(draw.choice(there)), x)
            self._asked[number] = t
            self._keep()
            await asyncio.wait([self._pursue(self.at)], timeout=_ASKING)
        self.at = (t, number + 1)
        return self._take(number, x)

    def _take(self, number: int, x: Tensor) -> Tensor:
        change = self.pending.pop(number, None)
        if change is None:
            return x
        self._taken[number] = self._taken.get(number, torch.zeros_like(change)) + change
        return x + change

    def _add(self, number: int, change: Tensor) -> None:
        self.pending[number] = self.pending.get(number, torch.zeros_like(change)) + change
        self.public[number] = self.public[number] + change

    def _pursue(self, at: At) -> asyncio.Task[None]:
        """See to it that a question is answered."""
        task = self._tasks.get(at)
        if task is None:
            task = self._tasks[at] = asyncio.create_task(self._ask(at))
            task.add_done_callback(lambda _: self._tasks.pop(at, None))
        return task

    async def _ask(self, at: At) -> None:
        i, x = self._questions[at]
        letter, pause = self.words.vector(at, x), 0.05
        while not self.contacts.left and not self.contacts.silent(i):
            try:
                answer = await asyncio.wait_for(self.contacts.links[i].ask(letter), POLL)
                change = None
                if answer.kind == "vector":
                    change = self.words.read(i, answer, x)
            except (Cut, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
                continue
            except ArchipelError as no:
                change = None
                self.missing[i] = f"refused: {no}"
            else:
                self.contacts.note(i, answer)
            del self._questions[at]
            if change is not None:
                self.up += x.numel() * x.element_size()
                self.down = self.up
                self._add(at[1], change)
            self._keep()
            self.contacts.ring()
            return

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Move half of the way to peer j; it gets the other half."""
        (t, number), before = (letter["round"], letter["number"]), None
        if j not in self.graph.neighbours(t):
            raise Refused(f"round {t + 1}: there is no edge between the two peers.")
        if (j, number) in self._answered:
            before, change = self._answered[j, number]
            if before == t:
                return self.words.vector((t, number), change)
        if before is not None and t < before:
            raise Refused(f"round {t + 1}: a later question was answered already.")
        if number not in self.public or self.at[0] >= self.words.rounds:
            return self.told(j)
        mine = self.public[number]
        change = (self.words.read(j, letter, mine) - mine) / 2
        self._add(number, change)
        self._answered[j, number] = (t, -change)
        self._keep()
        return self.words.vector((t, number), -change)

    def settled(self) -> bool:
        """Whether all that this peer asked is answered, or whom it asked is away."""
        for at in self._questions:
            self._pursue(at)
        return all(self.contacts.silent(j) for j, _ in self._questions.values())

    def end(self, own: Any) -> Any:
        """The own state with the changes that came after the last mix."""
        change, model = self.pending.get(0), first(own)
        if change is None or change.shape != model.shape:
            return own
        self.pending.pop(0)
        return _with_model(own, model + change)

    # -- what survives the process -----------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for number, x in self.public.items():
            found[f"gossip-public-{number}"] = x
        both = (self.pending, self._taken)
        for number in {*self.pending, *self._taken}:
            parts = [changes[number] for changes in both if number in changes]
            found[f"gossip-pending-{number}"] = torch.stack(parts).sum(dim=0)
        for number, t in self._asked.items():
            found[f"gossip-asked-{number}"] = torch.tensor(t)
        for (t, number), (j, x) in self._questions.items():
            found[f"gossip-question-{t}-{number}-{j}"] = x
        for (j, number), (t, change) in self._answered.items():
            found[f"gossip-answered-{j}-{number}-{t}"] = change
        return found

    def restore(self, kept: Mapping[str, Mapping[str, Tensor]], at: At) -> None:
        self.at = at
        for name, x in kept.get("own", {}).items():
            if not name.startswith("gossip-"):
                continue
            kind, *numbers = name.removeprefix("gossip-").split("-")
            match kind, [int(number) for number in numbers]:
                case "public", [number]:
                    self.public[number] = x
                case "pending", [number]:
                    self.pending[number] = x
                case "asked", [number]:
                    self._asked[number] = int(x)
                case "question", [t, number, j]:
                    self._questions[t, number] = (j, x)
                case "answered", [j, number, t]:
                    self._answered[j, number] = (t, x)


def _with_model(own: Any, model: Tensor) -> Any:
    """A state whose first tensor is this one."""
    if isinstance(own, Tensor):
        return model
    head, *rest = own
    parts = [_with_model(head, model), *rest]
    return type(own)(*parts) if hasattr(own, "_fields") else tuple(parts)


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
        self._round = 0  # that the own state on the disk is from before
        if "own" in kept:
            seat.restore(kept["own"])
            self._round = int(kept["own"]["round"])
        self.mixing.restore(kept, (self._round, 0))

    @property
    def done(self) -> bool:
        return self._round >= self.words.rounds

    @property
    def most(self) -> int:
        """Bytes of the largest letter that a peer may send."""
        vectors = [self.seat.model.w, *self.seat.mixed]
        return (1 << 16) + max(x.numel() * x.element_size() for x in vectors)

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Answer a letter of peer j, whom TLS has told apart."""
        if j not in self.contacts.of:
            raise Refused("not a peer of this study.")
        if letter.kind not in ("beat", "vector"):
            raise Refused(f"a {letter.kind} is nothing that a peer sends.")
        if letter["study"] != self.words.study:
            raise Refused("a letter of another study.")
        t, rounds = letter["round"], self.words.rounds
        if not (0 <= t <= rounds and 0 <= letter["number"] <= _MOST):
            raise Refused(f"round {t + 1}, exchange {letter['number'] + 1}: there is none.")
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
        contacts, unaware = self.contacts, set(self.mixing.around())
        while True:
            asked = sorted(unaware)
            heard = await asyncio.gather(*(contacts.tell(j, self.told(j)) for j in asked))
            unaware -= {j for j, yes in zip(asked, heard, strict=True) if yes or contacts.silent(j)}
            if not unaware and self.mixing.settled():
                return
            await contacts.moved(0.2 if unaware else contacts.every)

    async def _one(self) -> None:
        """One round, or the jump to where the others are."""
        t, mixing = self._round, self.mixing
        mixing.begin(t)
        try:
            own, gradients = await asyncio.to_thread(self.seat.alone, t, self._mix())
        except Behind as behind:
            self._round = min(behind.round + 1, self.words.rounds)
            self._keep()
            mixing.begin(self._round)
            return
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves(own.state)):
            raise RunFailed(f"round {t + 1}: the model is no longer finite: lower lr.")
        self.seat.own = own
        told = (dict(mixing.missing), gradients, mixing.up, mixing.down)
        self._round = mixing.after()
        mixing.begin(self._round)
        self._keep()
        metrics = None
        if (t + 1) % self._every == 0 or self.done:
            metrics = await asyncio.to_thread(self.seat.score, first(own.state), t + 1)
        self._report(Report(t + 1, metrics, *told))

    def _mix(self) -> Callable[[Vector], Vector]:
        """`me.mix`, which the algorithm calls in its own thread."""
        loop = asyncio.get_running_loop()

        def mix(x: Vector) -> Vector:
            if not bool(torch.isfinite(x).all()):
                t = self._round + 1
                raise RunFailed(f"round {t}: the model is no longer finite: lower lr.")
            return asyncio.run_coroutine_threadsafe(self.mixing.mix(x), loop).result()

        return mix

    def _keep(self) -> None:
        state = {**self.seat.state(), **self.mixing.state(), "round": torch.tensor(self._round)}
        self._store.keep("own", state)
