# SPDX-License-Identifier: Apache-2.0
"""Parties whose data is on this machine: one of them (`[p]`), a stack (`[m, p]`) or a sweep.

One file, since all that an algorithm may ask of `me` runs over the same rows, blocks and buffers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b, shake_256
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel import rng
from archipel.aggregation.others import Trial
from archipel.core import Batch, Blueprint, Descent, Examples, LocalWork, Near, Others, Vector
from archipel.data.federation import Federation, Held
from archipel.engines.batches import Batches, Table, poisson, poissons
from archipel.errors import ArchipelError
from archipel.exchange.neighbours import Neighbours
from archipel.exchange.sender import Sender
from archipel.models.clipped import Clipping
from archipel.models.model import Model, Points, Steps, Way
from archipel.models.normals import Normals
from archipel.models.private import Rule, Samples, window
from archipel.models.private import descend as private_descent
from archipel.privacy import grid
from archipel.privacy.promise import Noise
from archipel.privacy.sources import Keystream, Simulated, Source
from archipel.rng import Ints, Keys
from archipel.training.descent import Private, Work, checked_batch_size, work_of
from archipel.training.optimisers import SGD
from archipel.training.schedules import rate
from archipel.training.subspace import Subspace
from archipel.tree import Tree

if TYPE_CHECKING:
    from archipel.wire.wired import Coded

_PASS = 512  # points that statistics of one pass are taken of, at most
_FULL = 256  # points per party at a time when a gradient runs over all of them


class AllPoints(Protocol):
    """Loss and gradient over all points of each party, `[m, p]`."""

    def grad(self, w: Tensor) -> Tensor: ...

    def loss(self, w: Tensor) -> Tensor: ...


@dataclass
class LocalParty:
    """The parties `ids` in round `round`, as the algorithm's `me`. Rows of a stack are parties."""

    data: Federation
    model: Model
    way: Way
    ids: Ints
    seed: int
    round: int
    lead: tuple[int, ...]  # () one party, (m,) a stack, (s, m) a sweep over s settings
    block: int = 1 << 30  # rows computed at a time
    effort: Ints | None = None  # [m] in [0, 1): how far a straggler gets; 1 for the others
    buffers: Tensor | None = None  # [m, q] BatchNorm statistics, updated in place
    draws: bool = False  # whether layers draw random numbers (dropout)
    separable: bool = False  # whether a gradient over some points may be computed in parts
    limit: int | None = None  # use at most so many points of each party
    mixing: Callable[..., Vector] | None = None
    mixed: list[Tensor] | None = None  # what was mixed so far; where somebody asks
    changes: set[int] = field(default_factory=set)  # which of these neighbours get as changes
    neighbours: Neighbours | None = None  # whom they talk to, where there are no rounds
    turns: Ints | None = None  # [m] how often each had its turn before in the round
    edges: int = 0  # of a party at most, in a graph that stays
    parties: int | None = None  # of the federation, where the data of most is elsewhere
    whole: AllPoints | None = None  # all points of each, where somebody has them at hand
    secrets: Tensor | None = None  # [m, 32] of the round; drawn when they are needed
    each: bool = False  # whether the last reply of the round was a row to each party
    hides: bool = False  # whether the algorithm has asked for a secret
    private: bool = False  # whether noise is of the round's secrets; else of the seed, and repeats
    heard: Callable[[], bytes] = bytes  # names what came so far: after other words, other noise
    within: Subspace | None = None  # what training is restricted to, of each party
    used: Tensor | None = None  # bool [N], marked where a point was used; where somebody asks
    clipping: Clipping | None = None  # how gradients of single examples are clipped, where they are
    bound: Tensor | None = None  # [..., 1] norm of an upload at most, where the server says it
    fits: Tensor | None = None  # [..., 1] whether the last upload had no larger one, as 0 or 1
    acquainted: Callable[[int], Others] = Trial  # what each of the parties knows of the others
    cohort: int = 1  # parties that the round began with, where all are on this machine
    left: frozenset[int] = frozenset()  # which of the m were lost since, by their places
    after: Any = None  # own states after the round, told before its last message, where a sum is
    step: int | None = None  # the server's, that the uploads are for; None: that of the round
    joins: Callable[[], int] | None = None  # says which, where that is known once it has trained
    spent: Ints = field(init=False)  # [m] gradients of single examples, computed so far
    _noise_drawn: int = field(default=0, init=False)
    _began: tuple[Tensor, Vector | None] | None = field(default=None, init=False)
    _order: Ints | None = field(default=None, init=False)  # of each party's points, one by one

    def __post_init__(self) -> None:
        self.spent = np.zeros(len(self.ids), np.int64)
        self._repeat = prod(self.lead[:-1])  # rows of a party: the settings of a sweep

    @cached_property
    def _held(self) -> Held:
        return self.data.held(self.ids)

    @property
    def _x(self) -> Tensor:
        return self._held.x

    @property
    def _y(self) -> Tensor:
        return self._held.y

    @property
    def _starts(self) -> Ints:
        return self._held.starts

    @cached_property
    def _sizes(self) -> Ints:
        sizes: Ints = self.data.n.numpy()[self.ids]
        return sizes if self.limit is None else np.minimum(sizes, self.limit)

    @cached_property
    def _keyed(self) -> Ints:
        """What draws are keyed by: the party, and which of its turns in the round it is."""
        return self.ids if self.turns is None else self.ids | self.turns << 32

    @cached_property
    def n(self) -> Tensor:
        return self._by_party(torch.from_numpy(self._sizes).to(self.model.dtype)[:, None], (1,))

    @cached_property
    def number(self) -> Tensor:
        return self._by_party(torch.from_numpy(self.ids)[:, None], (1,))

    @cached_property
    def _batches(self) -> Batches:
        return Batches(self._starts, self._sizes, self._keys("batches"), self.model.dtype)

    @property
    def staleness(self) -> Tensor:
        if self.step is None and self.joins is not None:
            self.step = self.joins()
        since = 0 if self.step is None else self.step - self.round
        return torch.full((*self.lead, 1), float(since), dtype=self.model.dtype)

    @property
    def others(self) -> Others:
        """Of one party; a protocol runs for each of a stack."""
        (number,) = self.ids.tolist()
        return self.acquainted(number)

    @property
    def blueprint(self) -> Blueprint:
        return blueprint(self.model, self.data, self.seed, self.edges, self.parties)

    @property
    def gradients(self) -> int:
        """Gradients of single examples, computed so far."""
        return int(self.spent.sum())

    # -- what an algorithm calls ---------------------------------------------------------------

    def batch(self, size: int | float | None, going: Tensor | None = None) -> Batch:
        table = self._batches.draw(checked_batch_size(size))
        weights = table.weights[:, 0]
        self._use(table.rows[:, 0], weights)
        if going is not None:
            weights = weights * going.expand(*self.lead, 1).reshape(-1, len(self.ids), 1)[0]
        return Batch(table.rows[:, 0], weights, torch.from_numpy(table.first))

    def grad(self, w: Vector, batch: Batch | None = None) -> Vector:
        rows, out = self._rows(w), []
        if batch is None and self.whole is not None:
            self._use_all()
            self.spent += self._sizes
            return self._stack(self.whole.grad(rows))
        for at in self._blocks():
            part = rows[at]
            if batch is not None:
                points = self._points(batch, at)
                np.add.at(self.spent, self._party_of(at), points.lengths)
                out.append(self.way.grad(part, points, self._buffers(at)))
                continue
            self._use_all()
            total = torch.zeros_like(part)
            for active, points, share in self._everything(at):
                own = None if self.buffers is None else self.buffers[at][active]
                np.add.at(self.spent, self._party_of(at)[active.numpy()], points.lengths)
                total[active] += share * self.way.grad(part[active], points, own)
                if own is not None and self.buffers is not None:
                    self.buffers[at][active] = own
            out.append(total)
        g = self._stack(torch.cat(out) if len(out) > 1 else out[0])
        return g if self.within is None else self.within(g)

    def loss(self, w: Vector, batch: Batch | None = None) -> Tensor:
        rows, out = self._rows(w), []
        if batch is None and self.whole is not None:
            self._use_all()
            return self._stack(self.whole.loss(rows))
        for at in self._blocks():
            part = rows[at]
            if batch is not None:
                out.append(self.way.loss(part, self._points(batch, at), self._buffers(at)))
                continue
            self._use_all()
            total = part.new_zeros(len(part))
            for active, points, share in self._everything(at):
                own = None if self.buffers is None else self.buffers[at][active]
                total[active] += share[:, 0] * self.way.loss(part[active], points, own)
            out.append(total)
        return self._stack(torch.cat(out)[:, None])

    def steps(self, work: LocalWork) -> Tensor:
        counts = torch.from_numpy(self._counts(work_of(work))).to(self.model.dtype)
        return counts.view(*self.lead[-1:], 1).expand(*self.lead, 1)

    def descend(
        self,
        w: Vector,
        work: LocalWork,
        shift: Vector | None = None,
        pull: float | Tensor = 0.0,
        towards: Vector | None = None,
        only: Tensor | None = None,
        aside: bool = False,
    ) -> Descent:
        before = None
        if aside and self._began is not None and self.buffers is not None:
            before = self.buffers.clone()
        task = work_of(work)
        eta = rate(task.lr, self.round)
        counts = self._counts(task)
        table = self._batches.take(task.batch_size, counts)
        self.spent += table.lengths.sum(axis=1) * self._repeat
        self._use(table.rows, table.weights)
        order = np.argsort(-np.repeat(counts, self._repeat), kind="stable")
        same = bool((order == np.arange(len(order))).all())
        rows = self._rows(w)
        centre = rows if towards is None else self._rows(towards)
        pulled = isinstance(pull, Tensor) or pull != 0.0
        steps = Steps(
            self._x,
            self._y,
            table.rows,
            table.weights,
            table.lengths,
            self._setting(eta),
            task.optimiser,
            None if shift is None else self._rows(shift),
            self._setting(pull),
            centre if pulled else None,
            self._seeds(table),
            only,
            None if self.within is None or aside else self.within.rows(len(self.lead)),
        )
        party = np.arange(len(order)) // self._repeat
        if same and len(order) <= self.block:
            ends = self.way.descend(rows, self._part(steps, slice(None), party), self.buffers)
        else:
            ends = rows.new_empty(rows.shape)
            for at in range(0, len(order), self.block):
                take = order[at : at + self.block]
                chosen = torch.from_numpy(take)
                own = None if self.buffers is None else self.buffers[chosen]
                part = self._part(steps, chosen, party[take])
                ends[chosen] = self.way.descend(rows[chosen], part, own)
                if own is not None and self.buffers is not None:
                    self.buffers[chosen] = own
        if before is not None:
            self.buffers = before
        taken = self.steps(work)
        return Descent(self._stack(ends), taken, taken * eta)

    # -- what the private door asks ----------------------------------------------------------------

    @property
    def sizes(self) -> Ints:
        """Training points of each party, `[m]`."""
        sizes: Ints = self._sizes
        return sizes

    def sampled(self, rates: NDArray[np.float64], draw: int) -> Batch:
        """A Poisson sample of each party: each point by itself, with its party's chance.

        Between institutions it is a stream of the round's secrets: who knows it knows who was in.
        """
        purpose, most = f"sample {draw}", int(self._sizes.max(initial=0))
        if self.private:
            words = self.source(purpose).words(np.full(len(self.ids), most))
            words = words.reshape(len(self.ids), most)
        else:
            words = rng.words(self._keys(purpose), most)
        rows, weights = poisson(self._starts, self._sizes, rates, words)
        real = torch.from_numpy(weights).to(self.model.dtype)
        self._use(torch.from_numpy(rows), real)
        return Batch(torch.from_numpy(rows), real, torch.full((len(self.ids),), draw))

    def dealt(self, parts: Ints, at: Ints, draw: int) -> Batch:
        """Part `at[i]` of party i's points, of `parts[i]`, in an order that is drawn once; or none.

        From `parts[i]` on there is no such part, and no point.
        """
        if self._order is None:
            keys = rng.keys(rng.key(self.seed, 0, "order of records"), self.ids)
            self._order = rng.shuffles(keys, self._sizes)
        ends = np.minimum(np.stack([at, at + 1]), parts) * self._sizes // parts
        lengths = ends[1] - ends[0]
        first = np.cumsum(self._sizes) - self._sizes
        column = np.arange(max(1, int(lengths.max())))
        inside = column < lengths[:, None]
        place = np.where(inside, first[:, None] + ends[0][:, None] + column, 0)
        rows = torch.from_numpy(self._starts[:, None] + np.where(inside, self._order[place], 0))
        weights = torch.from_numpy(inside).to(self.model.dtype)
        self._use(rows, weights)
        return Batch(rows, weights, torch.full((len(self.ids),), draw))

    def clipped(self, w: Vector, batch: Batch, clip: float) -> Vector:
        """The sum of the gradients of single points in a batch, each clipped to a norm."""
        assert self.clipping is not None
        rows, out = self._rows(w), []
        for at in self._blocks():
            points = self._points(batch, at)
            np.add.at(self.spent, self._party_of(at), points.lengths)
            out.append(self.clipping.clipped(rows[at], points, clip).sum)
        return self._stack(torch.cat(out))

    def fuses(self, work: Work, only: Tensor | None) -> bool:
        """Whether private steps are taken at once: where they are plain, in a simulation.

        Between institutions noise lies on a grid, and is drawn for every step.
        """
        plain = isinstance(work.optimiser, SGD) and work.optimiser.plain
        free = only is None and self.within is None and self.clipping is not None
        return plain and free and not self.private

    def descend_privately(
        self,
        w: Vector,
        work: Work,
        sampling: Private,
        shift: Vector | None,
        pull: float | Tensor,
        towards: Vector | None,
    ) -> Vector:
        """DP-SGD (`models.private`)."""
        assert self.clipping is not None
        counts, eta = self._counts(work), rate(work.lr, self.round)
        order = np.argsort(-np.repeat(counts, self._repeat), kind="stable")
        party = np.arange(len(order)) // self._repeat
        taken = self._sampled(sampling, counts)
        rows, lr = self._rows(w), self._setting(eta)
        pulled = isinstance(pull, Tensor) or pull != 0.0
        centre = rows if towards is None else self._rows(towards)
        expected = np.maximum(sampling.rates * self._sizes, 1e-300)[party, None]  # q n
        step = lr / torch.from_numpy(expected).to(rows.dtype)
        deviations = torch.from_numpy(sampling.deviations)[party, None].to(rows.dtype)
        noisy = bool((deviations > 0).all())
        rule = Rule(
            sampling.clip,
            lr,
            step,
            step * deviations if noisy else None,
            None if shift is None else self._rows(shift),
            self._setting(pull),
            centre if pulled else None,
        )
        key = rng.key(self.seed, self.round, f"noise descent {sampling.first}")
        size = window(self.clipping, work.batch_size)
        ends = []
        for at in range(0, len(order), self.block):
            chosen = order[at : at + self.block]
            part, who = torch.from_numpy(chosen), party[chosen]
            some, how, noise = taken.some(who), rule.some(part), Normals(key, self._keyed[who])
            ends.append(private_descent(self.clipping, rows[part], some, how, noise, size))
        end = torch.cat(ends) if len(ends) > 1 else ends[0]
        if bool((order != np.arange(len(order))).any()):
            end = end[torch.from_numpy(np.argsort(order))]
        return self._stack(end)

    def _sampled(self, sampling: Private, counts: Ints) -> Samples:
        """The samples of all steps, as `sampled` draws them."""
        total = int(counts.max(initial=0))
        keys = [self._keys(f"sample {sampling.first + t}") for t in range(total)]
        rows, lengths = poissons(self._starts, self._sizes, sampling.rates, counts, keys)
        self._use(torch.from_numpy(rows), torch.ones(len(rows)))
        self.spent += lengths.sum(axis=1) * self._repeat
        seeds = None
        if self.draws:
            draws = sampling.first + np.arange(total)
            seeds = rng.subkeys(self._keys("layers")[:, None], draws[None])
        return Samples(self._x, self._y, rows, lengths, counts, seeds)

    def noised(self, values: Tensor, purpose: str, mechanism: Noise = "gaussian") -> Tensor:
        """The same with noise of scale 1 that protects people: on a grid (`privacy.grid`).

        In a simulation it is drawn from the seed and hides nothing; normal noise is of
        floating-point numbers there.
        """
        inner = self._inner(values)
        if self.private or mechanism == "laplace":
            rows = values.double().reshape(-1, len(self.ids), *inner)
            add = grid.laplace if mechanism == "laplace" else grid.gaussian
            return add(rows, 1.0, self.source(purpose)).view(values.shape).to(values)
        noise = Normals(rng.key(self.seed, self.round, f"noise {purpose}"), self._keyed)
        drawn = noise.draw(0, values.new_ones(len(self.ids)), prod(inner))
        return values + self._by_party(drawn, inner)

    def source(self, purpose: str, at: int | None = None) -> Source:
        """Words for integer noise that protects people, of all parties or of one of them.

        In a simulation they are of the seed.
        """
        some = slice(None) if at is None else slice(at, at + 1)
        if not self.private:
            return Simulated(self.seed, self.round, self._keyed[some], purpose)
        return Keystream(*self._secrets_for(purpose.encode() + self.heard())[some])

    def examples(self, batch: Batch | None = None) -> Examples:
        if batch is None:
            self._use_all()
            column = np.arange(int(self._sizes.max()))
            place = self._starts[:, None] + np.minimum(column, self._sizes[:, None] - 1)
            weights = (column < self._sizes[:, None]) / self._sizes[:, None]
            batch = Batch(
                torch.from_numpy(place),
                torch.from_numpy(weights).to(self.model.dtype),
                torch.zeros(len(self.ids), dtype=torch.int64),
            )

        def lead(points: Tensor) -> Tensor:  # [m, b, ...] -> [..., b, ...]
            inner = points.shape[1:]
            return points.view(*self.lead[-1:], *inner).expand(*self.lead, *inner)

        rows = batch.rows
        return Examples(lead(self._x[rows]), lead(self._y[rows]), lead(batch.weights))

    def outputs(self, w: Vector, x: Tensor) -> Tensor:
        return self._through(self.model.one.outputs, w, x)

    def features(self, w: Vector, x: Tensor) -> Tensor:
        return self._through(self.model.one.features, w, x)

    def normal(self, like: Vector) -> Vector:
        """Drawn per party from its key: the same whatever the stack; alike across a sweep."""
        self._noise_drawn += 1
        return self._normal(like, "normal", self._noise_drawn)

    def noise(self, like: Vector) -> Vector:
        """After a crash the same is drawn, since it is a stream of the round's secrets."""
        self._noise_drawn += 1
        if not self.private:
            return self._normal(like, "noise", self._noise_drawn)
        inner, purpose = self._inner(like), b"noise %d " % self._noise_drawn + self.heard()
        drawn = [shake_256(key).digest(8 * prod(inner)) for key in self._secrets_for(purpose)]
        bits = np.frombuffer(b"".join(drawn), np.uint64) >> np.uint64(12)
        uniform = torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-52)
        return self._by_party((2**0.5 * torch.erfinv(2 * uniform - 1)).to(like.dtype), inner)

    def _normal(self, like: Vector, purpose: str, count: int) -> Vector:
        inner = self._inner(like)
        draws = [
            rng.generator(self.seed, self.round, int(k), purpose, count).standard_normal(inner)
            for k in self._keyed
        ]
        return self._by_party(torch.from_numpy(np.stack(draws)).to(like.dtype), inner)

    def _inner(self, like: Tensor) -> tuple[int, ...]:
        """The shape of one party's tensor, of one that may have parties first."""
        return tuple(like.shape[min(len(self.lead), like.dim() - 1) :])

    def _by_party(self, rows: Tensor, inner: tuple[int, ...]) -> Tensor:
        """Rows of the parties as `[..., *inner]`: alike across a sweep."""
        return rows.view(*self.lead[-1:], *inner).expand(*self.lead, *inner)

    def secret(self, purpose: str) -> Tensor:
        self.hides = True
        rows = b"".join(self._secrets_for(b"secret " + purpose.encode()))
        return self._by_party(torch.frombuffer(bytearray(rows), dtype=torch.uint8), (32,))

    def _secrets_for(self, purpose: bytes) -> list[bytes]:
        """32 bytes of each party."""
        if self.secrets is None:
            self.secrets = drawn_secrets(len(self.ids))
        keys = [row.numpy().tobytes() for row in self.secrets]
        return [blake2b(purpose, key=key, digest_size=32).digest() for key in keys]

    def sender(self, number: int) -> Sender:
        """These parties as both ends of message `number` know them."""
        return Sender(self.seed, self.round, number, self.ids, self.lead, self)

    def mix(self, x: Vector, coded: Coded | None = None) -> Vector:
        """`coded` is how x travels, where a wire has steps."""
        if self.mixing is None:
            raise ArchipelError(
                "me.mix needs neighbours: give the run a topology, such as topology='ring'."
            )
        if self.mixed is not None:
            self.mixed.append(x.detach())
        return self.mixing(x) if coded is None else self.mixing(x, coded)

    def coded(self, x: Vector, held: Vector) -> Vector:
        self.changes.add(len(self.mixed or ()))
        return x

    @property
    def near(self) -> Near:
        return self._known("near").near

    @property
    def around(self) -> Tree:
        return self._known("around").around

    @property
    def degree(self) -> Tensor:
        return self._known("degree").degree

    @property
    def drawn(self) -> Near:
        return self._known("drawn").drawn

    def join(self, others: Near, weight: Tensor) -> None:
        self._known("join").join(others, weight)

    def swap(self, x: Tree) -> Tree:
        return self._known("swap").swap(x)

    @property
    def met(self) -> Tensor:
        return self._known("met").met

    @property
    def woke(self) -> Tensor:
        return self._known("woke").woke

    def _known(self, asked: str) -> Neighbours:
        if self.neighbours is None:
            raise ArchipelError(
                f"me.{asked} is for algorithms without rounds: give the class the attribute clock, "
                'such as clock = "wakes", and the run a topology.'
            )
        return self.neighbours

    def _through(self, use: Callable[..., Tensor], w: Vector, x: Tensor) -> Tensor:
        """Pass x `[..., b, *shape]` through models one by one."""
        lead = x.shape[: len(self.lead)]
        vectors = w.expand(*lead, w.shape[-1]).reshape(-1, w.shape[-1])
        points = x.reshape(len(vectors), *x.shape[len(self.lead) :])
        party = np.arange(len(vectors)) % len(self.ids)
        out = [
            use(vector, some, None if self.buffers is None else self.buffers[k].clone())
            for vector, some, k in zip(vectors, points, party.tolist(), strict=True)
        ]
        return torch.stack(out).reshape(*lead, *out[0].shape)

    # -- BatchNorm's running statistics, where parties send them ----------------------------------

    def begin(self, statistics: Tensor, w: Vector | None = None) -> None:
        """Take over statistics `[..., s]`, those of the model w where it is known."""
        self.buffers = self.model.buffers_with(self._rows(statistics))
        self._began = self.buffers.clone(), w

    @property
    def statistics(self) -> Tensor:
        """What the statistics are now, `[..., s]`."""
        assert self.buffers is not None
        return self._stack(self.buffers[:, self.model.running])

    def buffers_for(self, i: int, w: Vector) -> Tensor | None:
        """Buffers that go with a model w that the i-th party made for itself.

        They are those that its training left; those it took over where w is the model that they
        came with; those that it keeps where parties keep theirs; else those of one pass over its
        training points.
        """
        if self.buffers is None:
            return None
        mine, came = self.buffers[i].clone(), None
        if self._began is not None:
            start, came = self._began[0][i], self._began[1]
        else:
            start = self.model.buffers  # who never trained
        same = came is not None and came.shape == w.shape and torch.equal(came, w)
        return mine if same or not torch.equal(mine, start) else self.settled(i, w)

    def settled(self, i: int, w: Vector) -> Tensor:
        """Buffers after one pass of the model w over the i-th party's training points."""
        start, stop = int(self._starts[i]), int(self._starts[i] + self._sizes[i])
        if stop == start:
            return self.model.buffers
        return self.model.one.settle(w, self._x[start : min(stop, start + _PASS)])

    # -- which points were used --------------------------------------------------------------------

    @property
    def records(self) -> int:
        """Points that were used so far, where `used` marks them."""
        return 0 if self.used is None else int(self.used.sum())

    def _use(self, rows: Tensor, weights: Tensor) -> None:
        if self.used is not None:
            self.used[rows[weights > 0]] = True

    def _use_all(self) -> None:
        if self.used is not None:
            for start, size in zip(self._starts, self._sizes, strict=True):
                self.used[start : start + size] = True

    # -- between [..., p] and rows [r, p]: party by party, the settings of a sweep side by side ----

    def _rows(self, w: Vector) -> Tensor:
        w = w.expand(*self.lead, w.shape[-1])
        if len(self.lead) == 2:
            w = w.transpose(0, 1)
        return w.reshape(-1, w.shape[-1])

    def _stack(self, rows: Tensor) -> Vector:
        if len(self.lead) == 2:
            return rows.view(self.lead[1], self.lead[0], -1).transpose(0, 1)
        return rows.view(*self.lead, -1)

    def _setting(self, value: float | Tensor) -> float | Tensor:
        """A hyper-parameter as a number, or one per row `[r, 1]` where it is swept."""
        if isinstance(value, Tensor):
            return self._rows(value.expand(*self.lead, 1).to(self.model.dtype))
        return value

    def _blocks(self) -> list[slice]:
        total = len(self.ids) * self._repeat
        return [slice(at, min(at + self.block, total)) for at in range(0, total, self.block)]

    def _party_of(self, at: slice) -> Ints:
        return np.arange(at.start, at.stop) // self._repeat

    def _buffers(self, at: slice) -> Tensor | None:
        return None if self.buffers is None else self.buffers[at]

    # -- batches ------------------------------------------------------------------------------

    def _counts(self, work: Work) -> Ints:
        """Local steps of each party, `[m]`: a straggler stops after some of its epochs or steps."""
        per_epoch = self._batches.per_epoch(work.batch_size)
        whole = np.ones(len(self.ids))
        effort = whole if self.effort is None else self.effort
        if work.local_steps is not None:
            steps = np.full(len(self.ids), work.local_steps)
        elif work.local_epochs == 1:
            steps = per_epoch
        else:
            epochs = np.where(effort < 1, 1 + effort * (work.local_epochs - 1), work.local_epochs)
            return np.asarray(epochs.astype(np.int64) * per_epoch)
        partial = np.where(effort < 1, 1 + effort * (steps - 1), steps)
        return np.asarray(partial.astype(np.int64))

    def _points(self, batch: Batch, at: slice) -> Points:
        party = self._party_of(at)
        rows, weights = batch.rows, batch.weights
        if self._repeat > 1 or at.stop - at.start < len(rows):
            rows, weights = rows[party], weights[party]
        seeds = None
        if self.draws:
            seeds = rng.subkeys(self._keys("layers")[party], batch.draw.numpy()[party])
        lengths = (weights > 0).sum(dim=1).numpy()
        return Points(self._x[rows], self._y[rows], weights, lengths, seeds)

    def _everything(self, at: slice) -> list[tuple[Tensor, Points, Tensor]]:
        """All points of the rows in `at`, some at a time: which rows, their points, their share.

        What is not a sum over examples (Cox, BatchNorm) gets each party's points at once.
        """
        party = self._party_of(at)
        starts, sizes = self._starts[party], self._sizes[party]
        width = _FULL if self.separable else int(sizes.max())
        parts = []
        for done in range(0, int(sizes.max()), width):
            active = np.flatnonzero(sizes > done)
            lengths = np.minimum(sizes[active] - done, width)
            column = np.arange(int(lengths.max()))
            inside = np.minimum(column, lengths[:, None] - 1)
            rows = torch.from_numpy(starts[active][:, None] + done + inside)
            weights = (column < lengths[:, None]) / lengths[:, None]
            seeds = None
            if self.draws:
                keys = self._keys("layers")[party[active]]
                seeds = rng.subkeys(keys, np.full(len(active), -1 - done))
            points = Points(
                self._x[rows],
                self._y[rows],
                torch.from_numpy(weights).to(self.model.dtype),
                lengths,
                seeds,
            )
            share = torch.from_numpy(lengths / sizes[active])[:, None].to(self.model.dtype)
            parts.append((torch.from_numpy(active), points, share))
        return parts

    def _part(self, steps: Steps, chosen: slice | Tensor, party: Ints) -> Steps:
        """The steps of some rows."""
        width = int(steps.lengths[party].max())
        longest = int((steps.lengths[party] > 0).sum(axis=1).max())

        def of(value: Any) -> Any:
            return value[chosen] if isinstance(value, Tensor) else value

        whole = len(party) == len(steps.rows) and bool((party == np.arange(len(party))).all())
        cut = slice(None) if whole else party
        return steps._replace(
            rows=steps.rows[cut, :longest, :width],
            weights=steps.weights[cut, :longest, :width],
            lengths=steps.lengths[cut, :longest],
            lr=of(steps.lr),
            shift=of(steps.shift),
            pull=of(steps.pull),
            towards=of(steps.towards),
            seeds=None if steps.seeds is None else steps.seeds[cut, :longest],
            within=None if steps.within is None else steps.within[chosen],
        )

    def _seeds(self, table: Table) -> Keys | None:
        if not self.draws:
            return None
        steps = table.first[:, None] + np.arange(table.rows.shape[1])
        return rng.subkeys(self._keys("layers")[:, None], steps)

    def _keys(self, purpose: str) -> Keys:
        return rng.keys(rng.key(self.seed, self.round, purpose), self._keyed)


def drawn_secrets(parties: int) -> Tensor:
    """32 bytes of the operating system's for each party, `[m, 32]`."""
    drawn = bytearray(os.urandom(32 * parties))
    return torch.frombuffer(drawn, dtype=torch.uint8).view(-1, 32)


def blueprint(
    model: Model, data: Federation, seed: int, edges: int = 0, parties: int | None = None
) -> Blueprint:
    """What an algorithm may know of the problem before the first round."""
    classes = data.classes or None
    form = (model.spec, tuple(data.shape), classes, seed, model.norms)
    return Blueprint(*form, edges, parties or data.training)
