# SPDX-License-Identifier: Apache-2.0
"""A worker's share of a round: its parties' messages, and outputs for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from archipel.core import PeerAlgorithm, ServerAlgorithm, Vector
from archipel.data.federation import Federation
from archipel.data.rows import ranges
from archipel.engines.local import arena
from archipel.engines.local.personal import Making
from archipel.engines.local.pool import Json, each_block
from archipel.engines.party import LocalParty
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Anatomy, Ask, is_peer
from archipel.models.model import Model, OneByOne, Way
from archipel.rng import Ints
from archipel.tree import first, leaves, tree_map

if TYPE_CHECKING:
    from archipel.graphs import Topology


@dataclass(frozen=True)
class Job:
    """What every worker knows from the start."""

    algorithm: ServerAlgorithm | PeerAlgorithm  # with the fields a party sees
    data: Federation
    model: Model
    way: Way
    plan: Plan
    seed: int
    sweep: int | None  # settings side by side
    anatomy: Anatomy
    own: Any  # a party's first own state (one per setting of a sweep)
    draws: bool
    separable: bool
    topology: Topology | None
    output: Tensor  # the model's output for one point
    chunk: int  # points evaluated between two looks at their outputs
    together: int  # parties that make models of their own at a time
    own_statistics: bool  # whether every party keeps BatchNorm's statistics for itself

    def lead(self, parties: int) -> tuple[int, ...]:
        return (parties,) if self.sweep is None else (self.sweep, parties)

    def stacked(self, rows: Any) -> Any:
        """Rows `[m, ...]` of a store as the algorithm sees them (`[s, m, ...]` in a sweep)."""
        return rows if self.sweep is None else tree_map(lambda leaf: leaf.transpose(0, 1), rows)


class Memory:
    """What the main process and its workers share. Stores have a row per party, first."""

    def __init__(self, job: Job, mixed: int) -> None:
        parties, workers = job.data.parties, job.plan.workers
        lead = () if job.sweep is None else (job.sweep,)

        def like(tree: Any, *before: int) -> Any:
            return tree_map(
                lambda leaf: arena.zeros((*before, *lead, *leaf.shape), leaf.dtype), tree
            )

        anatomy = job.anatomy
        self.shared = like(anatomy.sent)  # what parties get of the shared state
        self.sums: list[dict[Ask, list[Any]]] = [
            {ask: [like(m.upload) for _ in range(workers)] for ask in m.asks if ask != "stack"}
            for m in anatomy.messages
        ]
        self.stacks = [
            like(m.upload, parties) if "stack" in m.asks else None for m in anatomy.messages
        ]
        self.replies = [
            like(m.reply, parties) if m.each else like(m.reply) for m in anatomy.messages
        ]
        self.asked = [like(m.upload, job.together) for m in anatomy.personal]
        self.advice = [
            like(m.reply, job.together) if m.each else like(m.reply) for m in anatomy.personal
        ]
        self._first_own = job.own
        self.own = like(anatomy.own, parties)
        self.visited = arena.zeros((parties,), torch.uint8)
        rows = parties if job.own_statistics else 0
        self.buffers = arena.zeros((rows, *lead, job.model.buffer_spec.size), job.model.dtype)
        self.used = arena.zeros((job.model.buffer_spec.size,), job.model.dtype)  # with `vector`
        self.mixing = arena.zeros((2, parties, *lead, mixed), job.model.dtype)
        self.vector = arena.zeros((job.model.p,), job.model.dtype)  # the model to evaluate
        self.outputs = arena.zeros((job.chunk, *job.output.shape), job.output.dtype)

    @property
    def by_party(self) -> Any:
        """All that is kept of parties from round to round."""
        kept = (self.own, self.visited)
        return (*kept, self.buffers) if len(self.buffers) else kept

    def own_of(self, ids: Sequence[int] | Ints) -> Any:
        """Own states of these parties, a row each; the first one where a party never took part."""
        ids = np.asarray(ids, np.int64)
        fresh = self.visited[ids] == 0

        def rows(store: Tensor, start: Tensor) -> Tensor:
            taken = store[ids]
            taken[fresh] = start
            return taken

        return tree_map(rows, self.own, self._first_own)

    def kept(self) -> dict[str, Tensor]:
        """What the parties that took part keep from round to round."""
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


@dataclass
class Block:
    """Parties that run together, between two messages of a round."""

    ids: Ints
    places: Ints  # their places in the cohort
    me: LocalParty
    steps: Generator[Any, Any, tuple[Any, Any]] | None = None
    alive: Tensor = field(init=False)  # [m] parties that have not diverged

    def __post_init__(self) -> None:
        self.alive = torch.ones(len(self.ids), dtype=torch.bool)


class Share:
    """Runs its parties block by block and adds up what they send."""

    def __init__(self, job: Job, memory: Memory, index: int, call: Callable[[], None]) -> None:
        self._job, self._memory, self._index, self._call = job, memory, index, call
        self.one = job.way if isinstance(job.way, OneByOne) else job.model.one
        self._blocks: list[Block] = []
        self._personal = Making(self, job, memory)
        self._mixes = 0
        self._before: list[tuple[Ints, Any]] | None = None  # what parties kept before the round

    def handle(self, message: Json) -> Json:
        if message["do"] == "outputs":
            return self._predict(message)
        if message["do"] == "own outputs":
            return self._predict_own(message)
        if message["do"] == "personal":
            return self._personal.handle(message)
        if message["do"] == "undo":
            return self._undo()
        self._before = [] if message["undo"] else None
        if is_peer(self._job.algorithm):
            return self._peers(message)
        return self._messages(message)

    # -- rounds with a server --------------------------------------------------------------------

    def _messages(self, message: Json) -> Json:
        """Run the parties up to their upload number `message["number"]`, and add it up."""
        number = int(message["number"])
        if number == 0:
            self._blocks = self.cut(message)
        for sums in self._memory.sums[number].values():
            tree_map(Tensor.zero_, sums[self._index])
        total: Json = {"n": 0.0, "count": 0, "bad": [], "gradients": 0}
        for block in self._blocks:
            before = block.me.gradients
            upload, own = self._advance(block, number)
            self._add(block, number, upload, total)
            if number == len(self._job.anatomy.messages) - 1:
                self._keep(block, own)
            total["gradients"] += block.me.gradients - before
        for block in self._blocks:
            total["bad"] += [int(k) for k in block.ids[~block.alive.numpy()]]
        return total

    def cut(self, message: Json) -> list[Block]:
        ids, effort = np.array(message["ids"], np.int64), np.array(message["effort"])
        places = np.array(message["places"], np.int64)
        cut = each_block(list(range(len(ids))), self._job.plan.block)
        return [
            Block(ids[block], places[block], self._party(ids[block], message["t"], effort[block]))
            for block in cut
        ]

    def _advance(self, block: Block, number: int) -> tuple[Any, Any]:
        """Return the block's next upload, and its own state after the last."""
        algorithm = self._job.algorithm
        assert isinstance(algorithm, ServerAlgorithm)
        if number == 0:
            shared = self._memory.shared
            if self._job.sweep is not None:
                shared = tree_map(lambda leaf: leaf.unsqueeze(1), shared)
            own = self.own(block.ids)
            started = algorithm.party(block.me, shared, own)
            if not isinstance(started, Generator):
                return started
            block.steps, reply = started, None
        else:
            reply = self._memory.replies[number - 1]
            if self._job.anatomy.messages[number - 1].each:
                reply = self._job.stacked(tree_map(lambda leaf: leaf[block.places], reply))
            elif self._job.sweep is not None:
                reply = tree_map(lambda leaf: leaf.unsqueeze(1), reply)
        assert block.steps is not None
        try:
            return block.steps.send(reply), None
        except StopIteration as end:
            upload, own = end.value
            return upload, own

    def _add(self, block: Block, number: int, upload: Any, total: Json) -> None:
        """Add a block's upload to the sums, without the parties whose numbers are not finite."""
        job, form = self._job, self._job.anatomy.messages[number].upload
        lead = job.lead(len(block.ids))
        tensors = [
            leaf.reshape(*lead, -1)
            for leaf in stacked_leaves(f"upload {number + 1}", upload, form, lead)
        ]
        alive = block.alive
        sums = self._weighted(block, number, tensors, alive)
        finite = all(bool(torch.isfinite(part.sum())) for group in sums.values() for part in group)
        if job.sweep is None and (not finite or not sums):
            for tensor in tensors:
                alive = alive & torch.isfinite(tensor.sum(dim=-1))
            sums = self._weighted(block, number, tensors, alive)
            block.alive = alive
        for ask, group in sums.items():
            stored = leaves(self._memory.sums[number][ask][self._index])
            for store, part in zip(stored, group, strict=True):
                store.add_(part.view(store.shape))
        stack = self._memory.stacks[number]
        if stack is not None:
            for store, tensor in zip(leaves(stack), tensors, strict=True):
                rows = tensor if job.sweep is None else tensor.transpose(0, 1)
                store[block.places] = rows.reshape(len(block.ids), *store.shape[1:])
        total["count"] += int(alive.sum())
        total["n"] += float(_first_setting(block.me.n, lead)[alive].sum())

    def _weighted(
        self, block: Block, number: int, tensors: list[Tensor], alive: Tensor
    ) -> dict[Ask, list[Tensor]]:
        """Sums over the block's parties, one per thing the server asks for."""
        whole = bool(alive.all())
        if not whole:
            tensors = [tensor[..., alive, :] for tensor in tensors]
        sums: dict[Ask, list[Tensor]] = {}
        for ask in self._memory.sums[number]:
            n = _first_setting(block.me.n, block.me.lead)
            n = n if ask == "mean by examples" else torch.ones_like(n)
            n = n if whole else n[alive]
            sums[ask] = [n.to(tensor.dtype) @ tensor for tensor in tensors]
        return sums

    # -- rounds without a server -----------------------------------------------------------------

    def _peers(self, message: Json) -> Json:
        """Run the share's parties: at once where they mix, and block by block where none does."""
        ids, effort = np.array(message["ids"], np.int64), np.array(message["effort"])
        self._mixes = 0
        alone = self._job.topology is None
        size = self._job.plan.block if alone else max(1, len(ids))
        total: Json = {"bad": [], "gradients": 0}
        for places in each_block(list(range(len(ids))), size):
            me = self._party(ids[places], message["t"], effort[places])
            if not alone:
                me.mixing = self._mixing(me, np.array(message["present"], np.int64))
            own = self._job.algorithm.party(me, self.own(me.ids))  # type: ignore[call-arg]
            block = Block(me.ids, me.ids, me)
            for leaf in leaves(own) if self._job.sweep is None else []:
                rows = leaf.expand(len(me.ids), *leaf.shape[1:]).flatten(1)
                block.alive &= torch.isfinite(rows.sum(dim=1))
            self._keep(block, own)
            total["bad"] += [int(k) for k in me.ids[~block.alive.numpy()]]
            total["gradients"] += me.gradients
        return total

    def _mixing(self, me: LocalParty, present: Ints) -> Callable[[Vector], Vector]:
        """`me.mix`: put my vectors on the board, wait for the other workers, weigh everybody's."""
        assert self._job.topology is not None
        absent = np.setdiff1d(np.arange(self._job.data.training), present)
        weights = self._job.topology.sparse(me.round, absent)[me.ids][:, present]
        dtype = self._job.model.dtype
        sparse = weights.nnz * 8 < len(me.ids) * len(present)
        if sparse:
            weights = weights.astype(torch.empty(0, dtype=dtype).numpy().dtype)
        else:
            weights = torch.from_numpy(weights.toarray()).to(dtype)

        def mixing(x: Vector) -> Vector:
            board = self._memory.mixing[self._mixes % 2]
            self._mixes += 1
            rows = x.expand(*me.lead, x.shape[-1])
            rows = rows if self._job.sweep is None else rows.transpose(0, 1)
            board[me.ids, ..., : x.shape[-1]] = rows
            self._call()
            others = board[present][..., : x.shape[-1]]
            flat = others.reshape(len(present), -1)
            out = torch.from_numpy(weights @ flat.numpy()) if sparse else weights @ flat
            out = out.view(len(me.ids), *others.shape[1:])
            return out if self._job.sweep is None else out.transpose(0, 1)

        return mixing

    # -- states of the parties ---------------------------------------------------------------------

    def _party(self, ids: Ints, t: int, effort: Any) -> LocalParty:
        job = self._job
        buffers = job.model.buffers.expand(len(ids), -1).clone()
        if job.own_statistics:
            buffers = self._memory.buffers[ids]
            fresh = self._memory.visited[ids] == 0
            buffers[fresh] = job.model.buffers
            buffers = buffers.reshape(-1, buffers.shape[-1])
        return LocalParty(
            job.data,
            job.model,
            job.way,
            ids,
            job.seed,
            t,
            job.lead(len(ids)),
            job.plan.block * (job.sweep or 1),
            effort if (effort < 1).any() else None,
            buffers if job.model.buffer_spec.size else None,
            job.draws,
            job.separable,
        )

    def one_party(self, k: int, t: int, buffers: Tensor | None) -> LocalParty:
        """Party k by itself, its vectors `[p]`."""
        me = self._party(np.array([k]), t, np.ones(1))
        return replace(me, lead=(), buffers=None if buffers is None else buffers[None])

    def own(self, ids: Ints) -> Any:
        return self._job.stacked(self._memory.own_of(ids))

    def _keep(self, block: Block, own: Any) -> None:
        """Store what the parties keep, but for those that diverged."""
        alive = block.alive.numpy()
        ids, lead = block.ids[alive], self._job.lead(len(block.ids))
        kept = stacked_leaves("the own state", own, self._job.anatomy.own, lead)
        memory = self._memory
        if self._before is not None:
            self._before.append((ids, tree_map(lambda store: store[ids], memory.by_party)))
        for store, rows in zip(leaves(memory.own), kept, strict=True):
            rows = rows if self._job.sweep is None else rows.transpose(0, 1)
            store[ids] = rows if alive.all() else rows[alive]
        if self._job.own_statistics and block.me.buffers is not None:
            rows = block.me.buffers.view(len(block.ids), *memory.buffers.shape[1:])
            memory.buffers[ids] = rows[alive]
        memory.visited[ids] = 1

    def _undo(self) -> Json:
        """Put back what the parties kept before the round."""
        for ids, rows in self._before or ():
            for store, before in zip(leaves(self._memory.by_party), leaves(rows), strict=True):
                store[ids] = before
        return {}

    # -- evaluation --------------------------------------------------------------------------------

    def _predict(self, message: Json) -> Json:
        """Write the outputs of one vector for the points of parties first..last-1."""
        memory, job = self._memory, self._job
        starts, stops = bounds(job.data, message["split"])
        parties = slice(message["first"], message["last"])
        rows = torch.from_numpy(ranges(starts[parties], stops[parties]))
        size = max(1, min(512, (8 << 20) // max(1, job.data.x[0].numel() * 4)))
        at, used = message["at"], memory.used.clone()
        for part in rows.split(size):
            x = job.data.x[part]
            memory.outputs[at : at + len(part)] = self.one.outputs(memory.vector, x, used)
            at += len(part)
        return {}

    def _predict_own(self, message: Json) -> Json:
        """The same with each party's own model or, for the one vector, its own statistics."""
        memory, job = self._memory, self._job
        starts, stops = bounds(job.data, message["split"])
        at = message["at"]
        for k in range(message["first"], message["last"]):
            x = job.data.x[starts[k] : stops[k]]
            if len(x) == 0:
                continue
            w = memory.vector
            if message["models"]:
                w = first(memory.own_of([k]))[0]
            memory.outputs[at : at + len(x)] = self.one.outputs(w, x, self.statistics(k, w))
            at += len(x)
        return {}

    def statistics(self, k: int, w: Vector) -> Tensor | None:
        """Statistics of party k that go with the shared vector or, of a peer, with its own."""
        job, memory = self._job, self._memory
        if not job.model.buffer_spec.size:
            return None
        if job.own_statistics:
            has = bool(memory.visited[k])
            me = self._party(np.array([k]), 0, np.ones(1))
            return memory.buffers[k].clone() if has else me.settled(0, w)
        if is_peer(job.algorithm) and len(job.model.running):
            return job.model.buffers_with(memory.own_of([k]).statistics[0])
        return memory.used.clone()


def stacked_leaves(what: str, tree: Any, form: Any, lead: tuple[int, ...]) -> list[Tensor]:
    """A tree's tensors as `[*lead, ...]`, of the form that one party's had before the run."""
    try:
        return [
            leaf.detach().expand((*lead, *one.shape))
            for leaf, one in zip(leaves(tree), leaves(form), strict=True)
        ]
    except (RuntimeError, ValueError):
        got = [list(leaf.shape) for leaf in leaves(tree)]
        wanted = [list(one.shape) for one in leaves(form)]
        raise ArchipelError(
            f"{what} of {lead[-1]} parties has shapes {got}, but one party's had {wanted}: "
            "keep the shape from round to round, and name the last dimension in every reduction."
        ) from None


def _first_setting(n: Tensor, lead: tuple[int, ...]) -> Tensor:
    """`[..., m, 1] -> [m]`: sizes do not depend on a sweep's setting."""
    return n.reshape(-1, lead[-1])[0]


def bounds(data: Federation, split: str) -> tuple[Ints, Ints]:
    """First row and end of each party's training or test points, `[K]` each."""
    if split == "train":
        return data.offsets[:-1].numpy(), data.test_from.numpy()
    return data.test_from.numpy(), data.offsets[1:].numpy()
