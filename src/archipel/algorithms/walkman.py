# SPDX-License-Identifier: Apache-2.0
"""Walkman.  Mao, Yuan, Hu, Gu, Sayed, Yin, IEEE Trans. Signal Process. 2020, algorithm 1.

https://arxiv.org/abs/1804.06568. ADMM along a walk, for min_x r(x) + 1/n sum_i f_i(x): the token is
u = 1/n sum_i (y_i - z_i / beta), of which only the holder's term changes. Whoever holds it does

    x   = prox_{r / beta}(u)                                                   (9)
    y_i = prox_{f_i / beta}(x + z_i / beta),                                   (10), or
    y_i = x + z_i / beta - grad f_i(y_i) / beta      (gradient form)           (11)
    z_i = z_i + beta (x - y_i)                                                 (12)
    u   = u + ((y_i - z_i / beta) after - before) / n                          (13)

r is l1 |x|_1, whose prox shrinks towards 0. The chain that walks is symmetric (Metropolis and
Hastings), so that every party is visited as often. Where gradients of f_i are L-Lipschitz, the
gradient form may diverge with a beta of L or less: take 2 L or more.

Departures: y_i starts at the first model rather than at 0; the proximal form is found by the
party's local steps, each of 1 / (1 / lr + beta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch

from archipel.core import Blueprint, Party, Vector
from archipel.training.descent import pulled
from archipel.training.limits import above_zero, at_least
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


class Token(NamedTuple):
    """What walks."""

    u: Vector  # the mean over parties of y_i - z_i / beta
    share: Vector  # [1]: 1 / n


class Own(NamedTuple):
    """A party's state."""

    x: Vector  # the model, as it was when the party last held the token
    y: Vector
    z: Vector


@dataclass(frozen=True)
class Walkman:
    """ADMM along a walk."""

    lr: Rate = 0.1  # of the local steps in the proximal form
    beta: float = 1.0
    l1: float = 0.0  # r(x) = l1 |x|_1
    form: Literal["proximal", "gradient"] = "proximal"
    local_steps: int = 10
    batch_size: int | float | None = None
    optimiser: Optimiser = SGD()

    clock: ClassVar[str] = "walk"

    def init(self, x: Vector, blueprint: Blueprint) -> tuple[Token, Own]:
        above_zero(self, "beta")
        at_least(self, l1=0.0)
        share = torch.full((1,), 1 / blueprint.parties, dtype=x.dtype)
        return Token(x, share), Own(x, x, torch.zeros_like(x))

    def party(self, me: Party, token: Token, own: Own) -> tuple[Token, Own]:
        (u, share), (_, y, z), beta = token, own, self.beta
        before = y - z / beta
        x = u.sign() * (u.abs() - self.l1 / beta).clamp(min=0)  # (9)
        centre = x + z / beta
        if self.form == "proximal":
            work = pulled(self, me.round, beta)
            y = me.descend(y, work, pull=beta, towards=centre).w  # (10)
        else:
            y = centre - me.grad(y) / beta  # (11)
        z = z + beta * (x - y)  # (12)
        return Token(u + share * (y - z / beta - before), share), Own(x, y, z)  # (13)
