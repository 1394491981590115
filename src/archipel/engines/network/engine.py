# SPDX-License-Identifier: Apache-2.0
"""The coordinator's side of a study's rounds: what is asked of whom, and what came back.

Parties ask for work; the engine opens a message of a round for some of them, answers those who ask,
takes their uploads, and goes on when all are there, when enough are, or when time is up. It knows
parties by number and trusts its caller as to who asks.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.core import Each, ServerAlgorithm
from archipel.engines.local import Outcome, Received
from archipel.engines.network.letters import Letter, Sealed
from archipel.engines.network.transport import Refused
from archipel.errors import ArchipelError, RunFailed, clean
from archipel.exchange import Anatomy, Ask, Message, broadcast, same_form
from archipel.model import Model
from archipel.rng import Ints
from archipel.tree import fill, first, fits, leaves, tree_map

_WORDS = 80  # characters of what a party says that it does


class Bell:
    """Wakes parties that wait for work, and no others: a thousand may be waiting."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def wait(self, party: int, seconds: float) -> None:
        """Return when the bell rings for the party, or after some time."""
        self.ring([party])  # whoever waited in its name is gone
        future = self._waiting[party] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(party) is future:
                del self._waiting[party]

    def ring(self, parties: Iterable[int] | None = None) -> None:
        """Wake these parties; all without any."""
        for party in list(self._waiting if parties is None else parties):
            future = self._waiting.pop(party, None)
            if future is not None and not future.done():
                future.set_result(None)

    def __len__(self) -> int:
        return len(self._waiting)


class Upload(NamedTuple):
    """What one party sent."""

    arrays: Sequence[Tensor]
    n: float
    gradients: int


@dataclass
class Opened:
    """A message of a round that some parties work on."""

    round: int
    number: int
    attempt: int
    letters: Mapping[int, Sealed]  # by party
    uploads: dict[int, Upload] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)  # party -> cause
    seen: dict[int, float] = field(default_factory=dict)  # when it last made progress
    doing: dict[int, str] = field(default_factory=dict)
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # an upload came, or a party went

    @property
    def waits_for(self) -> list[int]:
        return [k for k in self.letters if k not in self.uploads and k not in self.lost]


@dataclass(frozen=True)
class Patience:
    """How long a message is waited for."""

    deadline: float | None = None  # seconds, of all messages of a round together
    silence: float = 60.0  # seconds without progress after which a party counts as lost
    enough: int | None = None  # uploads after which the others are not needed
    needed: int = 1  # uploads without which the round changes nothing


