# SPDX-License-Identifier: Apache-2.0
"""CHOCO-SGD.  Koloskova, Stich, Jaggi, ICML 2019, https://arxiv.org/abs/1902.00340, Algorithm 2.

Neighbours hold a copy x̂_i of every x_i; only Q(x_i - x̂_i) travels, by the steps of the wire, and is
added to x̂_i wherever it is held. What Q leaves out stays in x_i - x̂_i and travels later.

Departures: copies begin at the run's first model, which all have, in place of 0. Without
`consensus_lr`, gamma is the share of a vector that Q keeps; the theorem's, of the order of that
times the squared spectral gap, is far smaller than what works. Where Q is no contraction, such as
random rounding, the paper divides it by a bound; here the best number in [0, 1] is taken for every
message, which travels with it, and no more is lost. With `local_steps` above 1, several gradients
lie between two messages (Koloskova et al., ICML 2020, https://arxiv.org/abs/2003.10422).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from archipel.core import Party, Vector
from archipel.training.limits import above_zero
from archipel.training.schedules import Rate


class Own(NamedTuple):
    x: Vector
    xh: Vector  # x̂, which neighbours hold as well


@dataclass(frozen=True)
class Choco:
    """Decentralised SGD whose messages are codes of what changed since the last one."""

    lr: Rate = 0.1  # eta
    consensus_lr: float | None = None  # gamma; None: the share of a vector that Q keeps
    local_steps: int = 1
    batch_size: int | float | None = 10

    def init(self, x: Vector) -> Own:
        if self.consensus_lr is not None:
            above_zero(self, "consensus_lr")
        return Own(x, x)

    def party(self, me: Party, own: Own) -> Own:
        gamma = me.blueprint.kept if self.consensus_lr is None else self.consensus_lr
        x = me.descend(own.x, self).w  # x_i - eta g_i
        xh = me.coded(x, own.xh)  # x̂_i + Q(x_i - x̂_i)
        return Own(x + gamma * (me.mix(xh) - xh), xh)
