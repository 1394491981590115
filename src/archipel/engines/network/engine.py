# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of a study's rounds: what is asked of whom, and what came back.

Parties ask for work; the engine opens a message of a round for some of them, answers those who ask,
takes their uploads, and goes on when all are there, when enough are, or when time is up. It knows
parties by number and trusts its caller as to who asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.aggregation.others import session_of
from archipel.core import Each
from archipel.engines.engine import Cause, Outcome
from archipel.engines.network.bounds import MOST_REFUSED, adds_up, check_counts
from archipel.engines.network.buffered import Buffered
from archipel.engines.network.letters import Letter, Sealed
from archipel.engines.network.opened import Bell, Named, Opened, Patience
from archipel.engines.network.server import Spoilt, Steps, Upload
from archipel.engines.network.transport import Refused
from archipel.errors import BelowQuorum, clean
from archipel.exchange import statistics
from archipel.exchange.anatomy import Anatomy, Message, fits_cohort
from archipel.exchange.boxes import Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.uploads import Ask, Received
from archipel.exchange.varying import arrived, travelling
from archipel.models.model import Model
from archipel.rng import Ints
from archipel.tree import Tree, fill, first, fits, leaves, nbytes, tree_map

_WORDS = 80  # characters of what a party says that it does


class Tried(NamedTuple):
    """What came of asking for a round's uploads."""

    shared: Tree  # None: the round changes nothing
    arrived: list[int]
    missing: dict[int, Cause]
    gradients: int
    left: Mapping[int, Cause] = {}  # of those who arrived, who went before the last message
    given_up: str = ""


