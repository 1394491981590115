# SPDX-License-Identifier: Apache-2.0
"""Asynchronous coordinate descent on a graph of tasks.  Bellet, Guerraoui, Taziki, Tommasi 2018.

AISTATS, https://arxiv.org/abs/1705.08435, section 3, equation (4). Every party has a model of its
own, close to those of parties that the graph says are alike. Together they minimise

    Q(theta) = 1/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + mu sum_i D_ii c_i L_i(theta_i)

by blocks: party i wakes, takes a step in theta_i of the length that its own smoothness allows, and
tells its neighbours. With c_i = 0 a party has the mean of its neighbours; with W = 0, its own.

Departures: c_i is n_i / `confident`, 1 at most, where the paper divides by the largest n_i, which
no party knows. A party without neighbours takes plain gradient steps. The warm start, local models,
is made of wake-ups as well, in the first rounds: where gradients are private, it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from archipel.core import Party, Vector
from archipel.training.limits import above_zero, at_least


@dataclass(frozen=True)
class Coordinate:
    """A party that wakes moves towards its neighbours' models and down its own loss."""

    mu: float = 1.0  # weight of the parties' own losses
    smoothness: float = 1.0  # L_i^loc: how fast the gradient of a party's own loss can change
    confident: int = 100  # points from which on a party trusts its own loss fully
    l2: float = 0.0  # lambda_i n_i: L_i is the mean loss of n_i points + lambda_i / 2 |theta|^2
    warm_rounds: int = 0  # at first, in which a party that wakes steps down its own loss alone

    clock: ClassVar[str] = "wakes"

    def init(self, theta: Vector) -> Vector:
        above_zero(self, "smoothness")
        at_least(self, confident=1, l2=0.0, warm_rounds=0)
        return theta

    def told(self, theta: Vector) -> Vector:
        return theta

    def party(self, me: Party, theta: Vector) -> Vector:
        c, mu = (me.n / self.confident).clamp(max=1), self.mu
        ridge = self.l2 / me.n  # lambda_i
        gradient, smooth = me.grad(theta) + ridge * theta, self.smoothness + ridge
        if me.round < self.warm_rounds:
            return theta - gradient / smooth
        alpha, around = 1 / (1 + mu * c * smooth), torch.where(me.degree > 0, me.around, theta)
        return (1 - alpha) * theta + alpha * (around - mu * c * gradient)  # (4)
