# SPDX-License-Identifier: Apache-2.0
"""Bucketing.  Karimireddy, He, Jaggi, ICLR 2022, https://arxiv.org/abs/2006.09365, Algorithm 1;
before any other rule.

Departures: who shares a bucket is drawn from a hash of all uploads' norms, so that a run repeats
and nobody knows it before the others have sent theirs. An upload that is not finite is left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.rules.rows import at_least, kept, made, squares


@dataclass(frozen=True)
class Bucketing:
    """Means of a few uploads drawn at random: less apart from each other than single ones."""

    size: int = 2  # s: at most half of 1 / (share that lies)

    def __call__(self, uploads: Uploads) -> Uploads:
        return made(uploads, self.rows)

    def rows(self, x: Tensor) -> Tensor:
        """`[m, p] -> [m / size, p]`."""
        at_least(self, f"size = {self.size}", self.size, 1)
        rows = kept(x)
        at_least(self, f"size = {self.size}", len(rows), 1)
        said = hashlib.blake2b(squares(rows).numpy().tobytes(), digest_size=16)
        draw = np.random.default_rng(int.from_bytes(said.digest(), "big"))
        order = torch.from_numpy(draw.permutation(len(rows)))
        return torch.stack([rows[part].mean(dim=0) for part in order.split(self.size)])
