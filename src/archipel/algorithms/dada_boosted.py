# SPDX-License-Identifier: Apache-2.0
"""Dada in its boosted form: base models in an l1 ball, messages of a few bytes.

Zantedeschi, Bellet, Tommasi, AISTATS 2020, https://arxiv.org/abs/1901.08460, Algorithm 1. A party's
model is f(x) = sum_j alpha_j h_j(x) of base models h_j that all have (the models `stumps`,
`linear_score`), with |alpha|_1 <= beta. The problem is that of `dada.py`, in alpha, and so is the
graph's part. Models are learned by block Frank and Wolfe steps from alpha = 0: party k wakes, and

    g = d_k c_k grad L_k(alpha_k) + mu1 (d_k alpha_k - sum_l w_kl alpha_l)
    alpha_k <- (1 - gamma) alpha_k + gamma s,  s = -sign(g_j) beta e_j,  j = argmax |g_j|

with gamma = 2K / (2K + t) at wake-up t of all K parties. Its neighbours know alpha_k as it was, so
that j, the sign and gamma tell them all. After t steps at most t weights are not 0.

Departures:
- Those of `dada.py`. After the first graph, gamma begins again at 1, which leaves nothing of the
  models that parties learned alone, as the authors begin again.
- A party without neighbours has ridge / 2 |alpha|^2 in its problem. Of the many ensembles that fit
  a few points equally, steps down the loss alone take any; the smallest is alike at parties that
  are alike, so that the first graph is found.
- t is counted in rounds, in each of which K parties wake on average: gamma = 2 / (2 + rounds).
- L_k is the logarithm of the mean of exp(-margin), the paper's that of the sum. The models are the
  same; to be joined costs a party log n_k less, so that it is who has many points that others join.
- The message has c_k L_k too, 4 bytes, for those that ask in the graph's turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.algorithms.dada import Joint
from archipel.core import Party, Vector
from archipel.training.limits import above_zero, at_least


class Told(NamedTuple):
    """What others hold of a party."""

    alpha: Vector
    loss: Tensor  # [..., 1]: c_k L_k(alpha_k)


class Said(NamedTuple):
    """A step, as it travels."""

    vertex: Tensor  # [..., 1] a small integer: j + 1 with the sign of s_j; 0 for s = 0
    gamma: Tensor  # [..., 1]
    loss: Tensor  # [..., 1]


class Own(NamedTuple):
    """A party's state: its model, and the last step to it."""

    alpha: Vector
    loss: Tensor
    vertex: Tensor
    gamma: Tensor


@dataclass(frozen=True)
class DadaBoosted(Joint):
    """An ensemble for every party, made by boosting with others that learn the same."""

    beta: float = 3.0  # radius of the l1 ball
    mu1: float = 4.0  # how close models of neighbours are
    ridge: float = 0.3  # the same, to zero, for a party without neighbours

    def init(self, alpha: Vector) -> Own:
        self.check()
        above_zero(self, "beta")
        at_least(self, ridge=0.0)
        zero = torch.zeros_like(alpha[..., :1])
        return Own(torch.zeros_like(alpha), zero, zero.to(_smallest(alpha.shape[-1])), zero)

    def told(self, own: Own) -> Told:
        return Told(own.alpha, own.loss)

    def said(self, own: Own) -> Said:
        return Said(own.vertex, own.gamma, own.loss)

    def hear(self, told: Told, said: Said) -> Told:
        return Told(self._towards(told.alpha, said.vertex, said.gamma), said.loss)

    def party(self, me: Party, own: Own) -> Own:
        if self.asks(me.round):
            self.join(me, own)
            return own._replace(gamma=torch.zeros_like(own.gamma))
        alpha, c, pull = own.alpha, self.sure(me), self.pull(me, self.ridge)
        g = c * me.grad(alpha) + pull * (alpha - me.around[0])  # over d_k: leaves j as it is
        j = g.abs().argmax(dim=-1, keepdim=True)
        vertex = (-(j + 1) * g.gather(-1, j).sign()).to(own.vertex.dtype)
        gamma = torch.full_like(own.gamma, 2 / (2 + self._steps(me.round)))
        alpha = self._towards(alpha, vertex, gamma)
        return Own(alpha, c * me.loss(alpha) if self.learned else own.loss, vertex, gamma)

    def _towards(self, alpha: Vector, vertex: Tensor, gamma: Tensor) -> Vector:
        """(1 - gamma) alpha + gamma s."""
        j = (vertex.abs().long() - 1).clamp(min=0)
        step = gamma * self.beta * vertex.sign().to(alpha.dtype)
        return ((1 - gamma) * alpha).scatter_add(-1, j, step)

    def _steps(self, t: int) -> int:
        """Rounds of models before round t, of those since parties began to learn together."""
        if not self.learned or t < self.alone:
            return t
        cycles, turn = divmod(t - self.alone, self.graph_rounds + self.model_rounds)
        return cycles * self.model_rounds + turn - self.graph_rounds


def _smallest(p: int) -> torch.dtype:
    """The smallest type that has the integers from -p to p."""
    return next(t for t in (torch.int8, torch.int16, torch.int32) if p <= torch.iinfo(t).max)
