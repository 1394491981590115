# SPDX-License-Identifier: Apache-2.0
"""Krum and multi-Krum.  Blanchard et al., NeurIPS 2017, https://arxiv.org/abs/1703.02757.

Departures: the mean of `keep` uploads counts each the same, as in the paper, also where parties
have different numbers of examples: those numbers are the parties' own word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.rules.rows import Weighing, at_least, distances, liars


@dataclass(frozen=True)
class Krum(Weighing):
    """The upload whose nearest others are nearest; with `keep`, the mean of the best so many."""

    f: int | float  # parties that may lie, or their share
    keep: int = 1  # m: uploads that are averaged; 1 is Krum itself

    between_peers: ClassVar[bool] = True

    def weights(self, x: Tensor) -> Tensor:
        """`[m, p] -> [keep, m]`."""
        m = len(x)
        f = liars(self, self.f, m)
        at_least(self, f"f = {self.f}", m, max(2 * f + 3, self.keep + f))
        best = scores(distances(x), f).argsort(stable=True)[: self.keep].sort().values
        return torch.eye(m, dtype=torch.float64)[best]


@dataclass(frozen=True)
class MultiKrum(Weighing):
    """The mean of the m - f uploads that agree most."""

    f: int | float  # parties that may lie, or their share

    between_peers: ClassVar[bool] = True

    def weights(self, x: Tensor) -> Tensor:
        """`[m, p] -> [m - f, m]`."""
        m = len(x)
        f = liars(self, self.f, m)
        return Krum(f, max(1, m - f)).weights(x)


def scores(apart: Tensor, f: int) -> Tensor:
    """`[m]`: sums of the m - f - 2 smallest squared distances to others, `[m, m]`."""
    m = len(apart)
    return apart.sort(dim=1).values[:, 1 : m - f - 1].sum(dim=1)
