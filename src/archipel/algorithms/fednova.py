# SPDX-License-Identifier: Apache-2.0
"""FedNova.  Wang et al., NeurIPS 2020, https://arxiv.org/abs/2007.07481, equations 9 and 10.

Where parties take unequal numbers of steps, FedAvg weighs those up that take more, and ends at the
optimum of another objective. Here a party sends its change divided by |a_i|, the sum of the weights
that its gradients have in it, and the server goes as far as parties do in the mean:

    x <- x + tau_eff sum_i p_i (x_i - x) / |a_i|,    tau_eff = sum_i p_i |a_i|

|a_i| is the number of steps tau_i for plain SGD. With momentum rho, where gradient k of tau has the
weight 1 + rho + ... + rho^(tau - k), it is (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho).

Departures: none; p_i = n_i / n over the sampled parties, tau_eff as the paper proposes for each
solver, server momentum is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from archipel.core import Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


class Upload(NamedTuple):
    d: Vector  # the change, per weight of a gradient
    a: Vector  # [..., 1]: |a_i|


@dataclass(frozen=True)
class FedNova:
    """FedAvg for unequal numbers of local steps: changes are averaged per step."""

    keeps_partial_work: ClassVar[bool] = True  # that of a straggler is weighed like any other

    lr: Rate = 0.1  # eta
    local_epochs: int = 1
    local_steps: int | None = None  # tau_i, instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()

    def init(self, x: Vector) -> tuple[Vector, None]:
        if not isinstance(self.optimiser, SGD) or self.optimiser.nesterov:
            raise ArchipelError(
                f"optimiser = {self.optimiser}: fednova knows the weights of gradients in SGD's "
                "steps, plain or with momentum (not Nesterov's); take one of these."
            )
        return x, None

    def party(self, me: Party, x: Vector, _: None) -> tuple[Upload, None]:
        end = me.descend(x, self)
        a = self._weight(end.steps)
        return Upload((end.w - x) / a, a), None

    def server(self, x: Vector, uploads: Uploads) -> Vector:
        d, tau_eff = uploads.mean(by_examples=True)
        return x + tau_eff * d

    def _weight(self, tau: Tensor) -> Tensor:
        assert isinstance(self.optimiser, SGD)
        rho = self.optimiser.momentum
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
