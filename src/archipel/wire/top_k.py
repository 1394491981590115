# SPDX-License-Identifier: Apache-2.0
"""A step: the largest numbers alone, with error feedback.  Stich et al. 2018, arXiv 1809.07599.

Of each matrix, the k numbers of largest magnitude travel and where they stand; the others are added
to what is sent the next time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire import bits
from archipel.wire.matrices import Feedback
from archipel.wire.subsets import check_share, how_many, largest, placed, taken, without


class Largest(NamedTuple):
    """Some numbers, and where they stand."""

    values: Tensor  # [..., 1, k]
    lows: Tensor  # uint8 [..., bytes]: of their positions, see `bits.positions_coded`
    marks: Tensor  # uint8 [..., bytes]


@dataclass(frozen=True)
class TopK(Feedback):
    """Send the largest numbers of each matrix; the others are sent later (error feedback)."""

    share: float  # k / d

    redraws = True

    def __post_init__(self) -> None:
        check_share(self.share)

    def parted(self, me: Sender, place: str, x: Tensor) -> tuple[Largest, Tensor]:
        flat = x.flatten(-2)
        n = flat.shape[-1]
        at = largest(flat.abs(), how_many(self.share, n))
        lows, marks = bits.positions_coded(at, n)
        return Largest(taken(x, at), lows, marks), without(x, at)

    def decode(self, them: Sender, place: str, coded: Largest, one: Tensor) -> Tensor:
        k = coded.values.shape[-1]
        at = bits.positions(coded.lows, coded.marks, one.numel(), k)
        return placed(coded.values, at, one)
