# SPDX-License-Identifier: Apache-2.0
"""FedOpt: FedAvgM, FedAdagrad, FedAdam, FedYogi.

Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithms 1 and 2.

Departures: the mean of the updates is weighted by n_k unless `by_examples` is off (the paper's box
averages uniformly, its experiments weight). No bias correction, as in the paper. beta1 is 0.9, but
0 for Adagrad, as in the paper's experiments; its box has one for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import full_like, sign, zeros_like

from archipel.core import Party, Uploads, Vector
from archipel.errors import unknown
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate

SERVER_OPTIMISERS = ("sgd", "momentum", "adagrad", "adam", "yogi")


class Shared(NamedTuple):
    x: Vector
    m: Vector
    v: Vector


@dataclass(frozen=True)
class FedOpt:
    """An optimiser at the server, with the mean update as its gradient."""

    lr: Rate = 0.1  # eta_l
    local_epochs: int = 1
    local_steps: int | None = None  # K, instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    server_optimiser: Literal["sgd", "momentum", "adagrad", "adam", "yogi"] = "adam"
    server_lr: float = 0.1  # eta
    beta1: float | None = None  # None: 0.9, and 0 for adagrad
    beta2: float = 0.99
    tau: float = 1e-3  # adaptivity: the smallest sqrt(v)
    by_examples: bool = True

    def init(self, x: Vector) -> tuple[Shared, None]:
        return Shared(x, zeros_like(x), full_like(x, self.tau**2)), None

    def broadcast(self, shared: Shared) -> Vector:
        return shared.x

    def party(self, me: Party, x: Vector, _: None) -> tuple[Vector, None]:
        return me.descend(x, self).w - x, None  # Delta_i = x_i,K - x_t

    def server(self, shared: Shared, uploads: Uploads) -> Shared:
        (x, m, v), eta, b1, b2 = shared, self.server_lr, self.beta1, self.beta2
        if b1 is None:
            b1 = 0.0 if self.server_optimiser == "adagrad" else 0.9
        delta = uploads.mean(by_examples=self.by_examples)
        if self.server_optimiser == "sgd":
            return Shared(x + eta * delta, m, v)
        if self.server_optimiser == "momentum":
            m = b1 * m + delta
            return Shared(x + eta * m, m, v)
        m = b1 * m + (1 - b1) * delta
        if self.server_optimiser == "adagrad":
            v = v + delta**2
        elif self.server_optimiser == "yogi":
            v = v - (1 - b2) * delta**2 * sign(v - delta**2)
        elif self.server_optimiser == "adam":
            v = b2 * v + (1 - b2) * delta**2
        else:
            raise unknown("server_optimiser", self.server_optimiser, SERVER_OPTIMISERS)
        return Shared(x + eta * m / (v.sqrt() + self.tau), m, v)
