# SPDX-License-Identifier: Apache-2.0
"""Free riders.  Lin, Du, Liu 2019, https://arxiv.org/abs/1911.12560, section 4 (random and delta
weights); Fraboni, Vidal, Lorenzi, AISTATS 2021, https://arxiv.org/abs/2006.11901 (plain and
disguised).

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from archipel.core import Batch, Descent, LocalWork, Party, Vector
from archipel.training.schedules import rate as rate_of
from archipel.tree import Tree, fill, first, leaves


@dataclass(frozen=True)
class FreeRider:
    """Adversaries do not train: they want the model, and have nothing to give.

    They send no change ("plain"), noise around none ("disguised"), or how the shared model changed
    since they last saw it ("delta").
    """

    kind: Literal["plain", "disguised", "delta"] = "plain"
    deviation: float = 1e-3  # of the noise, in round 1
    decay: float = 1.0  # gamma: it falls as t ** -gamma

    remembers: ClassVar[bool] = True

    def door(self, me: Party) -> Party:
        return _Idle(me)

    def sent(self, me: Party, shared: Tree, upload: Tree, before: Tensor, rate: float) -> Tree:
        parts = leaves(upload)
        if self.kind == "disguised":
            sigma = self.deviation * (me.round + 1) ** -self.decay
            parts = [x + sigma * me.normal(like=x) if x.is_floating_point() else x for x in parts]
        if self.kind == "delta" and parts[0].shape[-1] == before.shape[-1]:
            parts = [parts[0] + first(shared) - before, *parts[1:]]
        return fill(upload, parts)


class _Idle:
    """The `me` of a party that says it trained, and did not."""

    def __init__(self, me: Party) -> None:
        self._me = me

    def __getattr__(self, name: str) -> Any:
        return getattr(self._me, name)

    def grad(self, w: Vector, batch: Batch | None = None) -> Vector:
        return w.new_zeros((*self._me.n.shape[:-1], w.shape[-1]))

    def descend(self, w: Vector, work: LocalWork, *_: Any, **__: Any) -> Descent:
        steps = self._me.steps(work)
        return Descent(w + self.grad(w), steps, steps * rate_of(work.lr, self._me.round))
