# SPDX-License-Identifier: Apache-2.0
"""A step: few bits a number, rounded at random.  Konecny et al. 2016, arXiv 1610.05492; QSGD.

The range of a matrix, from its least to its largest number, is cut into 2^b - 1 intervals of equal
length; a number becomes one of its interval's ends, at random, so that on average it stays what it
is. With one bit: h_max with probability (h - h_min) / (h_max - h_min), else h_min.

Both ends can draw what was added to round at random. With `dither` the other end takes it off again
[Roberts 1962; Ben Basat 2020]: the same bytes, and an error that is uniform in half an interval
either way, whatever the number; half as large on average for numbers that lie anywhere between two
levels, as after a rotation, and larger for those that lie on one, such as many zeros.

Departures: b bits have 2^b levels, so there are 2^b - 1 intervals; the paper's 2^b would need one
level more. Chances are multiples of 2^-16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.wire import bits
from archipel.wire.matrices import Matrices
from archipel.wire.step import shaped


class Codes(NamedTuple):
    """Numbers as multiples of a step above the least."""

    codes: Tensor  # uint8 [..., bytes]
    ends: Tensor  # [..., 2] least and largest


@dataclass(frozen=True)
class Quantise(Matrices):
    """Round to few bits a number, at random, so that on average nothing is lost."""

    bits: int = 8  # b, 1 to 8
    dither: bool = False  # take off again at the other end what was added to round at random

    unbiased = True

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise ArchipelError(f"bits = {self.bits}: give a number of bits from 1 to 8.")

    def code(self, me: Sender, place: str, x: Tensor) -> Codes:
        h = x.flatten(-2)
        h = h.float() if h.element_size() < 4 else h
        least, most = h.amin(dim=-1, keepdim=True), h.amax(dim=-1, keepdim=True)
        scale = self._levels / (most - least)
        scale = scale.nan_to_num(0.0, posinf=0.0)  # where all are equal
        half = torch.where(scale > 0, (0.5 + 2.0**-17) / scale, 0.0)  # of a level
        at = (h - (least - half)).mul_(scale).add_(_random(me, place, h), alpha=2.0**-16)
        with np.errstate(invalid="ignore"):  # of what is not finite; the ends tell
            codes = torch.from_numpy(at.clamp_(0, self._levels).numpy().astype(np.uint8))
        return Codes(bits.packed(codes, self.bits), torch.cat([least, most], dim=-1).to(x.dtype))

    def decode(self, them: Sender, place: str, coded: Codes, one: Tensor) -> Tensor:
        ends = coded.ends.float() if coded.ends.element_size() < 4 else coded.ends
        least, most = ends.split(1, dim=-1)
        step, n = (most - least) / self._levels, one.numel()
        if self.dither:
            codes = bits.unpacked(coded.codes, self.bits, n).to(ends.dtype)
            found = codes.add_(_random(them, place, codes), alpha=-(2.0**-16)).sub_(2.0**-17)
            found = found.mul_(step).add_(least)
        elif self.bits in (1, 2, 4):
            levels = torch.arange(self._levels + 1, dtype=ends.dtype) * step + least
            found = bits.looked_up(coded.codes, self.bits, n, levels)
        else:
            found = bits.unpacked(coded.codes, self.bits, n).to(ends.dtype).mul_(step).add_(least)
        return shaped(found, one).to(one.dtype)

    @property
    def _levels(self) -> int:
        return (1 << self.bits) - 1


def _random(me: Sender, place: str, like: Tensor) -> Tensor:
    """What is added to codes before they are cut, in 2^-16 of a level: `int16`, about 0."""
    return me.bytes(2 * like.shape[-1], f"round {place}").contiguous().view(torch.int16)
