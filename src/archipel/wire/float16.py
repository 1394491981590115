# SPDX-License-Identifier: Apache-2.0
"""A step: two bytes a number in place of four or eight.

Rounding is to the nearest, so it is neither linear (a sum of rounded numbers is rounded once more)
nor unbiased, and it may lengthen a vector a little: there is no bound. In float16 numbers beyond
65504 become infinite, which leaves the party out of the round; bfloat16 has the range of float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from archipel.exchange.sender import Sender
from archipel.wire.step import Vectors


@dataclass(frozen=True)
class Float16:
    """Round numbers to 16 bits: float16 has 11 of precision, bfloat16 has 8 and the wider range."""

    dtype: Literal["float16", "bfloat16"] = "float16"

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def init(self, form: Vectors) -> None:
        return None

    def send(self, me: Sender, upload: Vectors, own: None) -> tuple[Vectors, None]:
        short = torch.float16 if self.dtype == "float16" else torch.bfloat16
        return tuple(x.to(short) if x.is_floating_point() else x for x in upload), own

    def receive(self, them: Sender, payload: Vectors, form: Vectors) -> Vectors:
        return tuple(x.to(one.dtype) for x, one in zip(payload, form, strict=True))

    def bound(self, before: float | None) -> float | None:
        return None
