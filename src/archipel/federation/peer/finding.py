# SPDX-License-Identifier: Apache-2.0
"""Where the other members of a study are: peers tell each other, by views that they exchange.

The roster says who takes part, by key and certificate, and where each listened when it approved.
From then on a peer signs where it is, anew in every cycle, and these entries travel by peer
sampling (`sampling/views.py`: push-pull, any peer picked, healer). So a peer that reaches one
member learns where all others are, and one that has moved is found again.

A peer that does not answer leaves the view, and comes back with an entry that is newer than the one
that was tried: where a view has room for all there are, nothing else would push it out. A peer
whose view has room also asks one of those that it lacks in each cycle, where it last knew them, and
one that knows nobody asks as many as a view has places. With a full view it does so in every tenth
cycle: peers who know a few others only may fall apart into groups, and the roster knows all.

An entry is signed by the peer that it is about, with a number that grows: the peer's own clock, and
never less than before. The higher number counts. So a member can neither invent another, nor move
it, nor bring back an address that it has left to whoever knows a newer one. Ages are not told, they
follow from the numbers, so nobody can make another's entry younger than it is. What a member that
lies can do: pass on less than it knows; say that it is somewhere itself, where others then ask once
for each number, its neighbours on the graph as often as they would ask it, and find no one with its
certificate; and number its own entries in the future, so that they never look old and keep their
one place in a view. A peer whose clock is late looks older than it is, and is in fewer views where
members are more than a view has places.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Link, Refused
from archipel.errors import ArchipelError
from archipel.federation.certificates import verify
from archipel.federation.roster import Member, Roster, check_address
from archipel.rng import Keys
from archipel.sampling.views import NOBODY, Sampling, View
from archipel.store.files import write

SAMPLING = Sampling(c=20, healing=10)
_LAST = 1 << 53  # of numbers
_RANDOM = secrets.SystemRandom()
_APART = 10  # cycles after which a peer asks also one that it does not know at present
_ASIDE = 60_000  # numbers that are set aside: a minute

Moved = Callable[[Member, str], None]  # a member is at another address than before


class Entry(NamedTuple):
    """Where a member is, in its own words."""

    party: int
    address: str
    number: int  # when it said so, in milliseconds of its own clock; it grows
    signature: bytes


def statement(study: str, party: int, address: str, number: int) -> bytes:
    """What a peer signs of where it is."""
    said = {"study": study, "party": party, "address": address, "number": number}
    return b"archipel address\n" + json.dumps(said, sort_keys=True).encode()


class Book:
    """What a peer knows of where members are, in a file of the study's folder.

    Addresses are on the disk as soon as they are known. Numbers of one's own are set aside there
    for a minute at a time, so that they grow also after a kill.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.number = 0  # of the own entry; on the disk, one that none has reached
        self.view: list[int] = []
        self.newest: dict[int, Entry] = {}
        if path.exists():
            found = json.loads(path.read_bytes())
            self.number, self.view = int(found["number"]), [int(j) for j in found["view"]]
            for party, address, number, signature in found["newest"]:
                self.newest[party] = Entry(party, address, number, bytes.fromhex(signature))

        self._aside = self.number

    def next(self, now: int) -> int:
        """A number of one's own that is higher than all before."""
        self.number = max(self.number + 1, now)
        if self.number >= self._aside:
            self._aside = self.number + _ASIDE
            self._save()
        return self.number

    def learn(self, entries: Collection[Entry]) -> None:
        """Keep entries that are newer than what is known of their members."""
        before = {j: each.address for j, each in self.newest.items()}
        self.newest |= {each.party: each for each in entries}
        if any(before.get(each.party) != each.address for each in entries):
            self._save()

    def _save(self) -> None:
        newest = [[*each[:3], each.signature.hex()] for each in self.newest.values()]
        found = {"number": self._aside, "view": self.view, "newest": newest}
        write(self._path, json.dumps(found).encode())

    def address(self, member: Member) -> str:
        """Where a member is, as it last said; else where it was when it approved."""
        found = self.newest.get(member.party)
        return member.address if found is None else found.address


