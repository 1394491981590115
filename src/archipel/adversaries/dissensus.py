# SPDX-License-Identifier: Apache-2.0
"""Dissensus.  He, Karimireddy, Jaggi 2022, https://arxiv.org/abs/2202.01545, section 4.2: of the
peer i, whose honest neighbours are R and whose adversaries B,

    x_i - epsilon sum_(j in R) w_ij (x_j - x_i) / sum_(b in B) w_ib

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from archipel.adversaries.attack import Hears
from archipel.rules.rows import weighed


@dataclass(frozen=True)
class Dissensus:
    """Adversaries keep peers apart: each is told to go the other way from its honest neighbours.

    With epsilon = 1 a plain mean stays where it is; above, peers move away from each other.
    """

    epsilon: float = 1.5

    informed: ClassVar[bool] = True

    def telling(self, to: Hears) -> Tensor:
        towards = weighed(to.weights[None], to.honest)[0] - float(to.weights.sum()) * to.mine
        return to.mine - self.epsilon / float(to.lying.sum()) * towards
