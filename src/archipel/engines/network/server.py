# SPDX-License-Identifier: Apache-2.0
"""The algorithm's server in one round, message by message, and whose upload it does not survive.

An algorithm's methods are pure. So the server can be run again on the uploads of the round without
one of them, and the upload without which the result is right is the one to leave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel.aggregation.neighbours import Unsafe
from archipel.core import Each
from archipel.engines.network.bounds import LARGEST, largest, tame
from archipel.errors import ArchipelError, BelowQuorum, RunFailed
from archipel.exchange.anatomy import Anatomy, Message, fits_cohort, same_form
from archipel.exchange.boxes import Boxes
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Ask, Received
from archipel.tree import Tree, fill, first, leaves


class Upload(NamedTuple):
    """What one party sent."""

    arrays: Sequence[Tensor]  # without what the wire did to them
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
        self,
        boxes: Boxes,
        anatomy: Anatomy,
        shared: Tree,
        parties: int,
        t: int,
        session: bytes = b"",
    ) -> None:
        """`parties` are those of the study; `session` names it, and this attempt at the round."""
        self.boxes, self.anatomy, self.shared, self.t = boxes, anatomy, shared, t
        self.parties, self.session = parties, session
        self._taken: list[Uploads] = []  # of each message so far
        self._talk: Talk | None = None

    @property
    def there(self) -> list[int]:
        """Whose last upload counts, in order: a row each of a stack, and of what answers it."""
        return sorted(self._taken[-1]) if self._taken else []

    def take(self, uploads: Uploads) -> tuple[Tree, list[int]]:
        """Go on with a message's uploads: what the server says, and whose it leaves out.

        Without those it says something that others can use: finite numbers of a usual size. Where
        no upload is to blame, the error says so. After the first message it may be an earlier
        upload that is to blame, which others have answered already: `Spoilt`. Where too few are
        left for what makes their sum, or these are not safe with it as the study wants it, nobody
        is: `BelowQuorum`, `Unsafe`.
        """
        before = list(self._taken)
        try:
            return self._next([*before, uploads], self._talk), []
        except (BelowQuorum, Unsafe):
            raise
        except Exception as found:  # whatever it is, one upload may have caused it
            error = found
        if len(uploads) == 1 < self.parties:  # one party cannot say that the study is over
            return None, list(uploads)
        if out := _blamed(uploads, self._right(before, uploads, everywhere=False)):
            return self._next([*before, _without(uploads, out)], None), out
        if before and (out := _blamed(uploads, self._right(before, uploads, everywhere=True))):
            raise Spoilt(out)
        raise error

    def _right(
        self, before: Sequence[Uploads], uploads: Uploads, everywhere: bool
    ) -> Callable[[Collection[int]], bool]:
        """Whether all is well without some parties, in this message or in the whole round."""

        def right(out: Collection[int]) -> bool:
            other = Steps(self.boxes, self.anatomy, self.shared, self.parties, self.t, self.session)
            earlier = [_without(each, out) for each in before] if everywhere else list(before)
            try:
                other._next([*earlier, _without(uploads, out)], None)
            except Exception:
                return False
            return True

        return right

    def _next(self, taken: list[Uploads], talk: Talk | None) -> Any:
        """What the server says after these messages; without one that is running, from the start.

        Refuses what others could not use.
        """
        number = len(taken) - 1
        for at in range(number if talk is not None else 0, number + 1):
            received = self._received(at, taken[at])
            if talk is None:
                talk = Talk(self.boxes.server(self.shared, received))
            else:
                talk.send(received)
            last = at == len(self.anatomy.messages) - 1
            if talk.ended != last or (not last and not self._fits(at, talk.said, taken)):
                raise ArchipelError(
                    f"round {self.t + 1}: {self.boxes.name}.server answers otherwise than before "
                    "the first round: give every round the same number of yields, of the same form."
                )
        assert talk is not None
        if talk.ended:
            self._check_shared(talk.said, len(taken[number]))
        elif not tame(_tensors(talk.said)):
            raise RunFailed(
                f"round {self.t + 1}: reply {number + 1} is not finite, or beyond {LARGEST:g}: "
                "lower lr or server_lr."
            )
        self._taken, self._talk = taken, talk
        return talk.said

    def _fits(self, number: int, reply: Tree, taken: list[Uploads]) -> bool:
        """Whether a reply has the form that parties expect: one for all, or a row to each."""
        message, rows = self.anatomy.messages[number], [_tensors(reply)]
        if isinstance(reply, Each):
            if any(len(leaf) != len(taken[number]) for leaf in rows[0]):
                raise ArchipelError(
                    f"Each holds {len(rows[0][0])} rows for {len(taken[number])} uploads: give one "
                    "row each."
                )
            rows = [[leaf[i] for leaf in rows[0]] for i in range(len(taken[number]))]
        most, growths = len(taken[0]), message.grows[1]
        return message.each == isinstance(reply, Each) and all(
            fits_cohort(message.reply, growths, row, most) for row in rows
        )

    def _check_shared(self, shared: Tree, uploads: int) -> None:
        same_form(f"{self.boxes.name}.server", self.anatomy.shared, shared)
        finite = all(bool(torch.isfinite(leaf).all()) for leaf in leaves(shared))
        if not (finite and tame([*leaves(self.boxes.broadcast(shared, self.t)), first(shared)])):
            raise RunFailed(
                f"round {self.t + 1}: the shared model is no longer finite, or beyond "
                f"{LARGEST:g}, after {uploads} uploads: lower lr or server_lr."
            )

    def _received(self, number: int, uploads: Uploads) -> Received:
        """The uploads as the server asks for them, added up in the order of the parties."""
        message: Message = self.anatomy.messages[number]
        there = sorted(uploads)
        columns = list(zip(*(uploads[k].arrays for k in there), strict=True))
        n = torch.tensor([uploads[k].n for k in there], dtype=torch.float64)
        sums: dict[Ask, Tree] = {}
        for ask in message.asks & {"mean", "mean by examples"}:
            weights = (n if ask == "mean by examples" else torch.ones_like(n)).tolist()
            sums[ask] = fill(message.upload, [_sum(column, weights) for column in columns])
        rows = None
        if "stack" in message.asks:
            rows = fill(message.upload, [torch.stack(column) for column in columns])
        counts = n.to(first(self.shared).dtype) if "n" in message.asks else None
        present = torch.tensor(there, dtype=torch.int64)
        return Received(
            present, self.parties, sums, float(n.sum()), rows, counts, len(there), self.session,
            self.t,
        )  # fmt: skip


def _tensors(reply: Tree) -> list[Tensor]:
    return leaves(reply.rows if isinstance(reply, Each) else reply)


def _sum(column: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = torch.zeros_like(column[0])
    for leaf, weight in zip(column, weights, strict=True):
        total.add_(leaf, alpha=weight if leaf.is_floating_point() else int(weight))
    return total


def _without(uploads: Uploads, out: Collection[int]) -> dict[int, Upload]:
    return {k: upload for k, upload in uploads.items() if k not in out}


def _blamed(uploads: Uploads, right: Callable[[Collection[int]], bool]) -> list[int]:
    """The parties without which it is right: one, or the fewest; none if nobody.

    Those of another form than most come first, then those with the largest numbers.
    """
    forms = {k: tuple(leaf.shape for leaf in upload.arrays) for k, upload in uploads.items()}
    most, _ = Counter(forms.values()).most_common(1)[0]
    sizes = {k: max(map(largest, upload.arrays), default=0.0) for k, upload in uploads.items()}
    order = sorted(uploads, key=lambda k: (forms[k] == most, -sizes[k]))
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
