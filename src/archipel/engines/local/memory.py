# SPDX-License-Identifier: Apache-2.0
"""What the main process and its workers share, by who writes it: sent, returned, kept, mixed.

A store of parties has a row per party, or per place in the cohort, first. Messages that grow with
the cohort have room for the largest one; how much of it is used is beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from archipel.engines.local import arena
from archipel.engines.local.slots import Form, Slots
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Growths, Message, sized
from archipel.exchange.uploads import Ask
from archipel.rng import Ints
from archipel.tree import Tree, fill, leaves, tree_map

if TYPE_CHECKING:
    from archipel.engines.local.share import Job

LARGE = 32 << 20  # bytes of all that parties may keep: above, it lies in the run's folder


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
    """What parties keep from round to round: a row for each that ever took part.

    Rows are handed out in the order of first need, so that few parties of a large population take
    little memory. They lie in memory that workers share, or in a run's folder (`keep_in`). The main
    process hands them out before the workers write (`reserve`).
    """

    def __init__(self, job: Job, lead: tuple[int, ...]) -> None:
        parties, size = job.data.parties, job.model.buffer_spec.size if job.own_statistics else 0
        self._first_own, self._parties, self._form = job.own, parties, job.anatomy.own
        self._forms: list[Form] = [
            ((*lead, *leaf.shape), leaf.dtype) for leaf in leaves(job.anatomy.own)
        ]
        self._keeps_buffers = size > 0
        if size:
            self._forms.append(((*lead, size), job.model.dtype))
        self.visited = arena.zeros((parties,), torch.uint8)
        self._place = arena.zeros((parties,), torch.int32)  # 1 + the row of each; 0: none
        self._stores = [arena.zeros((parties, *shape), dtype) for shape, dtype in self._forms]
        self._used, self._free = 0, np.zeros(0, np.int64)  # rows
        self._slots: Slots | None = None
        self._changes = arena.zeros((0,), torch.uint8)  # whose row no checkpoint names
        self._touched: list[Ints] = []  # parties, since the last checkpoint
        self._retired: list[Ints] = []  # rows that it still names

    @property
    def large(self) -> bool:
        """Whether all that parties may keep is too much to be written with every checkpoint."""
        row = sum(prod(shape) * torch.empty(0, dtype=d).element_size() for shape, d in self._forms)
        return self._parties * row > LARGE

    def keep_in(self, folder: Path, writes: bool = True) -> None:
        """Keep it in a folder from now on; before a worker is forked, and anything is kept."""
        self._slots = Slots(folder, self._forms, self._parties, writes)
        self._stores = self._slots.stores
        self._changes = arena.zeros((self._parties,), torch.uint8)

    def moved(self, folder: Path) -> None:
        """Its folder was given another name."""
        if self._slots is not None:
            self._slots.folder = folder

    def close(self) -> None:
        if self._slots is not None:
            self._slots.close()

    def release(self) -> None:
        """Have this process hold no more of the files than it uses now."""
        if self._slots is not None:
            self._slots.release()

    # -- rows ------------------------------------------------------------------------------------

    def reserve(self, parties: Sequence[int] | Ints) -> None:
        """Have a row for each of these parties that may be written."""
        if not self._forms:
            return
        ids = np.asarray(parties, np.int64)
        place = self._place.numpy()
        new = ids[place[ids] == 0]
        old = ids[:0]
        if self._slots is not None:
            old = ids[(place[ids] > 0) & (self._changes.numpy()[ids] == 0)]
            self._changes.numpy()[ids] = 1
            self._touched.append(ids)
        if not len(new) and not len(old):
            return
        rows = self._more(len(new) + len(old))
        before, after = place[old].astype(np.int64) - 1, rows[len(new) :]
        for store in self._stores:
            store[rows[: len(new)]] = 0
            store[after] = store[before]
        self._retired.append(before)
        place[new], place[old] = rows[: len(new)] + 1, after + 1

    def _more(self, count: int) -> Ints:
        """So many rows that nothing names."""
        again, self._free = self._free[:count], self._free[count:]
        first = self._used
        self._used += count - len(again)
        if self._slots is not None:
            self._slots.grow(self._used)
        return np.concatenate([again, np.arange(first, self._used)])

    def _rows(self, store: Tensor, ids: Ints) -> Tensor:
        at = self._place[ids].long() - 1
        rows = store[at.clamp(min=0)] if len(store) else store.new_zeros(len(ids), *store.shape[1:])
        rows[at < 0] = 0
        return rows

    def take(self, parties: Sequence[int] | Ints) -> list[Tensor]:
        """All that these parties keep, a row each, as it is; last, whether they took part."""
        ids = np.asarray(parties, np.int64)
        return [*(self._rows(store, ids) for store in self._stores), self.visited[ids]]

    def tree(self, rows: Sequence[Tensor]) -> Tree:
        """What `take` gave, the own states as the algorithm has them first."""
        count = len(leaves(self._form))
        return (fill(self._form, list(rows[:count])), *rows[count:])

    def put(self, parties: Sequence[int] | Ints, rows: Sequence[Tensor]) -> None:
        """Write what `take` gave, here or elsewhere."""
        ids = np.asarray(parties, np.int64)
        self.reserve(ids)
        at = self._place[ids].long() - 1
        for store, found in zip(self._stores, rows, strict=False):
            store[at] = found
        self.visited[ids] = rows[-1]

    def write(self, ids: Ints, own: Sequence[Tensor], buffers: Tensor | None = None) -> None:
        """Write new own states, and statistics, of parties that took part."""
        at = self._place[ids].long() - 1
        for store, found in zip(self._stores, own, strict=False):
            store[at] = found
        if buffers is not None and self._keeps_buffers:
            self._stores[-1][at] = buffers
        self.visited[ids] = 1

    def own_of(self, parties: Sequence[int] | Ints) -> Tree:
        """Own states of these parties, a row each; the first one where a party never took part."""
        ids = np.asarray(parties, np.int64)
        fresh, stores = self.visited[ids] == 0, iter(self._stores)

        def rows(_: Tensor, start: Tensor) -> Tensor:
            taken = self._rows(next(stores), ids)
            taken[fresh] = start
            return taken

        return tree_map(rows, self._form, self._first_own)

    def buffers_of(self, parties: Sequence[int] | Ints) -> Tensor:
        """BatchNorm's statistics that these parties keep, a row each."""
        return self._rows(self._stores[-1], np.asarray(parties, np.int64))

    # -- checkpoints -----------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """What the parties that took part keep, by name; or where it is."""
        if self._slots is not None:
            ids = np.unique(np.concatenate([np.zeros(0, np.int64), *self._touched]))
            ids = ids[self.visited.numpy()[ids] > 0]
            rows = self._place.numpy()[ids].astype(np.int64) - 1
            return {"slots": self._slots.save(ids, rows, self._used, self._everybody)}
        return self.rows_of(np.flatnonzero(self.visited.numpy()))

    def rows_of(self, ids: Ints) -> dict[str, Tensor]:
        """What these parties keep, by name."""
        *found, _ = self.take(ids)
        names = [f"own.{i}" for i in range(len(leaves(self._form)))]
        names += ["buffers"] if self._keeps_buffers else []
        return {"visited": torch.from_numpy(ids), **dict(zip(names, found, strict=True))}

    def _everybody(self) -> tuple[Ints, Ints]:
        """All that took part, and their rows."""
        ids = np.flatnonzero(self.visited.numpy())
        return ids, self._place.numpy()[ids].astype(np.int64) - 1

    def committed(self) -> None:
        """The last state counts from now on, and rows that only the one before names are free."""
        if self._slots is None:
            return
        self._slots.forget()
        for ids in self._touched:
            self._changes.numpy()[ids] = 0
        self._free = np.concatenate([self._free, *self._retired])
        self._touched, self._retired = [], []

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint: with the rows in it, or those that it names."""
        self.visited.zero_()
        self._place.zero_()
        self._used, self._free, self._touched, self._retired = 0, np.zeros(0, np.int64), [], []
        if "slots" in kept:
            if self._slots is None:
                raise ArchipelError(
                    "the checkpoint names rows in the run's folder: resume the run there."
                )
            ids, rows = self._slots.read(kept["slots"], self._parties)
            self.visited[ids] = 1
            self._place[ids] = torch.from_numpy(rows + 1).int()
            self._used = int(rows.max(initial=-1)) + 1
            self._free = np.setdiff1d(np.arange(self._used), rows)
            self._changes.zero_()
            return
        ids = kept["visited"].numpy()
        self.reserve(ids)
        own = [kept[f"own.{i}"] for i in range(len(leaves(self._form)))]
        self.write(ids, own, kept.get("buffers"))


class Memory:
    """All four, and what an evaluation needs."""

    def __init__(self, job: Job, mixed: int) -> None:
        """`mixed` is how many numbers a peer puts on a board, at most."""
        lead = () if job.sweep is None else (job.sweep,)
        model = job.model
        self.sent, self.returned = Sent(job, lead), Returned(job, lead)
        self._keeps: Callable[[], Kept] = lambda: Kept(job, lead)
        self.kept = self._keeps()
        self.mixed = arena.zeros((2, job.data.parties, *lead, mixed), model.dtype)  # two boards
        learns, tokens = job.boxes.learns_graph, job.anatomy.token
        parties = job.data.training if learns else 0
        self.graph = arena.zeros((parties, parties), model.dtype)  # weights of edges, learned
        self.graph_version = 0  # how often they changed
        count = max(1, int(getattr(job.boxes.algorithm, "tokens", 1)))
        self.tokens = tree_map(lambda leaf: leaf.expand(count, *leaf.shape).clone(), tokens)
        self.holders = torch.arange(count) * job.data.training // count  # who has each token
        self.vector = arena.zeros((model.p,), model.dtype)  # the model to evaluate
        self.used = arena.zeros((model.buffer_spec.size,), model.dtype)  # the buffers with it
        self.outputs = arena.zeros((job.chunk, *job.output.shape), job.output.dtype)

    def forget(self) -> None:
        """Keep nothing of any party: a worker elsewhere is given what it needs, round by round."""
        self.kept = self._keeps()
