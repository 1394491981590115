# SPDX-License-Identifier: Apache-2.0
"""Peers that meet in pairs: one woke and asks, the other answers, and both run the same code.

A peer wakes by a clock of its own, draws a neighbour, and gives it what its algorithm gives
`me.swap`; the other runs its own side with that and gives its own back. Round t of a peer is its
t-th meeting that it asked for; those that others ask it for come beside them.

A peer is in one meeting at a time. Who is asked while it is in one says so at once, and the other
draws again after a random pause: nobody waits for a peer that waits, so there is no deadlock, and
no state is computed from one that another meeting is about to replace.

A meeting counts at both or at neither. Its fate is decided where it was asked for, in one step: the
asker counts it when the last answer has come, or gives it up, and never both. What the other made
of its state is on its disk before the answer leaves, and waits there until the asker has said which
(or, past the deadline of the study, counts): as long it is in the meeting. So either may be killed
at any moment:

- The asker, before it decided: started again, it asks the same meeting of the same peer, and is
  answered the same.
- The other, before the answer left or after: started again, it asks what became of the meeting
  before it is in any other. Of one that it has nothing of on its disk, the asker hears so, and
  gives it up.

An asker gives up once the other was silent for `silence` seconds. The other, where the asker was
silent as long, takes the meeting for counted: an asker that was killed comes back and asks again.
One gap is left: where the two are alive and cut off from each other for longer than `silence`, just
when the answer was on its way, the meeting counts at the one that answered and not at the asker.

So nobody can keep another from its turns: who wakes in a meeting asks for its own as soon as that
is over, before it is in one for anybody else. One that neither answers nor decides is waited for
until the deadline, and from then on a quarter of it, as in rounds. And none is met much more often
than the study has rounds for.
One file, since both sides have the same state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.core import Near
from archipel.engines.network.company import Company, Pace, Turns, near_of
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import At, Left, Liveness, Over, Words, why_not
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import POLL, Cut, Refused
from archipel.engines.network.turn import Own
from archipel.errors import ArchipelError
from archipel.exchange.varying import travelling
from archipel.graphs import Topology
from archipel.tree import Tree, fill, nbytes

_WAIT = 1.0  # seconds after which a peer that answered asks what became of a meeting
_BUSY = "in another meeting"
_MOST = 1 << 53  # meetings
_SWAPS = 64  # in a meeting at most
_SPARE = 16  # meetings that another may begin beyond two for each round


class GivenUp(ArchipelError):
    """A meeting that does not come about."""


@dataclass
class Asked:
    """A meeting that another peer asked for."""

    j: int
    meeting: int
    heard: list[Tree] = field(default_factory=list)
    given: list[list[Tensor]] = field(default_factory=list)  # answers, one for each swap
    own: Own | None = None  # after the meeting
    gradients: int = 0
    ended: bool = False  # nothing more is said in it
    task: asyncio.Task[None] | None = None


class Meeting(Turns):
    """A peer's meetings: those it asks for, and those it is asked for."""

    kinds = ("meet", "met")
    says = "meets"

    def __init__(
        self,
        state: PartyState,
        topology: Topology,
        liveness: Liveness,
        words: Words,
        keep: Callable[[], None],
        pace: Pace,
    ) -> None:
        super().__init__(state, liveness, words, keep)
        self._topology, self.pace = topology, pace
        self._form = state.anatomy.swapped
        row = topology.affinity()[[self.party]]
        order = sorted(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        self._all = {j: weight for j, weight in order if weight > 0}
        self._degrees = [float(x) for x in topology.affinity().sum(axis=1)]
        self._asking: tuple[int, int] | None = None  # a meeting, and whom: not decided yet
        self._meetings = 0  # that this peer began to ask for
        self._counted: dict[int, int] = {}  # of each peer asked: the last meeting that counts
        self._open: Asked | None = None  # that another asked for, not decided yet
        self._last: dict[int, Asked] = {}  # of each peer that asked: the last that counted
        self._refused: dict[int, int] = {}  # of each peer that asked: the last that never will
        self._begun: dict[int, int] = {}  # of each peer that asked: how many it began
        self._waits = False  # for the end of another's meeting, to ask for its own
        self._turns = (0, 0)  # a round, and how many of them it had so far
        self._gradients = 0
        self._watch: asyncio.Task[None] | None = None

    # -- what a peer knows -------------------------------------------------------------------------

    def around(self) -> Sequence[int]:
        return sorted(j for j in self._all if j in self.liveness.of)

    def under_way(self) -> list[asyncio.Task[None]]:
        """What ends with the peer."""
        tasks = [self._watch, None if self._open is None else self._open.task]
        return [task for task in tasks if task is not None]

    def quiet(self) -> bool:
        """Whether the peer is in no meeting."""
        return self._open is None and self._asking is None

    def settled(self) -> bool:
        liveness, rounds = self.liveness, self.words.rounds
        there = [j for j in self.around() if not liveness.silent(j)]
        return self.quiet() and all(liveness.of[j].at[0] >= rounds for j in there)

    def _near(self) -> Near:
        """The neighbours; nothing is told of them."""
        numbers, weights = [*self._all], [*self._all.values()]
        degrees = [self._degrees[j] for j in numbers]
        return near_of(numbers, weights, degrees, None, None, self._state.model.dtype)

    def _again(self, t: int) -> int:
        """How many turns this peer had in round t."""
        return self._turns[1] if self._turns[0] == t else 0

    def _company(self, j: int, giving: Callable[[Tree], Tree], wakes: bool) -> Company:
        degree = torch.tensor([self._degrees[self.party]], dtype=self._state.model.dtype)
        return Company(degree, self._near(), other=j, giving=giving, wakes=wakes)

    # -- asking ------------------------------------------------------------------------------------

    async def turn(self, t: int, commit: Callable[[Own], None]) -> int:
        """Have the t-th meeting that this peer asks for; return the gradients that it took."""
        tries = 0
        while True:
            if self._asking is None:
                await self.pace(t, tries)
                if (j := await self._whom(t, tries)) is None:
                    tries += 1
                    continue
                self._meetings += 1
                self._asking = self._meetings, j
                self._keep()
            tries += 1
            try:
                own, gradients = await self._meet(t, *self._asking)
            except GivenUp as no:
                meeting, j = self._asking
                self._decide(j, meeting, False)
                self._keep()
                if str(no) != _BUSY:
                    self.missing[j] = str(no)
                    await self._tell(j, meeting, False)
                continue
            meeting, j = self._asking
            self._decide(j, meeting, True)
            self._turns = t, self._again(t) + 1
            commit(own)
            await self._tell(j, meeting, True)
            gradients += self._gradients
            self._gradients = 0
            return gradients

    async def _whom(self, t: int, tries: int) -> int | None:
        """A neighbour at random that may be met; None where there is none at present."""
        liveness, rounds = self.liveness, self.words.rounds
        while self._open is not None:
            self._waits = True
            await liveness.moved(liveness.every)
        self._waits = False
        number = self._candidates(t)
        there = [j for j in number if not liveness.silent(j)]
        self.missing |= {j: "silent" for j in number if j not in there}
        if not there:
            around = self.around()
            if around and all(liveness.silent(j) for j in around):
                if any(liveness.of[j].at[0] >= rounds for j in around):
                    raise Over("all others are done or away.")
                await liveness.moved(liveness.every)
            return None
        draw = rng.generator(self._state.seed, t, self.party, "partner", tries)
        return there[int(draw.integers(len(there)))]

    def _candidates(self, t: int) -> list[int]:
        """Whom this peer may meet in round t."""
        partners = getattr(self._topology, "partners", None)
        if partners is None:
            return list(self.around())
        number, count = partners(t, np.arange(self._topology.n))
        return [int(j) for j in number[self.party, : count[self.party]] if j in self.liveness.of]

    async def _meet(self, t: int, meeting: int, j: int) -> tuple[Own, int]:
        """Ask peer j to meet, and run this side of it."""
        loop, given = asyncio.get_running_loop(), 0

        def swap(x: Tree) -> Tree:
            nonlocal given
            self._state.leaving()
            asking = self._swapped(j, meeting, given, x)
            given += 1
            return asyncio.run_coroutine_threadsafe(asking, loop).result()

        company = self._company(j, swap, True)
        run = partial(self._state.awake, t, company, again=self._again(t))
        own, _, gradients = await asyncio.to_thread(run)
        return own, gradients

    async def _swapped(self, j: int, meeting: int, number: int, x: Tree) -> Tree:
        """What peer j gives for x; it is asked until it answers, or is silent."""
        liveness, pause = self.liveness, 0.02
        arrays, form = travelling(x), self._shape(number)
        self._keep()  # with the secrets of what leaves
        letter = self.words.signed("meet", (self.at[0], number), arrays, meeting=meeting)
        until = liveness.clock() + liveness.patience(j)
        while True:
            if liveness.left:
                raise Left("the peer leaves.")
            if liveness.silent(j) or liveness.clock() >= until:
                liveness.of[j].late = not liveness.silent(j)
                raise GivenUp("silent" if liveness.silent(j) else "past the deadline")
            try:
                async with asyncio.timeout(2 * POLL):
                    answer = await liveness.links[j].ask(letter)
                self._check(answer, ("meet", "met"))
                if answer["meeting"] != meeting:
                    raise Refused("an answer of another meeting.")
                if answer.kind == "met":
                    raise GivenUp(_BUSY)
                if answer["number"] != number:
                    raise Refused("an answer of another meeting.")
                found = self.words.read(j, answer, form)
            except (Cut, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            except GivenUp:
                raise
            except ArchipelError as no:
                raise GivenUp(why_not(no)) from None
            liveness.note(j, answer)
            liveness.of[j].late = False
            self.up, self.down = self.up + _size(arrays), self.down + _size(found)
            return fill(form, [x.clone() for x in found])

    def _decide(self, j: int, meeting: int, counts: bool) -> None:
        self._asking = None
        if counts:
            self._counted[j] = meeting

    async def _tell(self, j: int, meeting: int, counts: bool) -> None:
        """Say what became of a meeting, once: who does not hear it asks."""
        try:
            letter = self._met(j, meeting, counts)
            async with asyncio.timeout(max(1.0, self.liveness.every)):
                await self.liveness.links[j].ask(letter)
        except (ArchipelError, TimeoutError):
            return

    def _met(self, j: int, meeting: int, counts: bool | None) -> Letter:
        return self.words.plain("met", self.at, meeting=meeting, counts=counts)

    def _check(self, answer: Letter, kinds: Sequence[str]) -> None:
        self.words.place(answer, kinds)
        if answer["study"] != self.words.study or answer.kind == "beat":
            raise Refused(f"a {answer.kind} is no answer to this.")

    def _shape(self, number: int) -> Tree:
        if number >= min(len(self._form), _SWAPS):
            raise Refused(f"swap {number + 1} is none of the algorithm's.")
        return self._form[number]

    # -- being asked -------------------------------------------------------------------------------

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Answer peer j: give in a meeting what this peer gives, or hear what became of one."""
        if j not in self._all:
            raise Refused("there is no edge between the two peers.")
        if self.liveness.paused():
            raise Cut("this peer is paused.")
        if not 0 < letter["meeting"] < _MOST:
            raise Refused("there is no such meeting.")
        if letter.kind == "met":
            return self._hear(j, letter)
        meeting, number, before = letter["meeting"], letter["number"], self._last.get(j)
        theirs = fill(self._shape(number), self.words.read(j, letter, self._shape(number)))
        if before is not None and before.meeting == meeting and number < len(before.given):
            return self._gives(before, number)
        known = max(self._refused.get(j, 0), 0 if before is None else before.meeting)
        if meeting <= known:
            raise Refused(f"meeting {meeting}: is over.")
        one = self._open
        if one is not None and (one.j, one.meeting) == (j, meeting):
            return await self._next(one, number, theirs)
        if one is not None and one.j == j and one.meeting < meeting and one.own is None:
            self._drop(one)  # it was given up
        elif one is not None or self._asking is not None or number or self._waits:
            return self._met(j, meeting, None)  # busy, or nothing of it is here
        self._begun[j] = self._begun.get(j, 0) + 1
        if self._begun[j] > 2 * self.words.rounds + _SPARE:
            raise Refused("more meetings than the study has rounds for.")
        one = self._open = Asked(j, meeting)
        one.task = asyncio.create_task(self._side(one))
        return await self._next(one, number, theirs)

    async def _next(self, one: Asked, number: int, theirs: Tree) -> Letter:
        """What this peer gives in a swap, once it may leave."""
        if number > len(one.heard):
            raise Refused(f"swap {number + 1} came before the ones before.")
        if number == len(one.heard):
            one.heard.append(theirs)
            self.liveness.ring()
        until = self.liveness.clock() + POLL
        while self.liveness.clock() < until:
            more = len(one.given) > number + 1  # the next is wanted: this one was used
            if number < len(one.given) and (one.own is not None or more):
                return self._gives(one, number)
            if one.ended:
                return self._met(one.j, one.meeting, None)
            await self.liveness.moved(1.0)
        raise Cut("not yet.")

    def _gives(self, one: Asked, number: int) -> Letter:
        arrays = one.given[number]
        return self.words.signed("meet", (self.at[0], number), arrays, meeting=one.meeting)

    async def _side(self, one: Asked) -> None:
        """Run this peer's side of a meeting; its answer may leave when its end is on the disk."""
        loop = asyncio.get_running_loop()

        def swap(x: Tree) -> Tree:
            self._state.leaving()
            return asyncio.run_coroutine_threadsafe(self._given(one, x), loop).result()

        t = min(self.at[0], self.words.rounds - 1)
        run = partial(self._state.awake, t, self._company(one.j, swap, False), again=self._again(t))
        try:
            own, _, gradients = await asyncio.to_thread(run)
        except Exception:
            self._drop(one)
            raise
        if one.ended:
            return
        one.own, one.gradients = own, gradients
        self._keep()
        self.liveness.ring()
        self._follow(one)

    async def _given(self, one: Asked, x: Tree) -> Tree:
        """What the asker gives in the next swap, for x."""
        number = len(one.given)
        self._shape(number)
        self._keep()  # with the secrets of what leaves
        one.given.append([leaf.clone() for leaf in travelling(x)])
        self.liveness.ring()
        until = self.liveness.clock() + self.liveness.silence
        while len(one.heard) <= number:
            if one.ended or self.liveness.clock() >= until:
                raise GivenUp("silent")
            await self.liveness.moved(1.0)
        return one.heard[number]

    def _drop(self, one: Asked) -> None:
        """Have nothing of a meeting."""
        one.ended = True
        self._refused[one.j] = max(one.meeting, self._refused.get(one.j, 0))
        if self._open is one:
            self._open = None
        self.liveness.ring()

    def _count(self, one: Asked) -> None:
        """Have a meeting as it ended."""
        assert one.own is not None
        self._state.own, self._open, one.ended = one.own, None, True
        self._last[one.j] = one
        t = min(self.at[0], self.words.rounds - 1)
        self._turns = t, self._again(t) + 1
        self._gradients += one.gradients
        given, heard = sum(map(_size, one.given)), sum(nbytes(each) for each in one.heard)
        self.up, self.down = self.up + given, self.down + heard
        one.heard = []
        self._keep()
        self.liveness.ring()

    def _follow(self, one: Asked) -> None:
        """See to it that a meeting is decided."""
        self._watch = asyncio.create_task(self._ask(one))

    async def _ask(self, one: Asked) -> None:
        """Ask what became of a meeting, unless that is told; a silent asker has counted it."""
        liveness = self.liveness
        until = liveness.clock() + _WAIT
        deadline, silent = until + liveness.patience(one.j), until + liveness.silence
        try:
            while self._open is one:
                if liveness.clock() < until:
                    await liveness.moved(until - liveness.clock())
                    continue
                if liveness.silent(one.j) or liveness.clock() >= min(silent, deadline):
                    liveness.of[one.j].late |= liveness.clock() >= deadline
                    self._count(one)
                    return
                letter = self._met(one.j, one.meeting, None)
                try:
                    async with asyncio.timeout(max(1.0, liveness.every)):
                        answer = await liveness.links[one.j].ask(letter)
                    self._check(answer, ("met",))
                    if answer["meeting"] == one.meeting and self._open is one:
                        liveness.note(one.j, answer)
                        silent = liveness.clock() + liveness.silence
                        self._settle(one, answer["counts"])
                except (ArchipelError, TimeoutError):
                    pass
                until = liveness.clock() + _WAIT
        except Left:
            return

    def _settle(self, one: Asked, counts: bool | None) -> None:
        if counts is not None:
            self.liveness.of[one.j].late = False
        if counts:
            self._count(one)
        elif counts is not None:
            self._drop(one)
            self._keep()

    def _hear(self, j: int, letter: Letter) -> Letter:
        """What peer j says that a meeting became; or what became of one, where it asks."""
        meeting, counts, one = letter["meeting"], letter["counts"], self._open
        if counts is None:
            under_way = self._asking == (meeting, j)
            return self._met(j, meeting, None if under_way else self._counted.get(j) == meeting)
        if one is not None and (one.j, one.meeting) == (j, meeting) and one.own is not None:
            self._settle(one, counts)
        elif one is not None and (one.j, one.meeting) == (j, meeting) and not counts:
            self._drop(one)
        elif not counts:
            self._refused[j] = max(meeting, self._refused.get(j, 0))
        return self._met(j, meeting, counts)

    # -- what survives the process -----------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        asking = (0, 0) if self._asking is None else self._asking
        found = {"meets": torch.tensor([self._meetings, *asking, *self._turns])}
        for j, meeting in self._counted.items():
            found[f"meets-counted-{j}"] = torch.tensor(meeting)
        for j, meeting in self._refused.items():
            found[f"meets-refused-{j}"] = torch.tensor(meeting)
        for j, count in self._begun.items():
            found[f"meets-begun-{j}"] = torch.tensor(count)
        for j, one in self._last.items():
            found |= _tensors(f"meets-last-{j}", one)
        if self._open is not None and self._open.own is not None:
            found |= _tensors(f"meets-open-{self._open.j}", self._open)
            found |= self._open.own.tensors("meets-own")
        return found

    def restore(self, kept: Mapping[str, Mapping[str, Tensor]], at: At) -> None:
        self.at = at
        own = kept.get("own", {})
        if "meets" not in own:
            return
        self._meetings, meeting, j, *turns = own["meets"].tolist()
        self._turns = turns[0], turns[1]
        self._asking = (meeting, j) if meeting else None
        for name, x in own.items():
            match name.split("-"):
                case ["meets", "counted", j]:
                    self._counted[int(j)] = int(x)
                case ["meets", "refused", j]:
                    self._refused[int(j)] = int(x)
                case ["meets", "begun", j]:
                    self._begun[int(j)] = int(x)
                case ["meets", "last", j]:
                    self._last[int(j)] = _read(int(j), name, own)
                case ["meets", "open", j]:
                    self._open = _read(int(j), name, own)
                    form = self._state.anatomy.own
                    self._open.own = Own.read(form, own, "meets-own", True)

    def start(self) -> None:
        """Go on with what a process before left."""
        if self._open is not None:
            self._follow(self._open)


def _tensors(name: str, one: Asked) -> dict[str, Tensor]:
    counts = [len(arrays) for arrays in one.given]
    found = {name: torch.tensor([one.meeting, one.gradients, *counts])}
    flat = [x for arrays in one.given for x in arrays]
    return found | {f"{name}-{i}": x for i, x in enumerate(flat)}


def _read(j: int, name: str, own: Mapping[str, Tensor]) -> Asked:
    meeting, gradients, *counts = own[name].tolist()
    one, at = Asked(j, meeting, gradients=gradients), 0
    for count in counts:
        one.given.append([own[f"{name}-{i}"].clone() for i in range(at, at + count)])
        at += count
    return one


def _size(arrays: Sequence[Any]) -> int:
    return nbytes(tuple(arrays))
