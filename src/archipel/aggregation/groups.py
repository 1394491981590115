# SPDX-License-Identifier: Apache-2.0
"""Groups of a round's parties, each with a sum of its own, so that a rule can look at these.

Who shares a group follows from the session, which names the server's attempt at the round, and
from who takes part: both ends find it by themselves, and no party knows it before it is asked, nor
can it choose where it comes. Sizes differ by one at most. A party is in one group of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from archipel.aggregation.keys import Session
from archipel.core import Each
from archipel.exchange.talk import Talk
from archipel.tree import Tree, fill, leaves, tree_map


def drawn(ids: Sequence[int], groups: int, session: Session) -> list[list[int]]:
    """Put parties into groups; with fewer parties than groups there is one of each.

    >>> [len(group) for group in drawn(range(11), 4, Session(b"study", 0, 0))]
    [3, 3, 3, 2]
    """
    order = sorted(ids, key=lambda k: session.named("group", b"%d" % k))
    return [sorted(order[at::groups]) for at in range(min(groups, len(order)))]


def own_group(
    mine: int, told: tuple[Tensor, Tensor], groups: int, session: Session
) -> tuple[Tensor, Tensor]:
    """Of all who take part, with a row of each, those of one party's group."""
    ids = told[0].tolist()
    own = next(({*group} for group in drawn(ids, groups, session) if mine in group), set())
    at = torch.tensor([i for i, k in enumerate(ids) if k in own], dtype=torch.int64)
    return told[0][at], told[1][at]


def padded(rows: Tensor, size: int, nothing: int = 0) -> Tensor:
    """`[k, ...] -> [size, ...]`: messages are as long in every group."""
    return torch.cat([rows, rows.new_full((size - len(rows), *rows.shape[1:]), nothing)])


class Part:
    """Uploads of a group's parties alone."""

    def __init__(self, uploads: Any, group: Sequence[int]) -> None:
        self._uploads, inside = uploads, {*group}
        self._at = torch.tensor(
            [i for i, k in enumerate(uploads.present.tolist()) if k in inside], dtype=torch.int64
        )
        self.present: Tensor = uploads.present[self._at]
        self.session, self.round = uploads.session, uploads.round

    def stack(self) -> Tree:
        return tree_map(lambda leaf: leaf[self._at], self._uploads.stack())

    def total(self) -> Tensor:
        """The sum of integers, modulo their own 2^b."""
        rows: Tensor = self.stack()
        return rows.sum(dim=0, dtype=rows.dtype)


def together(
    box: Callable[[Part], Generator[Any, Any, Any]], uploads: Any, groups: Sequence[Sequence[int]]
) -> Generator[Any, Any, list[Any]]:
    """Run a server's box in every group, message by message; what came of each."""
    room = len(uploads.present)
    talks = [Talk(box(Part(uploads, group))) for group in groups]
    while not talks[0].ended:
        there = [Part(uploads, group).present for group in groups]
        uploads = yield _joined([talk.said for talk in talks], there, uploads.present, room)
        for talk, group in zip(talks, groups, strict=True):
            talk.send(Part(uploads, group))
    return [talk.said for talk in talks]


def _joined(replies: Sequence[Any], there: Sequence[Tensor], present: Tensor, room: int) -> Any:
    """Replies of all groups as one: to everybody, or a row to each, as long as there is room."""
    if not isinstance(replies[0], Each):
        return tree_map(lambda *parts: torch.cat(parts), *replies)
    place = {k: i for i, k in enumerate(present.tolist())}
    at = [torch.tensor([place[k] for k in ids.tolist()]) for ids in there]
    made = list[Tensor]()
    for columns in zip(*(leaves(reply.rows) for reply in replies), strict=True):
        nobody = -1 if columns[0].dtype == torch.int64 else 0  # below 0 is no party
        out = columns[0].new_full((len(present), room, *columns[0].shape[2:]), nobody)
        for rows, places in zip(columns, at, strict=True):
            out[places, : rows.shape[1]] = rows
        made.append(out)
    return Each(fill(replies[0].rows, made))
