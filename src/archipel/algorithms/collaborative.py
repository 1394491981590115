# SPDX-License-Identifier: Apache-2.0
"""Collaborative learning by asynchronous ADMM.  Vanhaesebrouck, Bellet, Tommasi, AISTATS 2017.

https://arxiv.org/abs/1610.05202, section 4. Models are learned and smoothed over the graph at once:

    Q(theta) = sum_{i<j} W_ij |theta_i - theta_j|^2 + mu sum_i D_ii L_i(theta_i)

L_i is the sum of the losses of party i's points: who has many of them trusts them the more.
Party i holds its own model and a copy of each neighbour's, Theta_i = (Theta_i^i, Theta_i^j, ...).
On edge e = (i, j) both ends want the two models that the other holds of them to equal Z_e^i and
Z_e^j. When i and j meet, each

1. minimises Q_i + sum_j [ <Lam^i, Theta_i^i - Z^i> + <Lam^j, Theta_i^j - Z^j>
   + rho/2 (|Theta_i^i - Z^i|^2 + |Theta_i^j - Z^j|^2) ] over all that it holds, where
   Q_i = 1/2 sum_j W_ij |Theta_i^i - Theta_i^j|^2 + mu D_ii L_i(Theta_i^i),
2. sets Z_e^i = 1/2 [ (Lam_i^i + Lam_j^i) / rho + Theta_i^i + Theta_j^i ], and Z_e^j alike,
3. sets Lam_i^i += rho (Theta_i^i - Z_e^i), Lam_i^j += rho (Theta_i^j - Z_e^j).

In 1, the best copy for a given own model theta is (W_ij theta + rho Z^j - Lam^j) / (W_ij + rho).
Put in, what is left of edge j is W_ij rho / (W_ij + rho) / 2 |theta - (Z^j - Lam^j / rho)|^2
+ rho/2 |theta - (Z^i - Lam^i / rho)|^2: a pull towards one centre, as `me.descend` has it.

Departures: the own model is found by the party's local steps, from where it was, not exactly. They
are as long as the centre's pull leaves them, 1 / (1 / lr + pull).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from archipel.core import Blueprint, Party, Vector
from archipel.training.descent import pulled
from archipel.training.limits import above_zero
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


class Edge(NamedTuple):
    """What a party holds for an edge: of its own model, and of the neighbour's, `[..., d, p]`."""

    z_mine: Vector
    z_theirs: Vector
    lam_mine: Vector
    lam_theirs: Vector


class Own(NamedTuple):
    """A party's state."""

    theta: Vector  # Theta_i^i
    edges: Edge


@dataclass(frozen=True)
class Collaborative:
    """Own models, learned while they are held close to those of neighbours."""

    lr: Rate = 0.1
    mu: float = 0.01  # weight of the loss of each point
    rho: float = 1.0  # penalty of ADMM
    local_steps: int = 10
    batch_size: int | float | None = None
    optimiser: Optimiser = SGD()

    clock: ClassVar[str] = "meetings"

    def init(self, theta: Vector, blueprint: Blueprint) -> Own:
        above_zero(self, "mu", "rho")
        same = theta.expand(blueprint.degree, -1).clone()
        none = torch.zeros_like(same)
        return Own(theta, Edge(same, same.clone(), none, none.clone()))

    def party(self, me: Party, own: Own) -> Own:
        rho, (z_i, z_j, lam_i, lam_j) = self.rho, own.edges
        near, D = me.near, me.degree
        W, there = _rows(near.weight, z_i), _rows((near.number >= 0).unsqueeze(-1).to(z_i), z_i)

        pull_i, pull_j = rho * there, W * rho / (W + rho)  # step 1
        total = (pull_i + pull_j).sum(dim=-2)
        centre = (pull_i * (z_i - lam_i / rho) + pull_j * (z_j - lam_j / rho)).sum(dim=-2) / total
        pull = total / (self.mu * D * me.n)  # of the mean loss
        work = pulled(self, me.round, pull)
        theta = me.descend(own.theta, work, pull=pull, towards=centre).w
        copies = (W * theta.unsqueeze(-2) + rho * z_j - lam_j) / (W + rho)

        at = torch.arange(z_i.shape[-2]).unsqueeze(-1) == me.met[..., None]
        mine = (theta, _at(copies, at), _at(lam_i, at), _at(lam_j, at))
        theirs, of_me, their_lam, lam_of_me = me.swap(mine)
        new_i = ((mine[2] + lam_of_me) / rho + theta + of_me) / 2  # step 2
        new_j = ((mine[3] + their_lam) / rho + mine[1] + theirs) / 2
        edges = Edge(
            torch.where(at, new_i.unsqueeze(-2), z_i),
            torch.where(at, new_j.unsqueeze(-2), z_j),
            torch.where(at, (mine[2] + rho * (theta - new_i)).unsqueeze(-2), lam_i),  # step 3
            torch.where(at, (mine[3] + rho * (mine[1] - new_j)).unsqueeze(-2), lam_j),
        )
        return Own(theta, edges)


def _at(rows: Vector, at: torch.Tensor) -> Vector:
    """The row of the neighbour that is met."""
    return torch.where(at, rows, 0).sum(dim=-2)


def _rows(weight: Vector, rows: Vector) -> Vector:
    """Weights for all d places: parties that are stacked may have fewer."""
    return torch.nn.functional.pad(weight, (0, 0, 0, rows.shape[-2] - weight.shape[-2]))