class NetworkEngine:
    """Runs the server's side of an algorithm with parties that are elsewhere."""

    def __init__(
        self,
        boxes: Boxes,
        model: Model,
        anatomy: Anatomy,
        parties: int,
        study: str,
        seed: int = 0,
    ) -> None:
        self.boxes, self.model, self.anatomy = boxes, model, anatomy
        self.parties, self.study, self.seed = parties, study, seed
        self.shared = tree_map(Tensor.clone, anatomy.shared)
        self.opened: Opened | None = None
        self.rows: dict[int, float] = {}  # party -> training points that it told, once and for all
        self._barred: set[int] = set()  # who made a round begin anew
        self.away: Mapping[int, Cause] = {}  # who said that it goes, and has not asked since
        self.points: dict[int, int] = {}  # party -> training points, where uploads tell them
        self.clock: Callable[[], float] = time.monotonic
        self.bell, self.ears = Bell(), Bell()  # of who waits for work; of who listens, at work
        self.buffered = Buffered(self) if boxes.asynchronous else None
        self.log: str | None = None  # anchor of the coordinator's audit log, for parties to keep
        self._attempt = 0  # the last one at a round
        self.up = self.down = 0  # bytes of arrays in this round's letters

    # -- what parties ask --------------------------------------------------------------------------

    def work_for(self, party: int, pending: int = -1, last: int = -1) -> Letter | Sealed | None:
        """What is open for a party that asks for work.

        `pending` is the round of its that is not judged, and `last` the last one that it was in,
        where nobody waits for anybody.
        """
        opened = self.opened
        first = opened is not None and opened.number == 0
        if self.buffered is not None and (opened is None or first or party not in opened.waits_for):
            return self.buffered.work_for(party, pending, last)
        if opened is None or party not in opened.waits_for:
            return None
        letter = opened.letters[party]
        assert isinstance(letter, Sealed)
        opened.seen[party], opened.reached[party] = self.clock(), -1  # it may have been restarted
        opened.doing[party] = "asked for work"
        if party not in opened.given:
            opened.given.add(party)
            self.down += letter.content
        return letter

    def note(self, party: int, doing: str, reached: int | None = None) -> None:
        """A party says what it does, and how far it is: it is alive as long as that grows."""
        opened, doing = self.opened, clean(doing[:_WORDS])  # people read it, and it may be anything
        if self.buffered is not None:
            self.buffered.note(party, doing)
        if opened is None or party not in opened.letters:
            return
        opened.doing[party] = doing
        if reached is not None and reached > opened.reached[party]:
            opened.seen[party], opened.reached[party] = self.clock(), reached

    def moved(self, party: int) -> None:
        """Bytes of a large letter pass to or from a party: it is alive, and on a slow line."""
        if self.opened is not None and party in self.opened.letters:
            self.opened.seen[party] = self.clock()
        if self.buffered is not None:
            self.buffered.moved(party)

    def upload(self, party: int, letter: Letter) -> None:
        """Take a party's upload: for the message that is open, and once."""
        if self.buffered is not None and len(self.anatomy.messages) == 1:
            self.buffered.upload(party, letter)
            return
        opened, t = self.opened, letter["round"]
        if opened is None or (opened.round, opened.number) != (t, letter["number"]):
            raise Refused(f"round {t + 1}, message {letter['number'] + 1} is not open.")
        if letter["attempt"] != opened.attempt:
            raise Refused(f"round {t + 1} began anew: ask for work again.")
        if party not in opened.letters:
            raise Refused(f"round {t + 1}: this party was not asked.")
        if letter["answers"] != opened.letters[party].name:
            raise Refused(f"round {t + 1}: the upload answers another letter.")
        if party in opened.uploads or party in opened.lost:
            return
        try:
            found = self.accepted(t, party, letter, opened.most)
        except Refused:
            opened.refused[party] += 1
            if opened.refused[party] >= MOST_REFUSED:
                self.lose(party, Cause("refused", "its uploads are no answer"))
            raise
        if found is None:
            opened.lost[party] = Cause("diverged")
        else:
            opened.uploads[party] = found
        opened.moved.set()

    def accepted(self, t: int, party: int, letter: Letter, most: int) -> Upload | None:
        """What a letter of this form brings, undone by the wire; None where numbers are no numbers.

        The party drew by round t, and `most` began this one.
        """
        message = self.anatomy.messages[letter["number"]]
        whole = replace(letter, arrays=arrived(message.sent, letter.arrays))
        self._check(t, party, whole, message, most)
        arrays = self._undone(t, party, whole, message)
        self.up += nbytes(tuple(letter.arrays))
        weight = self.parties * (letter["n"] if "mean by examples" in message.asks else 1.0)
        if not all(adds_up(leaf, weight) for leaf in arrays):
            return None
        self.rows.setdefault(party, letter["n"])
        if _tells(message):
            self.points[party] = int(letter["n"])
        return Upload(arrays, letter["n"], letter["gradients"])

    def _check(self, t: int, party: int, letter: Letter, message: Message, most: int) -> None:
        """Refuse an upload of another form, and counts that cannot be."""
        if not fits_cohort(message.sent, message.grows[0], letter.arrays, most):
            raise Refused(f"round {t + 1}: the upload has another form than the algorithm's.")
        n, told = letter["n"], self.rows.get(party)
        check_counts(t, n, letter["gradients"], _tells(message))
        if told is not None and n != told:
            raise Refused(
                f"round {t + 1}: n = {n:g}, where this party told {told:g} training points: a "
                "party's table stays the same in a study; leave it and approve it again."
            )

    def _undone(self, t: int, party: int, letter: Letter, message: Message) -> Sequence[Tensor]:
        """What a party's payload stands for; one that stands for nothing is refused."""
        if message.payload is None:
            return letter.arrays
        them = Sender(self.seed, t, letter["number"], np.array([party]), ())
        try:
            payload = fill(message.payload, letter.arrays)
            arrays = leaves(self.boxes.receive(letter["number"], them, payload))
        except Exception:  # whatever it is, these bytes have caused it
            arrays = None
        if arrays is None or not fits(message.upload, arrays):
            raise Refused(f"round {t + 1}: no step of the wire could have sent this upload.")
        return arrays

    def lose(self, party: int, cause: Cause) -> None:
        """Go on without a party."""
        if self.opened is not None and party in self.opened.waits_for:
            self.opened.lost[party] = cause
            self.opened.moved.set()
        if self.buffered is not None:
            self.buffered.lose(party, cause)

    # -- one round ---------------------------------------------------------------------------------

    async def round(
        self, t: int, parties: Sequence[int] | Ints, patience: Patience | None = None
    ) -> Outcome:
        """Run round t with these parties; the shared state changes with the last message."""
        patience = patience or Patience()
        if self.buffered is not None:
            return await self.buffered.round(t, parties, patience)
        self.up = self.down = 0
        asked = sorted(int(k) for k in parties)
        missing = {k: Cause("diverged before") for k in asked if k in self._barred}
        while True:
            there = [k for k in asked if k not in missing]
            try:
                tried = await self._try(t, there, patience, self.clock())
                break
            except Spoilt as spoilt:  # others have answered it: begin anew, and never again for it
                self._barred |= set(spoilt.parties)
                missing |= dict.fromkeys(spoilt.parties, Cause("diverged"))
        missing |= tried.missing
        if tried.shared is not None:
            self.shared = tried.shared
        arrived = np.array(tried.arrived, np.int64)
        spent = (tried.gradients, self.up, self.down)
        return Outcome(arrived, missing, *spent, tried.given_up, tried.left)

    async def _try(self, t: int, asked: list[int], patience: Patience, began: float) -> Tried:
        """Ask for the round's uploads, message by message."""
        attempt = self.attempt()
        steps = self.steps(t, attempt)
        sent = travelling(self.boxes.broadcast(self.shared, t))
        letter = await asyncio.to_thread(Sealed, self.letter(t, 0, attempt, sent, self.log))
        return await self.messages(steps, attempt, dict.fromkeys(asked, letter), patience, began)

    def attempt(self) -> int:
        """The number of another attempt at a round: parties want it to grow."""
        self._attempt = max(self._attempt + 1, time.time_ns())
        return self._attempt

    def steps(self, t: int, attempt: int) -> Steps:
        """The algorithm's server in an attempt at round t."""
        session = session_of(self.study, attempt)
        return Steps(self.boxes, self.anatomy, self.shared, self.parties, t, session)

    async def messages(
        self,
        steps: Steps,
        attempt: int,
        letters: Mapping[int, Sealed | Named],
        patience: Patience,
        began: float,
    ) -> Tried:
        """Have these parties answer the round's messages, of which the first has these letters."""
        t, most, gradients = steps.t, len(letters), 0
        missing, left, counted = dict[int, Cause](), dict[int, Cause](), list[int]()
        for number in range(len(self.anatomy.messages)):
            opened = Opened(t, number, attempt, letters, most)
            try:
                await self._gather(opened, patience, began)
            finally:
                self.opened = None  # who is late now is refused
            in_it = number > self.anatomy.counts_at  # whoever goes now is in the round
            gone, needed = (left, 1) if in_it else (missing, max(1, patience.needed))
            gone |= opened.lost
            uploads = opened.uploads
            gradients += sum(upload.gradients for upload in uploads.values())
            result, out = None, list[int]()
            if len(uploads) >= needed:
                try:
                    result, out = await asyncio.to_thread(steps.take, uploads)
                except BelowQuorum as why:  # too few for what stands between them and the server
                    return Tried(None, [], missing | left, gradients, given_up=str(why))
                gone |= dict.fromkeys(out, Cause("diverged"))
            if len(uploads) - len(out) < needed:
                return Tried(None, [], missing | left, gradients)
            if number == self.anatomy.counts_at:
                counted = sorted(set(uploads) - set(out))
            if number == 0:
                most = len(steps.there)
            if number < len(self.anatomy.messages) - 1:
                letters = await asyncio.to_thread(
                    self._replies, t, number + 1, attempt, result, steps.there
                )
        return Tried(result, counted, missing, gradients, left)

    def letter(
        self, t: int, number: int, attempt: int, arrays: Sequence[Tensor], log: str | None
    ) -> Letter:
        """What parties are asked in a message of round t."""
        fields = {"study": self.study, "round": t, "number": number, "attempt": attempt}
        return Letter("work", {**fields, "log": log}, arrays)

    def _replies(
        self, t: int, number: int, attempt: int, reply: Tree, there: list[int]
    ) -> dict[int, Sealed]:
        """The server's reply, a letter for each party that is still there."""
        if not isinstance(reply, Each):
            sealed = Sealed(self.letter(t, number, attempt, travelling(reply), self.log))
            return dict.fromkeys(there, sealed)
        return {
            k: Sealed(self.letter(t, number, attempt, travelling(row), self.log))
            for i, k in enumerate(there)
            for row in [tree_map(itemgetter(i), reply.rows)]
        }

    async def _gather(self, opened: Opened, patience: Patience, began: float) -> None:
        """Open a message and wait for its uploads.

        Each message has its share of the round's time, and what earlier ones have left of theirs:
        or else one party that takes all of it in the first would leave the others none.
        """
        now = self.clock()
        until = began + patience.limit * (opened.number + 1) / len(self.anatomy.messages)
        opened.seen = dict.fromkeys(opened.letters, now)
        opened.reached = dict.fromkeys(opened.letters, -1)
        opened.doing = dict.fromkeys(opened.letters, "has not asked for work")
        opened.lost = {k: self.away[k] for k in opened.letters if k in self.away}
        self.opened = opened
        self.bell.ring(opened.letters)
        while opened.waits_for:
            opened.moved.clear()
            enough = patience.enough if opened.number == 0 else None
            if enough is not None and len(opened.uploads) >= enough:
                opened.lost |= dict.fromkeys(opened.waits_for, Cause("not needed"))
                break
            now = self.clock()
            if now >= until:
                for k in opened.waits_for:
                    opened.lost[k] = Cause("too slow", opened.doing[k])
                break
            for k in opened.waits_for:
                if now - opened.seen[k] >= patience.silence:
                    opened.lost[k] = Cause("silent", opened.doing[k])
            if not opened.waits_for:
                break
            ends = [opened.seen[k] + patience.silence for k in opened.waits_for]
            ends.append(until)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.01, min(ends) - now)):
                    await opened.moved.wait()

    # -- what has been learnt ----------------------------------------------------------------------

    def vector(self) -> Tensor:
        return first(self.shared)

    def buffers(self) -> Tensor | None:
        """Buffers that go with the shared vector; None where there are none, or at the parties."""
        model, shared = self.model, self.shared
        if not model.buffer_spec.size or statistics.keep_own(self.boxes, model):
            return None
        found = statistics.statistics_of(shared)
        return model.buffers if found is None else model.buffers_with(found)

    def advise(self, number: int, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Answer one party that makes a model of its own."""
        message = self.anatomy.personal[number]
        if not fits(message.upload, arrays):
            raise Refused("the question has another form than the algorithm's.")
        reply = self.boxes.advise(self.shared, self._only(message, arrays))
        if isinstance(reply, Each):
            reply = tree_map(lambda leaf: leaf[0], reply.rows)
        return leaves(tree_map(Tensor.detach, reply))

    def _only(self, message: Message, arrays: Sequence[Tensor]) -> Received:
        """One party's upload, as if it were all."""
        tree = fill(message.upload, arrays)
        sums: dict[Ask, Tree] = dict.fromkeys(message.asks & {"mean", "mean by examples"}, tree)
        rows = tree_map(lambda leaf: leaf[None], tree) if "stack" in message.asks else None
        one = torch.ones(1, dtype=self.model.dtype)
        return Received(torch.zeros(1, dtype=torch.int64), self.parties, sums, 1.0, rows, one)

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on besides its number: a checkpoint."""
        state = {f"shared.{i}": leaf.clone() for i, leaf in enumerate(leaves(self.shared))}
        told = torch.tensor([*self.rows.items()], dtype=torch.float64).reshape(-1, 2)
        flights = {} if self.buffered is None else self.buffered.state()
        return {**state, "rows": told, **flights}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        count = len(leaves(self.shared))
        self.shared = fill(self.shared, [state[f"shared.{i}"].clone() for i in range(count)])
        told = state["rows"].tolist() if "rows" in state else []  # not of an older version
        self.rows = {int(k): n for k, n in told} | self.rows
        if self.buffered is not None:
            self.buffered.restore(state)


def _tells(message: Message) -> bool:
    """Whether parties tell with an upload how many training points they have."""
    return bool(message.asks & {"n", "mean by examples"})
