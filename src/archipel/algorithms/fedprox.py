# SPDX-License-Identifier: Apache-2.0
"""FedProx.  Li et al., MLSys 2020, https://arxiv.org/abs/1812.06127, Algorithm 2.

Departures: the local problem is solved by a fixed number of steps rather than to an accuracy gamma,
and parties are drawn uniformly and averaged by n_k, both as in the paper's experiments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from archipel.core import Party, Uploads, Vector
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


@dataclass(frozen=True)
class FedProx:
    """FedAvg whose parties are pulled back to the shared model, and whose stragglers count."""

    keeps_partial_work: ClassVar[bool] = True  # FedAvg drops a party that did not finish

    lr: Rate = 0.1  # eta
    mu: float = 1.0
    local_epochs: int = 1  # E
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()

    def init(self, w: Vector) -> tuple[Vector, None]:
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:
        w_k = me.descend(w, self, pull=self.mu).w  # min_v F_k(v) + mu / 2 |v - w|^2, from v = w
        return w_k - w, None

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + uploads.mean(by_examples=True)
