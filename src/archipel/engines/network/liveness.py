# SPDX-License-Identifier: Apache-2.0
"""What a peer knows of others: whether they are there, how far they are, and what they may say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor

from archipel.engines.network.bounds import LARGEST, tame
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Link, Refused
from archipel.errors import ArchipelError, clean
from archipel.exchange.varying import arrived
from archipel.graphs import Topology
from archipel.tree import Tree, leaves

At = tuple[int, int]  # an exchange: its round, and its number in the round

SILENCE = 60.0  # seconds without a sign of life after which a peer counts as away
LIMIT = 3600.0  # seconds that a peer waits for another in a study without a deadline
_LOOK = 1.0  # seconds between two looks at whether a pause is over
_MOST = 1 << 16  # exchanges in a round
_WORDS = 80  # characters of what a peer says that it does
_SIGNED = 256  # letters whose signatures are remembered
_AHEAD = 16  # rounds of a changing graph whose neighbours are kept in touch with


def beat_every(silence: float) -> float:
    """Seconds between two signs of life."""
    return min(5.0, silence / 5)


class Left(Cut):
    """The peer leaves; it goes on from here when it is started again."""


class Over(ArchipelError):
    """Others are done, and nobody is left to learn with."""


@dataclass
class Contact:
    """What a peer knows of another."""

    alive: float  # when it last got further, or waited
    heard: float = -1e9
    at: At = (0, 0)  # how far it said it is
    doing: str = ""
    away: bool = False
    late: bool = False  # it was waited for until the deadline, and has exchanged nothing since
    gone: bool = False  # it was revoked: it is not heard, nor told anything
    gave_up: At | tuple[()] | None = None  # where it last waited for this peer in vain, as it said


class Liveness:
    """Whom a peer hears of, how far they are, and a bell for those who wait for any of it."""

    def __init__(
        self,
        links: Mapping[int, Link],
        silence: float,
        deadline: float | None = None,
        paused: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deadline` bounds how long another is waited for; nothing is said while `paused`."""
        self.links, self.silence, self.clock = links, silence, clock
        self.limit, self.paused = LIMIT if deadline is None else deadline, paused
        self.every = beat_every(silence)
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
        if letter.kind == "beat":
            match letter.fields.get("gave_up"):
                case [int(t), int(number)]:
                    contact.gave_up = (t, number)
                case _:  # none, or nothing that an exchange could be
                    contact.gave_up = ()
        self.ring()

    def silent(self, j: int) -> bool:
        contact = self.of[j]
        return contact.gone or contact.away or self.clock() - contact.alive >= self.silence

    def alone(self, around: Iterable[int]) -> bool:
        """Whether nobody of these is there to exchange with."""
        return all(self.silent(j) or self.of[j].late for j in around)

    def patience(self, j: int) -> float:
        """Seconds that peer j is waited for at most in an exchange, whatever it says.

        One that waits for others itself has a deadline for them, too; one that was late is no
        longer worth much time.
        """
        if self.of[j].late:
            return min(self.limit / 4, self.silence)
        return 2 * self.limit if self.of[j].doing == "waits" else self.limit

    def drop(self, j: int) -> None:
        """Have nothing to do with peer j any more."""
        self.of[j].gone = True
        self.ring()

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
            async with asyncio.timeout(max(0.005, seconds)):
                await self._moved.wait()
        if self.left:
            raise Left("the peer leaves.")

    async def unpaused(self) -> None:
        """Wait until this peer's own pause is over."""
        while self.paused():
            await self.moved(min(self.every, _LOOK))

    async def beat(
        self, around: Callable[[], Iterable[int]], told: Callable[[int], Letter]
    ) -> None:
        """Say where this peer is to those that have not heard of it for a while, for ever."""
        under_way: dict[int, asyncio.Task[bool]] = {}
        try:
            while True:
                for j in around() if not self.paused() else ():
                    quiet = self.clock() - self.of[j].heard >= self.every
                    free = j not in under_way or under_way[j].done()
                    if quiet and free and not self.of[j].gone:
                        under_way[j] = asyncio.create_task(self.tell(j, told(j)))
                await asyncio.sleep(self.every / 2)
        finally:
            for task in under_way.values():
                task.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)

    async def tell(self, j: int, letter: Letter) -> bool:
        """Say to peer j where this peer is, and hear where that one is; whether it answered."""
        try:
            async with asyncio.timeout(max(1.0, self.every)):
                answer = await self.links[j].ask(letter)
        except (ArchipelError, TimeoutError):
            return False
        if answer.kind == "beat":
            self.note(j, answer)
        return True

    async def insist(self, j: int, letter: Letter) -> Letter | None:
        """Ask until there is an answer; None once nothing of one has come for `silence` seconds."""
        link, pause = self.links[j], 0.05
        until, pieces = self.clock() + self.silence, link.pieces
        while self.clock() < until and not self.left:
            task = asyncio.create_task(link.ask(letter))
            try:
                while not task.done() and self.clock() < until and not self.left:
                    await asyncio.wait([task], timeout=self.every)
                    if link.pieces != pieces:  # a large answer over a slow line
                        until, pieces = self.clock() + self.silence, link.pieces
                if task.done():
                    return task.result()
            except Cut:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
            finally:
                task.cancel()
        return None


