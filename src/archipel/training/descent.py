# SPDX-License-Identifier: Apache-2.0
"""Local descent, step by step: what `me.descend` means, whatever an engine fuses."""

from __future__ import annotations

import math
import numbers
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, where

from archipel.core import Descent, LocalWork, Party, Vector
from archipel.errors import ArchipelError
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.schedules import Rate, Schedule, rate
from archipel.training.subspace import kept
from archipel.tree import tree_map


class Work(NamedTuple):
    """Local work, checked."""

    lr: Rate
    local_epochs: int
    local_steps: int | None
    batch_size: int | float | None
    optimiser: Optimiser


class Private(NamedTuple):
    """What a private descent is given: Poisson samples, a clip and noise."""

    first: int  # number of the first sample among the party's draws this round
    rates: NDArray[np.float64]  # [m] q, the chance of each record
    clip: float  # C
    deviations: NDArray[np.float64]  # [m] z C of the noise; no noise unless all are > 0


def work_of(algorithm: object) -> Work:
    """Read the fields of local work from an algorithm; what it does not have is the default."""
    name = type(algorithm).__name__
    if not hasattr(algorithm, "lr"):
        raise ArchipelError(f"{name} has no field lr: me.descend needs a learning rate.")
    lr = algorithm.lr
    if isinstance(lr, numbers.Real):
        lr = float(lr)
        if not 0 <= lr < math.inf:
            raise ArchipelError(f"lr = {lr}: give a learning rate from 0.")
    elif not isinstance(lr, Tensor | Schedule):
        raise ArchipelError(f"lr = {lr!r}: give a number or a schedule such as Decay(0.1).")
    epochs = getattr(algorithm, "local_epochs", 1)
    steps = getattr(algorithm, "local_steps", None)
    for field, value in (("local_epochs", epochs), ("local_steps", steps)):
        if not (isinstance(value, int) and value >= 1) and not (value is None and value is steps):
            raise ArchipelError(f"{field} = {value!r}: give a whole number from 1.")
    size = getattr(algorithm, "batch_size", None)
    optimiser = getattr(algorithm, "optimiser", SGD())
    if not (hasattr(optimiser, "init") and hasattr(optimiser, "step")):
        raise ArchipelError(f"optimiser = {optimiser!r}: give SGD() or Adam().")
    return Work(lr, epochs, steps, checked_batch_size(size), optimiser)


def checked_batch_size(size: int | float | None) -> int | float | None:
    """Refuse what is not a number of examples, a fraction or None."""
    if size is None or (isinstance(size, int) and size >= 1):
        return size
    if isinstance(size, float) and 0 < size <= 1:
        return size
    raise ArchipelError(
        f"batch_size = {size}: give a whole number of examples from 1, "
        "a fraction of the party's data in (0, 1], or None for all of it."
    )


def descend(
    me: Party,
    w: Vector,
    work: LocalWork,
    shift: Vector | None = None,
    pull: float | Tensor = 0.0,
    towards: Vector | None = None,
    only: Tensor | None = None,
) -> Descent:
    """Take the local steps of `Party.descend` one by one, with `me.grad` and nothing else.

    Without `aside`, which has no meaning but for BatchNorm's statistics.
    """
    eta, steps = rate(work.lr, me.round), me.steps(work)
    _, _, _, size, optimiser = work_of(work)
    centre = w if towards is None else towards
    x = w
    state = None
    for k in range(int(steps.max())):
        g = me.grad(x, me.batch(size, k < steps))
        if shift is not None:
            g = g + shift
        g = g + pull * (x - centre)
        state = optimiser.init(g) if state is None else state
        moved, moved_state = optimiser.step(x.expand_as(g), g, eta, state)
        moved = kept(moved, x, getattr(me, "within", None), only)
        going = partial(_where, k < steps)  # parties that have a step left
        x, state = going(moved, x), tree_map(going, moved_state, state)
    return Descent(x, steps, steps * eta)


def pulled(work: LocalWork, t: int, pull: float | Tensor) -> Work:
    """The same in round t with steps of 1 / (1 / lr + pull): lr is what the loss alone allows."""
    eta = rate(work.lr, t)
    return work_of(work)._replace(lr=eta / (1 + eta * pull))


def tuned(
    me: Party,
    w: Vector,
    work: LocalWork,
    epochs: int | None,
    lr: Rate | None,
    only: Tensor | None = None,
) -> Vector:
    """Train w on at a party that is about to use it; what is None is as in training."""
    if epochs == 0:
        return w
    task = work_of(work)
    task = task if epochs is None else task._replace(local_epochs=epochs, local_steps=None)
    return me.descend(w, task if lr is None else task._replace(lr=lr), only=only).w


def _where(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return where(condition, yes, no)
