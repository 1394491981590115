# SPDX-License-Identifier: Apache-2.0
"""Changes of a vector whose last value the other end holds: codes that are added up there.

Who holds x̂ gets Q(x - x̂) and adds it. What Q leaves out is in the next x - x̂, so no step keeps an
error of its own, and Q has to be a contraction, |v - Q(v)| <= |v|, or x̂ would run away. So what the
steps make of v, q, is scaled by the number a in [0, 1] for which a q is nearest to v,

    a = <q, v> / <q, q>,

which travels with the code. Of numbers that were drawn and scaled up (`subsample`) this takes the
factor off again; of any unbiased q with E|q - v|² <= w |v|² it leaves at most w / (1 + w) of |v|²
on average, as dividing by 1 + w does; and of what is a contraction already, as `top_k`, a is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.core import Vector
from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.tree import leaves
from archipel.wire.chain import Chain, Payload, name
from archipel.wire.matrices import Feedback
from archipel.wire.structured import Structured

_TRIED = 4  # changes in a row: what is left after one is harder to code


class Change(NamedTuple):
    """What travels of a change."""

    code: Payload
    scale: Tensor  # [..., 1] a


@dataclass(frozen=True)
class Changes:
    """The steps of a wire for changes of one vector `[p]`."""

    chain: Chain
    kept: float  # delta: the share of |v|² that a message keeps

    @classmethod
    def fitted(cls, chain: Chain, me: Sender) -> Changes:
        """Refuse steps that changes cannot pass, and measure what the others keep."""
        for step, form in zip(chain.steps, chain.into, strict=True):
            if isinstance(step, Structured):
                raise ArchipelError(
                    f"{name(step)} restricts a party's training to what it sends to a server, and "
                    "here neighbours hold copies of all of it: take random_k or top_k."
                )
            if leaves(step.init(form)) and not isinstance(step, Feedback):
                raise ArchipelError(
                    f"{name(step)} goes on from its last message, and changes of a copy that "
                    "neighbours hold are coded each by itself: take top_k, random_k or quantise."
                )
        them = replace(me, ids=np.zeros(1, np.int64), lead=(), me=None)  # at all parties alike
        draw, whole = rng.generator("check", "changes"), cls(chain, 1.0)
        drawn = (draw.standard_normal(chain.form.shape), draw.uniform(-1, 1, chain.form.shape))
        kept = min(whole._keeps(them, torch.from_numpy(x).to(chain.form.dtype)) for x in drawn)
        if not kept > 0:
            names = ", ".join(map(name, chain.steps))
            raise ArchipelError(f"{names}: nothing arrives of a change: take more bits.")
        return cls(chain, float(f"{kept:.2g}"))  # the same number whatever the last bits are

    @property
    def form(self) -> Vector:
        form: Vector = self.chain.form
        return form

    @property
    def payload(self) -> Change:
        """What travels, without its values."""
        return Change(self.chain.payload, self.form.new_zeros(1))

    def init(self) -> None:
        """Nothing is kept from round to round but what is held."""

    def send(self, me: Sender, v: Vector) -> tuple[Change, Vector]:
        """What travels of a change, and what arrives of it."""
        code, _ = self.chain.send(me, v, self.chain.init())
        q: Vector = self.chain.receive(me, code)
        square = (q * q).sum(dim=-1, keepdim=True)
        best = (q * v).sum(dim=-1, keepdim=True) / square
        scale = torch.where(square > 0, best, 1.0).clamp(0.0, 1.0)
        return Change(code, scale), scale * q

    def receive(self, them: Sender, change: Change) -> Vector:
        """What arrives of a change."""
        q: Vector = self.chain.receive(them, change.code)
        return change.scale * q

    def _keeps(self, them: Sender, v: Vector) -> float:
        """The share of |v|² that a message keeps, over some in a row."""
        rest = v
        for t in range(_TRIED):
            rest = rest - self.send(replace(them, round=t), rest)[1]
        left, before = (float(x.double().square().sum()) for x in (rest, v))
        return 1.0 - float((left / max(before, 1e-300)) ** (1 / _TRIED))
