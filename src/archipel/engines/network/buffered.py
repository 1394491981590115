# SPDX-License-Identifier: Apache-2.0
"""Rounds in which nobody waits for anybody: a site that is slow does not hold the others.

A round is one step of the server, and version t of the shared state is the one that round t opens
with. A party that asks gets the newest version and trains; then it says that it is ready, is told
which round its upload is for, weighs it by how many versions went by, and sends it. With K uploads
the server takes its step. Who is at work on which version is a `Flight`; it ends with the upload,
or is called back where the party falls silent, takes too long or goes.

A party has one flight at a time and is in a buffer once: after an upload it gets the next version,
not the same one again. Where a protocol makes the sum, the first K that are ready are its parties,
and their messages are those of any round.

A checkpoint names the flights and not the older versions. A coordinator that was killed takes the
uploads of those it has named, and who has lost its work meanwhile begins anew, with the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from archipel import rng
from archipel.engines.engine import Cause, Outcome
from archipel.engines.network.bounds import MOST_REFUSED
from archipel.engines.network.flights import Arrived, Flight, read, written
from archipel.engines.network.letters import Letter, Sealed
from archipel.engines.network.opened import Named, Patience
from archipel.engines.network.server import Spoilt
from archipel.engines.network.transport import Refused
from archipel.exchange.varying import travelling
from archipel.rng import Ints

if TYPE_CHECKING:
    from archipel.engines.network.engine import NetworkEngine, Tried


class Buffered:
    """The server's side of asynchronous rounds; the engine hands over what parties say."""

    def __init__(self, engine: NetworkEngine) -> None:
        self._engine, self._size = engine, 1  # K
        self.flights: dict[int, Flight] = {}
        self.uploads: dict[int, Arrived] = {}  # in the order in which they came
        self.here: Callable[[int], bool] = lambda _: True
        self._summing: dict[int, Flight] = {}  # whose uploads a protocol adds up now
        self._taken: dict[int, int] = {}  # party -> version, of the last step
        self._lost: dict[int, Cause] = {}
        self._last: dict[int, int] = {}  # party -> round that it says it was in, the last one
        self._barred: set[int] = set()  # who is in this round no more: what it sent was no upload
        self._letter: Sealed | None = None  # the newest version, while a round is open
        self._round = -1
        self._among: Sequence[int] = ()
        self._at_once = 0
        self._moved = asyncio.Event()

    @property
    def _summed(self) -> bool:
        return len(self._engine.anatomy.messages) > 1

    # -- what parties say --------------------------------------------------------------------------

    def work_for(self, party: int, pending: int, last: int) -> Letter | Sealed | None:
        """What a party is to do that asks, having nothing to do; its verdict is not due yet."""
        self._last[party] = max(last, self._last.get(party, -1))
        if party in self._summing:
            self._lose_member(party)
        flight = self.flights.get(party)
        if pending >= 0:  # what it made is here, or was lost with the process before this one
            there = flight is not None and flight.version == pending
            return self._word("again", pending) if there else None
        if flight is None:
            self._moved.set()  # somebody is there who may get work
            return None
        if self._letter is None or self._last[party] >= self._round:
            return None
        if flight.version != self._round or flight.joined is not None:  # its process ended
            flight = self.flights[party] = self._flight()
        flight.seen, flight.doing = self._engine.clock(), "asked for work"
        flight.ready = None
        if not flight.given:
            flight.given = True
            self._engine.down += self._letter.content
        return self._letter

    def ready(self, party: int, letter: Letter) -> Letter | None:
        """A party has trained: which round its upload is for; None where it has to wait."""
        version = letter["round"]
        if (member := self._summing.get(party)) is not None and member.version == version:
            assert member.joined is not None
            return self._admitted(member)
        if self._round < 0:
            return None  # the study is about to go on
        flight = self._flying(party, version)
        if letter["answers"] != flight.name:
            raise Refused(f"version {version}: the party was given other numbers.")
        flight.given, flight.seen, flight.doing = True, self._engine.clock(), "has trained"
        flight.ready = flight.seen if flight.ready is None else flight.ready
        if self._letter is None:
            return None
        if self._summed:
            self._moved.set()
            return None
        if flight.joined is None:
            flight.joined = self._round
        return self._admitted(flight)

    def _admitted(self, flight: Flight) -> Letter:
        fields = {"round": flight.version, "joined": flight.joined, "attempt": flight.attempt}
        return self._word("admitted", **fields, log=self._engine.log)

    def upload(self, party: int, letter: Letter) -> None:
        """Take an upload of the version that its party was given, once."""
        version, joined = letter.fields.get("version"), letter["round"]
        if version is None or letter["number"] != 0:
            raise Refused("an upload of this study says of which version it is.")
        before = self.uploads.get(party)
        if version in (self._taken.get(party), None if before is None else before.version):
            return  # it is here: the answer to it was lost
        flight = self._flying(party, version)
        if letter["answers"] != flight.name:
            raise Refused(f"version {version}: the upload answers another letter.")
        told = flight.joined
        if joined != told and not (told is None and version <= joined <= self._round):
            raise Refused(
                f"version {version}: the upload is weighed for round {joined + 1}, and this party "
                f"was told {'none' if told is None else told + 1}."
            )
        try:
            found = self._engine.accepted(version, party, letter, 1)
        except Refused:
            flight.refused += 1
            if flight.refused >= MOST_REFUSED:
                self._bar(party, Cause("refused", "its uploads are no answer"))
            raise
        if found is None:
            self._bar(party, Cause("diverged"))
            return
        del self.flights[party]
        self.uploads[party] = Arrived(version, flight.name, joined, found)
        self._moved.set()

    def note(self, party: int, doing: str) -> None:
        """A party says what it does: as nobody waits for it, it is believed until time is up."""
        flight = self.flights.get(party)
        if flight is not None and flight.given:
            flight.doing, flight.seen = doing, self._engine.clock()

    def moved(self, party: int) -> None:
        """Bytes of a large letter pass to or from a party."""
        if party in self.flights:
            self.flights[party].seen = self._engine.clock()

    def lose(self, party: int, cause: Cause) -> None:
        """Call a party's work back."""
        if self.flights.pop(party, None) is not None:
            self._lost[party] = cause
            self._moved.set()

    def _bar(self, party: int, cause: Cause) -> None:
        """Call a party's work back that would only come again as it was."""
        self._barred.add(party)
        self.lose(party, cause)

    def holds(self, party: int, version: int) -> bool:
        """Whether a party's work on a version is not judged yet: under way, here, or in a sum."""
        if self._round < 0 or self._taken.get(party) == version:
            return True
        member = self._summing.get(party)
        if self._summed:  # a sum that ended with the process before this one is not gone on with
            if member is None:
                self.flights.pop(party, None)
            return member is not None and member.version == version
        found = [self.flights.get(party), self.uploads.get(party)]
        if any(each is not None and each.version == version for each in found):
            return True
        return self._adopted(party, version)

    @property
    def doing(self) -> dict[int, str]:
        """What the parties do that are at work, and since which version."""
        found = {**self.flights, **self._summing}
        return {
            k: f"{flight.doing} (version {flight.version})" if flight.given else flight.doing
            for k, flight in found.items()
        }

    def _flying(self, party: int, version: int) -> Flight:
        flight = self.flights.get(party)
        if flight is None or flight.version != version:
            if not self._adopted(party, version):
                raise Refused(
                    f"version {version}: is not waited for from this party, or no longer: ask for "
                    "work."
                )
            flight = self.flights[party]
        return flight

    def _adopted(self, party: int, version: int) -> bool:
        """Take in a party that has the newest version from before a restart: it may have it."""
        if self._letter is None or version != self._round or party not in self._free():
            return False
        if len(self.flights) >= self._at_once:
            return False
        self.flights[party] = self._flight()
        self.flights[party].given = True
        return True

    def _lose_member(self, party: int) -> None:
        """A party that asks for work while its sum is made has lost what it made."""
        opened = self._engine.opened
        if opened is not None and opened.number == 0:
            self._engine.lose(party, Cause("dropped out", "began anew"))

    def _word(self, kind: str, version: int | None = None, **fields: object) -> Letter:
        named = {} if version is None else {"round": version}
        return Letter(kind, {"study": self._engine.study, **named, **fields})

    # -- a round -----------------------------------------------------------------------------------

    async def round(self, t: int, parties: Iterable[int], patience: Patience) -> Outcome:
        """Wait for K uploads, of whichever versions, and take the server's step.

        Where so many cannot come, for as long as a party may be silent, those that are there count
        if they are as many as needed. `parties` may get work, so many at once as `patience` says.
        """
        await self._open(t, sorted(int(k) for k in parties), patience)
        short: float | None = None  # since when too few are there
        try:
            while True:
                self._moved.clear()
                self._call_back(patience)
                self._invite()
                now, there = self._engine.clock(), len(self._whole())
                few = there + len(self.flights) < self._size
                short = (now if short is None else short) if few else None
                over = short is not None and now - short >= patience.silence
                if there >= self._size or (over and there >= max(1, patience.needed)):
                    found = await self._step(t, patience)
                    if found is not None:
                        return found
                    continue
                if over:
                    return self._outcome([], 0, self._why_few(t))
                ends = [flight.since + patience.limit for flight in self.flights.values()]
                ends += [flight.seen + patience.silence for flight in self.flights.values()]
                ends += [] if short is None else [short + patience.silence]
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.01, min(ends, default=now + 60.0) - now)):
                        await self._moved.wait()
        finally:
            self._letter = None

    async def _open(self, t: int, parties: list[int], patience: Patience) -> None:
        engine = self._engine
        sent = travelling(engine.boxes.broadcast(engine.shared, t))
        letter = await asyncio.to_thread(Sealed, engine.letter(t, 0, 0, sent, None))
        self._barred = self._barred if t == self._round else set()  # or it is tried again
        self._letter, self._round, self._taken = letter, t, {}
        self._among = parties
        self._size = len(parties) if patience.buffer is None else patience.buffer
        self._at_once = len(parties) if patience.at_once is None else patience.at_once
        for flight in self.flights.values():
            if not flight.given:
                flight.version, flight.name = t, letter.name
        for k in [k for k in self.flights if k not in parties]:  # who left is not waited for
            self.lose(k, engine.away.get(k, Cause("left")))
        engine.bell.ring(k for k, flight in self.flights.items() if flight.ready is not None)

    def _whole(self) -> list[int]:
        """Whose upload is there; where a protocol makes the sum, who is ready for it."""
        if not self._summed:
            return list(self.uploads)
        waits = {k: f.ready for k, f in self.flights.items() if f.ready is not None}
        return sorted(waits, key=lambda k: waits[k])

    def _free(self) -> list[int]:
        """Who is there and not at work, nor in the buffer, nor barred from this round."""
        busy = self.flights.keys() | self.uploads.keys() | self._summing.keys() | self._barred
        return [k for k in self._among if k not in busy and self.here(k)]

    def _invite(self) -> None:
        """Give work to parties that have none, drawn where not all may have some."""
        idle = [k for k in self._free() if self._last.get(k, -1) < self._round]
        free = max(0, self._at_once - len(self.flights))
        if free < len(idle):
            base = rng.key(self._engine.seed, self._round, f"next of {len(self.flights)}")
            draws = rng.uniform(rng.keys(base, np.array(idle)))
            idle = [idle[i] for i in np.argsort(draws)[:free].tolist()]
        for k in idle:
            self.flights[k] = self._flight()
        self._engine.bell.ring(idle)

    def _flight(self) -> Flight:
        assert self._letter is not None
        now = self._engine.clock()
        return Flight(self._round, self._letter.name, now, now)

    def _call_back(self, patience: Patience) -> None:
        """Go on without those that say nothing, that take too long, and that said they go."""
        now = self._engine.clock()
        for k, flight in list(self.flights.items()):
            if (cause := self._engine.away.get(k)) is not None:
                self.lose(k, cause)
            elif now - flight.since >= patience.limit:
                self.lose(k, Cause("too slow", flight.doing))
            elif now - flight.seen >= patience.silence:
                self.lose(k, Cause("silent", flight.doing))

    async def _step(self, t: int, patience: Patience) -> Outcome | None:
        """The server's step with the first K; None where too few of them can be used."""
        chosen = self._whole()[: self._size]
        if self._summed:
            return await self._sum(t, chosen, patience)
        engine, found = self._engine, {k: self.uploads[k] for k in chosen}
        uploads = {k: each.upload for k, each in found.items()}
        shared, out = await asyncio.to_thread(engine.steps(t, 0).take, uploads)
        for k in out:
            del self.uploads[k]
            self._barred.add(k)
            self._lost[k] = Cause("diverged")
        if len(found) - len(out) < max(1, patience.needed):
            return None
        counted = {k: each for k, each in found.items() if k not in out}
        for k in counted:
            del self.uploads[k]
        engine.shared = shared
        self._taken = {k: each.version for k, each in counted.items()}
        stale = {k: each.joined - each.version for k, each in counted.items()}
        gradients = sum(upload.gradients for upload in uploads.values())
        return self._outcome(sorted(counted), gradients, stale=stale)

    async def _sum(self, t: int, chosen: list[int], patience: Patience) -> Outcome:
        """The same where a protocol adds uploads up: its messages, with these parties."""
        engine = self._engine
        attempt, members = engine.attempt(), {k: self.flights.pop(k) for k in chosen}
        for flight in members.values():
            flight.joined, flight.attempt = t, attempt
        self._summing = members
        self._barred |= {*chosen}  # who begins a sum is in no other of the round
        engine.bell.ring(chosen)
        letters = {k: Named(flight.name) for k, flight in members.items()}
        tried: Tried | None = None
        try:
            tried = await engine.messages(
                engine.steps(t, attempt), attempt, letters, patience, engine.clock()
            )
        except Spoilt as spoilt:
            self._lost |= dict.fromkeys(spoilt.parties, Cause("diverged"))
        finally:
            self._summing = {}
        if tried is None or tried.shared is None:
            self._lost |= {} if tried is None else tried.missing
            why = "" if tried is None else tried.given_up
            return self._outcome([], 0, why or f"the sum of {len(chosen)} uploads was given up")
        self._lost |= tried.missing
        engine.shared = tried.shared
        self._taken = {k: members[k].version for k in tried.arrived}
        stale = {k: t - members[k].version for k in tried.arrived}
        found = self._outcome(tried.arrived, tried.gradients, stale=stale)
        return found._replace(left=tried.left)

    def _outcome(
        self,
        arrived: Sequence[int],
        gradients: int,
        why: str = "",
        stale: Mapping[int, int] | None = None,
    ) -> Outcome:
        engine = self._engine
        missing = {k: cause for k, cause in self._lost.items() if k not in arrived}
        up, down = engine.up, engine.down
        engine.up = engine.down = 0  # what comes before the next round opens is that one's
        self._lost = {}
        found: Ints = np.array(sorted(arrived), np.int64)
        late = {k: steps for k, steps in (stale or {}).items() if steps}
        return Outcome(found, missing, gradients, up, down, why, stale=late)

    def _why_few(self, t: int) -> str:
        """Why a sum has no more parties: who began one of this round is in no other of it."""
        if not self._summed:
            return ""
        been = sum(k in self._barred or self._last.get(k, -1) >= t for k in self._among)
        return f"{been} parties began another sum of it" if been else ""

    def state(self) -> dict[str, Tensor]:
        """Who is at work on which version, and whose upload waits: those are asked for it again."""
        return written({**dict(list(self.flights.items())), **dict(list(self.uploads.items()))})

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.flights = read(state, self._engine.clock())
