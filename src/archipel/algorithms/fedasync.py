# SPDX-License-Identifier: Apache-2.0
"""FedAsync.  Xie, Koyejo, Gupta, OPT 2020, https://arxiv.org/abs/1903.03934, Algorithm 1.

`[round] sample` is how many parties train at once.

Departures: a party applies s, the server alpha: it sends s(t - tau) x_new and s(t - tau), of which
x + alpha (s x_new - s x) = (1 - alpha s) x + alpha s x_new. t - tau are the steps between what a
party was sent and its upload, 0 where there is none; the paper's t counts the step that is being
made, too, which is a constant factor of the polynomial s. With a buffer above 1, which the paper
does not have, a step mixes with the mean of so many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, ones_like

from archipel.core import Party, Uploads, Vector
from archipel.errors import unknown
from archipel.training.limits import at_least
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate

STALENESS = ("constant", "polynomial", "hinge")


class Upload(NamedTuple):
    x: Vector  # s x_new
    s: Tensor  # [..., 1]


@dataclass(frozen=True)
class FedAsync:
    """Every upload is mixed into the model by itself, the less the older its start is."""

    asynchronous: ClassVar[bool] = True

    lr: Rate = 0.1  # gamma
    rho: float = 0.005  # pulls a party back to what it was sent
    local_epochs: int = 1
    local_steps: int | None = None  # H, instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    alpha: float = 0.6  # how much of a fresh upload is mixed in
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"  # which s
    discount: float = 0.5  # a of s
    patience: int = 4  # b: up to here the hinge forgives
    buffer: int = 1  # uploads of a step

    def init(self, x: Vector) -> tuple[Vector, None]:
        at_least(self, buffer=1, discount=0.0, patience=0, rho=0.0)
        return x, None

    def party(self, me: Party, x: Vector, _: None) -> tuple[Upload, None]:
        x_new = me.descend(x, self, pull=self.rho).w  # min_x f(x; z) + rho / 2 |x - x_tau|^2
        s = self._s(me.staleness)
        return Upload(s * x_new, s), None

    def server(self, x: Vector, uploads: Uploads) -> Vector:
        s_x_new, s = uploads.mean()
        return x + self.alpha * (s_x_new - s * x)  # (1 - alpha_t) x + alpha_t x_new

    def _s(self, late: Tensor) -> Tensor:  # of t - tau
        a, b = self.discount, self.patience
        if self.staleness == "constant":
            return ones_like(late)
        if self.staleness == "polynomial":
            return (1 + late) ** -a
        if self.staleness == "hinge":
            return 1 / (1 + a * (late - b).clamp(min=0))
        raise unknown("staleness", self.staleness, STALENESS)
