# SPDX-License-Identifier: Apache-2.0
"""Peers at their own pace: `me.mix` averages with one neighbour that is there.

AD-PSGD.  Lian et al., ICML 2018, https://arxiv.org/abs/1710.06952, whose algorithm averages a pair
at once and in one place; here the answering peer adds its half with its next mix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archipel import rng
from archipel.core import Vector
from archipel.engines.network.coding import Coding
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import At, Left, Liveness, Over, Place, Words, why_not
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.graphs import Topology
from archipel.tree import Tree, first, nbytes

if TYPE_CHECKING:
    from archipel.wire.wired import Coded

_ANSWER = 600.0  # seconds that an answer may take, of a large vector over a slow line
_ASKING = 2.0  # seconds that a peer waits for an answer before it goes on


class Gossip:
    """Mixing with one neighbour at a time, whoever is there.

    The peer that asks and the one that answers both move half of the way to each other: the asker
    at once, the answering one with its next `me.mix`, which adds the changes that came. So the sum
    over peers stays. An answer may be lost; the question is repeated, and is answered the same, so
    that a change is made on both sides in the end.

    A question that is not answered until the deadline is asked a last time, by a beat that gives it
    up: a peer that has answered it before gives the same answer again, and one that has not never
    will. Who has nobody to average with waits for somebody; who is left when others are done, and
    nobody else is there, is done, too.

    Vectors are averaged with those of the same number in a round. A change that comes after a
    peer's last mix goes to its model where it has the model's form.

    A question passes the steps of the wire, where there are any. An answer is the change, which
    both make alike: it travels as it is, and tells of nothing that has not passed them.
    """

    kinds = ("vector",)

    def __init__(
        self,
        party: int,
        topology: Topology,
        liveness: Liveness,
        words: Words,
        keep: Callable[[], None],
        seed: int,
        coding: Coding | None = None,
    ) -> None:
        """`keep` writes this and the peer's state to the disk, at once."""
        self.party, self.seed, self._coding = party, seed, coding or Coding()
        self.graph = Place(topology, party, liveness.of)
        self.liveness, self.words, self._keep = liveness, words, keep
        self.at: At = (0, 0)
        self.missing: dict[int, str] = {}
        self.up = self.down = 0
        self.public: dict[int, Tensor] = {}  # number -> what neighbours average with
        self.pending: dict[int, Tensor] = {}  # number -> changes for the next mix
        self._taken: dict[int, Tensor] = {}  # changes that mixes of this round took
        self._asked: dict[int, int] = {}  # number -> round in which it last asked
        self._questions: dict[At, tuple[int, list[Tensor]]] = {}  # unanswered: whom, and what
        self._answered: dict[At, tuple[int, Tensor]] = {}  # (peer, number) -> round, its change
        self._given_up: dict[At, int] = {}  # (peer, number) -> round of its last question
        self._tasks: dict[At, asyncio.Task[None]] = {}

    doing = "trains"

    def around(self) -> Sequence[int]:
        return self.graph.around(self.at[0])

    def begin(self, t: int) -> None:
        self.at, self._taken = (t, 0), {}
        self.missing, self.up, self.down = {}, 0, 0

    def told(self, j: int) -> Letter:
        return self.words.beat(self.at, "gossips")

    async def mix(self, x: Vector, coded: Coded | None = None) -> Vector:
        """Average with one neighbour that is there; add what others averaged in the meantime.

        `coded` is how x travels, where a wire has steps.
        """
        t, number = self.at
        if self.liveness.left:
            raise Left("the peer leaves.")
        if number == 0:
            await self._company()
        x = self._take(number, x.detach())
        self.public[number] = x
        for at in self._questions:
            self._pursue(at)
        there = []
        for j in self.graph.neighbours(t):
            if self.liveness.silent(j):
                self.missing[j] = "silent"
            elif self.liveness.of[j].at[0] < self.words.rounds:
                there.append(j)
        busy = {j for (_, n), (j, _) in self._questions.items() if n == number}
        there = [j for j in there if j not in busy]
        if there and self._asked.get(number, -1) < t:
            draw = rng.generator(self.seed, t, self.party, "gossip", number)
            self._questions[self.at] = (int(draw.choice(there)), self._coding.sent(x, coded))
            self._asked[number] = t
            self._keep()
            await asyncio.wait([self._pursue(self.at)], timeout=_ASKING)
        self.at = (t, number + 1)
        return self._take(number, x)

    async def _company(self) -> None:
        """Wait until somebody is there to learn with."""
        liveness, rounds = self.liveness, self.words.rounds
        while around := self.around():
            unfinished = [j for j in around if liveness.of[j].at[0] < rounds]
            if not liveness.alone(unfinished):
                return
            if len(unfinished) < len(around):
                raise Over("all others are done or away.")
            await liveness.moved(liveness.every)

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
        """Ask until there is an answer, and past the deadline a last time."""
        liveness, (i, sent) = self.liveness, self._questions[at]
        letter, pause = self.words.vector(at, *sent), 0.05
        until = liveness.clock() + liveness.limit
        while not liveness.left and not liveness.silent(i):
            left, answer = until - liveness.clock(), None
            try:
                if left > 0:
                    asking = liveness.links[i].ask(letter)
                    async with asyncio.timeout(min(left, _ANSWER)):
                        answer = await asking
                else:
                    answer = await liveness.insist(i, self.words.beat(at, "gossips", at))
                change = None
                if answer is not None:
                    self.words.place(answer)
                if answer is not None and answer.kind == "vector":
                    (change,) = self.words.read(i, answer, self.public[at[1]])
            except (Cut, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
                continue
            except ArchipelError as no:
                change = None
                answer = None
                self.missing[i] = why_not(no)
            self._close(at, answer, change)
            return

    def _close(self, at: At, answer: Letter | None, change: Tensor | None) -> None:
        """Make the change that a question brought, if it did, on the disk as well."""
        i, sent = self._questions.pop(at)
        if answer is not None:
            self.liveness.note(i, answer)
        if change is not None:
            self.up, self.down = self.up + nbytes(tuple(sent)), self.down + nbytes(change)
            self._add(at[1], change)
        self._keep()
        self.liveness.ring()

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
        if t <= self._given_up.get((j, number), -1):
            raise Refused(f"round {t + 1}: the question was given up.")
        if self.liveness.paused():
            raise Cut("this peer is paused.")
        if number not in self.public or self.at[0] >= self.words.rounds:
            return self.told(j)
        mine = self.public[number]
        arrays = self.words.read(j, letter, self._coding.form(number, mine))
        change = (self._coding.undone(j, (t, number), arrays, mine) - mine) / 2
        self._add(number, change)
        self._answered[j, number] = (t, -change)
        self._keep()
        return self.words.vector((t, number), -change)

    def last(self, j: int, at: At) -> Letter | None:
        """Peer j asks a last time: its change where one was made, or else none ever is."""
        t, number = at
        before, change = self._answered.get((j, number), (-1, None))
        if before == t and change is not None:
            return self.words.vector(at, change)
        self._given_up[j, number] = max(t, self._given_up.get((j, number), -1))
        return None

    def settled(self) -> bool:
        """Whether all that this peer asked is answered, or whom it asked is away."""
        for at in self._questions:
            self._pursue(at)
        return all(self.liveness.silent(j) for j, _ in self._questions.values())

    def end(self, own: Tree) -> Tree:
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
        for (t, number), (j, sent) in self._questions.items():
            name = f"gossip-question-{t}-{number}-{j}"
            found |= {f"{name}-{i}" if i else name: x for i, x in enumerate(sent)}
        for (j, number), (t, change) in self._answered.items():
            found[f"gossip-answered-{j}-{number}-{t}"] = change
        return found

    def restore(self, kept: Mapping[str, Mapping[str, Tensor]], at: At) -> None:
        self.at = at
        found = []
        for name, x in kept.get("own", {}).items():
            if name.startswith("gossip-"):
                kind, *numbers = name.removeprefix("gossip-").split("-")
                found.append((kind, [int(number) for number in numbers], x))
        for kind, parts, x in sorted(found, key=lambda each: each[:2]):
            match kind, parts:
                case "public", [number]:
                    self.public[number] = x
                case "pending", [number]:
                    self.pending[number] = x
                case "asked", [number]:
                    self._asked[number] = int(x)
                case "question", [t, number, j, *_]:
                    self._questions.setdefault((t, number), (j, []))[1].append(x)
                case "answered", [j, number, t]:
                    self._answered[j, number] = (t, x)


def _with_model(own: Tree, model: Tensor) -> Tree:
    """A state whose first tensor is this one."""
    if isinstance(own, Tensor):
        return model
    head, *rest = own
    parts = [_with_model(head, model), *rest]
    return type(own)(*parts) if hasattr(own, "_fields") else tuple(parts)
