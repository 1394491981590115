# SPDX-License-Identifier: Apache-2.0
"""Model propagation.  Vanhaesebrouck, Bellet, Tommasi, AISTATS 2017, section 3.

https://arxiv.org/abs/1610.05202. Every party learns a model alone, theta_sol, and smooths it over
the graph, the less the surer it is of it. Together they minimise

    1/2 ( sum_{i<j} W_ij |theta_i - theta_j|^2 + mu sum_i D_ii c_i |theta_i - theta_i_sol|^2 )

with mu = (1 - alpha) / alpha. Party i wakes, draws a neighbour, they exchange their own models, and
each puts its own anew from what it last saw of all of its neighbours. The result is
theta* = (1 - alpha) (I - (1 - alpha)(I - C) - alpha P)^-1 C theta_sol with P = D^-1 W.

Departures: the local models are learned in the first `alone` rounds, at the parties' first turns;
c_i is n_i / `confident`, between 0.01 and 1 (the paper divides by the largest n_i, which no party
knows, and adds a small constant), and 0.01 of a party that had no turn in those rounds, as of one
without points; of a neighbour that it has not met, a party thinks that it has its own first model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from archipel.core import Blueprint, Party, Vector
from archipel.errors import ArchipelError
from archipel.training.limits import at_least
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


class Own(NamedTuple):
    """A party's state."""

    theta: Vector
    copies: Vector  # [..., d, p] the neighbours' models, as they were last seen
    solitary: Vector  # theta_sol
    learned: Vector  # [..., 1] whether it is more than the first model


@dataclass(frozen=True)
class Propagation:
    """Models that were learned alone, smoothed over the graph."""

    lr: Rate = 0.1  # of the models that parties learn alone
    alpha: float = 0.9  # how much neighbours count
    alone: int = 10  # rounds in which parties learn by themselves
    confident: int = 100  # points from which on a party is sure of its own model
    local_epochs: int = 1
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()

    clock: ClassVar[str] = "meetings"

    def init(self, theta: Vector, blueprint: Blueprint) -> Own:
        at_least(self, alpha=0.0, alone=0, confident=1)
        if self.alpha > 1:
            raise ArchipelError(f"alpha = {self.alpha}: give a share from 0 to 1.")
        copies = theta.expand(blueprint.degree, -1).clone()
        return Own(theta, copies, theta, torch.zeros_like(theta[..., :1]))

    def party(self, me: Party, own: Own) -> Own:
        theta, copies, sol, learned = own
        if me.round < self.alone:
            sol = me.descend(sol, self).w
            copies = sol.unsqueeze(-2).expand(copies.shape)
            return Own(sol, copies, sol, torch.ones_like(learned))
        c = (learned * me.n / self.confident).clamp(0.01, 1)
        alpha, abar = self.alpha, 1 - self.alpha
        theirs = me.swap(theta).unsqueeze(-2)
        place = torch.arange(copies.shape[-2]).unsqueeze(-1)
        copies = torch.where(place == me.met[..., None], theirs, copies)
        P = _rows(me.near.weight, copies) / me.degree[..., None]
        around = (P * copies).sum(dim=-2)
        theta = (alpha * around + abar * c * sol) / (alpha + abar * c)
        return Own(theta, copies, sol, learned)


def _rows(weight: Vector, copies: Vector) -> Vector:
    """Weights for all d places of the copies: parties that are stacked may have fewer."""
    missing = copies.shape[-2] - weight.shape[-2]
    return torch.nn.functional.pad(weight, (0, 0, 0, missing))
