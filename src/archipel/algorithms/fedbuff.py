# SPDX-License-Identifier: Apache-2.0
"""FedBuff.  Nguyen et al., AISTATS 2022, https://arxiv.org/abs/2106.06639, Algorithms 1 and 2.

`[round] sample` is how many parties train at once, M; who is done is replaced at once. K is 10 in
the paper's experiments, and M in the hundreds.

Departures: a party applies s(tau), which the paper's experiments do at the server, so that a server
that sees sums alone can be its own. Parties send y_Q - y_0 rather than y_0 - y_Q. A party whose
upload lies in the buffer does not begin again before the server's step, so that a buffer has an
upload of a party once; of many parties hardly any would.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from archipel.core import Party, Uploads, Vector
from archipel.training.limits import at_least
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


@dataclass(frozen=True)
class FedBuff:
    """A step for every K uploads, whichever versions of the model they began from."""

    asynchronous: ClassVar[bool] = True

    lr: Rate = 0.1  # eta_l
    local_epochs: int = 1
    local_steps: int | None = None  # Q, instead of epochs
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()
    server_lr: float = 1.0  # eta_g
    buffer: int | None = None  # K; None: half of the parties that train at once
    discount: float = 0.5  # a: an upload weighs s(tau) = (1 + tau)^-a; 0: all the same
    by_examples: bool = False  # weigh by n_k, as FedAvg does; the paper's box does not

    def init(self, w: Vector) -> tuple[Vector, None]:
        at_least(self, discount=0.0, **({} if self.buffer is None else {"buffer": 1}))
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[Vector, None]:  # FedBuff-client
        delta = me.descend(w, self).w - w  # y_Q - y_0
        return (1 + me.staleness) ** -self.discount * delta, None  # s(tau) Delta_i

    def server(self, w: Vector, uploads: Uploads) -> Vector:  # FedBuff-server, when k = K
        return w + self.server_lr * uploads.mean(by_examples=self.by_examples)  # 1/K sum_i Delta_i
