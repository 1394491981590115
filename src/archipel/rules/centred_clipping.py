# SPDX-License-Identifier: Apache-2.0
"""Centred clipping.  Karimireddy, He, Jaggi, ICML 2021, https://arxiv.org/abs/2012.10333,
Algorithm 2.

Departures: the first centre is 0 (uploads are changes of the model), not the round's before, which
a history-aware attack leads astray (Ozfatura et al. 2022, https://arxiv.org/abs/2208.09894).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.errors import ArchipelError
from archipel.rules.rows import made, squares, weighed


@dataclass(frozen=True)
class CentredClipping:
    """v <- v + mean of clip(x_i - v, radius): nobody moves the centre further than the others."""

    radius: float = 10.0  # tau
    steps: int = 3  # l

    def __call__(self, uploads: Uploads) -> Uploads:
        return made(uploads, self.rows)

    def rows(self, x: Tensor) -> Tensor:
        """`[m, p] -> [1, p]`."""
        if not 0 < self.radius < float("inf") or self.steps < 1:
            raise ArchipelError(
                f"round.rule: CentredClipping(radius={self.radius}, steps={self.steps}): give "
                "numbers above 0."
            )
        m, norms = len(x), squares(x).sqrt()
        there = torch.isfinite(norms)
        rows, norms = (x, norms) if bool(there.all()) else (x[there], norms[there])
        v = torch.zeros_like(x[0])
        for step in range(self.steps):
            if step > 0:
                norms = squares(rows, v).sqrt()
            scale = (self.radius / norms.clamp(min=self.radius)) / m
            v = v * (1 - float(scale.sum())) + weighed(scale[None], rows)[0]
        return v[None]
