# SPDX-License-Identifier: Apache-2.0
"""kNN-Per.  Marfoq et al., ICML 2022, https://arxiv.org/abs/2111.09360.

FedAvg; a party mixes what the shared model says of a point with the labels of its own training
points that lie nearest, as seen by the model's last layer.

Departures: parties send w_k - w rather than w_k; the weighted mean is the same. lambda is one
number for all parties, chosen like any other setting. The kernel is exp(-d^2 / (f scale)) for
Euclidean distances d of f features, as in the authors' code; the paper has exp(-d).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, cdist, finfo, inf, log, softmax, where, zeros

from archipel.core import Blueprint, Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.training.limits import above_zero, at_least
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


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

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Vector, None]:
        at_least(self, neighbours=1, lam=0.0)
        above_zero(self, "scale")
        if self.lam > 1:
            raise ArchipelError(f"lam = {self.lam}: give a number from 0 to 1.")
        if blueprint.classes is None:
            raise ArchipelError(
                "knnper mixes class labels and the task has none: take an algorithm such as ditto."
            )
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:
        return me.descend(w, self).w - w, None

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + uploads.mean(by_examples=True)

    def personal(self, me: Party, w: Vector, _: None) -> Vector:
        return w

    def predict(self, me: Party, w: Vector, x: Tensor, own: bool) -> Tensor:
        """Logarithms of the mixed probabilities, `[b, classes]`."""
        points, outputs = me.examples(), me.outputs(w, x)
        if outputs.shape[1:] != (me.blueprint.classes,):
            raise ArchipelError(
                f"knnper needs an output for each of {me.blueprint.classes} classes and the model "
                f"has {list(outputs.shape[1:])}: give it as many."
            )
        phi, stored = me.features(w, x), me.features(w, points.x)
        centre = stored.mean(dim=0)  # distances of large numbers would lose their digits
        d = cdist(phi - centre, stored - centre) ** 2 / (phi.shape[-1] * self.scale)
        if own:
            d.fill_diagonal_(inf)  # a training point is not its own neighbour
        near = d.topk(min(self.neighbours, len(stored)), largest=False)
        kernel = softmax(-near.values, -1).nan_to_num(0)  # exp(-d), summing to 1, or no neighbour
        p_knn = zeros(outputs.shape, dtype=kernel.dtype).scatter_add(
            -1, points.y[near.indices], kernel
        )
        p = softmax(outputs, -1)
        p = where(p_knn.sum(dim=-1, keepdim=True) > 0, self.lam * p_knn + (1 - self.lam) * p, p)
        return log(p.clamp_min(finfo(p.dtype).tiny))
