# SPDX-License-Identifier: Apache-2.0
"""Small algorithms for each clock of a peer's own, and sequential loops of what they compute."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.engines.network.in_process import Circle
from archipel.engines.network.liveness import Left
from archipel.engines.network.transport import Cut


class Model(NamedTuple):
    w: Tensor
    step: Tensor  # what the last wake-up changed


@dataclass(frozen=True)
class Coordinate:
    """The block-coordinate step: towards the neighbours, and down the own gradient."""

    lr: float = 0.3
    clock = "wakes"

    def init(self, w):
        return Model(w, torch.zeros_like(w))

    def told(self, own):
        return own.w

    def party(self, me, own):
        near = me.near
        mean = (near.weight * near.told).sum(dim=-2) / me.degree
        w = (own.w + mean) / 2 - self.lr * me.grad(own.w)
        return Model(w, w - own.w)


@dataclass(frozen=True)
class Short(Coordinate):
    """The same, of which only changes are said."""

    def said(self, own):
        return own.step

    def hear(self, told, said):
        return told + said


@dataclass(frozen=True)
class Joining:
    """Models and their graph: every third wake-up asks others, and joins those that are near."""

    lr: float = 0.3
    kappa: int = 2
    every: int = 3
    clock = "wakes"
    learns_graph = True

    def init(self, w):
        return w

    def asks(self, t):
        return self.kappa if t % self.every == 0 else 0

    def told(self, own):
        return own

    def party(self, me, own):
        if self.asks(me.round):
            drawn = me.drawn
            far = (own.unsqueeze(-2) - drawn.told).square().sum(dim=-1, keepdim=True)
            weight = torch.exp(-far) * (drawn.number.unsqueeze(-1) >= 0) / (1 + drawn.degree)
            me.join(drawn, weight * (weight > 1e-3))
            return own
        near = me.near
        mean = ((near.weight * near.told).sum(dim=-2) + own) / (me.degree + 1)
        return mean - self.lr * me.grad(own)


class Turnstile:
    """Lets peers of a circle have their turns in a given order, one at a time."""

    def __init__(self, order):
        self.order, self.at, self.moved = list(order), 0, asyncio.Event()

    def of(self, circle, k):
        async def pace(t, again=0):
            while True:
                mine = self.at < len(self.order) and self.order[self.at] == k
                if mine and all(peer.mixing.quiet() for peer in circle.up.values()):
                    return
                await asyncio.sleep(0.001)

        return pace

    def passed(self):
        self.at += 1


async def driven(algorithm, data, model, graph, order, rounds, **options):
    """The peers of a circle after turns in this order, one at a time."""
    circle, gate = Circle(algorithm, data, model, graph, rounds, **options), Turnstile(order)
    circle.watch = lambda k, report: gate.passed()
    for k in range(data.training):
        circle.begin(k).mixing.pace = gate.of(circle, k)
    circle.peers = dict(circle.up)
    states = await circle.done()
    return circle, states


class Sum(NamedTuple):
    x: Tensor
    turns: Tensor  # [1]


@dataclass(frozen=True)
class Averaging:
    """Numbers that parties average; the first turn of each adds its own."""

    clock = "meetings"
    swaps: int = 1

    def init(self, w):
        return Sum(torch.zeros_like(w), w.new_zeros(1))

    def party(self, me, own):
        x = own.x + (own.turns == 0) * (1.0 + me.number)
        theirs = me.swap(x)
        for _ in range(self.swaps - 1):
            theirs = theirs + me.swap(x) - me.swap(x)
        return Sum((x + theirs) / 2, own.turns + 1)


async def with_kills(circle, kinds, random, kills, chance=0.1, down=None):
    """Begin a circle's peers, and kill some right after an answer was made; it may be lost.

    `down` is done while one is down. Without it, the disk is as it was at that moment, whatever is
    still written until the peer has ended.
    """
    again, count = [], len(circle.disks)

    async def restart(k):
        await circle.end(k)
        if down is not None:
            down(k)
        circle.begin(k)

    def fault(k, j, reply):
        if len(again) < kills and reply.kind in kinds and random.random() < chance:
            victim = int(random.choice([k, j]))
            if victim in circle.up:
                del circle.up[victim]
                if down is None:
                    circle.disks[victim] = circle.disks[victim].copied()
                again.append(asyncio.create_task(restart(victim)))
            if random.random() < 0.5:
                raise Cut("the answer is lost")

    circle.fault = fault
    for k in range(count):
        circle.begin(k)
    while any(len(circle.up) < count or not circle.up[k].done for k in range(count)):
        await asyncio.sleep(0.01)
        for task in circle.tasks.values():
            if task.done() and not task.cancelled() and task.exception():
                raise task.exception()
    await asyncio.gather(*again)
    return len(again), await circle.done()


async def with_death(circle):
    """Begin five peers; the third dies after its second round and comes back three rounds later."""
    ended = []

    def watch(k, report):
        if (k, report.round) == (2, 2):  # before anything of its third round has left
            del circle.up[2]
            ended.append(circle.tasks.pop(2))
            raise Left("killed")
        others = min(len(circle.reports[j]) for j in (0, 1, 3, 4))
        if ended and others >= 5 and 2 not in circle.up:
            circle.begin(2)

    circle.watch = watch
    for k in range(5):
        circle.begin(k)
    await asyncio.gather(*(circle.tasks[k] for k in (0, 1, 3, 4)))
    states = await circle.done()
    await asyncio.gather(*ended, return_exceptions=True)
    return states
