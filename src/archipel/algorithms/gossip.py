# SPDX-License-Identifier: Apache-2.0
"""Asynchronous gossip.  Boyd, Ghosh, Prabhakar, Shah, IEEE Trans. Inf. Theory 2006.

https://doi.org/10.1109/TIT.2006.874516, with the gradient steps of gossip learning [Ormandi,
Hegedus, Jelasity 2013, https://arxiv.org/abs/1109.1396] and AD-PSGD [Lian 2018,
https://arxiv.org/abs/1710.06952]: a party wakes at random, both it and the neighbour that it draws
train, and their models are averaged: at both of them (push-pull), at the one that was asked (push),
or at the one that woke (pull). Only push-pull keeps the mean over parties what it was.

Departures: both ends train before they average, so that a meeting is alike from both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from archipel.core import Party, Vector
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


@dataclass(frozen=True)
class Gossip:
    """Two that meet train, and then average their models."""

    lr: Rate = 0.1
    local_steps: int = 1
    batch_size: int | float | None = 10
    exchange: Literal["push-pull", "push", "pull"] = "push-pull"
    optimiser: Optimiser = SGD()

    clock: ClassVar[str] = "meetings"

    def init(self, x: Vector) -> Vector:
        return x

    def party(self, me: Party, x: Vector) -> Vector:
        x = me.descend(x, self).w
        mean = (x + me.swap(x)) / 2
        takes = {"push-pull": 1.0, "push": 1 - me.woke, "pull": me.woke}[self.exchange]
        return x + takes * (mean - x)
