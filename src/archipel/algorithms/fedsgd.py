# SPDX-License-Identifier: Apache-2.0
"""FedSGD: parallel SGD.  McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, section 2.

Departures: parties multiply by the learning rate, which may change with the round.
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.core import Party, Uploads, Vector
from archipel.training.schedules import Rate, rate


@dataclass(frozen=True)
class FedSGD:
    """One gradient per party and round, averaged by the server."""

    lr: Rate = 0.1  # eta
    batch_size: int | float | None = None  # B; None is the whole local data

    def init(self, w: Vector) -> tuple[Vector, None]:
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:
        g_k = me.grad(w) if self.batch_size is None else me.grad(w, me.batch(self.batch_size))
        return rate(self.lr, me.round) * g_k, None

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w - uploads.mean(by_examples=True)  # w - eta sum_k n_k / n g_k
