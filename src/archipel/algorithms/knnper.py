# SPDX-License-Identifier: Apache-2.0
"""kNN-Per.  Marfoq et al., ICML 2022, https://arxiv.org/abs/2111.09360.

FedAvg; a party mixes what the shared model says of a point with the labels of its own training
points that lie nearest, as seen by the model's last layer.

Departures: parties send w_k - w rather than w_k; the weighted mean is the same. lambda is one
number for all parties, chosen like any other setting.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, cdist, finfo, log, softmax, zeros

from archipel.core import Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.optimisers import SGD, Optimiser
from archipel.schedules import Rate


@dataclass(frozen=True)
class KNNPer:
    """FedAvg, mixed at each party with the labels of the nearest of its own points."""

    lr: Rate = 0.1  # eta
    local_epochs: int = 1
    local_steps: int | None = None  # instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    lam: float = 0.5  # lambda: 0 is the shared model, 1 the neighbours alone
    neighbours: int = 10  # k
    scale: float = 1.0  # sigma, of distances

    def init(self, w: Vector) -> tuple[Vector, None]:
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:
        return me.descend(w, self).w - w, None

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + uploads.mean(by_examples=True)

    def personal(self, me: Party, w: Vector, _: None) -> Vector:
        return w

    def predict(self, me: Party, w: Vector, x: Tensor) -> Tensor:
        """Logarithms of the mixed probabilities, `[b, classes]`."""
        if me.blueprint.classes is None:
            raise ArchipelError("knnper mixes class labels and the task has none: take ditto.")
        own, outputs = me.examples(), me.outputs(w, x)
        phi, stored = me.features(w, x), me.features(w, own.x)
        d = cdist(phi, stored) ** 2 / (phi.shape[-1] * self.scale)
        near = d.topk(min(self.neighbours, len(stored)), largest=False)
        kernel = softmax(-near.values, -1)  # exp(-d), summing to 1 over the neighbours
        p_knn = zeros(outputs.shape, dtype=kernel.dtype)
        p_knn.scatter_add_(-1, own.y[near.indices], kernel)
        p = self.lam * p_knn + (1 - self.lam) * softmax(outputs, -1)
        return log(p.clamp_min(finfo(p.dtype).tiny))
