# SPDX-License-Identifier: Apache-2.0
"""Tokens that walk from peer to peer: only who holds one does anything, and passes it on.

A token makes so many hops in a round that all tokens together make one for each party. Who holds
it has a turn, and draws the next holder by its row of the mixing matrix, with those left out that
are silent; it may be itself. Draws are those of a simulation. A peer begins with a token when the
one before has gone.

A token has an epoch and a number of hops, and the newest is that of the latest epoch, and of it the
one with the most hops. It may be held by a peer that is killed, so it is found again:

- Whoever takes a token has it on its disk before it says so. Who passed it on keeps it, too, until
  the one that took it has passed it on in turn, and says so.
- Where that one is silent for `silence` seconds, or has the token past the deadline of the study,
  the giver asks all that are there whether they have seen the token further on. If nobody has, it
  gives the token as it was to another, in the next epoch. Its own turn stands.
- Whether a token stands is decided in one place: at the giver, which has given it to another, on
  its disk, or has not. A holder asks it before it passes the token on; where the giver is silent,
  it asks all that are there for a token that this giver has given anew. A peer that holds one that
  does not stand drops it, and takes its own state back to what it was before the token came. So the
  turns that count are those of one walk, and what a token adds up (Walkman's mean) is what the
  peers have.

What can still go wrong: where the peers are cut in two parts for longer than `silence`, each may go
on with a token of its own. When they meet, the one of the later epoch goes on; turns that others
took with the older one in the meantime stay, and the mean that Walkman's token stands for is off by
them. A token is lost for as long as its holder and its giver are both away. And a walk trusts its
members: whoever holds the token can change it, who numbers one of its own higher has it taken for
the token, and who lies about what it has seen can end it.

One file, since each step is of use only with the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.engines.network.company import Turns
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import At, Left, Liveness, Over, Words, why_not
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Cut, Refused
from archipel.engines.network.turn import Own
from archipel.errors import ArchipelError
from archipel.exchange.varying import travelling
from archipel.graphs import Topology
from archipel.tree import Tree, fill, leaves, nbytes

Newest = tuple[int, int]  # epoch, hops

_ASKING = 5.0  # seconds that an answer may take
_EPOCHS = 1 << 30


@dataclass
class Token:
    """A token that is here, or that was passed on and is kept."""

    at: Newest
    tree: Tree
    giver: int  # who is to know that it was passed on; this peer itself where it began
    to: int = -1  # whom it goes to, or went
    before: Own | None = None  # the own state when it came
    turns: int = 0  # that this peer had with it since
    came: Newest = (0, 0)  # as it was then
    gone: bool = False  # whether the one that took it is known to have passed it on

    def tensors(self, name: str) -> dict[str, Tensor]:
        trained = self.before is not None and self.before.trained
        numbers = [*self.at, self.giver, self.to, self.turns, *self.came, int(self.gone)]
        numbers.append(int(trained))
        found = {name: torch.tensor(numbers)}
        found |= {f"{name}-{i}": x for i, x in enumerate(leaves(self.tree))}
        return found | ({} if self.before is None else self.before.tensors(f"{name}-before"))

    @classmethod
    def read(cls, form: Tree, own: Tree, state: Mapping[str, Tensor], name: str) -> Token:
        numbers = state[name].tolist()
        epoch, hops, giver, to, turns, came, then, gone, trained = numbers
        arrays = [state[f"{name}-{i}"].clone() for i in range(len(leaves(form)))]
        before, prefix = None, f"{name}-before"
        if any(key.startswith(prefix) for key in state):
            before = Own.read(own, state, prefix, bool(trained))
        return cls(
            (epoch, hops), fill(form, arrays), giver, to, before, turns, (came, then), bool(gone)
        )


class Walking(Turns):
    """A peer's part in walks of tokens."""

    kinds = ("token", "seen")
    says = "walks"

    def __init__(
        self,
        state: PartyState,
        topology: Topology,
        liveness: Liveness,
        words: Words,
        keep: Callable[[], None],
    ) -> None:
        super().__init__(state, liveness, words, keep)
        self._topology = topology
        self._form, n = state.anatomy.token, topology.n
        self.tokens = max(1, int(getattr(state.boxes.algorithm, "tokens", 1)))
        self._hops = max(1, n // self.tokens)  # of a token in a round
        self.last_hop = words.rounds * self._hops
        self.newest: dict[int, Newest] = dict.fromkeys(range(self.tokens), (0, -1))
        self.held: dict[int, Token] = {}
        self.given: dict[int, Token] = {}
        self._lost: set[tuple[int, int, int, int]] = set()  # token, epoch, hops, whom: given anew
        self._visits = (0, 0)  # a round, and how many turns it had so far
        self._ended: set[int] = set()  # here, which all are to know
        self._begun = self._gradients = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        for token in range(self.tokens):
            if token * n // self.tokens == self.party:
                self.newest[token] = (0, 0)
                self.held[token] = Token((0, 0), self._form, self.party)

    # -- what a peer knows -------------------------------------------------------------------------

    def around(self) -> Sequence[int]:
        return sorted(self.liveness.of)

    def begin(self, t: int) -> None:
        self.at = (t, 0)
        if t != self._begun:
            self.missing, self.up, self.down = {}, 0, 0
            self._begun, self._gradients = t, 0

    def under_way(self) -> list[asyncio.Task[None]]:
        """What ends with the peer."""
        return [*self._tasks.values()]

    def start(self) -> None:
        """Go on with what a process before left."""
        for token in self.given:
            self._watch(token)
        for token in self.newest:
            if self._is_over(token):
                self._tell_end(token)

    def quiet(self) -> bool:
        return not self.held and not self._tasks

    def settled(self) -> bool:
        """Whether all know that the walks are over."""
        return not self._tasks

    def _is_over(self, token: int) -> bool:
        return self.newest[token][1] >= self.last_hop

    def after(self, t: int) -> int:
        """Rounds that are behind the furthest token that this peer has seen."""
        hops = max(hops for _, hops in self.newest.values())
        return min(max(0, hops) // self._hops, self.words.rounds - 1)

    # -- a turn ------------------------------------------------------------------------------------

    async def turn(self, t: int, commit: Callable[[Own], None]) -> int:
        """Have a turn with a token that comes here; return the gradients that it took."""
        liveness, rounds = self.liveness, self.words.rounds
        while True:
            there = [j for j in self.around() if not liveness.silent(j)]
            ended = bool(there) and all(liveness.of[j].at[0] >= rounds for j in there)
            if ended or all(map(self._is_over, self.newest)):
                raise Over("the walks are over.")
            begun = [token for token, one in self.held.items() if one.turns]
            (token,) = begun or sorted(self.held)[:1] or [-1]
            if token >= 0 and not self._goes_on(self.held[token]):
                self._gradients += await self._turn(token, commit)
                return self._gradients
            if token >= 0:  # also where the process before ended with it on its way
                self._pass(token)
            await liveness.moved(liveness.every)

    def _goes_on(self, one: Token) -> bool:
        """Whether this peer has had its turns with a token."""
        return one.to >= 0 or one.at[1] >= self.last_hop

    async def _turn(self, token: int, commit: Callable[[Own], None]) -> int:
        one = self.held[token]
        one.before = one.before or self._state.own
        t, again = one.at[1] // self._hops, 0
        if self._visits[0] == t:
            again = self._visits[1]
        run = partial(self._state.awake, t, None, one.tree, again=again)
        own, tree, gradients = await asyncio.to_thread(run)
        if self.held.get(token) is not one:  # it was outdated in the meantime
            return gradients
        await self._draw(token, one)
        one.tree, one.turns, self._visits = tree, one.turns + 1, (t, again + 1)
        commit(own)
        if self._goes_on(one):
            self._pass(token)
        return gradients

    def _finish(self, token: int, one: Token) -> None:
        del self.held[token]
        self.newest[token] = one.at
        self.given.pop(token, None)
        self._ended.add(token)
        self._keep()
        self.liveness.ring()

    async def _draw(self, token: int, one: Token) -> None:
        """Draw the next holder: another, or this peer itself, which takes the hop at once."""
        epoch, hops = one.at
        t, hop = divmod(hops, self._hops)
        if hops + 1 >= self.last_hop:
            one.at, one.to = (epoch, hops + 1), -1
            return
        while True:
            away = [j for j in range(self._topology.n) if j != self.party and self._is_away(j)]
            row = sorted(self._topology.row(self.party, t, away).items())
            if len(away) < self._topology.n - 1:
                break
            await self.liveness.moved(self.liveness.every)  # there is no use in walking alone
        keys = rng.keys(rng.key(self._state.seed, t, "walk", hop), np.array([token]))
        ends = np.cumsum([weight for _, weight in row])
        chance = float(rng.uniform(keys)[0]) * ends[-1]
        place = min(int(np.searchsorted(ends, chance, "right")), len(ends) - 1)
        one.to = row[place][0]
        if one.to == self.party:
            one.at = self.newest[token] = (epoch, hops + 1)
            one.to = -1

    def _is_away(self, j: int) -> bool:
        contact = self.liveness.of.get(j)
        if contact is None or contact.late or self.liveness.silent(j):
            self.missing[j] = "silent"
            return True
        return False

    # -- passing on --------------------------------------------------------------------------------

    def _pass(self, token: int) -> None:
        """See to it that a token that this peer holds goes on."""
        self._task(token, self._passing)

    def _watch(self, token: int) -> None:
        """See to it that a token that was passed on is not lost."""
        self._task(token, self._watching)

    def _tell_end(self, token: int) -> None:
        self._ended.discard(token)
        self._task(token, self._telling)

    def _task(self, token: int, what: Callable[[int], Any]) -> None:
        if token not in self._tasks:
            task = self._tasks[token] = asyncio.create_task(self._run(token, what))
            task.add_done_callback(lambda _: self.liveness.ring())

    async def _run(self, token: int, what: Callable[[int], Any]) -> None:
        try:
            await what(token)
        except Left:
            pass
        finally:
            del self._tasks[token]
        if token in self._ended and not self.liveness.left:
            self._tell_end(token)
        elif token in self.given and not self.liveness.left:
            self._watch(token)

    async def _passing(self, token: int) -> None:
        """Pass a token on, if it stands."""
        one = self.held.get(token)
        if one is None or not self._goes_on(one):
            return
        if not await self._stands(token, one):
            self._take_back(token, one)
            return
        if one.at[1] >= self.last_hop:
            self._finish(token, one)
            return
        pause, liveness = 0.02, self.liveness
        epoch, hops = one.at
        letter = self._letter(token, (epoch, hops + 1), one.tree)
        until = liveness.clock() + liveness.limit
        while self.held.get(token) is one:
            if liveness.left:
                raise Left("the peer leaves.")
            if liveness.silent(one.to) or liveness.clock() >= until:
                liveness.of[one.to].late = True
                one.at = self.newest[token] = (self._next(epoch), hops)
                await self._draw(token, one)  # it may have taken it: a new epoch
                self._keep()
                if self._goes_on(one):
                    await self._passing(token)
                return
            try:
                answer = await self._ask(one.to, letter)
            except (Cut, TimeoutError, Refused) as no:
                if isinstance(no, Refused):
                    self.missing[one.to] = why_not(no)
                await asyncio.sleep(pause)
                pause = min(2 * pause, 1.0)
                continue
            if self.held.get(token) is one and _newest(answer) >= (epoch, hops + 1):
                self._passed(token, one, _newest(answer))
                return
            await asyncio.sleep(pause)  # it did not take it
            pause = min(2 * pause, 1.0)

    def _next(self, epoch: int) -> int:
        """A later epoch, which no other peer gives a token."""
        return (epoch // self._topology.n + 1) * self._topology.n + self.party

    def _passed(self, token: int, one: Token, seen: Newest) -> None:
        """The next holder has taken the token, now or before a restart."""
        at = (one.at[0], one.at[1] + 1)
        del self.held[token]
        self.newest[token] = max(at, self.newest[token])
        given = Token(at, one.tree, one.giver, one.to, came=one.came, gone=seen > at)
        self.given[token] = given
        self.up += _size(travelling(one.tree))
        self._keep()
        self.liveness.ring()

    async def _stands(self, token: int, one: Token) -> bool:
        """Whether the giver has not given the token to another."""
        if one.giver == self.party:
            return True
        liveness, asked = self.liveness, self._letter(token, one.came)
        until = liveness.clock() + liveness.silence
        while not liveness.silent(one.giver) and liveness.clock() < until:
            if liveness.left:
                raise Left("the peer leaves.")
            try:
                answer = await self._ask(one.giver, asked)
                return not answer["lost"]
            except (ArchipelError, TimeoutError):
                await asyncio.sleep(0.1)
        epoch, _ = await self._furthest(token, one.at)
        return epoch <= one.at[0] or epoch % self._topology.n != one.giver

    async def _furthest(self, token: int, at: Newest) -> Newest:
        """The newest that anybody who is there has seen."""

        async def of(j: int) -> Newest:
            try:
                return _newest(await self._ask(j, self._letter(token, at)))
            except (ArchipelError, TimeoutError):
                return at

        there = [j for j in self.around() if not self.liveness.silent(j)]
        return max(await asyncio.gather(*map(of, there)), default=at)

    def _take_back(self, token: int, one: Token) -> None:
        """Drop an outdated token, with all that this peer's own state has of it."""
        if self.held.get(token) is not one:
            return
        del self.held[token]
        if one.before is not None and one.turns:
            self._state.own = one.before
        self._keep()
        self.liveness.ring()

    async def _watching(self, token: int) -> None:
        """Keep a token until it was passed on; where its holder is silent, give it to another."""
        liveness, one = self.liveness, self.given[token]
        owes, pause = one.giver != self.party, 0.02
        until = liveness.clock() + liveness.limit  # also for one that says it is there
        while self.given.get(token) is one and not self._is_over(token):
            if liveness.left:
                raise Left("the peer leaves.")
            if owes and liveness.silent(one.giver):
                owes = False
            elif owes:
                try:  # that it was passed on
                    await self._ask(one.giver, self._letter(token, one.at))
                    owes = False
                except (ArchipelError, TimeoutError):
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, 1.0)
                    continue
            if one.gone:
                del self.given[token]
                self._keep()
                return
            late = liveness.silent(one.to) or liveness.clock() >= until
            if not late or liveness.alone(self.around()):
                await liveness.moved(liveness.every)
                continue
            furthest = await self._furthest(token, one.at)
            if self.given.get(token) is not one:
                return
            del self.given[token]
            liveness.of[one.to].late = True  # until it answers
            if furthest <= one.at:
                await self._give_again(token, one)
            self._keep()
            return

    async def _give_again(self, token: int, one: Token) -> None:
        """Give a token that is lost, as it was, to another than before."""
        epoch, hops = one.at
        self._lost.add((token, epoch, hops, one.to))
        again = Token((self._next(epoch), hops - 1), one.tree, self.party)
        self.newest[token], self.held[token] = again.at, again
        await self._draw(token, again)
        self._keep()
        self.liveness.ring()
        if self._goes_on(again):
            await self._passing(token)

    async def _telling(self, token: int) -> None:
        """Tell all that a walk is over."""
        letter, left = self._letter(token, self.newest[token]), set(self.liveness.of)
        while left and not self.liveness.left:
            for j in sorted(left):
                if self.liveness.silent(j):
                    left.discard(j)
            found = await asyncio.gather(*map(partial(self._knows, letter=letter), sorted(left)))
            left -= {j for j in found if j is not None}
            if left:
                await asyncio.sleep(0.1)

    async def _knows(self, j: int, letter: Letter) -> int | None:
        try:
            return j if _newest(await self._ask(j, letter))[1] >= self.last_hop else None
        except (ArchipelError, TimeoutError):
            return None

    def _letter(self, token: int, at: Newest, tree: Tree = None, lost: bool = False) -> Letter:
        epoch, hop = at
        where, hop = (self.at[0], token), max(0, hop)
        if tree is None:
            return self.words.plain("seen", where, epoch=epoch, hop=hop, lost=lost)
        return self.words.signed("token", where, travelling(tree), epoch=epoch, hop=hop)

    async def _ask(self, j: int, letter: Letter) -> Letter:
        async with asyncio.timeout(_ASKING):
            answer = await self.liveness.links[j].ask(letter)
        self.words.place(answer, ("seen",))
        same = answer.kind == "seen" and answer["study"] == self.words.study
        if not same or answer["number"] != letter["number"]:
            raise Refused(f"a {answer.kind} is no answer to this.")
        self._check(answer)
        self.liveness.note(j, answer)
        self.liveness.of[j].late = False
        return answer

    def _check(self, letter: Letter) -> None:
        fits = letter["number"] < self.tokens and 0 <= letter["hop"] <= self.last_hop
        if not fits or not 0 <= letter["epoch"] < _EPOCHS:
            raise Refused("there is no such token.")

    # -- being asked -------------------------------------------------------------------------------

    async def answer(self, j: int, letter: Letter) -> Letter:
        """Take a token of peer j, or compare what both have seen of one."""
        self._check(letter)
        if self.liveness.paused():
            raise Cut("this peer is paused.")
        token, at = letter["number"], _newest(letter)
        if letter.kind == "token":
            self._take(j, token, at, letter)
        else:
            self._compare(j, token, at)
        return self._letter(token, self.newest[token], lost=(token, *at, j) in self._lost)

    def _take(self, j: int, token: int, at: Newest, letter: Letter) -> None:
        """Take a token, if it is newer than any that this peer has seen."""
        if at <= self.newest[token]:
            return
        one = self.held.get(token)
        if one is not None and one.turns and at[0] != one.at[0]:
            self._pass(token)  # whether its own turn stands is to be found first
            return
        if at[1] >= self.last_hop:
            return
        arrays = self.words.read(j, letter, self._form)
        tree = fill(self._form, [x.clone() for x in arrays])
        self.down += _size(letter.arrays)
        self.newest[token] = at
        self.given.pop(token, None)
        self.held[token] = Token(at, tree, j, came=at)
        self._keep()
        self.liveness.ring()

    def _compare(self, j: int, token: int, at: Newest) -> None:
        """Hear what peer j has seen: that it passed a token on, or that the walk is over."""
        given = self.given.get(token)
        if given is not None and given.to == j and at > given.at:
            del self.given[token]
            self._keep()
        if at[1] >= self.last_hop and not self._is_over(token):
            self.newest[token] = max(at, self.newest[token])
            self.given.pop(token, None)
            self._keep()
        self.liveness.ring()

    # -- what survives the process -----------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        found = {"walks": torch.tensor([*self._visits])}
        for token, at in self.newest.items():
            found[f"walks-newest-{token}"] = torch.tensor(at)
        if self._lost:
            found["walks-lost"] = torch.tensor(sorted(self._lost))
        for kind, tokens in (("held", self.held), ("given", self.given)):
            for token, one in tokens.items():
                found |= one.tensors(f"walks-{kind}-{token}")
        return found

    def restore(self, kept: Mapping[str, Mapping[str, Tensor]], at: At) -> None:
        self.at = at
        own = kept.get("own", {})
        if "walks" not in own:
            return
        t, visits = own["walks"].tolist()
        self._visits, self.held = (t, visits), {}
        for name, x in own.items():
            match name.split("-"):
                case ["walks", "lost"]:
                    self._lost = {(a, b, c, d) for a, b, c, d in x.tolist()}
                case ["walks", "newest", token]:
                    epoch, hop = x.tolist()
                    self.newest[int(token)] = epoch, hop
                case ["walks", "held" | "given" as kind, token]:
                    tokens = self.held if kind == "held" else self.given
                    form = self._state.anatomy.own
                    tokens[int(token)] = Token.read(self._form, form, own, name)


def _newest(letter: Letter) -> Newest:
    return letter["epoch"], letter["hop"]


def _size(arrays: Sequence[Tensor]) -> int:
    return nbytes(tuple(arrays))
