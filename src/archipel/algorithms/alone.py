# SPDX-License-Identifier: Apache-2.0
"""Every party alone: local training without a word to anybody, the baseline of every table.

Departures: none (there is no paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from archipel.core import Party, Vector
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate


@dataclass(frozen=True)
class Alone:
    """Local training only."""

    lr: Rate = 0.1
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int | float | None = 10
    optimiser: Optimiser = SGD()

    def init(self, w: Vector) -> Vector:
        return w

    def party(self, me: Party, w: Vector) -> Vector:
        return me.descend(w, self).w