@dataclass(frozen=True)
class Words:
    """How a peer's letters are made and checked."""

    study: str
    rounds: int
    sign: Callable[[Letter], bytes] = lambda _: b""
    check: Callable[[int, Letter], None] = lambda _, __: None  # raises where j did not sign it
    _signatures: dict[tuple[object, ...], bytes] = field(default_factory=dict, init=False)

    def beat(self, at: At, doing: str, gave_up: At | None = None) -> Letter:
        fields = {"study": self.study, "round": at[0], "number": at[1], "doing": doing}
        return Letter("beat", {**fields, "gave_up": None if gave_up is None else list(gave_up)})

    def vector(
        self, at: At, *arrays: Tensor, base: bytes | None = None, holds: bytes | None = None
    ) -> Letter:
        """`base` names what it is a change of; `holds` the copy that this peer has of the other."""
        named = {"base": base, "holds": holds}
        return self.signed("vector", at, arrays, **{k: v for k, v in named.items() if v})

    def signed(self, kind: str, at: At, arrays: Sequence[Tensor] = (), **fields: Any) -> Letter:
        """A letter that others can show; each signature is in the audit log.

        The same letter is signed once: who asks again and again fills no log with the answers.
        """
        letter = self.plain(kind, at, **fields)
        letter = Letter(kind, letter.fields, [x.detach() for x in arrays])
        name = (kind, *letter.fields.items(), str(letter.forms), *letter.digests)
        if name not in self._signatures:
            self._signatures[name] = self.sign(letter)
        if len(self._signatures) > _SIGNED:
            del self._signatures[next(iter(self._signatures))]
        return letter.adding(signature=self._signatures[name])

    def plain(self, kind: str, at: At, **fields: Any) -> Letter:
        return Letter(kind, {"study": self.study, "round": at[0], "number": at[1], **fields})

    def place(self, letter: Letter, kinds: Collection[str] = ("vector",)) -> At:
        """Where in the study a letter belongs; what no peer of it says is refused."""
        if letter.kind != "beat" and letter.kind not in kinds:
            raise Refused(f"a {letter.kind} is nothing that a peer sends.")
        t, number = letter["round"], letter["number"]
        if not (0 <= t <= self.rounds and 0 <= number <= max(_MOST, 2 * self.rounds)):
            raise Refused(f"round {t + 1}, exchange {number + 1}: there is none.")
        return t, number

    def read(self, j: int, letter: Letter, form: Tree) -> list[Tensor]:
        """The tensors in a letter of peer j, of the form that is expected."""
        self.check(j, letter)
        arrays, likes = arrived(form, letter.arrays), leaves(form)
        if len(arrays) != len(likes):
            raise Refused(f"{len(arrays)} arrays where {len(likes)} are expected.")
        for x, like in zip(arrays, likes, strict=True):
            if x.shape != like.shape or x.dtype != like.dtype:
                raise Refused(
                    f"a vector of shape {list(x.shape)} and {x.dtype} where {list(like.shape)} and "
                    f"{like.dtype} are expected."
                )
        if not tame(arrays):  # one peer's numbers must not end what others learn
            raise Refused(f"a vector with numbers that are not finite, or beyond {LARGEST:g}.")
        return arrays


def why_not(no: ArchipelError) -> str:
    """Why a peer's letter is of no use: its own words may be long, and may be anything."""
    return f"refused: {clean(str(no)[:_WORDS])}"


class Place:
    """A peer's place in the graph; rounds that were looked at of late are remembered."""

    def __init__(self, topology: Topology, party: int, others: Iterable[int]) -> None:
        """`others` are the peers that there are; the graph may have places for more."""
        there, self.parties = frozenset(others), topology.n
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
