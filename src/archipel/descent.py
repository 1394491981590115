# SPDX-License-Identifier: Apache-2.0
"""Local descent, step by step: what `me.descend` means, whatever an engine fuses."""

from __future__ import annotations

from functools import partial

from torch import Tensor, where

from archipel.core import Descent, LocalWork, Party, Vector
from archipel.schedules import rate
from archipel.tree import tree_map


def descend(
    me: Party,
    w: Vector,
    work: LocalWork,
    shift: Vector | None = None,
    pull: float | Tensor = 0.0,
    towards: Vector | None = None,
) -> Descent:
    """Take the local steps of `Party.descend` one by one, with `me.grad` and nothing else."""
    eta, steps = rate(work.lr, me.round), me.steps(work)
    centre = w if towards is None else towards
    x = w
    state = None
    for k in range(int(steps.max())):
        g = me.grad(x, me.batch(work.batch_size))
        if shift is not None:
            g = g + shift
        g = g + pull * (x - centre)
        state = work.optimiser.init(g) if state is None else state
        moved, moved_state = work.optimiser.step(x.expand_as(g), g, eta, state)
        going = partial(_where, k < steps)  # parties that have a step left
        x, state = going(moved, x), tree_map(going, moved_state, state)
    return Descent(x, steps, steps * eta)


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return where(condition, yes, no)
