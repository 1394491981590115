# SPDX-License-Identifier: Apache-2.0
"""FedBN.  Li et al., ICLR 2021, https://arxiv.org/abs/2102.07623, Algorithm 1.

FedAvg but for BatchNorm: its parameters stay at the party, and so do its running statistics, which
the engine keeps (`keeps_statistics`). On a model without BatchNorm it is FedAvg in which every
party weighs the same, and a run says so.

Departures: parties send the change of the other layers rather than the layers; the mean is the
same. Only parties of the round are averaged, where the paper has all take part. A party that was
never sampled uses the first parameters of BatchNorm, with the statistics of one pass over its
training points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from archipel.core import Blueprint, Party, Uploads, Vector
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate
from archipel.vector import join


class Shared(NamedTuple):
    w: Vector  # the other layers, with the first parameters of BatchNorm
    rest: Tensor  # which of its numbers are the other layers


@dataclass(frozen=True)
class FedBN:
    """FedAvg, with BatchNorm's layers each party's own."""

    keeps_statistics: ClassVar[bool] = True

    lr: Rate = 0.1
    local_epochs: int = 1  # E
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Shared, Vector]:
        norm = blueprint.spec.among(blueprint.norms)
        return Shared(w, (~norm).nonzero()[:, 0]), w[..., norm]

    def broadcast(self, shared: Shared) -> Vector:
        return shared.w.gather(-1, shared.rest)

    def party(self, me: Party, rest: Vector, h: Vector) -> tuple[Vector, Vector]:
        norm = me.blueprint.spec.among(me.blueprint.norms)
        w = me.descend(join(norm, h, rest), self).w
        return w[..., ~norm] - rest, w[..., norm]

    def server(self, shared: Shared, uploads: Uploads) -> Shared:
        delta = uploads.mean()  # 1/K sum over k, of all layers but BatchNorm
        return Shared(shared.w.scatter_add(-1, shared.rest, delta), shared.rest)

    def personal(self, me: Party, rest: Vector, h: Vector) -> Vector:
        return join(me.blueprint.spec.among(me.blueprint.norms), h, rest)
