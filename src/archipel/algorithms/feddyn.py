# SPDX-License-Identifier: Apache-2.0
"""FedDyn.  Acar et al., ICLR 2021, https://arxiv.org/abs/2111.04263, Algorithm 1.

Every party has a linear term, the gradient of its loss where it stood last, so that where all agree
none wants to move: the fixed point is the optimum of the mean loss, though parties train for long.

Departures: parties send theta_k - theta rather than theta_k; the mean is the same. The server keeps
s = h / alpha: s <- s - |P| / m mean(theta_k - theta), theta <- theta + mean(theta_k - theta) - s.
The local problem is solved by a fixed number of steps, and its gradient by the paper's identity
g_k <- g_k - alpha (theta_k - theta), which is exact where it is solved exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import zeros_like

from archipel.core import Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.training.limits import above_zero, largest
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


class Shared(NamedTuple):
    theta: Vector
    s: Vector  # h / alpha


@dataclass(frozen=True)
class FedDyn:
    """A linear term at each party that makes its optimum everybody's, and a pull to the model."""

    lr: Rate = 0.1
    alpha: float = 0.1
    local_epochs: int = 1
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()

    def init(self, theta: Vector) -> tuple[Shared, Vector]:
        above_zero(self, "alpha")
        if isinstance(self.optimiser, SGD) and largest(self.lr) * self.alpha >= 2:
            raise ArchipelError(
                f"lr = {self.lr}, alpha = {self.alpha}: local steps overshoot the shared model "
                "ever further; lower one of them until lr * alpha is below 2."
            )
        return Shared(theta, zeros_like(theta)), zeros_like(theta)

    def broadcast(self, shared: Shared) -> Vector:
        return shared.theta

    def party(self, me: Party, theta: Vector, g_k: Vector) -> tuple[Vector, Vector]:
        theta_k = me.descend(theta, self, shift=-g_k, pull=self.alpha).w
        return theta_k - theta, g_k - self.alpha * (theta_k - theta)

    def server(self, shared: Shared, uploads: Uploads) -> Shared:
        delta = uploads.mean()
        s = shared.s - uploads.sampled / uploads.parties * delta
        return Shared(shared.theta + delta - s, s)
