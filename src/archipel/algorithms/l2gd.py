# SPDX-License-Identifier: Apache-2.0
"""L2GD.  Hanzely & Richtarik 2020, https://arxiv.org/abs/2002.05516, Algorithm 1.

min over x_1 ... x_n of  1/n sum_i f_i(x_i) + lambda/2n sum_i ||x_i - xbar||^2,  xbar their mean

An iteration of the paper tosses a coin: with chance p all parties move towards xbar, otherwise all
take a local step. Parties talk only where an aggregation follows a local step, with chance p(1 - p)
an iteration, since aggregations leave xbar as it is. A round here is what lies between two talks: a
aggregations in a row, which together are x_i <- xbar + (1 - alpha lambda / np)^a (x_i - xbar), then
local steps; the numbers of both are geometric.

Departures: `lr` is alpha / n, so that n need not be known. Coins are drawn from the round's number
and `coin_seed`. Parties send how far x_i moved, and the server adds the moves up, so that xbar
remains the mean of all parties where only some are sampled; the others stand still (in the paper
all take part). Local steps may use mini-batches, without the variance reduction of L2SGD+. The own
model of a party is what x_i is at the minimum, given xbar: that of f_i(x) + lambda/2 ||x - xbar||^2
on all its training points, from xbar, in `tune_steps` gradient steps, whether it trained or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, as_tensor, float64, where

from archipel.core import Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.training.limits import at_least, largest, tuning
from archipel.training.schedules import Rate, rate


@dataclass(frozen=True)
class L2GD:
    """A model per party, drawn to the mean of all; a coin says when to train and when to talk."""

    lr: Rate = 0.1  # alpha / n: at most min((1 - p) / L, p / lambda) / 2 for smoothness L
    p: float = 0.2  # chance of an aggregation; lambda / (lambda + L) talks least
    lam: float = 0.1  # lambda: 0 is every party alone, large is one model for all
    batch_size: int | float | None = None  # the paper's local gradient is of all local data
    coin_seed: int = 0
    tune_steps: int = 50  # at the party, for a model of its own
    tune_lr: Rate | None = None  # of these, below 2 / (lambda + L); None: lr

    def init(self, w: Vector) -> tuple[Vector, Vector]:
        at_least(self, p=0.0, lam=0.0, coin_seed=0)
        tuning(self)
        if not 1e-3 <= self.p < 1:
            raise ArchipelError(
                f"p = {self.p}: give a chance below 1, and from 0.001, since a round has 1 / p "
                "local steps."
            )
        if largest(self.lr) * self.lam / self.p > 1:
            raise ArchipelError(
                f"lr = {self.lr}, lam = {self.lam}, p = {self.p}: aggregations overshoot the mean; "
                "lower lr or lam, or raise p, until lr * lam / p is at most 1."
            )
        if self.tune_lr is not None and largest(self.tune_lr) * self.lam >= 2:
            raise ArchipelError(
                f"tune_lr = {self.tune_lr}, lam = {self.lam}: the parties' own models overshoot "
                "the mean ever further; lower one until tune_lr * lam is below 2."
            )
        return w, w

    def coins(self, t: int) -> tuple[Tensor, Tensor]:
        """Aggregations and local steps of round t, each 1 or more, of the shape of p."""
        u = 1 - np.random.default_rng([self.coin_seed, t]).random(2)  # in (0, 1]
        p = as_tensor(self.p, dtype=float64)
        a = 1 + (float(np.log(u[0])) / p.log()).floor()  # chance p^(k-1) (1 - p) of k
        steps = 1 + (float(np.log(u[1])) / (1 - p).log()).floor()
        return a, steps

    def party(self, me: Party, xbar: Vector, x_i: Vector) -> tuple[Vector, Vector]:
        eta, (_, steps) = rate(self.lr, me.round), self.coins(me.round)
        x = self.aggregated(me, xbar, x_i)
        for k in range(int(steps.max())):  # xi = 0
            step = x - eta / (1 - self.p) * me.grad(x, me.batch(self.batch_size))
            x = where(k < steps, step, x)
        return x - x_i, x

    def aggregated(self, me: Party, xbar: Vector, x: Vector) -> Vector:
        """The models after the round's aggregations: xi = 1, a times."""
        eta, (a, _) = rate(self.lr, me.round), self.coins(me.round)
        return xbar + (1 - eta * self.lam / self.p) ** a.to(x) * (x - xbar)

    def server(self, xbar: Vector, uploads: Uploads) -> Vector:
        return xbar + uploads.sampled / uploads.parties * uploads.mean()

    def personal(self, me: Party, xbar: Vector, x_i: Vector) -> Vector:
        step = rate(self.lr if self.tune_lr is None else self.tune_lr, me.round)
        x = xbar
        for _ in range(self.tune_steps):
            x = x - step * (me.grad(x) + self.lam * (x - xbar))
        return x