class NetworkEngine:
    """Runs the server's side of an algorithm with parties that are elsewhere."""

    def __init__(
        self, algorithm: ServerAlgorithm, model: Model, anatomy: Anatomy, parties: int, study: str
    ) -> None:
        self.algorithm, self.model, self.anatomy = algorithm, model, anatomy
        self.parties, self.study = parties, study
        self.shared = tree_map(Tensor.clone, anatomy.shared)
        self.opened: Opened | None = None
        self.clock: Callable[[], float] = time.monotonic
        self.bell = Bell()
        self.log: str | None = None  # anchor of the coordinator's audit log, for parties to keep

    # -- what parties ask --------------------------------------------------------------------------

    def work_for(self, party: int) -> Sealed | None:
        """What is open for a party that asks for work."""
        opened = self.opened
        if opened is None or party not in opened.waits_for:
            return None
        self.note(party, "asked for work")
        return opened.letters[party]

    def note(self, party: int, doing: str) -> None:
        """A party says what it does: it is alive if that changes, or if it asks for work."""
        opened = self.opened
        if opened is None or party not in opened.letters:
            return
        doing = clean(doing[:_WORDS])  # people read it, and a party may say anything
        if doing == "asked for work" or opened.doing[party] != doing:
            opened.seen[party] = self.clock()
        opened.doing[party] = doing

    def moved(self, party: int) -> None:
        """Bytes of a large letter pass to or from a party: it is alive, and on a slow line."""
        if self.opened is not None and party in self.opened.letters:
            self.opened.seen[party] = self.clock()

    def upload(self, party: int, letter: Letter) -> None:
        """Take a party's upload: for the message that is open, and once."""
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
        if not fits(self.anatomy.messages[opened.number].upload, letter.arrays):
            raise Refused(f"round {t + 1}: the upload has another form than the algorithm's.")
        if not (0 <= letter["n"] < 1e15 and letter["gradients"] >= 0):
            raise Refused(f"round {t + 1}: n or gradients are no counts.")
        weighs = "mean by examples" in self.anatomy.messages[opened.number].asks
        if weighs and letter["n"] < 1:
            raise Refused(f"round {t + 1}: n = {letter['n']:g} is no number of training points.")
        weight = self.parties * (letter["n"] if weighs else 1.0)
        if not all(_adds_up(leaf, weight) for leaf in letter.arrays):
            opened.lost[party] = "diverged"
        else:
            opened.uploads[party] = Upload(letter.arrays, letter["n"], letter["gradients"])
        opened.moved.set()

    def lose(self, party: int, cause: str) -> None:
        """Go on without a party."""
        if self.opened is not None and party in self.opened.waits_for:
            self.opened.lost[party] = cause
            self.opened.moved.set()

    # -- one round ---------------------------------------------------------------------------------

    async def round(
        self, t: int, parties: Sequence[int] | Ints, patience: Patience | None = None
    ) -> tuple[Outcome, dict[int, str]]:
        """Run round t with these parties; also who is missing, and why.

        The shared state changes only with the last message, all at once.
        """
        patience = patience or Patience()
        attempt, began = secrets.randbelow(1 << 53), self.clock()
        asked = sorted(int(k) for k in parties)
        missing: dict[int, str] = {}
        sent = leaves(broadcast(self.algorithm, self.shared))
        letter = await asyncio.to_thread(Sealed, self._letter(t, 0, attempt, sent))
        letters = dict.fromkeys(asked, letter)
        gradients, number, heard = 0, 0, asked
        result: Any = None
        steps: Generator[Any, Any, Any] | None = None
        try:
            while True:
                last = number == len(self.anatomy.messages) - 1
                opened = Opened(t, number, attempt, letters)
                await self._gather(opened, patience, began)
                self.opened = None  # who is late now is refused
                missing |= opened.lost
                gradients += sum(upload.gradients for upload in opened.uploads.values())
                if number == 0:
                    heard = sorted(opened.uploads)
                if len(opened.uploads) < max(1, patience.needed):
                    none = np.array([], np.int64)
                    return Outcome(none, none, gradients), missing
                steps, result = await asyncio.to_thread(
                    self._step, steps, number, heard, opened.uploads
                )
                if last:
                    break
                number += 1
                letters = await asyncio.to_thread(
                    self._replies, t, number, attempt, result, heard, missing
                )
        finally:
            self.opened = None
        self._check(t, result, len(opened.uploads))
        self.shared = result
        bad = [k for k, cause in missing.items() if cause == "diverged"]
        arrived = np.array(sorted(opened.uploads), np.int64)
        return Outcome(arrived, np.array(sorted(bad), np.int64), gradients), missing

    def _step(
        self,
        steps: Generator[Any, Any, Any] | None,
        number: int,
        heard: list[int],
        uploads: Mapping[int, Upload],
    ) -> tuple[Generator[Any, Any, Any] | None, Any]:
        """Have the algorithm's server go on with the uploads: its steps, and what it says."""
        received = self._received(number, heard, uploads)
        if steps is not None:
            try:
                return steps, steps.send(received)
            except StopIteration as end:
                return None, end.value
        started = self.algorithm.server(self.shared, received)
        if isinstance(started, Generator):
            return started, next(started)
        return None, started

    def _letter(self, t: int, number: int, attempt: int, arrays: Sequence[Tensor]) -> Letter:
        fields = {"study": self.study, "round": t, "number": number, "attempt": attempt}
        return Letter("work", {**fields, "log": self.log}, arrays)

    def _replies(
        self, t: int, number: int, attempt: int, reply: Any, heard: list[int],
        missing: Mapping[int, str],
    ) -> dict[int, Sealed]:  # fmt: skip
        """The server's reply, a letter for each party that is still there."""
        there = [k for k in heard if k not in missing]
        if not isinstance(reply, Each):
            sealed = Sealed(self._letter(t, number, attempt, leaves(reply)))
            return dict.fromkeys(there, sealed)
        rows = leaves(reply.rows)
        if any(len(leaf) != len(heard) for leaf in rows):
            raise ArchipelError(
                f"Each holds {len(rows[0])} rows for {len(heard)} uploads: give one row each."
            )
        return {
            k: Sealed(self._letter(t, number, attempt, [leaf[i] for leaf in rows]))
            for i, k in enumerate(heard)
            if k in there
        }

    async def _gather(self, opened: Opened, patience: Patience, began: float) -> None:
        """Open a message and wait for its uploads."""
        now = self.clock()
        opened.seen = dict.fromkeys(opened.letters, now)
        opened.doing = dict.fromkeys(opened.letters, "has not asked for work")
        self.opened = opened
        self.bell.ring(opened.letters)
        while opened.waits_for:
            opened.moved.clear()
            enough = patience.enough if opened.number == 0 else None
            if enough is not None and len(opened.uploads) >= enough:
                opened.lost |= dict.fromkeys(opened.waits_for, "not needed")
                break
            now = self.clock()
            if patience.deadline is not None and now - began >= patience.deadline:
                for k in opened.waits_for:
                    opened.lost[k] = f"too slow ({opened.doing[k]})"
                break
            for k in opened.waits_for:
                if now - opened.seen[k] >= patience.silence:
                    opened.lost[k] = f"silent ({opened.doing[k]})"
            ends = [opened.seen[k] + patience.silence for k in opened.waits_for]
            if patience.deadline is not None:
                ends.append(began + patience.deadline)
            if not ends or not opened.waits_for:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(opened.moved.wait(), max(0.01, min(ends) - now))

    def _received(self, number: int, heard: list[int], uploads: Mapping[int, Upload]) -> Received:
        """The uploads as the server asks for them, added up in the order of the parties."""
        message: Message = self.anatomy.messages[number]
        there = [k for k in heard if k in uploads]
        sums: dict[Ask, Any] = {}
        for ask in message.asks - {"stack"}:
            weigh = ask == "mean by examples"
            weights = [uploads[k].n if weigh else 1.0 for k in there]
            totals = [torch.zeros_like(leaf) for leaf in leaves(message.upload)]
            for k, weight in zip(there, weights, strict=True):
                for total, leaf in zip(totals, uploads[k].arrays, strict=True):
                    total.add_(leaf, alpha=weight)
            sums[ask] = fill(message.upload, totals)
        rows = None
        if "stack" in message.asks:
            stacks = [
                torch.stack([
                    uploads[k].arrays[i] if k in uploads else torch.zeros_like(leaf) for k in heard
                ])
                for i, leaf in enumerate(leaves(message.upload))
            ]  # fmt: skip
            rows = fill(message.upload, stacks)
        total_n = sum(uploads[k].n for k in there)
        return Received(len(there), self.parties, total_n, sums, rows)

    def _check(self, t: int, shared: Any, uploads: int) -> None:
        same_form(f"{type(self.algorithm).__name__}.server", self.anatomy.shared, shared)
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves(shared)):
            raise RunFailed(
                f"round {t + 1}: the shared model is no longer finite after {uploads} uploads: "
                "lower lr or server_lr."
            )

    # -- what has been learnt ----------------------------------------------------------------------

    def vector(self) -> Tensor:
        return first(self.shared)

    def advise(self, number: int, arrays: Sequence[Tensor]) -> list[Tensor]:
        """Answer one party that makes a model of its own."""
        message = self.anatomy.personal[number]
        if not fits(message.upload, arrays):
            raise Refused("the question has another form than the algorithm's.")
        asked = _only(message, Upload(arrays, 0.0, 0), self.parties)
        reply = self.algorithm.advise(self.shared, asked)  # type: ignore[attr-defined]
        if isinstance(reply, Each):
            reply = tree_map(lambda leaf: leaf[0], reply.rows)
        return leaves(tree_map(Tensor.detach, reply))

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on besides its number: a checkpoint."""
        return {f"shared.{i}": leaf.clone() for i, leaf in enumerate(leaves(self.shared))}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        count = len(leaves(self.shared))
        self.shared = fill(self.shared, [state[f"shared.{i}"].clone() for i in range(count)])


def _adds_up(leaf: Tensor, weight: float) -> bool:
    """Whether the numbers are finite, and sums of so many times as much would be."""
    if not leaf.is_floating_point():
        return True
    most = torch.finfo(leaf.dtype).max / weight
    if float(torch.linalg.vector_norm(leaf)) < 0.99 * most:  # quicker, and none is larger
        return True
    return all(abs(float(end)) < most for end in torch.aminmax(leaf))


def _only(message: Message, upload: Upload, parties: int) -> Received:
    """One party's upload, as if it were all."""
    tree = fill(message.upload, upload.arrays)
    sums: dict[Ask, Any] = dict.fromkeys(message.asks - {"stack"}, tree)
    rows = tree_map(lambda leaf: leaf[None], tree)
    return Received(1, parties, 1.0, sums, rows if "stack" in message.asks else None)
