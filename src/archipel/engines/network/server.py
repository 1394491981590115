# SPDX-License-Identifier: Apache-2.0
"""The algorithm's server in one round, message by message, and whose upload it does not survive.

An algorithm's methods are pure. So the server can be run again on the uploads of the round without
one of them, and the upload without which the result is right is the one to leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel.core import Each, ServerAlgorithm
from archipel.engines.local.settings import Received
from archipel.engines.network.bounds import LARGEST, largest, tame
from archipel.errors import RunFailed
from archipel.exchange.anatomy import Anatomy, Message, same_form
from archipel.exchange.uploads import Ask
from archipel.tree import fill, first, leaves

Running = Generator[Any, Any, Any]


class Upload(NamedTuple):
    """What one party sent."""

    arrays: Sequence[Tensor]
    n: float
    gradients: int


Uploads = Mapping[int, Upload]  # by party


class Spoilt(Exception):
    """These parties' earlier messages spoil the round: it is right without them."""

    def __init__(self, parties: Collection[int]) -> None:
        self.parties = parties


class Steps:
    """The server's side of one round."""

    def __init__(
        self, algorithm: ServerAlgorithm, anatomy: Anatomy, shared: Any, parties: int, t: int
    ) -> None:
        self.algorithm, self.anatomy, self.shared, self.t = algorithm, anatomy, shared, t
        self.parties = parties  # of the study
        self.heard: list[int] = []  # whose first upload counts, in order: a row each of a stack
        self._taken: list[Uploads] = []  # of each message so far
        self._running: Running | None = None

    def take(self, uploads: Uploads) -> tuple[Any, list[int]]:
        """Go on with a message's uploads: what the server says, and whose it leaves out.

        Without those it says something that others can use: finite numbers of a usual size. Where
        no upload is to blame, the error says so. After the first message it may be an earlier
        upload that is to blame, which others have answered already: `Spoilt`.
        """
        before = list(self._taken)
        if not before:
            self.heard = sorted(uploads)
        try:
            return self._next([*before, uploads], self._running), []
        except Exception as found:  # whatever it is, one upload may have caused it
            error = found
        if len(uploads) == 1 < self.parties:  # one party cannot say that the study is over
            return None, list(uploads)
        if out := _blamed(uploads, self._right(before, uploads, everywhere=False)):
            kept = _without(uploads, out)
            if not before:
                self.heard = sorted(kept)
            return self._next([*before, kept], None), out
        if before and (out := _blamed(uploads, self._right(before, uploads, everywhere=True))):
            raise Spoilt(out)
        raise error

    def _right(
        self, before: Sequence[Uploads], uploads: Uploads, everywhere: bool
    ) -> Callable[[Collection[int]], bool]:
        """Whether all is well without some parties, in this message or in the whole round."""

        def right(out: Collection[int]) -> bool:
            other = Steps(self.algorithm, self.anatomy, self.shared, self.parties, self.t)
            earlier = [_without(each, out) for each in before] if everywhere else list(before)
            last = _without(uploads, out)
            other.heard = sorted(earlier[0]) if earlier else sorted(last)
            try:
                other._next([*earlier, last], None)
            except Exception:
                return False
            return True

        return right

    def _next(self, taken: list[Uploads], running: Running | None) -> Any:
        """What the server says after these messages; without one that is running, from the start.

        Refuses what others could not use.
        """
        number = len(taken) - 1
        if running is None:
            for at, uploads in enumerate(taken):
                running, said = self._step(running, at, uploads)
        else:
            running, said = self._step(running, number, taken[number])
        if number == len(self.anatomy.messages) - 1:
            self._check_shared(said, len(taken[number]))
        elif not tame(self._sent(said, taken[number])):
            raise RunFailed(
                f"round {self.t + 1}: reply {number + 1} is not finite, or beyond {LARGEST:g}: "
                "lower lr or server_lr."
            )
        self._taken, self._running = taken, running
        return said

    def _step(
        self, running: Running | None, number: int, uploads: Uploads
    ) -> tuple[Running | None, Any]:
        """Have the algorithm's server go on with the uploads: it, and what it says."""
        received = self._received(number, uploads)
        if running is not None:
            try:
                return running, running.send(received)
            except StopIteration as end:
                return None, end.value
        started = self.algorithm.server(self.shared, received)
        if isinstance(started, Generator):
            return started, next(started)
        return None, started

    def _sent(self, reply: Any, uploads: Uploads) -> list[Tensor]:
        """What the parties that are still there will get."""
        if not isinstance(reply, Each):
            return leaves(reply)
        there = [i for i, k in enumerate(self.heard) if k in uploads]
        return [leaf[i] for leaf in leaves(reply.rows) for i in there if i < len(leaf)]

    def _check_shared(self, shared: Any, uploads: int) -> None:
        same_form(f"{title(self.algorithm)}.server", self.anatomy.shared, shared)
        finite = all(bool(torch.isfinite(leaf).all()) for leaf in leaves(shared))
        if not (finite and tame([*leaves(broadcast(self.algorithm, shared)), first(shared)])):
            raise RunFailed(
                f"round {self.t + 1}: the shared model is no longer finite, or beyond "
                f"{LARGEST:g}, after {uploads} uploads: lower lr or server_lr."
            )

    def _received(self, number: int, uploads: Uploads) -> Received:
        """The uploads as the server asks for them, added up in the order of the parties."""
        message: Message = self.anatomy.messages[number]
        there = [k for k in self.heard if k in uploads]
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
                    uploads[k].arrays[i] if k in uploads else torch.zeros_like(leaf)
                    for k in self.heard
                ])
                for i, leaf in enumerate(leaves(message.upload))
            ]  # fmt: skip
            rows = fill(message.upload, stacks)
        total_n = sum(uploads[k].n for k in there)
        return Received(len(there), self.parties, total_n, sums, rows)


def _without(uploads: Uploads, out: Collection[int]) -> dict[int, Upload]:
    return {k: upload for k, upload in uploads.items() if k not in out}


def _blamed(uploads: Uploads, right: Callable[[Collection[int]], bool]) -> list[int]:
    """The parties without which it is right: one, or the fewest of the largest; none if nobody."""
    sizes = {k: max(map(largest, upload.arrays), default=0.0) for k, upload in uploads.items()}
    order = sorted(uploads, key=lambda k: -sizes[k])
    alone, together = ([k] for k in order), (order[:m] for m in range(2, len(order)))
    for out in chain(alone, together):
        if len(out) == len(order) or not right(out):
            continue
        for k in list(out):  # those who are not to blame come back
            rest = [j for j in out if j != k]
            if rest and right(rest):
                out = rest
        return sorted(out)
    return []
