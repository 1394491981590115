# SPDX-License-Identifier: Apache-2.0
"""A step: signs and one scale, with error feedback.  Karimireddy et al. 2019, arXiv 1901.09847.

Of each matrix x of d numbers (|x|_1 / d) sign(x) arrives, a bit a number; the rest is added to what
is sent the next time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire import bits
from archipel.wire.matrices import Feedback
from archipel.wire.step import shaped


class Signs(NamedTuple):
    signs: Tensor  # uint8 [..., bytes]: a bit for each number, its sign bit
    scale: Tensor  # [..., 1]


@dataclass(frozen=True)
class Sign(Feedback):
    """Send signs and the mean magnitude of each matrix; the rest is sent later (error feedback)."""

    def parted(self, me: Sender, place: str, x: Tensor) -> tuple[Signs, Tensor]:
        flat = x.flatten(-2)
        scale = flat.abs().mean(dim=-1, keepdim=True)
        arrives = torch.copysign(scale, flat)
        return Signs(bits.packed(bits.sign_bits(arrives), 1), scale), x - arrives.view_as(x)

    def decode(self, them: Sender, place: str, coded: Signs, one: Tensor) -> Tensor:
        values = torch.cat([coded.scale, -coded.scale], dim=-1)
        return shaped(bits.looked_up(coded.signs, 1, one.numel(), values), one)
