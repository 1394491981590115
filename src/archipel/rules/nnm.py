# SPDX-License-Identifier: Apache-2.0
"""Nearest-neighbour mixing.  Allouah et al., AISTATS 2023, https://arxiv.org/abs/2302.01772,
Algorithm 2; before any other rule.

Departures: an upload that is not finite has no neighbours and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.rules.rows import Weighing, at_least, distances, finite, liars


@dataclass(frozen=True)
class NNM(Weighing):
    """Each upload becomes the mean of the m - f nearest to it, itself among them."""

    f: int | float  # parties that may lie, or their share

    between_peers: ClassVar[bool] = True

    def weights(self, x: Tensor) -> Tensor:
        """`[m, p] -> [m', m]`."""
        m = len(x)
        f = liars(self, self.f, m)
        at_least(self, f"f = {self.f}", m, 2 * f + 1)
        there = finite(x)
        near = distances(x).argsort(dim=1, stable=True)[:, : m - f]
        weights = torch.zeros((m, m), dtype=torch.float64).scatter_(1, near, 1 / (m - f))
        weights[:, ~there] = 0.0
        return (weights / weights.sum(dim=1, keepdim=True))[there]
