# SPDX-License-Identifier: Apache-2.0
"""pFedMe.  Dinh et al., NeurIPS 2020, https://arxiv.org/abs/2006.08848, Algorithm 1.

min over w of 1/n sum_i F_i(w),  F_i(w) = min over theta of f_i(theta) + lambda/2 ||theta - w||^2:
the Moreau envelope of f_i, whose gradient is lambda (w - theta^(w)).

Departures: only sampled parties train (in the paper all do, and the server picks the models that it
averages). The inner problem is solved by K gradient steps, as in the authors' code, from the last
theta~ of the round and from w at its start; the paper leaves the solver open. Without that code's
further l2 term. A party's own model is theta^(w) of the current w, on all its training points, in
`tune_steps` gradient steps from w: whether it trained or not, and whenever it last did; the
authors' code keeps the last theta~, of one mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import where

from archipel.core import Batch, Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.training.limits import above_zero, at_least, largest, tuning
from archipel.training.schedules import Rate, rate


@dataclass(frozen=True)
class PFedMe:
    """A shared model at the centre of the parties' own, each held to it by a spring."""

    lr: Rate = 0.01  # eta
    inner_lr: Rate = 0.05  # of the steps on theta: inner_lr (lambda + L) below 2
    lam: float = 15.0  # lambda: small is every party alone, large is FedAvg
    local_epochs: int = 1
    local_steps: int | None = None  # R, instead of epochs
    inner_steps: int = 5  # K
    batch_size: int | float | None = 20
    server_lr: float = 1.0  # beta
    tune_steps: int = 50  # of the inner problem on all points, for a model of one's own
    tune_lr: Rate | None = None  # of these; None: inner_lr

    def init(self, w: Vector) -> tuple[Vector, None]:
        at_least(self, inner_lr=0.0, inner_steps=1)
        tuning(self)
        above_zero(self, "lam", "server_lr")
        if largest(self.lr) * self.lam > 1:
            raise ArchipelError(
                f"lr = {self.lr}, lam = {self.lam}: the shared model overshoots the parties' own; "
                "lower one of them until lr * lam is at most 1."
            )
        for field, value in (("inner_lr", self.inner_lr), ("tune_lr", self.tune_lr)):
            if value is not None and largest(value) * self.lam >= 2:
                raise ArchipelError(
                    f"{field} = {value}, lam = {self.lam}: the parties' own models overshoot the "
                    f"shared one ever further; lower one until {field} * lam is below 2."
                )
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:
        eta, lam, R = rate(self.lr, me.round), self.lam, me.steps(self)
        w_i = theta = w
        for r in range(int(R.max())):
            going = r < R  # parties that have a step left
            found = self.solve(me, theta, w_i, me.batch(self.batch_size, going))
            theta = where(going, found, theta)
            w_i = where(going, w_i - eta * lam * (w_i - theta), w_i)
        return w_i - w, None

    def solve(self, me: Party, theta: Vector, w: Vector, batch: Batch) -> Vector:
        """K steps towards the minimum of f_i(theta; batch) + lambda/2 ||theta - w||^2."""
        step = rate(self.inner_lr, me.round)
        for _ in range(self.inner_steps):
            theta = theta - step * (me.grad(theta, batch) + self.lam * (theta - w))
        return theta

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + self.server_lr * uploads.mean()  # (1 - beta) w + beta mean of w_i

    def personal(self, me: Party, w: Vector, _: None) -> Vector:
        step = rate(self.inner_lr if self.tune_lr is None else self.tune_lr, me.round)
        theta = w
        for _step in range(self.tune_steps):
            theta = theta - step * (me.grad(theta) + self.lam * (theta - w))
        return theta
