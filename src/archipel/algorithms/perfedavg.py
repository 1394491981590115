# SPDX-License-Identifier: Apache-2.0
"""Per-FedAvg.  Fallah et al., NeurIPS 2020, https://arxiv.org/abs/2002.07948, Algorithm 1.

min over w of 1/n sum_i f_i(w - alpha grad f_i(w)): a start from which one step goes far.

Departures: parties send w_i - w rather than w_i; the mean is the same. The Hessian-free variant
differs v = grad f_i(w~; D') along a step of length delta (1 + ||w||), not delta ||v||: relative to
the weights, 1e-3 is far enough above their rounding in single precision (6e-8) and short enough for
the curvature, however small the gradient. D, D' and D'' are successive batches of passes over
shuffled data: different points within a pass, but a step that crosses its end may meet a point
twice, and with fewer than three batches does. A local epoch counts n / B steps, each of which draws
them anew. A party's own model takes `tune_steps` steps, each on all of its training points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import finfo, where

from archipel.core import Batch, Party, Uploads, Vector
from archipel.errors import unknown
from archipel.training.limits import above_zero, at_least
from archipel.training.schedules import Rate, rate
from archipel.vector import norm


@dataclass(frozen=True)
class PerFedAvg:
    """A shared start from which every party is a gradient step away from a model of its own."""

    lr: Rate = 0.1  # beta
    inner_lr: float = 0.05  # alpha
    local_epochs: int = 1
    local_steps: int | None = None  # tau, instead of epochs
    batch_size: int | float | None = 10
    variant: Literal["hessian-free", "first-order"] = "hessian-free"
    delta: float = 1e-3  # step of the finite difference, relative to the weights: 1e-3 to 1e-2
    tune_steps: int = 1  # at the party, before it uses the model

    def init(self, w: Vector) -> tuple[Vector, None]:
        if self.variant not in ("hessian-free", "first-order"):
            raise unknown("variant", self.variant, ("hessian-free", "first-order"))
        at_least(self, inner_lr=0.0, tune_steps=0)
        above_zero(self, "delta")
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:
        alpha, beta, tau = self.inner_lr, rate(self.lr, me.round), me.steps(self)
        w_i = w
        for t in range(int(tau.max())):
            going = t < tau  # parties that have a step left
            D, D1 = me.batch(self.batch_size, going), me.batch(self.batch_size, going)
            w_tilde = w_i - alpha * me.grad(w_i, D)
            g = me.grad(w_tilde, D1)
            if self.variant == "hessian-free":
                D2 = me.batch(self.batch_size, going)
                g = g - alpha * self.curvature(me, w_i, g, D2)  # (I - alpha H(w; D'')) g
            w_i = where(going, w_i - beta * g, w_i)
        return w_i - w, None

    def curvature(self, me: Party, w: Vector, v: Vector, batch: Batch) -> Vector:
        """Hessian of the batch's loss at w, times v, by a central difference."""
        length = norm(v).clamp_min(finfo(v.dtype).tiny)
        step = self.delta * (1 + norm(w))
        d = step * (v / length)  # 0 where v is: step / length may be infinite
        return (me.grad(w + d, batch) - me.grad(w - d, batch)) * (length / (2 * step))

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + uploads.mean()

    def personal(self, me: Party, w: Vector, _: None) -> Vector:
        for _step in range(self.tune_steps):
            w = w - self.inner_lr * me.grad(w)
        return w
