# SPDX-License-Identifier: Apache-2.0
"""Gaussian noise.  Blanchard et al., NeurIPS 2017, https://arxiv.org/abs/1703.02757, section 5.

Departures: none. Between peers every neighbour gets other noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.adversaries.attack import Hears
from archipel.core import Party
from archipel.tree import Tree, tree_map


@dataclass(frozen=True)
class Gaussian:
    """Adversaries send normal noise in place of what they trained."""

    deviation: float = 1.0  # of every number; the paper has 200

    def sent(self, me: Party, shared: Tree, upload: Tree, before: Tensor, rate: float) -> Tree:
        def noise(x: Tensor) -> Tensor:
            return self.deviation * me.normal(like=x) if x.is_floating_point() else x

        return tree_map(noise, upload)

    def telling(self, to: Hears) -> Tensor:
        noise = torch.from_numpy(to.draw.standard_normal(to.theirs.shape))
        return self.deviation * noise.to(to.theirs.dtype)
