# SPDX-License-Identifier: Apache-2.0
"""Sign flipping.  Li et al. (RSA), AAAI 2019, https://arxiv.org/abs/1811.03761, section 5.

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from archipel.adversaries.attack import Hears
from archipel.core import Party
from archipel.tree import Tree, tree_map


@dataclass(frozen=True)
class SignFlip:
    """Adversaries train, and send the opposite, `scale` times as long."""

    scale: float = 1.0

    def sent(self, me: Party, shared: Tree, upload: Tree, before: Tensor, rate: float) -> Tree:
        return tree_map(lambda x: -self.scale * x if x.is_floating_point() else x, upload)

    def telling(self, to: Hears) -> Tensor:
        return -self.scale * to.theirs
