# SPDX-License-Identifier: Apache-2.0
"""Norm bounding.  Sun et al. 2019, https://arxiv.org/abs/1911.07963, section 4.

Departures: without a bound, it is the median of the uploads' norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.rules.rows import Weighing, squares


@dataclass(frozen=True)
class NormBound(Weighing):
    """Uploads longer than the bound are scaled down to it; the mean is over all of them."""

    most: float | None = None  # M; the median of the norms

    def weights(self, x: Tensor) -> Tensor:
        """`[m, p] -> [m', m]`: without those that are not finite."""
        if self.most is not None and not 0 < self.most < float("inf"):
            raise ArchipelError(
                f"round.rule: NormBound.most = {self.most}: give a number above 0, or leave it out."
            )
        norms = squares(x).sqrt()
        there = torch.isfinite(norms)
        norms[~there] = float("inf")
        most = float(norms.median()) if self.most is None else self.most
        return (most / norms.clamp(min=most)).nan_to_num(1.0).diag()[there]
