# SPDX-License-Identifier: Apache-2.0
"""Numbers as integers whose sum cannot overflow.

With modulus 2^b and m parties, an integer of one party is at most M = (2^(b-1) - 1) // m, so the
sum of all is less than 2^(b-1) in absolute value, and is read back from its residue. A number in
[-range, range] is rounded to the nearest multiple of range / M; one beyond is refused, since a sum
with it would be another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.errors import ArchipelError

_PIECE = 1 << 15  # numbers that are encoded at a time
_EXACT = 2**52  # integers up to this are floating-point numbers, and so are their neighbours


@dataclass(frozen=True)
class FixedPoint:
    """How numbers of one message become integers modulo 2^bits.

    >>> code = FixedPoint(range=1.0, parties=3)
    >>> coded = code.encode(torch.tensor([0.25, -1.0]))
    >>> coded.dtype, [round(x, 6) for x in code.decode(3 * coded).tolist()]
    (torch.int32, [0.75, -3.0])
    """

    range: float  # of absolute values
    parties: int  # in a sum, at most
    bits: int = 32  # of the modulus: 32 or 64

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise ArchipelError(f"bits = {self.bits!r}: give 32 or 64.")
        if not 0 < self.range < float("inf"):
            raise ArchipelError(f"range = {self.range!r}: give a number above 0.")
        if self.most < 1:
            raise ArchipelError(
                f"{self.parties} parties are too many for sums modulo 2^{self.bits}: take bits=64."
            )

    @property
    def most(self) -> int:
        """M: the largest integer of one party."""
        return min(((1 << self.bits - 1) - 1) // max(1, self.parties), _EXACT)

    @property
    def step(self) -> float:
        """Between two numbers that are told apart; rounding is off by half of it at most."""
        return self.range / self.most

    @property
    def dtype(self) -> torch.dtype:
        """Two's complement: integers modulo 2^bits."""
        return torch.int32 if self.bits == 32 else torch.int64

    def encode(self, x: Tensor, what: str = "a number") -> Tensor:
        """The integers of some numbers of any shape; `what` they are, where one is beyond."""
        largest = max(abs(float(end)) for end in torch.aminmax(x)) if x.numel() else 0.0
        if not largest <= self.range:
            raise ArchipelError(
                f"{what} is {largest:.4g} in absolute value, beyond range = {self.range:g} of "
                "integers that are added up: clip it, or give a larger range."
            )
        flat, scale = x.reshape(-1), self.most / self.range
        coded = torch.empty(len(flat), dtype=self.dtype)
        for at in range(0, len(flat), _PIECE):  # in a processor's cache, not in twice the memory
            piece = flat[at : at + _PIECE].to(torch.float64, copy=True)
            coded[at : at + _PIECE] = piece.mul_(scale).round_()  # M at most
        return coded.view(x.shape)

    def decode(self, total: Tensor) -> Tensor:
        """The numbers that a sum modulo 2^bits stands for, float64."""
        return total.double() * (self.range / self.most)
