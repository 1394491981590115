# SPDX-License-Identifier: Apache-2.0
"""FLTrust.  Cao, Fang, Liu, Gong, NDSS 2021, https://arxiv.org/abs/2012.13995, Algorithm 2.

Departures: the root data are those of a party that the study trusts, whose upload is the server's
model update g_0; it takes part in every round that counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.errors import ArchipelError
from archipel.rules.rows import blocks, finite, made, squares, weighed


@dataclass(frozen=True)
class FLTrust:
    """Uploads count by the cosine of their angle to a trusted one, and have its length."""

    root: int = 0  # number of the trusted party

    def __call__(self, uploads: Uploads) -> Uploads:
        at = torch.nonzero(uploads.present == self.root)[:, 0]
        if not len(at):
            raise ArchipelError(
                f"round.rule: FLTrust.root = {self.root}: that party sent nothing in this round; "
                "sample every party, or name one that is always there."
            )
        return made(uploads, lambda x: self.rows(x, int(at[0])))

    def rows(self, x: Tensor, root: int = 0) -> Tensor:
        """`[m, p] -> [1, p]`, where row `root` is the trusted one."""
        there, norms = finite(x), squares(x).sqrt()
        if not bool(there[root]):
            raise ArchipelError(
                f"round.rule: FLTrust.root = {self.root}: that party's upload is not finite; "
                "lower lr."
            )
        along = torch.zeros(len(x), dtype=torch.float64)
        for _, block in blocks(x):
            along += (block @ block[root]).double()
        cosine = torch.where(there, along / (norms * norms[root]), 0.0).nan_to_num(0.0)
        trust = cosine.clamp(min=0.0)  # TS_i = ReLU(c_i)
        if not bool(trust.sum() > 0):
            return torch.zeros_like(x[:1])
        scale = torch.where(trust > 0, trust / trust.sum() * norms[root] / norms, 0.0)
        return weighed(scale[None], x)
