# SPDX-License-Identifier: Apache-2.0
"""A worker's share of a round: its parties' messages, and outputs for evaluation.

One file, since a block's parties, their uploads and their states are the same rows from message to
message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from archipel.aggregation.mixing import MixingRule, mixed
from archipel.aggregation.others import Simulated
from archipel.core import Vector
from archipel.data.federation import Federation, Held
from archipel.data.rows import ranges
from archipel.engines.attacked import Attacked
from archipel.engines.local.memory import Memory
from archipel.engines.local.personal import Making
from archipel.engines.local.pool import Call, Json, each_block
from archipel.engines.local.stacked import stacked_leaves
from archipel.engines.local.waking import Turns
from archipel.engines.party import AllPoints, LocalParty
from archipel.engines.plan import Plan
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.boxes import Boxes
from archipel.exchange.neighbours import Neighbours
from archipel.exchange.statistics import statistics_of
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Ask
from archipel.exchange.varying import sizes_of
from archipel.graphs.weights import product
from archipel.models.clipped import Clipping
from archipel.models.model import Model, OneByOne, Way
from archipel.privacy.correlated import begun_anew, kept_on
from archipel.rng import Ints
from archipel.tree import Tree, fill, first, leaves, tree_map

if TYPE_CHECKING:
    from archipel.graphs import Topology
    from archipel.wire.wired import Coded


_ROWS = 1 << 16  # points that are made at a time, where they are made when they are asked for


@dataclass(frozen=True)
class Job:
    """What every worker knows from the start."""

    boxes: Boxes  # the algorithm with the fields a party sees, and what is around it
    data: Federation
    model: Model
    way: Way
    plan: Plan
    seed: int
    sweep: int | None  # settings side by side
    anatomy: Anatomy
    own: Tree  # a party's first own state (one per setting of a sweep)
    draws: bool
    separable: bool
    topology: Topology | None
    output: Tensor  # the model's output for one point
    chunk: int  # points evaluated between two looks at their outputs
    together: int  # parties that make models of their own at a time
    own_statistics: bool  # whether every party keeps BatchNorm's statistics for itself
    most: int  # parties of a round, at most
    clipping: Clipping | None  # of gradients of single points, where they are private
    rows: Mapping[int, int]  # of correlated noise, which a party uses in a round; empty: none
    attacked: Attacked  # by parties that run in blocks of their own
    edges: int  # of a party, at most, in a graph that stays
    rule: MixingRule | None = None  # of peers, in place of W's mean

    def lead(self, parties: int) -> tuple[int, ...]:
        return (parties,) if self.sweep is None else (self.sweep, parties)

    def stacked(self, rows: Tree) -> Tree:
        """Rows `[m, ...]` of a store as the algorithm sees them (`[s, m, ...]` in a sweep)."""
        return rows if self.sweep is None else tree_map(lambda leaf: leaf.transpose(0, 1), rows)


@dataclass
class Block:
    """Parties that run together, between two messages of a round."""

    ids: Ints
    places: Ints  # their places in the cohort
    me: LocalParty
    answers: Ints | None = None  # messages that each answers before it is lost; None: all
    talk: Talk | None = None
    older: int | None = None  # row of the shared state that they began from; None: the round's
    alive: Tensor = field(init=False)  # [m] parties that are still there, with finite numbers
    diverged: Tensor = field(init=False)  # [m] those whose numbers were not

    def __post_init__(self) -> None:
        self.alive = torch.ones(len(self.ids), dtype=torch.bool)
        self.diverged = ~self.alive

    def lose(self, number: int) -> None:
        """Go on without those that are lost before message `number`."""
        if self.answers is not None:
            self.alive &= torch.from_numpy(self.answers > number)


class Share:
    """Runs its parties block by block and adds up what they send."""

    def __init__(self, job: Job, memory: Memory, index: int, call: Call) -> None:
        self._job, self._memory, self._index, self._call = job, memory, index, call
        self._runs: LocalParty | None = None
        self.one = job.way if isinstance(job.way, OneByOne) else job.model.one
        self._blocks: list[Block] = []
        self._personal, self._turns = Making(self, job, memory), Turns(self, job, memory)
        self._mixes = 0
        self._sizes = np.zeros((0, 2), np.int64)  # bytes of each party, to a neighbour: see _mixing
        self._before: list[tuple[Ints, Tree]] | None = None  # what parties kept before the round

    def handle(self, message: Json) -> Json:
        self._runs = None
        if message["do"] == "outputs":
            return self._predict(message)
        if message["do"] == "own outputs":
            return self._predict_own(message)
        if message["do"] == "personal":
            return self._personal.handle(message)
        if message["do"] == "undo":
            return self._undo()
        self._before = [] if message["undo"] else None
        if self._job.boxes.clock != "rounds":
            return self._turns.run(message)
        if self._job.boxes.peer:
            return self._peers(message)
        return self._messages(message)

    def tell(self, me: LocalParty) -> None:
        """Have an error say in which round it came, and at which parties."""
        self._runs = me

    @property
    def at(self) -> str:
        me = self._runs
        if me is None:
            return ""
        names = [self._job.data.name(k) for k in me.ids[:3].tolist()]
        rest = f" and {len(me.ids) - 3} more" if len(me.ids) > 3 else ""
        return f"round {me.round + 1}, party {', '.join(names)}{rest}: "

    # -- rounds with a server --------------------------------------------------------------------

    def _messages(self, message: Json) -> Json:
        """Run the parties up to their upload number `message["number"]`, and add it up."""
        number = int(message["number"])
        if number == 0:
            self._blocks = self.cut(message)
        for sums in self._memory.returned.sums[number].values():
            tree_map(Tensor.zero_, sums[self._index])
        total: Json = {"bad": [], "gradients": 0, "bytes": 0}
        for block in self._blocks:
            block.lose(number)
            if not block.alive.any():
                total["bad"] += block.ids[block.diverged.numpy()].tolist()
                continue
            before = block.me.gradients
            self.tell(block.me)
            talk = self._advance(block, number)
            last = number == len(self._job.anatomy.messages) - 1
            if number == 0 and not last:
                self._use_up(block.ids)  # what is left if the round is broken off
            upload, own = talk.said if last else (talk.said, None)
            total["bytes"] += self._add(block, number, upload)
            if number == self._job.anatomy.counts_at:
                self._keep(block, own if last else block.me.after)
            total["gradients"] += block.me.gradients - before
            total["bad"] += block.ids[block.diverged.numpy()].tolist()
        self._memory.kept.release()
        return total

    def cut(self, message: Json) -> list[Block]:
        ids, effort = np.array(message["ids"], np.int64), np.array(message["effort"])
        places = np.array(message["places"], np.int64)
        answers = message.get("answers")
        answers = None if answers is None else np.array(answers, np.int64)
        blocks = [
            Block(
                ids[at],
                places[at],
                self.party(ids[at], began, effort[at], message.get("cohort", 1), message["t"]),
                None if answers is None else answers[at],
                older=row,
            )
            for began, row, some in _by_version(message)
            for alike in self._job.attacked.apart(ids, some)
            for at in each_block(alike, self._job.plan.block)
        ]
        if "secret" in message:  # the share may be run again, by another worker
            for block in blocks:
                block.me.secrets = secrets_of(message["secret"], block.ids)
        return blocks

    def _advance(self, block: Block, number: int) -> Talk:
        """Have the block say its next message; with the last comes its own state."""
        job, sent = self._job, self._memory.sent
        if number == 0:
            shared = sent.shared
            if block.older is not None:
                shared = tree_map(lambda leaf: leaf[block.older], sent.older)
            if job.sweep is not None:
                shared = tree_map(lambda leaf: leaf.unsqueeze(1), shared)
            block.talk = Talk(job.boxes.party(block.me, shared, self.own(block.ids)))
            return block.talk
        block.me.each = job.anatomy.messages[number - 1].each
        if block.me.each:
            reply = job.stacked(sent.replies[number - 1].take(block.places))
        else:
            reply = sent.replies[number - 1].take()
            if job.sweep is not None:
                reply = tree_map(lambda leaf: leaf.unsqueeze(1), reply)
        assert block.talk is not None
        block.me.left = frozenset(np.flatnonzero(~block.alive.numpy()).tolist())
        block.talk.send(reply)
        return block.talk

    def _add(self, block: Block, number: int, payload: Tree) -> int:
        """Add what a block sent to the sums, but for numbers that are not finite; its bytes."""
        job, message = self._job, self._job.anatomy.messages[number]
        lead, what = job.lead(len(block.ids)), f"upload {number + 1}"
        came = stacked_leaves(what, payload, message.sent, lead, message.grows[0])
        sent = int(sizes_of(fill(message.sent, came), lead)[block.alive].sum())
        if message.payload is not None:
            them = block.me.sender(number)
            upload = job.boxes.receive(number, them, fill(message.payload, came))
            came = stacked_leaves(what, upload, message.upload, lead)
        tensors = [leaf.reshape(*lead, -1) for leaf in came]
        alive = block.alive
        sums = self._weighted(block, number, tensors, alive)
        finite = all(bool(torch.isfinite(part.sum())) for group in sums.values() for part in group)
        if job.sweep is None and (not finite or not sums):
            for tensor in tensors:
                alive = alive & torch.isfinite(tensor.sum(dim=-1))
            sums = self._weighted(block, number, tensors, alive)
            block.diverged |= block.alive & ~alive
            block.alive = alive
        for ask, group in sums.items():
            stored = leaves(self._memory.returned.sums[number][ask][self._index])
            for store, part in zip(stored, group, strict=True):
                store.add_(part.view(store.shape))
        stack = self._memory.returned.stacks[number]
        if stack is not None:
            rows = [leaf if job.sweep is None else leaf.transpose(0, 1) for leaf in came]
            stack.put(rows, block.places)
        return sent

    def _weighted(
        self, block: Block, number: int, tensors: list[Tensor], alive: Tensor
    ) -> dict[Ask, list[Tensor]]:
        """Sums over the block's parties, one per thing the server asks for."""
        whole = bool(alive.all())
        if not whole:
            tensors = [tensor[..., alive, :] for tensor in tensors]
        sums: dict[Ask, list[Tensor]] = {}
        for ask in self._memory.returned.sums[number]:
            n = _first_setting(block.me.n, block.me.lead)
            n = n if whole else n[alive]
            times = n if ask == "mean by examples" else None
            sums[ask] = [_added(tensor, times) for tensor in tensors]
        return sums

    # -- rounds without a server -----------------------------------------------------------------

    def _peers(self, message: Json) -> Json:
        """Run the share's parties: at once where they mix, and block by block where none does."""
        ids, effort = np.array(message["ids"], np.int64), np.array(message["effort"])
        self._mixes = 0
        alone = self._job.topology is None
        size = self._job.plan.block if alone else max(1, len(ids))
        total: Json = {"bad": [], "gradients": 0}
        if not alone:
            self._sizes = np.zeros((len(ids), 2), np.int64)
        for places in each_block(list(range(len(ids))), size):
            me = self.party(ids[places], message["t"], effort[places])
            if not alone:
                me.mixing = self._mixing(me, np.array(message["present"], np.int64))
            self.tell(me)
            own = self._job.boxes.party(me, self.own(me.ids))
            block = Block(me.ids, me.ids, me)
            for leaf in leaves(own) if self._job.sweep is None else []:
                rows = leaf.expand(len(me.ids), *leaf.shape[1:]).flatten(1)
                block.alive &= torch.isfinite(rows.sum(dim=1))
            self._keep(block, own)
            total["bad"] += me.ids[~block.alive.numpy()].tolist()
            total["gradients"] += me.gradients
        if not alone:
            total["ids"], total["sizes"] = ids.tolist(), self._sizes.tolist()
        return total

    def _mixing(self, me: LocalParty, present: Ints) -> Callable[[Vector], Vector]:
        """`me.mix`: put my vectors on the board, wait for the other workers, weigh everybody's.

        What each party sends is counted, and what it sends to a neighbour that has missed a change.
        """
        assert self._job.topology is not None
        absent = np.setdiff1d(np.arange(self._job.data.training), present)
        everybody = np.array_equal(present, np.arange(self._job.data.training))
        weights = self._job.topology.sparse(me.round, absent)[me.ids]
        weights = weights if everybody else weights[:, present]
        dtype = self._job.model.dtype
        heard = self._heard(me, present, weights)
        sparse = weights.nnz * 8 < len(me.ids) * len(present)
        wanted = present[np.unique(weights.indices)] if sparse else present
        if not sparse:
            weights = torch.from_numpy(weights.toarray()).to(dtype)

        def mixing(x: Vector, coded: Coded | None = None) -> Vector:
            rows = x.expand(*me.lead, x.shape[-1])
            travels = rows if coded is None else coded.payload
            whole = travels if coded is None or coded.held is None else rows
            for column, tree in enumerate((travels, whole)):
                self._sizes[:, column] += sizes_of(tree, me.lead).numpy()
            board = self._memory.mixed[self._mixes % 2]
            self._mixes += 1
            rows = rows if self._job.sweep is None else rows.transpose(0, 1)
            board[me.ids, ..., : x.shape[-1]] = rows
            self._call(board[..., : x.shape[-1]], me.ids, wanted)
            others = board if np.array_equal(present, np.arange(len(board))) else board[present]
            others = others[..., : x.shape[-1]]
            if heard is not None:
                out = heard(others, self._mixes)
                return out if self._job.sweep is None else out.transpose(0, 1)
            flat = others.reshape(len(present), -1)
            out = product(weights, flat) if sparse else weights @ flat
            out = out.view(len(me.ids), *others.shape[1:])
            return out if self._job.sweep is None else out.transpose(0, 1)

        return mixing

    def _heard(
        self, me: LocalParty, present: Ints, weights: Any
    ) -> Callable[[Tensor, int], Tensor] | None:
        """What parties make of their neighbours' vectors one by one; None where W says it all.

        So it is where a rule does, or where adversaries tell different neighbours different things.
        """
        job, t = self._job, me.round
        lies, at = job.attacked.lies(t), {k: place for place, k in enumerate(present.tolist())}
        if job.rule is None and not lies:
            return None

        def one(i: int, others: Tensor, number: int) -> Tensor:
            part = slice(weights.indptr[i], weights.indptr[i + 1])
            k, places, W = int(me.ids[i]), weights.indices[part], weights.data[part]
            near = (present[places] != k) & (W > 0)
            around, w = places[near], torch.from_numpy(W[near])
            x = others[[at[k], *around.tolist()]]
            theirs = x[1:]
            if lies:
                theirs = job.attacked.heard(k, present[around], x, w, (job.seed, t, number))
            if job.rule is not None:
                return mixed(job.rule, x[0], theirs, w)
            return x[0] * (1 - float(w.sum())) + w.to(x.dtype) @ theirs

        def heard(others: Tensor, number: int) -> Tensor:
            lines = others.reshape(len(present), -1, others.shape[-1]).unbind(
                1
            )  # settings of a sweep
            rows = [[one(i, x, number) for x in lines] for i in range(len(me.ids))]
            if not rows:
                return others[:0]
            return torch.stack([torch.stack(row) for row in rows]).view(-1, *others.shape[1:])

        return heard

    # -- states of the parties ---------------------------------------------------------------------

    def party(
        self,
        ids: Ints,
        t: int,
        effort: Any,
        cohort: int = 1,
        step: int | None = None,
        turns: Ints | None = None,
        neighbours: Neighbours | None = None,
        whole: AllPoints | None = None,
    ) -> LocalParty:
        """These parties as the algorithm's `me` in round t."""
        job = self._job
        buffers = None
        if job.model.buffer_spec.size:
            buffers = job.model.buffers.expand(len(ids), -1).clone()
        if job.own_statistics:
            buffers = self._memory.kept.buffers_of(ids)
            fresh = self._memory.kept.visited[ids] == 0
            buffers[fresh] = job.model.buffers
            buffers = buffers.reshape(-1, buffers.shape[-1])
        return LocalParty(
            job.attacked.data(job.data, ids, t),
            job.model,
            job.way,
            ids,
            job.seed,
            t,
            job.lead(len(ids)),
            job.plan.block * (job.sweep or 1),
            effort if (effort < 1).any() else None,
            buffers,
            job.draws,
            job.separable,
            clipping=job.clipping,
            acquainted=partial(Simulated, seed=job.seed),
            cohort=cohort,
            step=step,
            turns=turns,
            neighbours=neighbours,
            edges=job.edges,
            whole=whole,
        )

    def one_party(self, k: int, t: int, buffers: Tensor | None) -> LocalParty:
        """Party k by itself, its vectors `[p]`."""
        me = self.party(np.array([k]), t, np.ones(1))
        return replace(me, lead=(), buffers=None if buffers is None else buffers[None])

    def own(self, ids: Ints) -> Tree:
        return self._job.stacked(self._memory.kept.own_of(ids))

    def _keep(self, block: Block, own: Tree) -> None:
        """Store what the parties keep, but for those that diverged."""
        alive = block.alive.numpy()
        ids, lead = block.ids[alive], self._job.lead(len(block.ids))
        kept = stacked_leaves("the own state", own, self._job.anatomy.own, lead)
        memory = self._memory.kept
        if len(self._job.anatomy.messages) < 2:
            self._use_up(block.ids[~alive])
        if self._before is not None:
            self._before.append((ids, memory.take(ids)))
        kept = kept if self._job.sweep is None else [rows.transpose(0, 1) for rows in kept]
        buffers = None
        if self._job.own_statistics and block.me.buffers is not None:
            buffers = block.me.buffers.view(len(block.ids), -1)[alive]
        memory.write(ids, kept if alive.all() else [rows[alive] for rows in kept], buffers)

    def _use_up(self, ids: Ints) -> None:
        """Noise of these parties that may have left is not used again, whatever becomes of it."""
        kept, rows = self._memory.kept, self._job.rows
        if not rows or not len(ids):
            return
        used = torch.tensor([rows[k] for k in ids.tolist()])
        used = used.view(-1, *[1] * (1 + (self._job.sweep is not None)))
        kept.write(ids, leaves(begun_anew(kept.own_of(ids), used)))

    def _undo(self) -> Json:
        """Put back what the parties kept before the round, but for noise, which was used."""
        kept = self._memory.kept
        for ids, before in self._before or ():
            kept.put(ids, leaves(kept_on(kept.tree(before), kept.tree(kept.take(ids)))))
        return {}

    # -- evaluation --------------------------------------------------------------------------------

    def _predict(self, message: Json) -> Json:
        """Write the outputs of one vector for the points of the parties that it names."""
        memory, job = self._memory, self._job
        size = max(1, min(512, (8 << 20) // max(1, prod(job.data.shape) * 4)))
        at, used = message["at"], memory.used.clone()
        for held, rows in points_of(job.data, named(message), message["split"]):
            for part in rows.split(size):
                x = held.x[part]
                memory.outputs[at : at + len(part)] = self.one.outputs(memory.vector, x, used)
                at += len(part)
        return {}

    def _predict_own(self, message: Json) -> Json:
        """The same with each party's own model or, for the one vector, its own statistics."""
        memory, job = self._memory, self._job
        at = message["at"]
        for k in named(message).tolist():
            train, _, test, _ = job.data.party(k)
            x = train if message["split"] == "train" else test
            if len(x) == 0:
                continue
            w = memory.vector
            if message["models"]:
                w = first(memory.kept.own_of([k]))[0]
            memory.outputs[at : at + len(x)] = self.one.outputs(w, x, self.statistics(k, w))
            at += len(x)
        return {}

    def statistics(self, k: int, w: Vector) -> Tensor | None:
        """Statistics of party k that go with the shared vector or, of a peer, with its own."""
        job, memory = self._job, self._memory
        if not job.model.buffer_spec.size:
            return None
        if job.own_statistics:
            has = bool(memory.kept.visited[k])
            me = self.party(np.array([k]), 0, np.ones(1))
            return memory.kept.buffers_of([k])[0] if has else me.settled(0, w)
        own = statistics_of(memory.kept.own_of([k])) if job.boxes.peer else None
        if own is not None:
            return job.model.buffers_with(own[0])
        return memory.used.clone()


def _added(rows: Tensor, n: Tensor | None) -> Tensor:
    """Rows `[..., m, p]` added up, n times each; integers to the last bit."""
    if rows.is_floating_point():
        times = rows.new_ones(rows.shape[-2]) if n is None else n.to(rows.dtype)
        return times @ rows
    weighted = rows if n is None else rows * n.to(rows.dtype).unsqueeze(-1)
    return weighted.sum(dim=-2, dtype=rows.dtype)


def secrets_of(secret: str, ids: Ints) -> Tensor:
    """What these parties hide in a round, `[m, 32]`, of one secret of the round."""
    key = bytes.fromhex(secret)
    rows = (blake2b(b"%d" % k, key=key, digest_size=32).digest() for k in ids.tolist())
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8).view(-1, 32)


def _by_version(message: Json) -> list[tuple[int, int | None, list[int]]]:
    """A share's parties by the shared state that they began from: its version, row, who."""
    versions, everybody = message.get("versions"), list(range(len(message["ids"])))
    if versions is None:
        return [(message["t"], None, everybody)]
    return [
        (version, row, [i for i in everybody if versions[i] == version])
        for row, version in enumerate(message["older"])
    ]


def _first_setting(n: Tensor, lead: tuple[int, ...]) -> Tensor:
    """`[..., m, 1] -> [m]`: sizes do not depend on a sweep's setting."""
    return n.reshape(-1, lead[-1])[0]


def named(message: Json) -> Ints:
    """Parties as a message names them: each, or all from the first to the last."""
    if "ids" in message:
        return np.array(message["ids"], np.int64)
    return np.arange(message["first"], message["last"])


def points_of(data: Federation, parties: Ints, split: str) -> Iterator[tuple[Held, Tensor]]:
    """Training or test points of these parties, as rows of what is held of them, some at a time."""
    sizes, other = (data.n, data.n_test) if split == "train" else (data.n_test, data.n)
    ends = np.cumsum(sizes.numpy()[parties] + other.numpy()[parties])
    cuts = [0, len(parties)]
    if data.lazy:  # as many as are worth the while, and no more
        cuts = [0, *(np.flatnonzero(np.diff(ends // _ROWS)) + 1).tolist(), len(parties)]
    for lo, hi in pairwise(cuts):
        some = parties[lo:hi]
        held = data.held(some)
        before = 0 if split == "train" else data.n.numpy()[some]
        starts = held.starts + before
        yield held, torch.from_numpy(ranges(starts, starts + sizes.numpy()[some]))
