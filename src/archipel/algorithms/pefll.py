# SPDX-License-Identifier: Apache-2.0
"""PeFLL.  Scott, Zakerinia and Lampert, ICLR 2024, https://arxiv.org/abs/2306.05515, Algorithm 1.

A party describes its data by a short vector, from which the server makes a model for it: also for
a party that was never seen, in three messages and without a single gradient.

Departures: the hyper-network's last bias starts at the model's own first weights and its last
weights near 0, so that every party starts from the model as it was built. Embeddings reach it
standardised by their running mean and variance over parties, with a floor to the variance, and cut
at 10 standard deviations; a party far from all others is left out of both, so that its data cannot
spoil the others' models. The authors' code takes those of the first party for ever. phi has a
linear term for the label, and for images one in its first dense layer. The embedding network moves
by a share of Adam's step (`embedding_lr`), so that the hyper-network can follow it, and models in
use come from a running mean of the hyper-network, which is steadier (`averaging`); the paper has 1.
A party may train its model on before it uses it (`tune_epochs`), which costs gradients; the paper
has none of it. An embedding is of one batch in training and of all training points in use.
Local steps are not clipped. The regularisers are lambda ||.||^2, with gradient 2 lambda:
`weight_decay` is the lambda_h and lambda_v of that, but the optimiser's weight_decay is 2
lambda_theta. Defaults of lr, local_steps and server_lr are for plain SGD and some hundred rounds;
the authors have 2e-3 with momentum 0.9, 50 and 2e-4, for 5000 rounds.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from torch import cat, clamp, enable_grad, lerp, where

from archipel.core import Blueprint, Each, Party, Uploads, Vector, places
from archipel.errors import ArchipelError
from archipel.models.networks import Embedding, Kind, Perceptron, first_weights, pull_back
from archipel.training.descent import tuned
from archipel.training.limits import above_zero, at_least, tuning
from archipel.training.optimisers import SGD, Adam, Moments, Optimiser
from archipel.training.schedules import Rate, rate
from archipel.vector import clip, norm

CUT, FAR = 10, 100  # standard deviations; times the usual length of an embedding


class Scale(NamedTuple):
    """Of embeddings over parties, `[..., e]`."""

    mean: Vector
    variance: Vector

    @property
    def sd(self) -> Vector:
        least = 1e-3 * (self.mean**2).mean(dim=-1, keepdim=True) + 1e-12  # few parties seen
        return (self.variance + least).sqrt()

    def renewed(self, v: Vector, t: Vector) -> Scale:
        """After round t with the embeddings `[..., m, e]`: all of the first, then slowly."""
        length = norm(v)
        near = length <= FAR * length.median(dim=-2, keepdim=True).values
        v, count = where(near, v, 0), near.sum(dim=-2)
        mean, reach = self.mean.unsqueeze(-2), CUT * self.sd.unsqueeze(-2)
        v = where(t.unsqueeze(-2) > 0, clamp(v, mean - reach, mean + reach), v)
        new = (1 - t).clamp_min(0.05)
        mean = lerp(self.mean, (near * v).sum(dim=-2) / count, new)
        spread = (near * (v - mean.unsqueeze(-2)) ** 2).sum(dim=-2) / count
        return Scale(mean, lerp(self.variance, spread, new))


class Shared(NamedTuple):
    theta: Vector  # mean of the models made in the last round
    eta_v: Vector  # embedding network
    eta_h: Vector  # hyper-network: stays at the server
    moments: Moments  # of both
    scale: Scale
    mean_h: Vector  # eta_h of the last rounds


@dataclass(frozen=True)
class PeFLL:
    """A hyper-network at the server makes every party's model from an embedding of its data."""

    lr: Rate = 0.1  # beta: of the local steps
    local_steps: int = 20  # k
    batch_size: int | float | None = 32
    optimiser: Optimiser = SGD(weight_decay=5e-5)  # 2 lambda_theta
    server_lr: Rate = 1e-3  # alpha, of Adam
    embedding_lr: float = 0.3  # times alpha, of the embedding network
    averaging: float = 0.05  # of eta_h, for models in use: a round's share; 1 takes the last
    weight_decay: float = 0.0  # lambda_h, lambda_v
    clip_at: float = 50.0  # norm of the server's gradient
    embedding: Kind = "examples"
    size: int = 64  # of an embedding
    hidden: int = 100  # width of the hyper-network
    tune_epochs: int = 0  # at the party, on the model that it gets; the paper has none
    tune_lr: Rate | None = None  # of these; None: lr

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Shared, None]:
        at_least(self, size=1, hidden=1, server_lr=0.0, embedding_lr=0.0, weight_decay=0.0)
        tuning(self, epochs=0)
        above_zero(self, "clip_at", "averaging")
        if self.averaging > 1:
            raise ArchipelError(f"averaging = {self.averaging}: give a share up to 1.")
        h, phi = self._h(w.shape[-1]), Embedding.of(self.embedding, blueprint, self.size)
        eta_v = first_weights(phi.spec, blueprint.seed, w, "embedding network")
        eta_h = h.starting_at(first_weights(h.spec, blueprint.seed, w, "hyper-network"), w)
        none = w.new_zeros(self.size)
        moments = Adam().init(cat([eta_v, eta_h], -1))
        return Shared(w, eta_v, eta_h, moments, Scale(none, none), eta_h), None

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
        _, eta_v, eta_h, moments, scale, mean_h = shared
        v, asked = uploads.stack(), uploads.present
        scale = scale.renewed(v, moments.t)
        with enable_grad():
            eta, v = eta_h.detach().requires_grad_(), v.requires_grad_()
            theta = self._models(eta, v, scale, shared.theta.shape[-1])
        uploads = yield Each(theta.detach())  # step 3
        there = places(uploads.present, asked)  # who is lost has no share in the gradients
        d_eta_h, d_v = pull_back(theta[there], (eta, v), uploads.stack())
        uploads = yield Each(d_v[there])  # step 5
        g = cat([uploads.mean(), d_eta_h / uploads.sampled], -1)
        x = cat([eta_v, eta_h], -1)
        g = clip(g + 2 * self.weight_decay * x, self.clip_at)
        alpha = rate(self.server_lr, int(moments.t.max()))
        x, moments = Adam().step(x, g, alpha, moments)  # step 7
        moved, eta_h = x.split([eta_v.shape[-1], eta_h.shape[-1]], -1)
        eta_v = lerp(eta_v, moved, self.embedding_lr)
        mean_h = lerp(mean_h, eta_h, (1 / moments.t).clamp_min(self.averaging))
        return Shared(theta.detach().mean(dim=-2), eta_v, eta_h, moments, scale, mean_h)

    def personal(self, me: Party, eta_v: Vector, _: None) -> Generator[Vector, Vector, Vector]:
        phi = Embedding.of(self.embedding, me.blueprint, self.size)
        points = me.examples()
        theta = yield phi(eta_v.expand(*points.y.shape[:-1], -1), points)
        return tuned(me, theta, self, self.tune_epochs, self.tune_lr)

    def advise(self, shared: Shared, uploads: Uploads) -> Each:
        return Each(
            self._models(shared.mean_h, uploads.stack(), shared.scale, shared.theta.shape[-1])
        )

    def _h(self, p: int) -> Perceptron:
        return Perceptron((self.size, self.hidden, self.hidden, self.hidden, p))

    def _models(self, eta_h: Vector, v: Vector, scale: Scale, p: int) -> Vector:
        """theta_i = h(v_i; eta_h), `[..., m, e] -> [..., m, p]`."""
        v = (v - scale.mean.unsqueeze(-2)) / scale.sd.unsqueeze(-2)
        return self._h(p)(eta_h, v.clamp(-CUT, CUT))
