# SPDX-License-Identifier: Apache-2.0
"""A step: a random part of the numbers.  Konecny et al. 2016, https://arxiv.org/abs/1610.05492.

Both ends draw which from the same seed, so no index travels; numbers are scaled up, so that on
average what arrives is what was sent.

Departures: one number out of each of k stretches of equal length (or one longer) in place of any k
numbers: each is as likely as in the paper, with k draws in place of d.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire.matrices import Matrices
from archipel.wire.subsets import check_share, drawn, how_many, placed, stretches, taken


@dataclass(frozen=True)
class Subsample(Matrices):
    """Send a random share of each matrix's numbers, scaled up: on average nothing is lost."""

    share: float  # of the numbers
    common: bool = False  # the same for all parties of a round: linear, but errors add up

    unbiased = True
    redraws = True

    def __post_init__(self) -> None:
        check_share(self.share)

    @property
    def linear(self) -> bool:
        return self.common

    def code(self, me: Sender, place: str, x: Tensor) -> Tensor:
        n = x.shape[-2] * x.shape[-1]
        _, lengths = stretches(how_many(self.share, n), n)
        return taken(x, self._at(me, place, n)) * lengths.to(x.dtype)

    def decode(self, them: Sender, place: str, coded: Tensor, one: Tensor) -> Tensor:
        return placed(coded, self._at(them, place, one.numel()), one)

    def _at(self, me: Sender, place: str, n: int) -> Tensor:
        return drawn(me, place, how_many(self.share, n), n, self.common)
