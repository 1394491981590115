# SPDX-License-Identifier: Apache-2.0
"""FedAvg, then a few local passes at the party that uses the model: the honest baseline.

FedAvg + update in Fallah et al., NeurIPS 2020, https://arxiv.org/abs/2002.07948; FedAvg + FT in
Collins et al., ICML 2021, https://arxiv.org/abs/2102.07078.

Departures: parties send w_k - w rather than w_k; the weighted mean is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.core import Party, Uploads, Vector
from archipel.training.descent import tuned
from archipel.training.limits import tuning
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


@dataclass(frozen=True)
class FineTuned:
    """FedAvg; each party trains the shared model on before it uses it."""

    lr: Rate = 0.1
    local_epochs: int = 1
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    tune_epochs: int | None = 1  # at the party, before it uses the model; None: as in training
    tune_lr: Rate | None = None  # of these epochs; None: lr

    def init(self, w: Vector) -> tuple[Vector, None]:
        tuning(self)
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:
        return me.descend(w, self).w - w, None

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + uploads.mean(by_examples=True)

    def personal(self, me: Party, w: Vector, _: None) -> Vector:
        return tuned(me, w, self, self.tune_epochs, self.tune_lr)
