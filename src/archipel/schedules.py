# SPDX-License-Identifier: Apache-2.0
"""Learning rates that change with the round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Decay:
    """start * factor^(t // every): exponential decay, or steps with `every` > 1.

    >>> Decay(0.1, factor=0.5, every=10).at(20)
    0.025
    """

    start: float
    factor: float = 0.99
    every: int = 1

    def at(self, t: int) -> float:
        return float(self.start * self.factor ** (t // self.every))


@dataclass(frozen=True)
class Inverse:
    """start / (1 + t / half): half the rate after `half` rounds, the rate of the convex theory."""

    start: float
    half: float = 100.0

    def at(self, t: int) -> float:
        return self.start / (1 + t / self.half)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from start to end over `rounds`, after `warmup` rounds of linear growth."""

    start: float
    rounds: int
    end: float = 0.0
    warmup: int = 0

    def at(self, t: int) -> float:
        if t < self.warmup:
            return self.start * (t + 1) / self.warmup
        done = min(1.0, (t - self.warmup) / max(1, self.rounds - self.warmup))
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * done)) / 2


Schedule = Decay | Inverse | Cosine

STARTS = {"classification": 0.3, "regression": 0.1, "survival": 0.1}


def for_tables(task: str, rounds: int) -> Cosine:
    """The rate for a linear model of features on one scale, where none is given.

    It falls to 0, since at a constant rate mini-batches keep the model moving about the solution,
    the further the more columns there are. Where it may start is a matter of the loss: the slope of
    cross-entropy is bounded, so that too long steps are made good as the rate falls, and it is
    flat, so that short ones do not arrive; that of a squared error grows with the error, and from
    too high a rate there is no way back.

    >>> for_tables("regression", rounds=50)
    Cosine(start=0.1, rounds=50, end=0.0, warmup=0)
    """
    return Cosine(STARTS[task], rounds)


Rate = float | Tensor | Schedule  # a tensor is a sweep over rates


def rate(lr: Rate, t: int) -> float | Tensor:
    """Return the learning rate of round t."""
    return lr.at(t) if isinstance(lr, Schedule) else lr
