# SPDX-License-Identifier: Apache-2.0
"""A step: low-rank structured updates.  Konecny et al. 2016, https://arxiv.org/abs/1610.05492.

The update of each matrix is A B, with A random, drawn anew for each round and party at both ends; a
party trains B alone, and B travels. One-dimensional parameters are trained and sent whole.

Departures: A has orthonormal columns, so that training B is training within the subspace {A B}, by
the same steps as without it; the paper does not say how A is scaled. A stands on the longer side of
the matrix, where its rank can be chosen finely.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire.structured import Structured
from archipel.wire.subsets import check_share, how_many


@dataclass(frozen=True)
class LowRank(Structured):
    """Train and send the update of each matrix as A B with a random A that does not travel."""

    share: float  # of the numbers that travel: rank / longer side
    common: bool = False  # one A for all parties of a round: linear

    def __post_init__(self) -> None:
        check_share(self.share)

    def basis(self, me: Sender, place: str, one: Tensor) -> Tensor:
        """A, `[..., longer side, rank]`."""
        side = max(one.shape)
        rank = how_many(self.share, side)
        random = me.bytes(2 * side * rank, f"low rank {place}", self.common)
        uniform = (random.contiguous().view(torch.int16).double() + 0.5) * 2.0**-15  # in (-1, 1)
        normal = torch.erfinv(uniform)
        found: Tensor = torch.linalg.qr(normal.reshape(*normal.shape[:-1], side, rank)).Q
        return found.to(one.dtype)

    def inside(self, x: Tensor, basis: Tensor) -> Tensor:
        return basis.mT @ (x if x.shape[-2] >= x.shape[-1] else x.mT)

    def outside(self, inner: Tensor, basis: Tensor, one: Tensor) -> Tensor:
        whole = basis @ inner
        return whole if one.shape[0] >= one.shape[1] else whole.mT
