# SPDX-License-Identifier: Apache-2.0
"""Rounds that peers have in common: who asks whom for a vector, and who is left out.

An exchange is one call of `me.mix`: (round, how many came before it in the round). Of the two ends
of an edge the higher number asks, with its vector, and the lower answers with its own for the same
exchange, as soon as it has it: then the edge counts on both sides. Whoever is not ready says where
it is, and is asked again. An edge that does not come about counts on neither side and its weight
goes to the diagonal, so that the W of every exchange is symmetric and doubly stochastic.

- A peer that sees the other end beyond its own exchange drops the edge at once.
- One without a sign of life for `silence` seconds is dropped, and waited for again once it is seen.
- One that gives signs of life but does not exchange is dropped after the deadline of the study, or
  after `LIMIT`; in later exchanges it is waited for less, until one counts.
- A peer without anybody to exchange with waits: it is away itself, or there is no use in training
  alone. So nobody is dropped for silence or lateness unless somebody else is there.
- A peer that comes back finishes its open round with what was exchanged already. Where nothing was,
  and others went on without it, it was away: it leaves the round, keeps its state, and goes on in
  the last round that one of them tells and has not begun to exchange in.

Deadlines run by each peer's own clock, and W stays symmetric whatever the clocks say, since the
fate of an edge is decided in one place: at the lower end, which answers with its vector or drops
the edge, in one step, and never both. Where the lower end's time is up it drops the edge, and tells
the higher end so when that asks. Where the higher end's time is up it asks a last time: a beat that
gives up its own exchange. If the lower end has answered that exchange before, it gives the same
answer again, and the edge counts on both sides; if not, it drops the edge, which it remembers, so
that a question that was still on its way counts nothing any more.

What was exchanged is on the disk before it is told, so a peer may be killed at any moment. One gap
is left, as in every such protocol: a lower end that answers and is then cut off, alive, for longer
than `silence` before its answer arrives has counted an edge that the higher end drops. One that was
killed in that exchange asks about it.

One file, since both ends of an edge decide its fate by the same states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archipel.aggregation.mixing import MixingRule, of_neighbours
from archipel.core import Vector
from archipel.engines.network.coding import Coding
from archipel.engines.network.copies import Copies, Unheld
from archipel.engines.network.exchanges import Behind, Exchange, Store
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import At, Contact, Liveness, Place, Words, why_not
from archipel.engines.network.transport import POLL, Cut, Refused
from archipel.errors import ArchipelError
from archipel.graphs import Topology
from archipel.tree import Tree, nbytes

if TYPE_CHECKING:
    from archipel.wire.wired import Coded


_NEVER: At = (-1, 0)


class Rounds:
    """Mixing in rounds that all peers have in common."""

    kinds = ("vector",)

    def __init__(
        self,
        party: int,
        topology: Topology,
        liveness: Liveness,
        words: Words,
        store: Store,
        coding: Coding | None = None,
        rule: MixingRule | None = None,
    ) -> None:
        self.party, self.graph = party, Place(topology, party, liveness.of)
        self._rule = rule
        self.liveness, self.words, self._store = liveness, words, store
        self._coding = coding or Coding()
        self._copies = Copies(party, words, self._coding)
        self.at: At = (0, 0)
        self.open: Exchange | None = None
        self.missing: dict[int, str] = {}  # in this round
        self.up = self.down = 0  # bytes of vectors, in this round
        self._used = 0  # edges that counted in this round
        self._told: list[int] = []  # rounds in which those that went on can be met again
        self._gave_up: dict[int, At] = {}  # the last exchange that a lower end left unanswered
        self._dropped: dict[int, At] = {}  # the last exchange that a higher end gave up
        self._answered: dict[int, tuple[At, list[Tensor], Tensor]] = {}  # the last: mine, theirs
        self._mixed: dict[At, dict[int, Tensor | None]] = {}  # before a restart: None where lost

    def restore(self, kept: Mapping[str, Mapping[str, Tensor]], at: At) -> None:
        self.at = at
        self._copies.restore(kept.get("own", {}))
        for name, tensors in kept.items():
            kind, *numbers = name.split("-")
            if kind == "edge":
                t, number = tensors["at"].tolist()
                mine = [x for key, x in sorted(tensors.items()) if key.startswith("mine")]
                self._answered[int(numbers[0])] = (t, number), mine, tensors["theirs"]
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
        self.liveness.ring()

    def told(self, j: int) -> Letter:
        return self.words.beat(self._position(j), self.doing, self._gave_up.get(j))

    @property
    def doing(self) -> str:
        return "waits" if self.open is not None else "trains"

    def _position(self, j: int) -> At:
        """How far this peer is for peer j: beyond an exchange in which j was dropped."""
        exchange, at = self.open, self._dropped.get(j, _NEVER)
        if exchange is not None and j in exchange.lost:
            at = max(at, exchange.at)
        return max(self.at, (at[0], at[1] + 1))

    async def mix(self, x: Vector, coded: Coded | None = None) -> Vector:
        """sum_j W_ij x_j over the neighbours that exchange with this peer, and itself.

        A rule of the study stands for the sum. `coded` is how x travels, where a wire has steps.
        """
        (t, number), weights = self.at, self.graph.row(self.at[0])
        found, sent = self._mixed.get(self.at), self._coding.sent(x, coded)
        began, around = self.liveness.clock(), set(self.graph.neighbours(t))
        base = self._copies.begin(number, None if coded is None else coded.held)
        exchange = Exchange(self.at, x.detach(), sent, began, around, base)
        if found is None:
            found = await self._exchange(exchange)
        else:
            lost = [j for j, theirs in found.items() if theirs is None]
            self.missing |= dict.fromkeys(lost, "lost before a restart")
        got = {j: theirs for j, theirs in found.items() if theirs is not None}
        self._used += len(got)
        self._copies.keep(exchange, got)
        for j in got:
            self.up += sum(exchange.went.get(j, {False: nbytes(tuple(sent))}).values())
            self.down += sum(exchange.came.get(j, {False: nbytes(tuple(sent))}).values())
        self.at, self.open = (t, number + 1), None
        self.liveness.ring()
        return of_neighbours(self._rule, x, got, weights)

    async def _exchange(self, exchange: Exchange) -> dict[int, Tensor | None]:
        t = self.at[0]
        for j, (at, _, theirs) in self._answered.items():
            if at == self.at:  # before a restart
                exchange.unsure[j] = theirs
        self.open = exchange
        self.liveness.ring()
        for j in sorted(exchange.open):
            if j < self.party:
                exchange.asks[j] = asyncio.create_task(self._ask(exchange, j))
            elif j in exchange.unsure:
                exchange.asks[j] = asyncio.create_task(self._make_sure(exchange, j))
        try:
            await self._settle(exchange)
        finally:
            for task in exchange.asks.values():
                task.cancel()
            await asyncio.gather(*exchange.asks.values(), return_exceptions=True)
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
        liveness = self.liveness
        while True:
            for j in sorted(exchange.unsure):
                self._judge(exchange, j)
            for j in sorted(exchange.open - exchange.unsure.keys()):
                self._look_at(exchange, j)
            if not exchange.open:
                return
            now = liveness.clock()
            ends = [liveness.of[j].alive + liveness.silence for j in exchange.open]
            ends += [exchange.began + liveness.patience(j) for j in exchange.open]
            await liveness.moved(
                min((end - now for end in ends if end > now), default=liveness.every)
            )

    def _look_at(self, exchange: Exchange, j: int) -> None:
        """Drop peer j where it went on, is not there, or is late."""
        liveness, contact = self.liveness, self.liveness.of[j]
        # the lower end may have counted the edge before it went on: it is asked
        gave_up = self._dropped.get(j, _NEVER) >= exchange.at
        if j > self.party and (gave_up or contact.at > exchange.at):
            self._went_on(exchange, j)
        elif liveness.silent(j) and (exchange.got or not liveness.alone(self.around())):
            if not contact.away or j in exchange.refused:  # it was asked
                self._gave_up[j] = exchange.at
            contact.away = True
            self._lose(exchange, j, exchange.refused.get(j) or _silence(contact))
        elif j not in exchange.last and self._is_late(exchange, j):
            if j > self.party:
                contact.late = True
                self._lose(exchange, j, _lateness(contact))
            else:
                exchange.last.add(j)
                exchange.asks[j].cancel()
                exchange.asks[j] = asyncio.create_task(self._ask_last(exchange, j))

    def _is_late(self, exchange: Exchange, j: int) -> bool:
        """Whether peer j was waited for long enough, and somebody else is there to go on with."""
        liveness = self.liveness
        if liveness.clock() - exchange.began < liveness.patience(j):
            return False
        others = [k for k in self.around() if k not in exchange.open]
        return bool(exchange.got or self._told) or not liveness.alone(others)

    async def _make_sure(self, exchange: Exchange, j: int) -> None:
        """Hear from the higher end whether an edge that counted before a restart does so there."""
        while j in exchange.unsure:
            await self.liveness.tell(j, self.told(j))
            await asyncio.sleep(0.2)

    def _judge(self, exchange: Exchange, j: int) -> None:
        """The edge counts if the higher end went on with it, or asks again; not if it gave up."""
        liveness, contact = self.liveness, self.liveness.of[j]
        waited = liveness.clock() - exchange.began >= liveness.patience(j)
        went_on = contact.gave_up is not None and contact.at > exchange.at
        if went_on and contact.gave_up == exchange.at:
            del exchange.unsure[j], self._answered[j]
            self._store.forget([f"edge-{j}"])
            self._went_on(exchange, j)
        elif went_on or waited or liveness.silent(j):
            self._count(exchange, j, exchange.unsure.pop(j))

    def _count(self, exchange: Exchange, j: int, theirs: Tensor) -> None:
        exchange.open.discard(j)
        exchange.got[j] = theirs
        self.liveness.of[j].late = False
        self.liveness.ring()

    def _went_on(self, exchange: Exchange, j: int) -> None:
        t, number = self.liveness.of[j].at
        is_new = number == 0 and t > exchange.at[0]  # nothing was exchanged in it yet
        self._told.append(t if is_new else max(t, exchange.at[0]) + 1)
        self._lose(exchange, j, f"went on without this peer, to round {t + 1}")

    def _lose(self, exchange: Exchange, j: int, cause: str) -> None:
        if j in exchange.open:
            exchange.open.discard(j)
            exchange.lost[j] = cause
            self.liveness.ring()

    async def _ask(self, exchange: Exchange, i: int) -> None:
        """Ask the lower end of an edge until the edge counts or is dropped."""
        letter, liveness, pause = self._copies.question(exchange, i), self.liveness, 0.05
        while i in exchange.open:
            if liveness.silent(i):
                await liveness.moved(liveness.every)
                continue
            try:
                answer = await liveness.links[i].ask(letter)
                theirs = self._read(exchange, i, answer)
            except Cut:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            except ArchipelError as no:
                self._refuse(exchange, i, no)
                await asyncio.sleep(pause)
                continue
            liveness.note(i, answer)
            if answer.fields.get("whole") and exchange.base is not None:
                letter = self._copies.question(exchange, i, whole=True)
            elif theirs is not None and i in exchange.open:
                self._count(exchange, i, theirs)
            elif liveness.of[i].at > exchange.at:
                self._went_on(exchange, i)

    def _refuse(self, exchange: Exchange, j: int, no: ArchipelError) -> None:
        """What peer j sent is no vector: wait for it no longer than for one that is away."""
        exchange.refused[j] = why_not(no)
        self.liveness.of[j].away = True  # until it is heard of again
        self.liveness.ring()

    async def _ask_last(self, exchange: Exchange, i: int) -> None:
        """Have the lower end say, past the deadline, whether the edge counts; if not, drop it."""
        liveness, theirs = self.liveness, None
        cause = _lateness(liveness.of[i])
        letter = self.words.beat(exchange.at, self.doing, exchange.at)
        try:
            answer = await liveness.insist(i, letter)
            if answer is not None:
                theirs = self._read(exchange, i, answer)
                liveness.note(i, answer)
        except ArchipelError as no:
            cause = why_not(no)
        if theirs is not None and i in exchange.open:
            self._count(exchange, i, theirs)
        elif i in exchange.open:
            liveness.of[i].late, self._gave_up[i] = True, exchange.at
            self._lose(exchange, i, cause)

    def _read(self, exchange: Exchange, i: int, answer: Letter) -> Tensor | None:
        """The vector of peer i for this exchange, if that is what it answers."""
        self.words.place(answer)
        if answer.kind != "vector":
            return None
        if (answer["round"], answer["number"]) != exchange.at:
            raise Refused("a vector of another exchange.")
        return self._copies.read(i, answer, exchange)

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Answer peer j, which sends its vector, with this peer's of the same exchange."""
        at, liveness = (letter["round"], letter["number"]), self.liveness
        if j < self.party:
            raise Refused("of an edge the higher number asks.")
        if j not in self.graph.neighbours(at[0]):
            raise Refused(f"round {at[0] + 1}: there is no edge between the two peers.")
        until = liveness.clock() + POLL
        while True:
            if liveness.paused():
                raise Cut("this peer is paused.")
            exchange, left = self.open, until - liveness.clock()
            if (mine := self._given(j, at)) is not None:
                return self.words.vector(at, *mine)
            if self._position(j) > at or left <= 0:
                return self.told(j)
            if exchange is not None and exchange.at == at and j in exchange.open:
                try:
                    theirs = self._copies.read(j, letter, exchange)
                except Unheld:
                    return Letter("beat", {**self.told(j).fields, "whole": True})
                except Refused as no:
                    self._refuse(exchange, j, no)
                    raise
                reply = self._copies.answer(exchange, j, letter.fields.get("holds"))
                # asked again, after a restart of either end, the whole vector fits any copy
                sent = exchange.sent if exchange.base is None else [exchange.x]
                edge = {f"mine-{i:04}" if i else "mine": x for i, x in enumerate(sent)}
                edge |= {"at": torch.tensor(at), "theirs": theirs}
                self._store.keep(f"edge-{j}", edge)
                self._answered[j] = (at, sent, theirs)
                self._count(exchange, j, theirs)
                return reply
            await liveness.moved(left)

    def _given(self, j: int, at: At) -> list[Tensor] | None:
        """What this peer sent in an exchange that it answered to peer j: the edge counts."""
        answered, mine, _ = self._answered.get(j, (_NEVER, None, None))
        if answered != at:
            return None
        if self.open is not None and j in self.open.unsure:
            self._count(self.open, j, self.open.unsure.pop(j))
        return mine

    def last(self, j: int, at: At) -> Letter | None:
        """Peer j asks a last time: the vector where the edge counts here; or else it never will."""
        if (mine := self._given(j, at)) is not None:
            return self.words.vector(at, *mine)
        if j > self.party:
            self._dropped[j] = max(at, self._dropped.get(j, _NEVER))
            self.liveness.ring()
        return None

    def settled(self) -> bool:
        """Whether nobody may ask for anything any more."""
        liveness = self.liveness
        return all(
            liveness.silent(j) or liveness.of[j].at[0] >= self.words.rounds for j in self.around()
        )

    def end(self, own: Tree) -> Tree:
        return own

    def state(self) -> dict[str, Tensor]:
        return self._copies.state()


def _silence(contact: Contact) -> str:
    if contact.gone:
        return "revoked"
    return f"silent ({contact.doing})" if contact.doing else "silent"


def _lateness(contact: Contact) -> str:
    return f"past the deadline ({contact.doing})" if contact.doing else "past the deadline"
