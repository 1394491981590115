# SPDX-License-Identifier: Apache-2.0
"""FedAvg.  McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.

Departures: parties send w_k - w rather than w_k; the weighted mean is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.core import Party, Uploads, Vector
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


@dataclass(frozen=True)
class FedAvg:
    """Local training, then a weighted mean of the models."""

    lr: Rate = 0.1  # eta
    local_epochs: int = 1  # E
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10  # B; None is the whole local data
    optimiser: Optimiser = SGD()

    def init(self, w: Vector) -> tuple[Vector, None]:
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:  # ClientUpdate(k, w)
        w_k = me.descend(w, self).w  # E epochs of batches b: w <- w - eta grad l(w; b)
        return w_k - w, None

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + uploads.mean(by_examples=True)  # sum_k n_k / n w_k
