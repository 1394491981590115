# SPDX-License-Identifier: Apache-2.0
"""What the main process and its workers share, by who writes it: sent, returned, kept, mixed.

A store of parties has a row per party, or per place in the cohort, first. Messages that grow with
the cohort have room for the largest one; how much of it is used is beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from archipel.engines.local import arena
from archipel.exchange.anatomy import Growths, Message, sized
from archipel.exchange.uploads import Ask
from archipel.rng import Ints
from archipel.tree import Tree, fill, leaves, tree_map

if TYPE_CHECKING:
    from archipel.engines.local.share import Job


class Letterbox:
    """Room for messages of one form, and how much of it the message in it takes."""

    def __init__(self, form: Tree, growths: Growths, most: int, before: tuple[int, ...]) -> None:
        self._room = sized(form, growths, most)
        self._growths = list(growths) or [None] * len(leaves(form))
        self._before = len(before)
        self.store = tree_map(
            lambda leaf: arena.zeros((*before, *leaf.shape), leaf.dtype), self._room
        )
        self._used = arena.zeros((len(self._growths),), torch.int64)

    def put(self, tensors: Sequence[Tensor], at: Any = slice(None)) -> None:
        """Write a message's tensors, into rows `at` where there is one per party."""
        for i, (store, tensor) in enumerate(zip(leaves(self.store), tensors, strict=True)):
            growth = self._growths[i]
            if growth is None:
                store[at] = tensor
                continue
            axis = self._before + growth.axis
            self._used[i] = tensor.shape[axis]
            store.narrow(axis, 0, tensor.shape[axis])[at] = tensor

    def take(self, at: Any = slice(None)) -> Tree:
        """The message in it, or rows `at` of it."""
        found = []
        for i, store in enumerate(leaves(self.store)):
            growth = self._growths[i]
            if growth is not None:
                store = store.narrow(self._before + growth.axis, 0, int(self._used[i]))
            found.append(store[at])
        return fill(self.store, found)

    def wanted(self, lead: tuple[int, ...]) -> list[list[int | None]]:
        """The shape of each tensor of a message; None where any size up to the room is right."""
        return [
            [
                *lead,
                *(
                    None if g is not None and i == g.axis else side
                    for i, side in enumerate(leaf.shape)
                ),
            ]
            for leaf, g in zip(leaves(self._room), self._growths, strict=True)
        ]


class Sent:
    """What parties get: of the shared state, and in reply to their messages."""

    def __init__(self, job: Job, lead: tuple[int, ...]) -> None:
        anatomy = job.anatomy
        self.shared = tree_map(
            lambda leaf: arena.zeros((*lead, *leaf.shape), leaf.dtype), anatomy.sent
        )
        rows = job.most if job.boxes.asynchronous else 0
        self.older = tree_map(
            lambda leaf: arena.zeros((rows, *lead, *leaf.shape), leaf.dtype), anatomy.sent
        )
        self.replies = [
            Letterbox(m.reply, m.grows[1], job.most, (job.most, *lead) if m.each else lead)
            for m in anatomy.messages
        ]
        self.advice = [
            Letterbox(m.reply, (), 0, (job.together, *lead) if m.each else lead)
            for m in anatomy.personal
        ]

    def put_older(self, row: int, told: Tree) -> None:
        """What parties got of an older version, for those that began from it."""
        tree_map(lambda store, leaf: store[row].copy_(leaf), self.older, told)


class Returned:
    """What workers bring back of their parties' messages: sums, or a row for each party."""

    def __init__(self, job: Job, lead: tuple[int, ...]) -> None:
        def like(tree: Tree) -> Tree:
            return tree_map(lambda leaf: arena.zeros((*lead, *leaf.shape), leaf.dtype), tree)

        messages: Sequence[Message] = job.anatomy.messages
        self.sums: list[dict[Ask, list[Any]]] = [
            {
                ask: [like(m.upload) for _ in range(job.plan.workers)]
                for ask in m.asks & {"mean", "mean by examples"}
            }
            for m in messages
        ]
        self.stacks = [
            Letterbox(
                m.upload, m.grows[0] if m.payload is None else (), job.most, (job.most, *lead)
            )
            if "stack" in m.asks
            else None
            for m in messages
        ]
        self.asked = [
            Letterbox(m.upload, (), 0, (job.together, *lead)) for m in job.anatomy.personal
        ]


class Kept:
    """What parties keep from round to round: a row for each, of those that ever took part."""

    def __init__(self, job: Job, lead: tuple[int, ...]) -> None:
        parties, model = job.data.parties, job.model
        self._first_own = job.own
        self.own = tree_map(
            lambda leaf: arena.zeros((parties, *lead, *leaf.shape), leaf.dtype), job.anatomy.own
        )
        self.visited = arena.zeros((parties,), torch.uint8)
        rows = parties if job.own_statistics else 0
        self.buffers = arena.zeros((rows, *lead, model.buffer_spec.size), model.dtype)

    @property
    def by_party(self) -> Tree:
        """All of it, a row per party."""
        kept = (self.own, self.visited)
        return (*kept, self.buffers) if len(self.buffers) else kept

    def own_of(self, ids: Sequence[int] | Ints) -> Tree:
        """Own states of these parties, a row each; the first one where a party never took part."""
        ids = np.asarray(ids, np.int64)
        fresh = self.visited[ids] == 0

        def rows(store: Tensor, start: Tensor) -> Tensor:
            taken = store[ids]
            taken[fresh] = start
            return taken

        return tree_map(rows, self.own, self._first_own)

    def state(self) -> dict[str, Tensor]:
        """What the parties that took part keep, by name."""
        ids = torch.nonzero(self.visited)[:, 0]
        own = {f"own.{i}": store[ids] for i, store in enumerate(leaves(self.own))}
        buffers = {"buffers": self.buffers[ids]} if len(self.buffers) else {}
        return {"visited": ids, **buffers, **own}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        ids = kept["visited"]
        self.visited.zero_()
        self.visited[ids] = 1
        if len(self.buffers):
            self.buffers[ids] = kept["buffers"]
        for i, store in enumerate(leaves(self.own)):
            store[ids] = kept[f"own.{i}"]


class Memory:
    """All four, and what an evaluation needs."""

    def __init__(self, job: Job, mixed: int) -> None:
        lead = () if job.sweep is None else (job.sweep,)
        model = job.model
        self.sent, self.returned = Sent(job, lead), Returned(job, lead)
        self.kept = Kept(job, lead)
        self.mixed = arena.zeros((2, job.data.parties, *lead, mixed), model.dtype)  # two boards
        self.vector = arena.zeros((model.p,), model.dtype)  # the model to evaluate
        self.used = arena.zeros((model.buffer_spec.size,), model.dtype)  # the buffers with it
        self.outputs = arena.zeros((job.chunk, *job.output.shape), job.output.dtype)
