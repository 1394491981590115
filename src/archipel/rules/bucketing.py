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

from archipel.rules.rows import Weighing, at_least, squares


@dataclass(frozen=True)
class Bucketing(Weighing):
    """Means of a few uploads drawn at random: less apart from each other than single ones."""

    size: int = 2  # s: at most half of 1 / (share that lies)

    def weights(self, x: Tensor) -> Tensor:
        """`[m, p] -> [m / size, m]`."""
        at_least(self, f"size = {self.size}", self.size, 1)
        norms = squares(x)
        there = torch.nonzero(torch.isfinite(norms))[:, 0]
        at_least(self, f"size = {self.size}", len(there), 1)
        said = hashlib.blake2b(norms[there].numpy().tobytes(), digest_size=16)
        draw = np.random.default_rng(int.from_bytes(said.digest(), "big"))
        buckets = there[torch.from_numpy(draw.permutation(len(there)))].split(self.size)
        weights = torch.zeros((len(buckets), len(x)), dtype=torch.float64)
        for row, bucket in zip(weights, buckets, strict=True):
            row[bucket] = 1 / len(bucket)
        return weights
