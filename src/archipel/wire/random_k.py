# SPDX-License-Identifier: Apache-2.0
"""A step: some numbers, drawn anew each round, with error feedback.  Stich et al. 2018, 1809.07599.

Both ends draw which from the same seed, so no index travels. Unlike `subsample` numbers are not
scaled up: what did not travel is added to what is sent the next time.

Departures: one number out of each of k stretches, as in `subsample`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire.matrices import Feedback
from archipel.wire.subsets import check_share, drawn, how_many, placed, taken, without


@dataclass(frozen=True)
class RandomK(Feedback):
    """Send a random share of each matrix's numbers; the others are sent later (error feedback)."""

    share: float  # k / d
    common: bool = False  # the same for all parties of a round: linear

    redraws = True

    def __post_init__(self) -> None:
        check_share(self.share)

    @property
    def linear(self) -> bool:
        return self.common

    def parted(self, me: Sender, place: str, x: Tensor) -> tuple[Tensor, Tensor]:
        at = self._at(me, place, x.shape[-2] * x.shape[-1])
        return taken(x, at), without(x, at)

    def decode(self, them: Sender, place: str, coded: Tensor, one: Tensor) -> Tensor:
        return placed(coded, self._at(them, place, one.numel()), one)

    def _at(self, me: Sender, place: str, n: int) -> Tensor:
        return drawn(me, place, how_many(self.share, n), n, self.common)
