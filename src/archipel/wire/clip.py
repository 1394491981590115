# SPDX-License-Identifier: Apache-2.0
"""A step: no upload is longer than a given norm, so that no party can say more than others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import stack

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.wire.step import Vectors, need_numbers


@dataclass(frozen=True)
class Clip:
    """Scale an upload down to a norm where it is longer, over all its vectors together."""

    norm: float  # S: the largest norm of an upload

    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise ArchipelError(f"norm = {self.norm}: give a number above 0.")

    def init(self, form: Vectors) -> None:
        need_numbers(self, form)

    def send(self, me: Sender, upload: Vectors, own: None) -> tuple[Vectors, None]:
        numbers = [x for x in upload if x.is_floating_point()]
        if not numbers:
            return upload, own
        wide = [x.float() if x.element_size() < 4 else x for x in numbers]  # 16 bits hold no norm
        norms = [x.flatten(len(me.lead)).norm(dim=-1) for x in wide]
        factor = (self.norm / stack(norms).norm(dim=0).clamp_min(1e-30)).clamp_max(1.0)
        return tuple(
            (x * factor.view(*me.lead, *[1] * (x.dim() - len(me.lead)))).to(x.dtype)
            if x.is_floating_point()
            else x
            for x in upload
        ), own

    def receive(self, them: Sender, payload: Vectors, form: Vectors) -> Vectors:
        return payload

    def bound(self, before: float | None) -> float | None:
        return self.norm if before is None else min(self.norm, before)
