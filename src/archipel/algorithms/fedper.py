# SPDX-License-Identifier: Apache-2.0
"""FedPer.  Arivazhagan et al., 2019, https://arxiv.org/abs/1912.00818, Algorithms 1 and 2.

Departures: parties send the change of the base layers rather than the layers; the weighted mean is
the same. A party that was never sampled trains its personalisation layers, starting from the first
ones, with the base layers as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, ones_like, where, zeros_like

from archipel.core import Blueprint, Party, Uploads, Vector
from archipel.models.networks import head_of
from archipel.training.descent import tuned
from archipel.training.limits import tuning
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate
from archipel.vector import join


class Shared(NamedTuple):
    w: Vector  # the base layers W_B, with the first personalisation layers
    body: Tensor  # which of its numbers are the base layers


class Own(NamedTuple):
    h: Vector  # W_P
    trained: Vector  # [..., 1]: 1 once they were trained


@dataclass(frozen=True)
class FedPer:
    """A body for all and a head for each, trained together."""

    lr: Rate = 0.1  # eta
    local_epochs: int = 1  # e
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    head: str = "last"  # names of the head's parameters, such as "fc2.* fc3.*", or the last layer
    tune_epochs: int | None = 5  # of the head, at a party that never trained; None: as in training
    tune_lr: Rate | None = None  # of these; None: lr

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Shared, Own]:
        tuning(self)
        head = head_of(self, blueprint)
        return Shared(w, (~head).nonzero()[:, 0]), Own(w[..., head], zeros_like(w[..., :1]))

    def broadcast(self, shared: Shared) -> Vector:
        return shared.w.gather(-1, shared.body)  # W_B

    def party(self, me: Party, base: Vector, own: Own) -> tuple[Vector, Own]:
        head = head_of(self, me.blueprint)
        w = me.descend(join(head, own.h, base), self).w
        return w[..., ~head] - base, Own(w[..., head], ones_like(own.trained))

    def server(self, shared: Shared, uploads: Uploads) -> Shared:
        delta = uploads.mean(by_examples=True)
        return Shared(shared.w.scatter_add(-1, shared.body, delta), shared.body)

    def personal(self, me: Party, base: Vector, own: Own) -> Vector:
        head = head_of(self, me.blueprint)
        w = join(head, own.h, base)
        if bool((own.trained > 0).all()):
            return w
        made = tuned(me, w, self, self.tune_epochs, self.tune_lr, head)
        return where(own.trained > 0, w, made)
