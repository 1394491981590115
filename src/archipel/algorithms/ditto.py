# SPDX-License-Identifier: Apache-2.0
"""Ditto.  Li et al., ICML 2021, https://arxiv.org/abs/2012.04221, Algorithm 1.

Departures: w and v_k take the same number of local steps, s = r. A party that was never sampled has
no v_k: it makes one from the shared model when it needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import ones_like, where, zeros_like

from archipel.core import Party, Uploads, Vector
from archipel.training.limits import at_least
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


class Own(NamedTuple):
    v: Vector
    trained: Vector  # [..., 1]: 1 once v was trained


@dataclass(frozen=True)
class Ditto:
    """FedAvg, and at each party a model of its own, pulled towards the shared one."""

    lr: Rate = 0.1  # eta
    local_epochs: int = 1
    local_steps: int | None = None  # s, instead of epochs
    batch_size: int | float | None = 10
    lam: float = 0.1  # lambda: 0 is every party alone, large is FedAvg
    optimiser: Optimiser = SGD()

    def init(self, w: Vector) -> tuple[Vector, Own]:
        at_least(self, lam=0.0)
        return w, Own(w, zeros_like(w[..., :1]))

    def party(self, me: Party, w: Vector, own: Own) -> tuple[Vector, Own]:
        w_k = me.descend(w, self).w  # line 5: the global objective, as FedAvg
        v = me.descend(own.v, self, pull=self.lam, towards=w, aside=True).w  # line 6
        return w_k - w, Own(v, ones_like(own.trained))

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        return w + uploads.mean(by_examples=True)  # line 9

    def personal(self, me: Party, w: Vector, own: Own) -> Vector:
        if bool((own.trained > 0).all()):
            return own.v
        first = me.descend(w, self, pull=self.lam, towards=w).w
        return where(own.trained > 0, own.v, first)
