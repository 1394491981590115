# SPDX-License-Identifier: Apache-2.0
"""How vectors travel between peers: as they are, or as the steps of a wire make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from archipel.engines.network.bounds import LARGEST, tame
from archipel.engines.network.transport import Refused
from archipel.exchange.boxes import Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.varying import travelling
from archipel.tree import Tree, fill, fits, leaves
from archipel.wire.chain import Chain
from archipel.wire.changes import Changes
from archipel.wire.wired import WiredPeers

if TYPE_CHECKING:
    from archipel.engines.network.liveness import At
    from archipel.wire.wired import Coded


@dataclass(frozen=True)
class Coding:
    """The steps of each vector that a round mixes, in order; none where they travel as they are."""

    chains: Sequence[Chain | Changes] = ()
    seed: int = 0

    @classmethod
    def of(cls, boxes: Boxes, seed: int) -> Coding:
        return cls(boxes.up if isinstance(boxes, WiredPeers) else (), seed)

    def is_change(self, number: int) -> bool:
        """Whether the vector of this number travels as a change of what neighbours hold."""
        return bool(self.chains) and isinstance(self._chain(number), Changes)

    def sent(self, x: Tensor, coded: Coded | None) -> list[Tensor]:
        """What travels of a vector."""
        return [x.detach()] if coded is None else travelling(coded.payload)

    def form(self, number: int, like: Tensor) -> Tree:
        """What travels of the vector of this number in a round, which is like this one."""
        return self._chain(number).payload if self.chains else like

    def undone(self, j: int, at: At, arrays: Sequence[Tensor], like: Tensor) -> Tensor:
        """The vector that peer j's tensors stand for; what stands for none is refused."""
        if not self.chains:
            (x,) = arrays
            return x.clone()
        chain, found = self._chain(at[1]), None
        them = Sender(self.seed, *at, np.array([j]), ())
        try:
            found = leaves(chain.receive(them, fill(chain.payload, arrays)))
        except Exception:  # whatever it is, these bytes have caused it
            found = None
        if found is None or not fits(like, found):
            raise Refused("a payload that no step of the wire could have sent.")
        if not tame(found):
            raise Refused(f"a vector with numbers that are not finite, or beyond {LARGEST:g}.")
        return found[0].clone()

    def _chain(self, number: int) -> Chain | Changes:
        if number >= len(self.chains):
            raise Refused(f"exchange {number + 1} is none of the algorithm's.")
        return self.chains[number]
