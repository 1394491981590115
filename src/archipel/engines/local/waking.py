# SPDX-License-Identifier: Apache-2.0
"""Parties that have their turns one by one, in simulation: wake-ups, meetings, walks of tokens.

The turns of a round are drawn before it, and run in blocks of turns that do not touch each other
(`engines/schedule.py`): stacks `[m, p]`, to the same result as one by one. What others hold of a
party is what it last told, so nothing is stored of it: it is read off the party's own state.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.engines import schedule
from archipel.engines.local.others import Asked, Lists, Meeting, Told, lists_of
from archipel.engines.local.stacked import stacked_leaves
from archipel.engines.local.whole import Some, whole_of
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.exchange.neighbours import Neighbours
from archipel.exchange.varying import sizes_of
from archipel.rng import Ints
from archipel.tree import Tree, leaves, nbytes, tree_map

if TYPE_CHECKING:
    from archipel.engines.local.memory import Memory
    from archipel.engines.local.pool import Json
    from archipel.engines.local.share import Job, Share

MOST = 10_000  # parties whose graph is learned: it is kept as a table of all pairs
_EDGE = 8  # bytes of an edge's weight and of a party's degree, with what a party tells
_BLOCK = 32 << 20  # bytes of points and of what others told, that parties of a block have at most


class Turns:
    """Runs a round of turns on this machine."""

    def __init__(self, share: Share, job: Job, memory: Memory) -> None:
        self._share, self._job, self._memory = share, job, memory
        self._n, self.dtype = job.data.training, job.model.dtype
        self.nobody = self._n  # the place of -1, in tables of all parties
        self._lists: tuple[object, Lists] | None = None  # and what they are the lists of
        self._gradients = self._bytes = 0
        self.effort = np.ones(self._n)  # how far each gets that is a straggler
        self.degree = torch.zeros(self._n, 1, dtype=self.dtype)  # while edges change
        self._whole = whole_of(job) if job.boxes.clock == "wakes" else None
        self._turns = np.zeros(self._n, np.int64)  # that each had in the round
        self.own: Tree = None  # of all parties; at the end, zeros in the place of -1
        self.all_told: Tree = None  # by them, where that is a part of their states and no copy

    def run(self, message: Json) -> Json:
        """Give those that are present their turns in round t."""
        t, present = int(message["t"]), np.sort(np.array(message["present"], np.int64))
        self.effort = np.ones(self._n)
        self.effort[message["ids"]] = message["effort"]
        self._turns[:] = 0
        everybody, kept = np.arange(self._n), self._memory.kept
        self.own = tree_map(_with_none, kept.own_of(everybody))
        self.all_told = self._views()
        self._gradients = self._bytes = 0
        clock = self._job.boxes.clock
        if clock == "wakes":
            self._wakes(t, present)
        elif clock == "meetings":
            self._meetings(t, present)
        else:
            self._walks(t, present)
        stored = [leaf[:-1] for leaf in leaves(self.own)]
        bad = [~torch.isfinite(leaf.flatten(1).sum(dim=1)) for leaf in stored if leaf.numel()]
        kept.write(everybody, stored)
        wrong = torch.stack(bad).any(dim=0).numpy() if bad else np.zeros(self._n, bool)
        return {
            "bad": np.flatnonzero(wrong).tolist(),
            "gradients": self._gradients,
            "bytes": self._bytes,
        }

    # -- wake-ups ----------------------------------------------------------------------------------

    def _wakes(self, t: int, present: Ints) -> None:
        boxes, seed = self._job.boxes, self._job.seed
        order = schedule.woken(seed, t, present)
        count = boxes.asks(t)
        if not count:
            lists = self.lists(t)
            said = nbytes(boxes.said(self._job.anatomy.own))
            self._bytes += said * int(lists.count[order].sum())
            blocks = schedule.independent(seed, t, order, lists.near)
            turns, parts = self._cut(blocks, lists.number.shape[1])
            for part in parts:
                ids = order[turns[part]]
                self._turn(t, ids, Told(self, t, ids))
            return
        others = schedule.asked(seed, t, order, present, count)
        told = nbytes(boxes.told(self._job.anatomy.own)) + 2 * _EDGE
        self._bytes += others.size * told
        torch.sum(self._memory.graph, dim=1, keepdim=True, out=self.degree)
        blocks = schedule.disjoint(seed, t, np.concatenate([order[:, None], others], axis=1))
        turns, parts = self._cut(blocks, count)
        ids, others = order[turns], others[turns]
        for part in parts:
            self._turn(t, ids[part], Asked(self, t, ids[part], others[part]))
        self._memory.graph_version += 1

    def _cut(self, blocks: list[Ints], others: int) -> tuple[Ints, list[slice]]:
        """The turns, block by block, and parts of blocks that need no more memory than they may.

        Of others, each has so many.
        """
        numbers = (1 + others) * self._job.model.p
        if self._whole is not None:
            numbers += self._whole.width
        most = max(1, _BLOCK // (numbers * self.dtype.itemsize))
        ends = np.cumsum([0, *map(len, blocks)]).tolist()
        parts = [
            slice(at, min(at + most, end))
            for start, end in pairwise(ends)
            for at in range(start, end, most)
        ]
        return np.concatenate([np.zeros(0, np.int64), *blocks]), parts

    def _turn(self, t: int, ids: Ints, neighbours: Neighbours) -> None:
        """Have these parties their turns at the same time."""
        whole = None if self._whole is None else Some(self._whole, ids)
        me = self._party(t, ids, neighbours, whole)
        given = self.rows(ids)
        self.write(ids, self._job.boxes.party(me, given), given)
        self._after(ids, me)

    def _party(
        self, t: int, ids: Ints, neighbours: Neighbours | None = None, whole: Some | None = None
    ) -> LocalParty:
        parts = (ids, t, self.effort[ids])
        again = self._turns[ids]
        me = self._share.party(*parts, turns=again, neighbours=neighbours, whole=whole)
        self._turns[ids] += 1
        self._share.tell(me)
        return me

    def _after(self, ids: Ints, me: LocalParty) -> None:
        self._gradients += me.gradients
        if self._job.own_statistics and me.buffers is not None:
            self._memory.kept.write(ids, (), me.buffers.view(len(ids), -1))

    # -- meetings ----------------------------------------------------------------------------------

    def _meetings(self, t: int, present: Ints) -> None:
        order = schedule.woken(self._job.seed, t, present)
        number, count = self._candidates(t, present)
        other = schedule.partners(self._job.seed, t, order, number, count)
        pairs = np.stack([order, other], axis=1)[other >= 0]
        for block in schedule.disjoint(self._job.seed, t, pairs):
            ids = pairs[block].T.ravel()
            meeting = Meeting(self, t, ids)
            self._turn(t, ids, meeting)
            self._bytes += meeting.bytes

    def _candidates(self, t: int, present: Ints) -> tuple[Ints, Ints]:
        """Whom each party may meet in round t: `[n, d]`, and how many these are."""
        topology = self._job.topology
        if topology is not None and hasattr(topology, "partners"):
            found: tuple[Ints, Ints] = topology.partners(t, present)
            return found
        number = self.lists(t).number
        here = np.zeros(self._n + 1, bool)
        here[present] = True
        there = here[number] & (number >= 0)
        first = np.argsort(~there, axis=1, kind="stable")
        return np.take_along_axis(number, first, axis=1), there.sum(axis=1)

    # -- walks -------------------------------------------------------------------------------------

    def _walks(self, t: int, present: Ints) -> None:
        """Pass the tokens on, n times in all; one whose holder is away waits."""
        job, memory = self._job, self._memory
        assert job.topology is not None
        absent = np.setdiff1d(np.arange(self._n), present)
        chain = job.topology.sparse(t, absent)
        tokens, at = memory.tokens, memory.holders.numpy()
        here = np.isin(np.arange(self._n), present)
        one = tree_map(lambda leaf: leaf[:1], tokens)
        size = int(sizes_of(one, (1,)).numpy().sum())
        for hop in range(max(1, self._n // len(at))):
            going = np.flatnonzero(here[at])
            for block in schedule.following(at[going]):
                which = going[block]
                ids = at[which]
                me = self._party(t, ids)
                token = tree_map(lambda leaf, which=which: leaf[which], tokens)
                given = self.rows(ids)
                token, own = job.boxes.party(me, token, given)
                tree_map(
                    lambda store, leaf, which=which: store.index_copy_(
                        0, torch.from_numpy(which), leaf.expand(len(which), *store.shape[1:])
                    ),
                    tokens,
                    token,
                )
                self.write(ids, own, given)
                self._after(ids, me)
            keys = rng.keys(rng.key(job.seed, t, "walk", hop), going)
            for token_at, chance in zip(going.tolist(), rng.uniform(keys).tolist(), strict=True):
                k = int(at[token_at])
                part = slice(chain.indptr[k], chain.indptr[k + 1])
                ends = np.cumsum(chain.data[part])
                place = min(int(np.searchsorted(ends, chance * ends[-1], "right")), len(ends) - 1)
                at[token_at] = chain.indices[part][place]
                self._bytes += size * (int(at[token_at]) != k)

    # -- states ------------------------------------------------------------------------------------

    def rows(self, ids: Ints) -> Tree:
        at = torch.from_numpy(ids)
        return tree_map(lambda leaf: leaf.index_select(0, at), self.own)

    def write(self, ids: Ints, own: Tree, given: Tree) -> None:
        """Keep what parties made of the states that they were given, where they are others."""
        if own is given:
            return
        at = torch.from_numpy(ids)
        found = stacked_leaves("the own state", own, self._job.anatomy.own, (len(ids),))
        parts = zip(leaves(self.own), leaves(own), found, leaves(given), strict=True)
        for store, made, leaf, before in parts:
            if made is not before:
                store.index_copy_(0, at, leaf.to(store.dtype))

    def _views(self) -> Tree | None:
        """What everybody tells, where that is a part of their states and no copy."""
        if self._job.boxes.clock != "wakes":
            return None
        mine = {leaf.untyped_storage().data_ptr() for leaf in leaves(self.own)}
        told = self._job.boxes.told(self.own)
        same = all(
            leaf.untyped_storage().data_ptr() in mine and len(leaf) == self._n + 1
            for leaf in leaves(told)
        )
        return told if same else None

    def told(self, places: Tensor) -> Tree:
        """What the parties in these places `[m, d]` tell, `[m, d, ...]`; zeros in an empty one."""
        at = places.reshape(-1)
        told = self.all_told
        if told is None:
            told = self._job.boxes.told(tree_map(lambda leaf: leaf.index_select(0, at), self.own))
            empty = at == self._n
            return tree_map(
                lambda leaf: torch.where(
                    empty.view(-1, *[1] * (leaf.dim() - 1)), torch.zeros_like(leaf), leaf
                ).view(*places.shape, *leaf.shape[1:]),
                told,
            )
        return tree_map(
            lambda leaf: leaf.index_select(0, at).view(*places.shape, *leaf.shape[1:]), told
        )

    # -- the graph ---------------------------------------------------------------------------------

    @property
    def stays(self) -> bool:
        """Whether the graph is the same in every round."""
        return self._job.topology is not None and self._job.topology.period == 1

    def lists(self, t: int) -> Lists:
        """The graph of round t."""
        topology, learned = self._job.topology, self._job.boxes.learns_graph
        name: object = ("learned", self._memory.graph_version)
        if not learned:
            assert topology is not None
            name = "fixed" if topology.period == 1 else t
        if self._lists is None or self._lists[0] != name:
            found = self._memory.graph if learned else topology.affinity(t)  # type: ignore[union-attr]
            self._lists = name, lists_of(found, self.dtype)
        return self._lists[1]

    def edges(self, ids: Ints, number: Ints) -> Tensor:
        """Weights `[m, d, 1]` of the edges from these parties `[m]` to those `[m, d]`."""
        table = self._memory.graph.view(-1).numpy()
        return torch.from_numpy(table[ids[:, None] * self._n + number]).unsqueeze(-1)

    def join(self, ids: Ints, number: Ints, weight: Tensor) -> None:
        """Have these edges `[m, d]`: the parties of a block touch no other's."""
        new, me = weight.detach().to(self.dtype).numpy(), ids[:, None]
        if not (new >= 0).all():
            raise ArchipelError("me.join: an edge has a negative weight, or none: give 0 or more.")
        table, degree = self._memory.graph.view(-1).numpy(), self.degree.view(-1).numpy()
        there = me * self._n + number
        change = new - table[there]
        table[there] = table[number * self._n + me] = new
        degree[number] += change
        degree[ids] += change.sum(axis=1)


def _with_none(rows: Tensor) -> Tensor:
    """The same with zeros at the end."""
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
