# SPDX-License-Identifier: Apache-2.0
"""Peers that wake by clocks of their own, tell their neighbours, and learn who these are.

Round t of a peer is its t-th wake-up. It computes with what it holds of its neighbours, keeps its
new state on the disk, and only then tells them. What a peer tells has a number, which grows by one
whenever it changes; before the first, all know what each would tell: that of the first state.

- **News.** `said` goes to every neighbour, with the number that their copy has after it. One whose
  copy has the number before makes `hear(copy, said)` of it. Whatever else it holds, it says so, and
  gets what is missing: the news in between, where they are fewer bytes, or else the whole. So it is
  after a cut and with a new edge. A peer that was started again sends the whole first, which counts
  whatever its number: its disk may be an older one, whose next news are others. Nobody waits for
  it: of a peer that is away, others keep the last copy that they had.
- **Questions.** In rounds with `asks(t)` > 0 a peer asks that many others at random, of those that
  answer, for the whole of what they tell and for their degree, before it computes. On a graph that
  the study gives, neighbours alone are answered.
- **Edges.** An edge has a weight and a version, and is decided in one place: at its lower end. That
  end changes it in one step, on its disk before it tells the other, which takes over whatever is
  newer. The higher end proposes a change with the version that it computed from; where the edge has
  another by then, it stays, and the change is left out. So two changes at a time never leave
  different weights, whoever is killed. An end that was started again says what it has; where the
  higher one has a later version than the lower, whose disk is an older one, that one's weight gets
  a later version still. One gap is left: while the two cannot reach each other, the higher end
  computes with the weight that it heard last.

A peer waits while all its neighbours are silent: it cannot tell whether it is away itself. Where
some of them are done it goes on, with what they told last. One file, since copies and edges change
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from archipel import rng
from archipel.core import Near
from archipel.engines.network.bounds import LARGEST, tame
from archipel.engines.network.company import Company, Pace, Turns, near_of
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import At, Left, Liveness, Words, why_not
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Cut, Refused
from archipel.engines.network.turn import Own, same
from archipel.errors import ArchipelError
from archipel.exchange.varying import travelling
from archipel.graphs import Topology
from archipel.tree import Tree, fill, fits, leaves, nbytes, tree_map

_ANSWER = 600.0  # seconds that an answer may take, of a large vector over a slow line
_ASKING = 5.0  # seconds that others have to answer a question at random
_KNOWN = 2.0  # seconds that a peer waits for what a new neighbour tells
_UNKNOWN = -1  # instead of the number of what another holds


class Copy(NamedTuple):
    """What a peer holds of another."""

    number: int
    told: Tree
    degree: float  # the sum of the weights of its edges


class Edge(NamedTuple):
    """Between this peer and another."""

    weight: float
    version: int  # how often it changed


class Waking(Turns):
    """A peer's wake-ups, and what it tells."""

    kinds = ("news", "copy", "asks", "edge")
    says = "wakes"

    def __init__(
        self,
        state: PartyState,
        topology: Topology | None,
        liveness: Liveness,
        words: Words,
        keep: Callable[[], None],
        pace: Pace,
    ) -> None:
        super().__init__(state, liveness, words, keep)
        self._boxes, self.pace = state.boxes, pace
        self.version = 0  # of what this peer tells
        self._first = self._boxes.told(state.own.state)  # what everybody tells before the first
        self._form = self._boxes.said(state.own.state)
        self._saying: dict[int, list[Tensor]] = {}  # version -> what led to it, of the last ones
        self._letters: dict[tuple[str, int], Letter] = {}  # signed once, for all neighbours
        self._abouts: dict[tuple[str, int], Letter] = {}  # the same of edges
        self.edges: dict[int, Edge] = {}
        self._degrees: dict[int, float] = {}  # of others, before they tell
        if topology is not None:
            given = topology.affinity()
            for j in liveness.of:
                row = given[[j]]
                self._degrees[j] = float(row.sum())
                if weight := float(row[[0], [self.party]][0]):
                    self.edges[j] = Edge(weight, 0)
        self.copies: dict[int, Copy] = {}
        self._holds: dict[int, int] = {}  # the version that each neighbour has of this peer
        self._agreed: dict[int, int] = {}  # the version that each other end has of its edge
        self._restored = False  # then both are not known of all
        self._unsure: set[int] = set()  # neighbours that may have told something unheard
        self._tasks: dict[int, asyncio.Task[None]] = {}

    # -- what a peer knows -------------------------------------------------------------------------

    @property
    def neighbours(self) -> list[int]:
        """Those that this peer has an edge to, but for who was revoked."""
        of = self.liveness.of
        return sorted(j for j, edge in self.edges.items() if edge.weight > 0 and not of[j].gone)

    @property
    def degree(self) -> float:
        return sum((self.edges[j].weight for j in self.neighbours), 0.0)

    def learnt(self) -> dict[int, float] | None:
        """This peer's edges, with their weights, where they are learned."""
        if not self._boxes.learns_graph:
            return None
        return {j: self.edges[j].weight for j in self.neighbours}

    def under_way(self) -> list[asyncio.Task[None]]:
        """What ends with the peer."""
        return [*self._tasks.values()]

    def around(self) -> Sequence[int]:
        return sorted(self.liveness.of) if self._boxes.learns_graph else self.neighbours

    def _copy(self, j: int) -> Copy:
        return self.copies.get(j) or Copy(0, self._first, self._degrees.get(j, 0.0))

    def settled(self) -> bool:
        """Whether nobody who is there has turns to come, and all have heard what there was."""
        liveness, rounds = self.liveness, self.words.rounds
        there = [j for j in self.around() if not liveness.silent(j)]
        return self.quiet() and all(liveness.of[j].at[0] >= rounds for j in there)

    def quiet(self) -> bool:
        """Whether all who are there have heard all that this peer has to tell."""
        self._tell_all()
        return all(self._due(j) is None for j in self.liveness.of if not self.liveness.silent(j))

    # -- a wake-up ---------------------------------------------------------------------------------

    async def turn(self, t: int, commit: Callable[[Own], None]) -> int:
        """Wake up for the t-th time; return the gradients that it took."""
        self._tell_all()
        await self._company()
        await self.pace(t)
        self.missing |= {j: "silent" for j in self.around() if self.liveness.silent(j)}
        count = self._boxes.asks(t)
        company = await (self._asked(t, count) if count else self._near())
        versions = {j: self._edge(j).version for j in self.liveness.of}
        before = leaves(self._boxes.told(self._state.own.state))
        own, _, gradients = await asyncio.to_thread(self._state.awake, t, company)
        told = self._boxes.told(own.state)
        if not same(before, leaves(told)):
            self.version += 1
            self._say(travelling(self._boxes.said(own.state)) if not count else None, nbytes(told))
        proposed = {}
        for j, weight in company.joined.items():
            if weight == self._edge(j).weight or self._edge(j).version != versions[j]:
                continue
            if self.party < j:
                self._set(j, Edge(weight, versions[j] + 1))
            else:
                proposed[j] = Edge(weight, versions[j])
        commit(own)
        self._tell_all()
        await asyncio.gather(*(self._propose(j, edge) for j, edge in proposed.items()))
        return gradients

    async def _company(self) -> None:
        """Wait until somebody is there, or done."""
        liveness, rounds = self.liveness, self.words.rounds
        while around := [j for j in self.around() if not liveness.of[j].gone]:
            if any(not liveness.silent(j) or liveness.of[j].at[0] >= rounds for j in around):
                return
            await liveness.moved(liveness.every)

    async def _near(self) -> Company:
        """The neighbours, with what they told; of a new one that is there, at least something."""
        liveness = self.liveness
        until = liveness.clock() + _KNOWN
        while liveness.clock() < until and any(
            j in self._unsure and j not in self.copies and not liveness.silent(j)
            for j in self.neighbours
        ):
            await liveness.moved(0.05)
        held = {j: self._copy(j) for j in self.neighbours}
        return Company(self._sum(), self._those(held))

    def _sum(self) -> Tensor:
        return torch.tensor([self.degree], dtype=self._state.model.dtype)

    def _those(self, held: Mapping[int, Copy]) -> Near:
        weights = [self._edge(j).weight for j in held]
        degrees = [copy.degree for copy in held.values()]
        told = [copy.told for copy in held.values()]
        return near_of([*held], weights, degrees, told, self._first, self._state.model.dtype)

    async def _asked(self, t: int, count: int) -> Company:
        """So many others at random, with what they tell now; fewer where fewer are there."""
        held: dict[int, Copy] = {}
        while not held:
            left = self._whom(t)
            while left and len(held) < count:
                some, left = left[: count - len(held)], left[count - len(held) :]
                found = await asyncio.gather(*(self._ask(j) for j in some))
                held |= {j: copy for j, copy in zip(some, found, strict=True) if copy is not None}
            if not held:
                await self.liveness.moved(self.liveness.every)
        for j in held.keys() & set(self.neighbours):
            self._learn(j, held[j])
        return Company(self._sum(), asked=self._those(dict(sorted(held.items()))))

    def _whom(self, t: int) -> list[int]:
        """All others in the order in which they are asked."""
        others = sorted(j for j, contact in self.liveness.of.items() if not contact.gone)
        draw = rng.generator(self._state.seed, t, self.party, "asked")
        return [others[place] for place in draw.permutation(len(others))]

    async def _ask(self, j: int) -> Copy | None:
        """What peer j tells; None where it does not answer."""
        liveness = self.liveness
        if liveness.silent(j):
            self.missing[j] = "silent"
            return None
        try:
            async with asyncio.timeout(_ASKING):
                answer = await liveness.links[j].ask(self.words.plain("asks", self.at))
            self._check(j, answer, ("copy",))
            return self._whole(j, answer)
        except (Cut, TimeoutError):
            self.missing[j] = "silent"
        except ArchipelError as no:
            self.missing[j] = why_not(no)
        return None

    # -- telling -----------------------------------------------------------------------------------

    def _say(self, said: list[Tensor] | None, whole: int) -> None:
        """Have this to say; of what was said before, as much as is less than the whole."""
        if said is None:
            self._saying.clear()
        else:
            self._saying[self.version] = said
        while len(self._saying) > 1 and sum(map(_size, self._saying.values())) > whole:
            del self._saying[min(self._saying)]
        self._letters = {
            name: letter for name, letter in self._letters.items() if name[1] in self._saying
        }

    def _tell_all(self) -> None:
        """See to it that everybody hears what there is to tell."""
        for j, contact in self.liveness.of.items():
            if j not in self._tasks and not contact.gone and self._due(j) is not None:
                task = self._tasks[j] = asyncio.create_task(self._tell(j))
                task.add_done_callback(partial(self._told_all, j))

    def _told_all(self, j: int, task: asyncio.Task[None]) -> None:
        del self._tasks[j]

    def _due(self, j: int) -> Letter | None:
        """What peer j is to hear next."""
        edge = self._edge(j)
        tells = self.party < j or self._restored
        if tells and self._agreed.get(j, 0) < edge.version:
            return self._about(j)
        if j not in self.neighbours:
            return None
        if j in self._unsure:
            return self.words.plain("asks", self.at)
        held = self._holds.get(j, _UNKNOWN if self._restored else 0)
        if held >= self.version:
            return None
        kind = "news" if held + 1 in self._saying and self._is_short(held) else "copy"
        return self._letter(kind, held + 1 if kind == "news" else self.version)

    def _is_short(self, held: int) -> bool:
        return all(number in self._saying for number in range(held + 1, self.version + 1))

    def _letter(self, kind: str, number: int) -> Letter:
        if (kind, number) not in self._letters:
            if kind == "news":
                arrays = self._saying[number]
            else:
                arrays = leaves(self._boxes.told(self._state.own.state))
            at = (self.at[0], number)
            letter = self.words.signed(kind, at, arrays, degree=self.degree)
            self._letters[kind, number] = letter
        return self._letters[kind, number]

    async def _tell(self, j: int) -> None:
        """Have peer j hear all that is due."""
        liveness, pause = self.liveness, 0.05
        try:
            while not liveness.left and not liveness.of[j].gone:
                if (letter := self._due(j)) is None:
                    return
                if liveness.silent(j) or liveness.paused():
                    await liveness.moved(liveness.every)
                    continue
                try:
                    async with asyncio.timeout(_ANSWER):
                        answer = await liveness.links[j].ask(letter)
                    self._heard(j, letter, answer)
                    moved = _name(self._due(j)) != _name(letter)
                except (Cut, TimeoutError):
                    moved = False
                except ArchipelError as no:
                    self.missing[j], moved = why_not(no), False
                if not moved:
                    await asyncio.sleep(pause)
                pause = 0.05 if moved else min(2 * pause, 5.0)
        except Left:
            return

    def _heard(self, j: int, letter: Letter, answer: Letter) -> None:
        """Take note of what peer j answers."""
        kinds = {"asks": ("copy",), "edge": ("edge",)}.get(letter.kind, ("holds", "edge"))
        self._check(j, answer, kinds)
        self.liveness.note(j, answer)
        match answer.kind:
            case "copy":
                self._learn(j, self._whole(j, answer))
                self._unsure.discard(j)
            case "edge":
                self._adopt(j, answer)
            case "holds":
                self.up += _size(letter.arrays)
                number = answer["number"]
                self._holds[j] = number if number <= self.version else _UNKNOWN
        self.liveness.ring()

    def _check(self, j: int, answer: Letter, kinds: Iterable[str]) -> None:
        self.words.place(answer, tuple(kinds))
        if answer["study"] != self.words.study or answer.kind == "beat":
            raise Refused(f"a {answer.kind} is no answer to this.")
        if "signature" in answer.fields:
            self.words.check(j, answer)

    # -- hearing -----------------------------------------------------------------------------------

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Answer peer j: what this one holds of it, or tells."""
        if self.liveness.paused():
            raise Cut("this peer is paused.")
        if j not in self.neighbours and not self._boxes.learns_graph:
            raise Refused("there is no edge between the two peers.")
        match letter.kind:
            case "asks":
                letter = self._letter("copy", self.version)
                self.up += _size(letter.arrays)
                return letter
            case "edge":
                return self._decide(j, letter)
        if j not in self.neighbours:
            return self._about(j)  # one of the two has not heard that there is none
        number, held = letter["number"], self._copy(j)
        if letter.kind == "copy":
            self.copies[j] = self._whole(j, letter)
            self.liveness.ring()
        elif number == held.number + 1:
            self._learn(j, self._news(j, letter, held))
        return self.words.plain("holds", (self.at[0], self._copy(j).number))

    def _whole(self, j: int, letter: Letter) -> Copy:
        arrays = self.words.read(j, letter, self._first)
        self.down += nbytes(tuple(arrays))
        told = fill(self._first, [x.clone() for x in arrays])
        return Copy(letter["number"], told, _degree(letter))

    def _news(self, j: int, letter: Letter, held: Copy) -> Copy:
        """What this peer holds of peer j after its news; what could be none is refused."""
        arrays, told = self.words.read(j, letter, self._form), None
        self.down += _size(letter.arrays)
        try:
            told = self._boxes.hear(held.told, fill(self._form, [x.clone() for x in arrays]))
            found = leaves(told)
        except Exception:  # whatever it is, these bytes have caused it
            found = []
        if not fits(self._first, found) or not tame(found):
            raise Refused("news that no peer of this study could tell.")
        return Copy(letter["number"], tree_map(Tensor.detach, told), _degree(letter))

    def _learn(self, j: int, copy: Copy) -> None:
        if copy.number >= self._copy(j).number:
            self.copies[j] = copy
            self.liveness.ring()

    # -- edges -------------------------------------------------------------------------------------

    def _edge(self, j: int) -> Edge:
        return self.edges.get(j, Edge(0.0, 0))

    def _set(self, j: int, edge: Edge) -> None:
        """Have this edge; it is not on the disk yet."""
        before, self.edges[j] = self._edge(j), edge
        if before.weight == 0 < edge.weight:
            self._unsure.add(j)
            self._holds.pop(j, None)
        elif edge.weight == 0:
            self._unsure.discard(j)
            self.copies.pop(j, None)
        self._letters = {name: each for name, each in self._letters.items() if name[0] == "news"}

    def _about(self, j: int) -> Letter:
        """What this peer knows of the edge."""
        edge, name = self._edge(j), (f"edge {j}", self._edge(j).version)
        if name not in self._abouts:  # signed once: each signature is in the audit log
            letter = self.words.signed("edge", (self.at[0], edge.version), weight=edge.weight)
            self._abouts = {key: x for key, x in self._abouts.items() if key[0] != name[0]}
            self._abouts[name] = letter
        return self._abouts[name]

    def _decide(self, j: int, letter: Letter) -> Letter:
        """As the lower end, change the edge if it is as peer j knew it; or else take it over."""
        weight, version = _weight(letter), letter["number"]
        if not self._boxes.learns_graph:
            raise Refused(f"{self._boxes.name} learns no graph.")
        mine = self._edge(j)
        if self.party < j and version == mine.version and weight != mine.weight:
            self._change(j, Edge(weight, version + 1))
            self._agreed[j] = version  # until it has heard of it
            self._tell_all()
        else:
            self._adopt(j, letter)
        return self._about(j)

    def _adopt(self, j: int, letter: Letter) -> None:
        """Take over what the lower end says of the edge, or hear what the higher end has."""
        weight, version, mine = _weight(letter), letter["number"], self._edge(j)
        self._agreed[j] = version
        if self._boxes.learns_graph and version > mine.version:
            lower = self.party < j  # then it has decided so, on a disk that is lost
            self._change(j, Edge(mine.weight, version + 1) if lower else Edge(weight, version))
            self._tell_all()
        self.liveness.ring()

    def _change(self, j: int, edge: Edge) -> None:
        self._set(j, edge)
        self._keep()

    async def _propose(self, j: int, edge: Edge) -> None:
        """Have the lower end change the edge; what becomes of it is told again where it is lost."""
        letter = self.words.signed("edge", (self.at[0], edge.version), weight=edge.weight)
        try:
            async with asyncio.timeout(_ASKING):
                answer = await self.liveness.links[j].ask(letter)
            self._check(j, answer, ("edge",))
            self._adopt(j, answer)
        except (Cut, TimeoutError):
            self.missing[j] = "silent"
        except ArchipelError as no:
            self.missing[j] = why_not(no)

    def start(self) -> None:
        """Go on with what a process before left."""
        self._tell_all()

    # -- what survives the process -----------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        found = {"wakes-version": torch.tensor(self.version)}
        for j, copy in self.copies.items():
            found[f"wakes-copy-{j}"] = torch.tensor([copy.number])
            found[f"wakes-degree-{j}"] = torch.tensor([copy.degree], dtype=torch.float64)
            found |= {f"wakes-copy-{j}-{i}": x for i, x in enumerate(leaves(copy.told))}
        for j, edge in self.edges.items():
            if edge.version:
                found[f"wakes-edge-{j}"] = torch.tensor([*edge], dtype=torch.float64)
        return found

    def restore(self, kept: Mapping[str, Mapping[str, Tensor]], at: At) -> None:
        self.at = at
        own = kept.get("own", {})
        if "wakes-version" not in own:
            return
        self.version = int(own["wakes-version"])
        count = len(leaves(self._first))
        for name, x in own.items():
            match name.split("-"):
                case ["wakes", "copy", j]:
                    told = fill(self._first, [own[f"{name}-{i}"].clone() for i in range(count)])
                    degree = float(own[f"wakes-degree-{j}"])
                    self.copies[int(j)] = Copy(int(x), told, degree)
                case ["wakes", "edge", j]:
                    self.edges[int(j)] = Edge(float(x[0]), int(x[1]))
        self._unsure, self._restored = set(self.neighbours), True


def _name(letter: Letter | None) -> tuple[str, int] | None:
    return None if letter is None else (letter.kind, letter["number"])


def _size(arrays: Sequence[Tensor]) -> int:
    return nbytes(tuple(arrays))


def _degree(letter: Letter) -> float:
    degree: float = letter["degree"]
    if not (isfinite(degree) and 0 <= degree <= LARGEST):
        raise Refused(f"degree = {degree:g}: is no sum of weights.")
    return degree


def _weight(letter: Letter) -> float:
    weight: float = letter["weight"]
    if not (isfinite(weight) and 0 <= weight <= LARGEST):
        raise Refused(f"weight = {weight:g}: is none that an edge may have.")
    return weight
