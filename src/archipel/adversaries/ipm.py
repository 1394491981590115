# SPDX-License-Identifier: Apache-2.0
"""Inner product manipulation.  Xie, Koyejo, Gupta, UAI 2020, https://arxiv.org/abs/1903.03936,
section 4.

Departures: none. Adversaries know the mean of the honest uploads (omniscient), as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class IPM:
    """All adversaries send the honest mean backwards, `epsilon` times as long.

    Of a plain mean they turn the sign where epsilon is above honest parties over adversaries.
    """

    epsilon: float = 10.0

    def colluding(self, honest: Tensor, f: int) -> Tensor:
        return -self.epsilon * honest.mean(dim=0)
