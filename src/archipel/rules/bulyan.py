# SPDX-License-Identifier: Apache-2.0
"""Bulyan, over Krum.  El Mhamdi et al., ICML 2018, https://arxiv.org/abs/1802.07927, section 4.

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.rules.krum import scores
from archipel.rules.rows import at_least, by_columns, distances, liars, made


@dataclass(frozen=True)
class Bulyan:
    """Krum chooses m - 2f uploads one by one; of those, the numbers nearest to the median."""

    f: int | float  # parties that may lie, or their share

    between_peers: ClassVar[bool] = True

    def __call__(self, uploads: Uploads) -> Uploads:
        return made(uploads, self.rows)

    def rows(self, x: Tensor) -> Tensor:
        """`[m, p] -> [1, p]`."""
        m = len(x)
        f = liars(self, self.f, m)
        at_least(self, f"f = {self.f}", m, 4 * f + 3)
        apart, left, chosen = distances(x), torch.arange(m), []
        for _ in range(m - 2 * f):  # theta
            here = apart[left][:, left]
            best = int(scores(here, f).argmin()) if len(left) > f + 2 else _nearest(here)
            chosen.append(int(left[best]))
            left = torch.cat([left[:best], left[best + 1 :]])
        theta, beta = m - 2 * f, m - 4 * f

        def around(column: Tensor) -> Tensor:  # the beta numbers nearest to the median
            middle = (column[:, (theta - 1) // 2] / 2 + column[:, theta // 2] / 2).unsqueeze(1)
            nearer = column[:, beta:] - middle < middle - column[:, : theta - beta]
            first = nearer.sum(dim=1) + theta * torch.arange(len(column))
            return column.flatten().unfold(0, beta, 1)[first].mean(dim=1)

        return by_columns(x, around, chosen)


def _nearest(apart: Tensor) -> int:
    """Of few uploads that are left: the one whose nearest other is nearest."""
    if len(apart) < 2:
        return 0
    return int(apart.sort(dim=1).values[:, 1].argmin())
