# SPDX-License-Identifier: Apache-2.0
"""All points of all parties side by side, for gradients that run over all of a party's points.

Layers before the first one that is learnt, such as given base models, see the points once.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.models.model import Points, Way
from archipel.models.stacked import Stacked
from archipel.rng import Ints

if TYPE_CHECKING:
    from archipel.engines.local.share import Job

_WIDE, _ROOM = 256, 64 << 20  # points of a party, and bytes of all, at most


class Whole(NamedTuple):
    """Points of some parties, padded, and the way from where they stand to the loss."""

    points: Points
    way: Way

    def some(self, ids: Ints) -> Whole:
        """The points of these parties."""
        at, lengths = torch.from_numpy(ids), self.points.lengths[ids]
        x, y, weights = (part.index_select(0, at) for part in self.points[:3])
        width = int(lengths.max())
        return Whole(Points(x[:, :width], y[:, :width], weights[:, :width], lengths), self.way)

    def grad(self, w: Tensor) -> Tensor:
        return self.way.grad(w, self.points, None)

    def loss(self, w: Tensor) -> Tensor:
        return self.way.loss(w, self.points, None)


def whole_of(job: Job) -> Whole | None:
    """That of all parties, where it is small and nothing is drawn of it."""
    data, sizes = job.data, job.data.n[: job.data.training].numpy()
    width = int(sizes.max(initial=0))
    if data.lazy or job.draws or job.model.buffer_spec.size or not 0 < width <= _WIDE:
        return None
    if len(sizes) * width * (prod(data.shape) + 1) * job.model.dtype.itemsize > _ROOM:
        return None
    if not bool((sizes > 0).all()):
        return None
    held = data.held(np.arange(len(sizes)))
    column = np.arange(width)
    at = torch.from_numpy(held.starts[:, None] + np.minimum(column, sizes[:, None] - 1))
    weights = torch.from_numpy((column < sizes[:, None]) / sizes[:, None]).to(job.model.dtype)
    x, way = held.x[at], job.way
    if isinstance(way, Stacked) and way.first > 0:
        seen, rest = way.ahead(x), way.rest()
        if seen.nelement() * seen.element_size() <= _ROOM:
            x, way = seen, rest
    return Whole(Points(x, held.y[at], weights, sizes), way)
