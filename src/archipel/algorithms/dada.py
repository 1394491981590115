# SPDX-License-Identifier: Apache-2.0
"""Models and the graph between them, learned together.  Zantedeschi, Bellet, Tommasi 2020 (Dada).

AISTATS, https://arxiv.org/abs/1901.08460: problem (3) for models of any kind, by turns. Let d_k be
the sum of party k's weights w_kl. All together minimise over models theta and weights w >= 0

    sum_k d_k c_k L_k(theta_k) + mu1/2 sum_{k<l} w_kl |theta_k - theta_l|^2
        + mu2 ( lam |w|^2 - sum_k log(d_k + delta) ).

- Models, given the graph: party k wakes, takes a step in theta_k of the length that its block's
  smoothness allows, d_k (c_k / lr + mu1), and tells its neighbours (section 4; Bellet et al. 2018).
- The graph, given the models: party k wakes, asks kappa others at random for models and losses, and
  sets its weights to them, at both ends (section 5).

Departures:
- Parties begin alone, without a graph, for `alone` rounds; `graph_rounds` of the graph and
  `model_rounds` of models follow, in turn. The authors then set models back to zero; these go on.
- c_k is n_k / `confident`, 1 at most; the paper divides by the largest n_k, which no party knows.
- In place of a gradient step of length 1 / (mu2 ((kappa + 1) / delta^2 + 2 lam)), `join`
  minimises an upper bound that has the same value and slope: it needs no length, never goes up
  either, and takes a few rounds where the other takes thousands. Projection on w >= 0 is the same.
- A weight below `least` of both ends' sums is none: the overlay stays sparse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from archipel.core import Party, Vector
from archipel.training.limits import above_zero, at_least
from archipel.training.schedules import Rate, rate
from archipel.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Joint:
    """What is set in the problem, and by what turns it is solved."""

    mu1: float = 0.1  # how close models of neighbours are
    mu2: float = 1.0  # weight of the graph's own terms
    lam: float = 0.3  # the larger, the more neighbours
    delta: float = 0.01  # what a party without neighbours has for the sum of its weights
    kappa: int = 10  # others that are asked
    least: float = 0.01  # of both ends' sums, below which a weight is none
    confident: int = 20  # points from which on a party trusts its own loss fully
    alone: int = 20
    graph_rounds: int = 20
    model_rounds: int = 20
    learned: bool = True  # else the graph is the run's topology, and models alone are learned

    clock: ClassVar[str] = "wakes"

    def check(self) -> None:
        """Refuse what cannot work."""
        above_zero(self, "mu2", "lam", "delta")
        at_least(self, mu1=0.0, kappa=1, least=0.0, confident=1)
        at_least(self, alone=0, graph_rounds=1, model_rounds=0)

    @property
    def learns_graph(self) -> bool:
        return self.learned

    def asks(self, t: int) -> int:
        turn = (t - self.alone) % (self.graph_rounds + self.model_rounds)
        return self.kappa if self.learned and t >= self.alone and turn < self.graph_rounds else 0

    def sure(self, me: Party) -> Tensor:
        """c_k `[..., 1]`."""
        return (me.n / self.confident).clamp(max=1)

    def pull(self, me: Party, alone: float) -> Tensor:
        """mu1 `[..., 1]`; `alone` for a party without neighbours."""
        return torch.where(me.degree > 0, self.mu1, torch.full_like(me.degree, alone))

    def join(self, me: Party, own: Tree) -> None:
        """Set the weights to those asked so that the objective falls; `own` is model, loss, more.

        Let D_l be the change of w_kl, a_l = c_k L_k + c_l L_l + mu1/2 |theta_k - theta_l|^2, and d
        with delta in it. The weights are in sum_l a_l D_l + mu2 (lam sum_l (w_kl + D_l)^2
        - log(d_k + sum_l D_l) - sum_l log(d_l + D_l)). Two bounds make it functions of one D each:
        -log(d_k + sum_l D_l) <= -1/kappa sum_l log(d_k + kappa D_l), as -log is convex, and
        -log(1 + D/d) <= -e/d log(1 + D/e) for e <= d and all D > -e: the derivative of the
        difference has the sign of D. With e = min(d_k / kappa, d_l), u = e + D, A = 2 mu2 lam,
        S = mu2 e (1/d_k + 1/d_l) and h = (a + A (w - e)) / 2 the minimum is where
        A u^2 + 2 h u - S = 0.
        """
        asked = me.drawn
        kappa, A = max(1, asked.number.shape[-1]), 2 * self.mu2 * self.lam
        theta, loss = (leaf.unsqueeze(-2) for leaf in own[:2])
        d_k, d_l, w = me.degree.unsqueeze(-2) + self.delta, asked.degree + self.delta, asked.weight
        apart = (theta - asked.told[0]).square().sum(dim=-1, keepdim=True)
        a = loss + asked.told[1] + self.mu1 / 2 * apart
        e = torch.minimum(d_k / kappa, d_l)
        S, rest = self.mu2 * (e / d_k + e / d_l), w - e
        h = (a + A * rest) / 2
        q = (h.square() + A * S).sqrt() + h.abs()
        w = (rest + torch.where(h > 0, S / q, q / A)).clamp(min=0)
        me.join(asked, w * (w >= self.least * torch.minimum(d_k, d_l)))


class Own(NamedTuple):
    """A party's state, of which others hold all."""

    theta: Vector
    loss: Tensor  # [..., 1]: c_k L_k(theta_k)


@dataclass(frozen=True)
class Dada(Joint):
    """A model for every party, close to those of others that learn the same, and who these are."""

    lr: Rate = 0.1  # 1 / L_k^loc: steps in a party's own loss

    def init(self, theta: Vector) -> Own:
        self.check()
        return Own(theta, torch.zeros_like(theta[..., :1]))

    def told(self, own: Own) -> Own:
        return own

    def party(self, me: Party, own: Own) -> Own:
        if self.asks(me.round):
            self.join(me, own)
            return own
        theta, eta = own.theta, rate(self.lr, me.round)
        c, pull = self.sure(me), self.pull(me, 0.0)
        g = c * me.grad(theta) + pull * (theta - me.around[0])  # of the block, over d_k
        theta = theta - g / (c / eta + pull)
        return Own(theta, c * me.loss(theta) if self.learned else own.loss)
