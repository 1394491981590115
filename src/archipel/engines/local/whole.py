# SPDX-License-Identifier: Apache-2.0
"""All points of each party, for gradients that run over all of them, turn after turn.

Layers before the first one that is learnt, such as given base models or a frozen network, see
every point once, and what comes out is kept: for at most `ROOM` bytes in all, else they see the
points of whoever has a turn.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.data.rows import ranges
from archipel.models.model import Points, Way
from archipel.models.stacked import Stacked
from archipel.rng import Ints

if TYPE_CHECKING:
    from archipel.engines.local.share import Job

ROOM = 256 << 20
_WIDE = 256  # points of a party, at most: those of a block are side by side
_CHUNK = 1 << 12  # points that the first layers see at a time


class Whole(NamedTuple):
    """The points of all parties, and the way from where they stand to the loss."""

    x: Tensor  # [N, ...]
    y: Tensor  # [n, b, ...]
    rows: Tensor  # [n, b] of x; padding repeats a party's last one
    weights: Tensor  # [n, b] 1 / (points of the party), 0 for padding
    sizes: Ints
    way: Way

    @property
    def width(self) -> int:
        """Numbers of a party's points, at most."""
        return self.rows.shape[1] * self.x[0].numel()


class Some:
    """All points of some of the parties."""

    def __init__(self, whole: Whole, ids: Ints) -> None:
        self._whole, self._ids = whole, ids

    def grad(self, w: Tensor) -> Tensor:
        return self._whole.way.grad(w, self._points, None)

    def loss(self, w: Tensor) -> Tensor:
        return self._whole.way.loss(w, self._points, None)

    @cached_property
    def _points(self) -> Points:
        whole, at, lengths = self._whole, torch.from_numpy(self._ids), self._whole.sizes[self._ids]
        width = int(lengths.max())
        rows, y, weights = (
            part.index_select(0, at)[:, :width] for part in (whole.rows, whole.y, whole.weights)
        )
        x = whole.x.index_select(0, rows.reshape(-1)).view(*rows.shape, *whole.x.shape[1:])
        return Points(x, y, weights, lengths)


def whole_of(job: Job) -> Whole | None:
    """That of all parties, where points are at hand, few of each, and layers draw nothing."""
    data, sizes = job.data, job.data.n[: job.data.training].numpy()
    width = int(sizes.max(initial=0))
    if data.lazy or job.draws or job.model.buffer_spec.size or not 0 < width <= _WIDE:
        return None
    if not bool((sizes > 0).all()):
        return None
    held = data.held(np.arange(len(sizes)))
    place = np.minimum(np.arange(width), sizes[:, None] - 1)
    x, starts, way = held.x, held.starts, job.way
    y = held.y[torch.from_numpy(starts[:, None] + place)]
    if isinstance(way, Stacked) and way.first > 0:
        one = way.ahead(x[None, :1])
        if int(sizes.sum()) * one.nelement() * one.element_size() <= ROOM:
            training = torch.from_numpy(ranges(starts, starts + sizes))
            seen = [way.ahead(x[rows][None])[0] for rows in training.split(_CHUNK)]
            x, starts, way = torch.cat(seen), np.cumsum(sizes) - sizes, way.rest()
    inside = np.arange(width) < sizes[:, None]
    weights = torch.from_numpy(inside / sizes[:, None]).to(job.model.dtype)
    return Whole(x, y, torch.from_numpy(starts[:, None] + place), weights, sizes, way)
