# SPDX-License-Identifier: Apache-2.0
"""Label flipping.  Tolpegin et al., ESORICS 2020, https://arxiv.org/abs/2007.08432, section 3; all
classes turned round: Fang et al., USENIX Security 2020, https://arxiv.org/abs/1911.11815.

Departures: numbers to predict, which have no labels, change their sign around 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archipel.adversaries.attack import Points


@dataclass(frozen=True)
class LabelFlip:
    """Adversaries train on wrong labels: k - 1 - y of k classes, or `target` for `source`."""

    source: int | None = None  # the class that is taken for another; all
    target: int | None = None  # the other; the class that many places from the end

    def poisoned(self, points: Points, draw: np.random.Generator) -> Points:
        y, k = points.y, points.classes
        if not k:
            return points._replace(y=-y)
        turned = k - 1 - y if self.target is None else y * 0 + self.target
        if self.source is not None:
            turned = turned.where(y == self.source, y)
        return points._replace(y=turned)

    def wanted(self, points: Points) -> Points:
        flipped = self.poisoned(points, np.random.default_rng(0))
        there = flipped.y != points.y
        there = there if there.dim() == 1 else there.flatten(1).any(dim=1)
        return points._replace(x=points.x[there], y=flipped.y[there])
