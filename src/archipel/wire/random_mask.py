# SPDX-License-Identifier: Apache-2.0
"""A step: random-mask structured updates.  Konecny et al. 2016, https://arxiv.org/abs/1610.05492.

A party trains some of each matrix's numbers alone, drawn anew for each round and party at both
ends; their values travel, and no index. One-dimensional parameters are trained and sent whole.

Departures: one number out of each of k stretches, as in `subsample`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire.structured import Structured
from archipel.wire.subsets import check_share, drawn, how_many, placed, taken


@dataclass(frozen=True)
class RandomMask(Structured):
    """Train and send a random share of each matrix's numbers alone."""

    share: float  # of the numbers
    common: bool = False  # the same for all parties of a round: linear

    def __post_init__(self) -> None:
        check_share(self.share)

    def basis(self, me: Sender, place: str, one: Tensor) -> Tensor:
        """Where the numbers stand, `[..., k]`."""
        n = one.numel()
        return drawn(me, place, how_many(self.share, n), n, self.common)

    def inside(self, x: Tensor, basis: Tensor) -> Tensor:
        return taken(x, basis)

    def outside(self, inner: Tensor, basis: Tensor, one: Tensor) -> Tensor:
        return placed(inner, basis, one)
