# SPDX-License-Identifier: Apache-2.0
"""APGD1 and APGD2.  Hanzely et al., NeurIPS 2020, https://arxiv.org/abs/2010.02372.

Accelerated proximal gradient descent, one round an iteration, for L2GD's problem (times n):

    min over x_1 ... x_n of  sum_i f_i(x_i) + lambda/2 sum_i ||x_i - xbar||^2

APGD1 takes the gradient of the first sum and the proximal step of the second, which is
x_i <- zbar + (z_i - zbar) / (1 + gamma lambda): about sqrt(L / mu) rounds, for L <= lambda. APGD2
does it the other way round. The gradient step of length 1 / lambda on the second sum is
y_i - (y_i - ybar) = ybar, so that x_i <- argmin f_i(x) + lambda/2 ||x - ybar||^2 is solved at the
party: about sqrt(lambda / mu) rounds, for lambda < L. Both then step on, y = x + beta (x - x_old).

Departures: APGD2 solves its local problem inexactly, as IAPGD does, by local descent from the last
x_i; its beta, where f_i and not the smooth part is strongly convex, is that of Chambolle & Pock,
Acta Numerica 2016, Algorithm 5. Parties send how far z_i (y_i) moved, and the server adds the moves
up, so that its mean remains that of all parties where only some are sampled; the others stand still
(in the paper all take part). Gradients may be of mini-batches. A party that never trained minimises
f_i(x) + lambda/2 ||x - mean||^2, from the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import ones_like, where, zeros_like

from archipel.core import Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.training.limits import above_zero, at_least, largest
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate, rate


class Own(NamedTuple):
    x: Vector
    sent: Vector  # z_i or y_i: the server holds its mean over the parties
    trained: Vector  # [..., 1]: 1 once x was trained


@dataclass(frozen=True)
class APGD1:
    """Models drawn to their mean, by accelerated gradient steps: for strong pulls."""

    lr: Rate = 0.1  # gamma: 1 / L
    lam: float = 0.1  # lambda: 0 is every party alone, large is one model for all
    strong_convexity: float = 0.01  # mu of the f_i
    batch_size: int | float | None = None
    tune_steps: int = 50  # of a party that never trained, to get a model of its own

    def init(self, w: Vector) -> tuple[Vector, Own]:
        at_least(self, lam=0.0, tune_steps=0)
        above_zero(self, "strong_convexity")
        if largest(self.lr) * self.strong_convexity > 1:
            raise ArchipelError(
                f"lr = {self.lr}, strong_convexity = {self.strong_convexity}: steps are longer "
                "than the curvature allows; lower one of them until their product is at most 1."
            )
        return w, Own(w, w, zeros_like(w[..., :1]))

    def party(self, me: Party, zbar: Vector, own: Own) -> tuple[Vector, Own]:
        gamma = rate(self.lr, me.round)
        root = (self.strong_convexity * gamma) ** 0.5  # sqrt(mu / L)
        x = zbar + (own.sent - zbar) / (1 + gamma * self.lam)  # prox of lambda psi
        y = x + (1 - root) / (1 + root) * (x - own.x)
        z = y - gamma * me.grad(y, me.batch(self.batch_size))
        return z - own.sent, Own(x, z, ones_like(own.trained))

    def server(self, zbar: Vector, uploads: Uploads) -> Vector:
        return zbar + uploads.sampled / uploads.parties * uploads.mean()

    def personal(self, me: Party, zbar: Vector, own: Own) -> Vector:
        gamma = rate(self.lr, me.round)
        x = zbar + (own.sent - zbar) / (1 + gamma * self.lam)
        if bool((own.trained > 0).all()):
            return x
        new = zbar
        for _ in range(self.tune_steps):
            slope = me.grad(new, me.batch(self.batch_size)) + self.lam * (new - zbar)
            new = new - gamma / (1 + gamma * self.lam) * slope  # 1 / (L + lambda)
        return where(own.trained > 0, x, new)


@dataclass(frozen=True)
class APGD2:
    """Models drawn to their mean, by accelerated local training: for weak pulls."""

    lr: Rate = 0.1  # of the local descent: at most 1 / (L + lambda)
    local_epochs: int = 1
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    lam: float = 0.1  # lambda: 0 is every party alone, large is one model for all
    strong_convexity: float = 0.01  # mu of the f_i

    def init(self, w: Vector) -> tuple[Vector, Own]:
        at_least(self, lam=0.0)
        above_zero(self, "strong_convexity")
        if isinstance(self.optimiser, SGD) and largest(self.lr) * self.lam >= 2:
            raise ArchipelError(
                f"lr = {self.lr}, lam = {self.lam}: local steps overshoot the mean ever further; "
                "lower one of them until lr * lam is below 2."
            )
        return w, Own(w, w, zeros_like(w[..., :1]))

    def party(self, me: Party, ybar: Vector, own: Own) -> tuple[Vector, Own]:
        mu, lam = self.strong_convexity, self.lam
        x = me.descend(own.x, self, pull=lam, towards=ybar).w  # prox of f_i / lambda at ybar
        root = (mu / (lam + mu)) ** 0.5
        y = x + (1 - root) / (1 + root) * (x - own.x)
        return y - own.sent, Own(x, y, ones_like(own.trained))

    def server(self, ybar: Vector, uploads: Uploads) -> Vector:
        return ybar + uploads.sampled / uploads.parties * uploads.mean()

    def personal(self, me: Party, ybar: Vector, own: Own) -> Vector:
        if bool((own.trained > 0).all()):
            return own.x
        new = me.descend(ybar, self, pull=self.lam, towards=ybar).w
        return where(own.trained > 0, own.x, new)
