# SPDX-License-Identifier: Apache-2.0
"""Gradient tracking.  Koloskova, Lin, Stich, NeurIPS 2021, https://arxiv.org/abs/2202.03836,
Algorithm 1; with exact gradients (`batch_size=None`) the DIGing of Nedic, Olshevsky, Shi, SIAM J.
Optim. 2017, https://arxiv.org/abs/1607.03218, whose x-step here adapts before it combines.

    X(t+1) = (X(t) - eta Y(t)) W,    Y(t+1) = Y(t) W + G(t+1) - G(t),    Y(0) = G(0)

The mean of the y_i is always that of the gradients, so a point where all agree and stay is one
where that is zero: with a constant rate there is no bias, however parties differ.

Departures: none. Gradients belong to the beginning of a round, where the paper has them at the end
of the round before: y is kept as it was mixed, with the gradient that it counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import zeros_like

from archipel.core import Party, Vector
from archipel.training.schedules import Rate, rate


class Own(NamedTuple):
    x: Vector
    y: Vector  # sum_j w_ij y_j of the round before
    g: Vector  # the last gradient, which y counts


@dataclass(frozen=True)
class GradientTracking:
    """A step along an estimate of everybody's gradient, then an average with the neighbours."""

    lr: Rate = 0.1  # eta
    batch_size: int | float | None = 10

    tracks_mean: ClassVar[bool] = True

    def init(self, x: Vector) -> Own:
        return Own(x, zeros_like(x), zeros_like(x))

    def party(self, me: Party, own: Own) -> Own:
        x, y, eta = own.x, own.y, rate(self.lr, me.round)
        g = me.grad(x, me.batch(self.batch_size))
        y = y + g - own.g
        return Own(me.mix(x - eta * y), me.mix(y), g)