class Finding:
    """One peer's part in the exchange of views."""

    def __init__(
        self,
        roster: Roster,
        party: int,
        links: Mapping[int, Link],
        path: Path,
        *,
        address: Callable[[], str],
        sign: Callable[[bytes], bytes],
        every: float,
        out: Callable[[int], bool] = lambda _: False,
        paused: Callable[[], bool] = lambda: False,
        moved: Moved = lambda _, __: None,
        clock: Callable[[], float] = time.time,
        sampling: Sampling = SAMPLING,
    ) -> None:
        """`links` lead to where members are; `out` says who was revoked."""
        self._members = {each.party: each for each in roster.peers if each.party != party}
        self._study, self._party, self._links = roster.study, party, links
        self._address, self._sign, self._out, self._paused = address, sign, out, paused
        self._every, self._moved, self._clock, self._sampling = every, moved, clock, sampling
        self._tried: dict[int, int] = {}  # the number of an entry at which nobody answered
        self._changed: dict[int, float] = {}  # when a member was last found elsewhere
        self._asked: Counter[int] = Counter()
        self._cycles = 0
        self._book = Book(path)

    @property
    def view(self) -> Sequence[int]:
        """The members that this peer knows at present."""
        return tuple(self._book.view)

    def address(self, j: int) -> str:
        """Where member j is, as far as this peer knows."""
        return self._book.address(self._members[j])

    async def run(self, around: Collection[int] = ()) -> None:
        """Exchange views, for ever; those `around` are told at once where this peer is."""
        if not self._paused():
            first = self._in_turn([j for j in around if not self._out(j)], self._sampling.c)
            await asyncio.gather(*(self._ask(j) for j in first))
        while True:
            if not self._paused():
                await self.cycle()
            await asyncio.sleep(self._every)

    async def cycle(self) -> None:
        """Exchange with one of the view, and where that has room with one that it lacks.

        Who knows nobody asks as many as it has places. Now and then one that it lacks is asked also
        where there is no room: views that have fallen apart come together again.
        """
        picked = int(self._sampling.select_peer(self._view(), _key())[0])
        there = {j for j in self._members if not self._out(j)}
        lacking = sorted(there.difference(self._book.view))
        places = self._sampling.c - len(self._book.view)
        self._cycles += 1
        if self._cycles % _APART == 0:
            places = max(places, 1)
        if picked == NOBODY:
            asked = self._in_turn(lacking, places)
        else:
            asked = [picked, *self._in_turn(lacking, min(places, 1))]
        await asyncio.gather(*(self._ask(j) for j in asked))

    def _in_turn(self, members: Sequence[int], count: int) -> list[int]:
        """So many members, those first who were asked least."""
        order = sorted(members, key=lambda j: (self._asked[j], _RANDOM.random()))
        return order[:count]

    async def _ask(self, j: int) -> None:
        """The active thread: send to member j, and keep of what comes back."""
        before, letter = self._book.newest.get(j), self._letter()
        self._asked[j] += 1
        came = None
        with suppress(ArchipelError, TimeoutError):
            async with asyncio.timeout(max(1.0, self._every)):
                came = self._read(await self._links[j].ask(letter))
        if came is not None:
            self._keep(came)
        elif before is not None and self._book.newest[j] == before:
            self._tried[j] = before.number
            self._book.view = [k for k in self._book.view if k != j]

    async def answer(self, letter: Letter) -> Letter:
        """The passive thread: a member sent some of its view, and gets some of this one's."""
        came = self._read(letter)
        answer = self._letter()
        self._keep(came)
        return answer

    # -- views -------------------------------------------------------------------------------------

    def _view(self) -> View:
        """The own view with ages, which follow from the entries' numbers."""
        book, c = self._book, self._sampling.c
        book.view = [j for j in book.view if j in self._members and not self._out(j)]
        return self._aged(book.view, c)

    def _aged(self, parties: Sequence[int], places: int) -> View:
        now = int(1000 * self._clock())
        peer, age = np.full((1, places), NOBODY, dtype=np.int64), np.zeros((1, places), np.int64)
        for k, j in enumerate(parties):
            cycles = (now - self._book.newest[j].number) / (1000 * self._every)
            peer[0, k], age[0, k] = j, max(0, int(cycles))
        return View(peer, age)

    def _letter(self) -> Letter:
        """What is sent: an own entry that is new, and some of the view."""
        me, book = np.array([self._party]), self._book
        view, buffer = self._sampling.select_to_send(self._view(), me, _key())
        book.view = _listed(view)
        entries = [self._own(), *(book.newest[j] for j in _listed(buffer)[1:])]
        fields = {
            "parties": [each.party for each in entries],
            "addresses": [each.address for each in entries],
            "numbers": [each.number for each in entries],
            "signatures": [each.signature for each in entries],
        }
        return Letter("view", {"study": self._study, **fields})

    def _own(self) -> Entry:
        book, address = self._book, self._address()
        number = book.next(int(1000 * self._clock()))
        said = statement(self._study, self._party, address, number)
        return Entry(self._party, address, number, self._sign(said))

    def _keep(self, came: Collection[int]) -> None:
        """Keep c of the view and of the members that came."""
        numbers = ((j, self._book.newest[j].number) for j in came)
        new = [j for j, number in numbers if number > self._tried.get(j, -1) and not self._out(j)]
        me, buffer = np.array([self._party]), self._aged(new, len(new))
        kept = self._sampling.select_to_keep(self._view(), buffer, me, _key())
        self._book.view = _listed(kept)

    def _read(self, letter: Letter) -> list[int]:
        """Check the entries of a letter and learn what is new in them; return who they are about.

        One that its member did not sign spoils the whole letter: who sent it had to look, too.
        """
        if letter.kind != "view" or letter["study"] != self._study:
            raise Refused(f"a {letter.kind} where a view of this study is expected.")
        names = ("parties", "addresses", "numbers", "signatures")
        columns = [letter[name] for name in names]
        most = max(1, self._sampling.c // 2)
        if len({len(column) for column in columns}) > 1 or len(columns[0]) > most:
            raise Refused(f"a view whose lists are not of one length, or longer than {most}.")
        came = [_entry(*each) for each in zip(*columns, strict=True)]
        new = [each for each in came if each.party != self._party]  # of oneself one knows best
        for each in new:
            self._check(each)
        self._learn([each for each in new if self._is_newer(each)])
        return list(dict.fromkeys(each.party for each in new))

    def _check(self, entry: Entry) -> None:
        """Refuse an entry about nobody of the study, or that the member did not sign."""
        member = self._members.get(entry.party)
        if member is None:
            raise Refused(f"a view with party {entry.party}, who is not in this study.")
        said = statement(self._study, *entry[:3])
        if self._is_newer(entry) and not verify(
            bytes.fromhex(member.identity), entry.signature, said
        ):
            raise Refused(f"a view with an address that {member.name} did not sign.")

    def _is_newer(self, entry: Entry) -> bool:
        """Whether an entry is looked at: its member has said nothing later.

        One that moves from cycle to cycle fills the audit log no faster than that.
        """
        known = self._book.newest.get(entry.party)
        if known is None or entry.number <= known.number:
            return known is None
        waited = self._clock() - self._changed.get(entry.party, -_LAST)
        return entry.address == known.address or waited >= self._every

    def _learn(self, entries: Collection[Entry]) -> None:
        before = {each.party: self.address(each.party) for each in entries}
        self._book.learn(sorted(entries, key=lambda each: each.number))
        for j, address in before.items():
            if self.address(j) != address:
                self._changed[j] = self._clock()
                self._moved(self._members[j], self.address(j))


def _entry(party: object, address: object, number: object, signature: object) -> Entry:
    """An entry of the types that it must have."""
    match party, address, number, signature:
        case int(j), str(where), int(k), bytes(signed) if 0 <= k < _LAST:
            with suppress(ArchipelError):
                return Entry(j, check_address(where), k, signed)
    raise Refused("a view with an entry that is none: a party, where it is, a number, a signature.")


def _listed(view: View) -> list[int]:
    return [j for j in view.peer[0].tolist() if j != NOBODY]


def _key() -> Keys:
    return np.array([secrets.randbits(64)], dtype=np.uint64)
