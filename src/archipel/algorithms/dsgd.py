# SPDX-License-Identifier: Apache-2.0
"""Decentralised SGD.  Koloskova et al., ICML 2020, https://arxiv.org/abs/2003.10422, Algorithm 1;
with `overlap`, Lian et al., NeurIPS 2017, https://arxiv.org/abs/1705.09056, Algorithm 1.

Departures: none. The mixing matrix W^(t), which may change with the round, is the run's topology.
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.core import Party, Vector
from archipel.training.schedules import Rate, rate


@dataclass(frozen=True)
class DSGD:
    """A gradient step, then an average with the neighbours."""

    lr: Rate = 0.1  # eta (Koloskova), gamma (Lian)
    batch_size: int | float | None = 10
    overlap: bool = False  # gradient at the model before mixing, so both happen at once

    def init(self, x: Vector) -> Vector:
        return x

    def party(self, me: Party, x: Vector) -> Vector:
        step = rate(self.lr, me.round) * me.grad(x, me.batch(self.batch_size))
        return me.mix(x) - step if self.overlap else me.mix(x - step)
