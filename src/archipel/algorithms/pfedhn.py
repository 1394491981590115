# SPDX-License-Identifier: Apache-2.0
"""pFedHN.  Shamsian et al., ICML 2021, https://arxiv.org/abs/2103.04628, Algorithm 1.

Departures: a party keeps its descriptor v_i itself and sends it when it takes part: the same as a
table at the server, which then need not know who is who; its steps are plain SGD. Several parties
take part in a round, where the authors take one. The hyper-network's last bias starts at the
model's own first weights and its last weights near 0. The server's gradient is clipped; local
steps, which the authors clip too, are not. A new party learns its descriptor with the hyper-network
as it is, from 0, the mean of the first descriptors.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import enable_grad, ones_like, where

from archipel.core import Blueprint, Each, Party, Uploads, Vector, places
from archipel.models.networks import Perceptron, first_weights, pull_back
from archipel.training.limits import above_zero, at_least, optimisers
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate, rate
from archipel.vector import clip


class Shared(NamedTuple):
    theta: Vector  # mean of the models made in the last round
    phi: Vector  # hyper-network
    state: Any  # of its optimiser
    round: Vector  # [1]


class Own(NamedTuple):
    v: Vector  # descriptor
    trained: Vector  # [..., 1]: 1 once v was trained


@dataclass(frozen=True)
class PFedHN:
    """A hyper-network at the server makes every party's model from a descriptor it learns."""

    lr: Rate = 0.005  # of the local steps
    local_steps: int = 50  # K
    batch_size: int | float | None = 64
    optimiser: Optimiser = SGD(momentum=0.9, weight_decay=5e-5)
    server_lr: Rate = 0.01  # alpha
    server_optimiser: Optimiser = SGD(momentum=0.9, weight_decay=1e-3)
    descriptor_lr: float = 0.01
    clip_at: float = 50.0  # norm of the server's gradient
    size: int = 32  # of a descriptor
    hidden: int = 100  # width of the hyper-network
    new_steps: int = 5  # exchanges by which a new party learns its descriptor

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Shared, Own]:
        at_least(self, size=1, hidden=1, new_steps=0, server_lr=0.0, descriptor_lr=0.0)
        above_zero(self, "clip_at")
        optimisers(self, "server_optimiser")
        h = self._h(w.shape[-1])
        phi = first_weights(h.spec, blueprint.seed, w, "hyper-network")
        own = Own(w.new_zeros(self.size), w.new_zeros(1))
        return Shared(
            w, h.starting_at(phi, w), self.server_optimiser.init(phi), w.new_zeros(1)
        ), own

    def broadcast(self, shared: Shared) -> None:
        return None

    def party(self, me: Party, _: None, own: Own) -> Generator[Vector, Vector, tuple[Any, Own]]:
        v = where(own.trained > 0, own.v, me.normal(own.v))
        theta = yield v
        d_v = yield theta - me.descend(theta, self).w
        return (), Own(v - self.descriptor_lr * d_v, ones_like(own.trained))

    def server(self, shared: Shared, uploads: Uploads) -> Generator[Each, Uploads, Shared]:
        h, asked = self._h(shared.theta.shape[-1]), uploads.present
        with enable_grad():
            phi, v = shared.phi.detach().requires_grad_(), uploads.stack().requires_grad_()
            theta = h(phi, v)
        uploads = yield Each(theta.detach())
        there = places(uploads.present, asked)  # who is lost has no share in the gradients
        d_phi, d_v = pull_back(theta[there], (phi, v), uploads.stack())
        uploads = yield Each(d_v[there])
        g = clip(d_phi / uploads.sampled, self.clip_at)
        alpha = rate(self.server_lr, int(shared.round.max()))
        moved, state = self.server_optimiser.step(shared.phi, g, alpha, shared.state)
        return Shared(theta.detach().mean(dim=-2), moved, state, shared.round + 1)

    def personal(self, me: Party, _: None, own: Own) -> Generator[Any, Any, Vector]:
        none = own.v.new_zeros(*own.v.shape[:-1], me.blueprint.spec.size)
        v, theta = yield own.v, none
        for _step in range(self.new_steps):
            delta = none
            if bool((own.trained == 0).any()):
                delta = where(own.trained > 0, none, theta - me.descend(theta, self).w)
            v, theta = yield v, delta
        return theta

    def advise(self, shared: Shared, uploads: Uploads) -> Each:
        """Take a party's step on its descriptor; the descriptor and its model."""
        v, delta = uploads.stack()
        h = self._h(shared.theta.shape[-1])
        with enable_grad():
            v = v.requires_grad_()
            (d_v,) = pull_back(h(shared.phi, v), (v,), delta)
        v = v.detach() - self.descriptor_lr * d_v
        return Each((v, h(shared.phi, v)))

    def _h(self, p: int) -> Perceptron:
        return Perceptron((self.size, self.hidden, self.hidden, self.hidden, p))
