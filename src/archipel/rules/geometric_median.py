# SPDX-License-Identifier: Apache-2.0
"""The geometric median (RFA).  Pillutla, Kakade, Harchaoui, IEEE TSP 2022,
https://arxiv.org/abs/1912.13445, Algorithm 2: smoothed Weiszfeld.

Departures: every upload counts the same. The iterates are weights, not vectors: with G the uploads'
inner products and z = sum w_i x_i, |x_i - z|^2 = G_ii - 2 (G w)_i + w'G w, so that the uploads are
read twice whatever the number of steps. The first iterate is the upload with the least sum of
distances to half of the others, not the mean, which a single upload can move anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.rules.rows import Weighing, distances


@dataclass(frozen=True)
class GeometricMedian(Weighing):
    """The point with the least sum of distances to the uploads: right while fewer than half lie."""

    steps: int = 100  # R, at most
    smoothing: float = 1e-6  # nu: distances below it count as this

    between_peers: ClassVar[bool] = True

    def weights(self, x: Tensor) -> Tensor:
        """`[m, p] -> [1, m]`."""
        apart = distances(x)
        m = len(x)
        half = apart.sqrt().sort(dim=1).values[:, : m // 2 + 1].sum(dim=1)
        first = int(half.argmin())
        there = torch.isfinite(apart[first])
        gram = (apart[first, :, None] + apart[first] - apart) / 2  # with the first iterate as 0
        gram = gram[there][:, there]
        w = torch.zeros(len(gram), dtype=torch.float64)
        w[int(there[:first].sum())] = 1.0
        for _ in range(self.steps):
            away = (gram.diagonal() - 2 * gram @ w + w @ gram @ w).clamp(min=0).sqrt()
            beta = 1 / away.clamp(min=self.smoothing)
            before, w = w, beta / beta.sum()
            if float((w - before).abs().max()) < 1e-12:
                break
        weights = torch.zeros(m, dtype=torch.float64)
        weights[there] = w
        return weights[None]
