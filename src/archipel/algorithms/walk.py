# SPDX-License-Identifier: Apache-2.0
"""Random-walk SGD.  Ram, Nedic, Veeravalli, SIAM J. Optim. 2009, https://arxiv.org/abs/0811.2595.

The model is a token that walks over the graph: whoever holds it takes steps on its own points and
passes it to a neighbour, drawn by the row of the mixing matrix W. With Metropolis and Hastings's
weights [the walk of Johansson 2010] every party holds it as often, so the mean over parties is
minimised, whatever their degrees. Several tokens are as many models; each party keeps the last one
that it saw.

Departures: a holder may take several steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from archipel.core import Blueprint, Party, Vector
from archipel.errors import ArchipelError
from archipel.training.limits import at_least
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


@dataclass(frozen=True)
class Walk:
    """Steps of whoever holds the token."""

    lr: Rate = 0.1
    local_steps: int = 1
    batch_size: int | float | None = 10
    tokens: int = 1
    optimiser: Optimiser = SGD()

    clock: ClassVar[str] = "walk"

    def init(self, x: Vector, blueprint: Blueprint) -> tuple[Vector, Vector]:
        at_least(self, tokens=1)
        if self.tokens > blueprint.parties:
            raise ArchipelError(
                f"tokens = {self.tokens}: give one for each of {blueprint.parties} parties at most."
            )
        return x, x

    def party(self, me: Party, x: Vector, _: Vector) -> tuple[Vector, Vector]:
        x = me.descend(x, self).w
        return x, x
