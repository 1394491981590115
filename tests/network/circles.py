# SPDX-License-Identifier: Apache-2.0
"""Peers among themselves, one of which lies: a walk through the states of their exchanges."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from archipel.engines.network.in_process import Circle
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.graphs import topology
from network.liar import KINDS, Lies, Teller, held_by
from network.test_peers import problem

ROUNDS = 5
PEERS = 4

_KINDS = [*KINDS, *20 * ["vector", "beat"]]
_ASKS = ["right"] * 5 + ["spoilt"] * 3 + ["lie"] * 3 + ["late", "twice", "nothing"]
_ANSWERS = ["right"] * 5 + ["spoilt"] * 2 + ["lie"] * 3 + ["other", "no", "cut", "late"]
_SLACK = 2000


class Crooked:
    """A peer that lies, around one that does not: both what it asks and what it answers."""

    def __init__(self, walk, number):
        self.walk, self.number = walk, number
        self.lies, self.draws = walk.lies, walk.lies.draws
        self.peer = walk.circle.begin(number)
        walk.circle.up[number] = self
        self.right = {}  # the last letter of a kind as it should have been
        self.well = self.draws.randrange(1, 12)  # letters until it begins to lie
        self.tellers = {j: walk.teller(number, j) for j in walk.honest}
        for j, teller in self.tellers.items():
            self.peer.liveness.links[j] = Link(self, teller)

    async def answer(self, j, letter):
        """What an honest peer hears that asks this one."""
        self.well -= 1
        right = await self.peer.answer(j, letter)
        self.right[right.kind] = right
        way = "right" if self.well > 0 else self.draws.choice(_ANSWERS)
        self.walk.tally[self.walk.where(j), f"{way} answer"] += 1
        match way:
            case "spoilt":
                return self.lies.spoilt(right)
            case "lie":
                return self.lies.letter(right.kind, right, "twin")
            case "other":
                return self.lies.letter(self.draws.choice(_KINDS), None, "twin")
            case "no":
                raise Refused(self.draws.choice(["no", "\x1b[2J\n", "x" * 100_000]))
            case "cut":
                raise Cut("gone")
            case "late":
                await asyncio.sleep(0.05)
        return right

    async def babbles(self, letters):
        for _ in range(letters):
            kind = self.draws.choice(_KINDS)
            teller = self.tellers[self.draws.choice(self.walk.honest)]
            await teller.say(self.lies.letter(kind, self.right.get(kind), "twin"))

    async def chatters(self):
        """Say things all the time, whatever the rest of it does."""
        while True:
            await asyncio.sleep(0.002)
            if self.well <= 0:
                await self.babbles(1)


class Link:
    """The way of a peer that lies to an honest one."""

    most, pieces = 1 << 62, 0

    def __init__(self, crooked, teller):
        self._crooked, self._teller = crooked, teller

    async def ask(self, letter):
        crooked, draws = self._crooked, self._crooked.draws
        crooked.well -= 1
        crooked.right[letter.kind] = letter
        match "right" if crooked.well > 0 else draws.choice(_ASKS):
            case "spoilt":
                letter = crooked.lies.spoilt(letter)
            case "lie":
                letter = crooked.lies.letter(letter.kind, letter, "twin")
            case "late":
                await asyncio.sleep(0.05)
            case "twice":
                await self._teller.say(letter)
            case "nothing":
                raise Cut("said nothing")
        self._teller.note(letter)
        return await self._teller.link.ask(letter)

    async def close(self):
        pass


class Round:
    """Three honest peers and one that lies, until the honest ones are done."""

    def __init__(self, algorithm, graph, seed, tally, *, asynchronous=False):
        data, model = problem(PEERS)
        self.lies, self.tally = Lies(seed), tally
        self.liar = self.lies.draws.randrange(PEERS)
        self.honest = [k for k in range(PEERS) if k != self.liar]
        self.circle = Circle(
            algorithm, data, model, topology(graph, PEERS), ROUNDS,
            asynchronous=asynchronous, silence=30.0,
        )  # fmt: skip
        self.circle.watch = self._watch
        self.skipped = []  # who left rounds out although another honest peer still learnt
        self.ahead, self.restarts = 0.0, self.lies.draws.randrange(3)
        self._places = None  # where all were, and since when

    def clock(self):
        return time.monotonic() + self.ahead

    def _watch(self, k, report):
        """A peer that gossips is done early once all others are, and no sooner."""
        before = max((each.round for each in self.circle.reports[k][:-1]), default=0)
        others = [self.circle.up[j] for j in self.honest if j != k and j in self.circle.up]
        if k in self.honest and report.round > before + 1:
            self.skipped += [k for other in others if not other.done]

    def teller(self, k, j):
        async def answer(who, letter):
            if j not in self.circle.up:
                raise Cut("nobody is there.")
            return await self.circle.up[j].answer(int(who), letter)

        return Teller(str(k), answer, lambda: self.where(j), self.tally)

    def where(self, j):
        """The state that an honest peer is in, for the one that lies."""
        peer, k = self.circle.up.get(j), self.liar
        if peer is None:
            return "down"
        if peer.done:
            return "done"
        if not hasattr(peer.mixing, "open"):
            asked = any(i == k for i, _ in peer.mixing._questions.values())
            return "asked" if asked else "gossips" if peer.mixing.public else "trains at first"
        exchange = peer.mixing.open
        if exchange is None:
            return "closed"
        if k in exchange.unsure:
            return "unsure"
        if k in exchange.open:
            return "open, is asked" if k < j else "open, is to ask"
        return "counted" if k in exchange.got else "dropped"

    def begin(self, j):
        peer = self.circle.begin(j)
        peer.liveness.clock = self.clock

    async def go(self):
        """Play it; return the honest peers' states."""
        for j in self.honest:
            self.begin(j)
        crooked = Crooked(self, self.liar)
        chatter = asyncio.create_task(crooked.chatters())
        try:
            async with asyncio.timeout(600):
                while not all(self.circle.tasks[j].done() for j in self.honest):
                    await asyncio.sleep(0.005)
                    for j in self.honest:
                        if self.circle.tasks[j].done():
                            self.circle.tasks[j].result()  # raises what ended it
                    await self._restart()
                    await self._time_passes()
            states = [self.circle.tasks[j].result() for j in self.honest]
            mixing = [self.circle.up[j].mixing for j in self.honest]
            before = held_by(*mixing)
            await crooked.babbles(40)
            assert held_by(*mixing) <= before + _SLACK
        except TimeoutError:
            where = {j: self.where(j) for j in self.honest}
            raise AssertionError(f"peers hang, {self.liar} lies: {where}") from None
        finally:
            chatter.cancel()
            await asyncio.gather(chatter, return_exceptions=True)
            for k in list(self.circle.tasks):
                with suppress(ArchipelError):
                    await self.circle.end(k)
            for teller in crooked.tellers.values():
                print("the last letters:", *teller.last, *teller.faults, sep="\n  ")
        assert not any(teller.faults for teller in crooked.tellers.values())
        return states

    async def _restart(self):
        """A peer dies that has counted the liar's edge and waits for others: is it still sure?"""
        for j in self.honest:
            exchange = getattr(self.circle.up[j].mixing, "open", None)
            if exchange is None or not self.restarts or self.liar not in exchange.got:
                continue
            if exchange.open and self.liar > j:
                self.restarts -= 1
                await self.circle.end(j)
                self.begin(j)

    async def _time_passes(self):
        """Where nothing moves any more, the liar was silent for long, and the others were not."""
        if not self._still():
            return
        for j in self.honest:
            liveness = self.circle.up[j].liveness
            for other in set(self.honest) & liveness.of.keys():
                liveness.of[other].alive = self.clock() + 31.0
        self.ahead += 31.0
        for j in self.honest:
            self.circle.up[j].liveness.ring()

    def _still(self):
        """Whether all honest peers were in the same place for a while."""
        places = [(self.where(j), self.circle.up[j].mixing.at) for j in self.honest]
        now, before = time.monotonic(), self._places
        if before is None or places != before[0]:
            self._places = places, now
            return False
        return now - before[1] > 0.3
