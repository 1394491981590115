# SPDX-License-Identifier: Apache-2.0
"""FedRep.  Collins et al., ICML 2021, https://arxiv.org/abs/2102.07078, Algorithm 1.

Departures: parties send phi_i - phi rather than phi_i; the mean, weighted by examples as in the
authors' code, is the same. Whoever uses the model first trains its head on the body as it is then,
for `tune_epochs`, as the authors' last round does for at least ten; a party that was never sampled
starts from the first head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from archipel.core import Blueprint, Descent, Party, Uploads, Vector
from archipel.models.networks import head_of
from archipel.training.descent import tuned
from archipel.training.limits import at_least, tuning
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate
from archipel.vector import join


class Shared(NamedTuple):
    w: Vector  # the body, with the first head
    body: Tensor  # which of its numbers are the body


@dataclass(frozen=True)
class FedRep:
    """A body for all and a head for each: parties train their head, then the body."""

    lr: Rate = 0.05  # alpha
    head_epochs: int = 5  # tau
    local_epochs: int = 1  # of the body
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    head: str = "last"  # names of the head's parameters, such as "fc2.* fc3.*", or the last layer
    tune_epochs: int | None = 10  # of the head, before the model is used; None: head_epochs
    tune_lr: Rate | None = None  # of these; None: lr

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Shared, Vector]:
        at_least(self, head_epochs=1)
        tuning(self)
        head = head_of(self, blueprint)
        return Shared(w, (~head).nonzero()[:, 0]), w[..., head]

    def broadcast(self, shared: Shared) -> Vector:
        return shared.w.gather(-1, shared.body)  # phi

    def party(self, me: Party, phi: Vector, h: Vector) -> tuple[Vector, Vector]:
        head = head_of(self, me.blueprint)
        w = self._train_head(me, join(head, h, phi), head).w  # line 7
        w = me.descend(w, self, only=~head).w  # line 9
        return w[..., ~head] - phi, w[..., head]

    def server(self, shared: Shared, uploads: Uploads) -> Shared:
        delta = uploads.mean(by_examples=True)
        return Shared(shared.w.scatter_add(-1, shared.body, delta), shared.body)  # line 12

    def personal(self, me: Party, phi: Vector, h: Vector) -> Vector:
        head = head_of(self, me.blueprint)
        epochs = self.head_epochs if self.tune_epochs is None else self.tune_epochs
        return tuned(me, join(head, h, phi), self, epochs, self.tune_lr, head)

    def _train_head(self, me: Party, w: Vector, head: Tensor) -> Descent:
        return me.descend(w, replace(self, local_epochs=self.head_epochs), only=head)
