# SPDX-License-Identifier: Apache-2.0
"""PeFLL.  Scott, Zakerinia and Lampert, ICLR 2024, https://arxiv.org/abs/2306.05515, Algorithm 1.

A party describes its data by a short vector, from which the server makes a model for it: also for
a party that was never seen, in three messages and without a single gradient.

Departures: the hyper-network's last bias starts at the model's own first weights and its last
weights near 0, so that every party starts from the model as it was built. The embedding is a plain
mean, neither rescaled nor standardised. No clipping of local steps.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from torch import cat, enable_grad

from archipel.core import Blueprint, Each, Party, Uploads, Vector
from archipel.networks import Embedding, Kind, Perceptron, first_weights, pull_back
from archipel.optimisers import SGD, Adam, Moments, Optimiser
from archipel.schedules import Rate
from archipel.vector import clip


class Shared(NamedTuple):
    theta: Vector  # mean of the models made in the last round
    eta_v: Vector  # embedding network
    eta_h: Vector  # hyper-network: stays at the server
    moments: Moments  # of both


@dataclass(frozen=True)
class PeFLL:
    """A hyper-network at the server makes every party's model from an embedding of its data."""

    lr: Rate = 0.002  # beta: of the local steps
    local_steps: int = 50  # k
    batch_size: int | float | None = 32
    optimiser: Optimiser = SGD(momentum=0.9, weight_decay=5e-5)  # lambda_theta
    server_lr: float = 2e-4  # alpha, of Adam
    weight_decay: float = 0.0  # lambda_h, lambda_v
    clip_at: float = 50.0  # norm of the server's gradient
    embedding: Kind = "examples"
    size: int = 32  # of an embedding
    hidden: int = 100  # width of the hyper-network

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Shared, None]:
        h, phi = self._h(w.shape[-1]), Embedding.of(self.embedding, blueprint, self.size)
        eta_v = first_weights(phi.spec, blueprint.seed, w)
        eta_h = h.starting_at(first_weights(h.spec, blueprint.seed + 1, w), w)
        return Shared(w, eta_v, eta_h, Adam().init(cat([eta_v, eta_h], -1))), None

    def broadcast(self, shared: Shared) -> Vector:
        return shared.eta_v  # step 1

    def party(
        self, me: Party, eta_v: Vector, _: None
    ) -> Generator[Vector, Vector, tuple[Vector, None]]:
        phi = Embedding.of(self.embedding, me.blueprint, self.size)
        points = me.examples(me.batch(self.batch_size))
        with enable_grad():
            eta = eta_v.expand(*points.y.shape[:-1], -1).clone().requires_grad_()
            v = phi(eta, points)
        theta = yield v.detach()  # steps 2 and 3
        d_v = yield theta - me.descend(theta, self).w  # steps 4 and 5
        (d_eta,) = pull_back(v, (eta,), d_v)
        return d_eta, None  # step 6

    def server(self, shared: Shared, uploads: Uploads) -> Generator[Each, Uploads, Shared]:
        theta, eta_v, eta_h, moments = shared
        h = self._h(theta.shape[-1])
        with enable_grad():
            eta, v = eta_h.detach().requires_grad_(), uploads.stack().requires_grad_()
            made = h(eta, v)
        uploads = yield Each(made.detach())  # step 3
        d_eta_h, d_v = pull_back(made, (eta, v), uploads.stack())
        uploads = yield Each(d_v)  # step 5
        g = cat([uploads.mean(), d_eta_h / uploads.sampled], -1)
        x = cat([eta_v, eta_h], -1)
        g = clip(g + 2 * self.weight_decay * x, self.clip_at)
        x, moments = Adam().step(x, g, self.server_lr, moments)  # step 7
        eta_v, eta_h = x.split([eta_v.shape[-1], eta_h.shape[-1]], -1)
        return Shared(made.detach().mean(dim=-2), eta_v, eta_h, moments)

    def personal(self, me: Party, eta_v: Vector, _: None) -> Generator[Vector, Vector, Vector]:
        phi = Embedding.of(self.embedding, me.blueprint, self.size)
        points = me.examples()
        theta = yield phi(eta_v.expand(*points.y.shape[:-1], -1), points)
        return theta

    def advise(self, shared: Shared, uploads: Uploads) -> Each:
        return Each(self._h(shared.theta.shape[-1])(shared.eta_h, uploads.stack()))

    def _h(self, p: int) -> Perceptron:
        return Perceptron((self.size, self.hidden, self.hidden, self.hidden, p))
