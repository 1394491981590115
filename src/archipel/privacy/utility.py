# SPDX-License-Identifier: Apache-2.0
"""What noise costs in utility: personalised models on a graph, learnt by parties that wake.

Bellet, Guerraoui, Taziki, Tommasi, AISTATS 2018, https://arxiv.org/abs/1705.08435, Theorem 2 and
Proposition 2. Parties minimise

    Q(Θ) = 1/2 Σ_{i<j} W_ij |θ_i - θ_j|² + μ Σ_i D_ii c_i L_i(θ_i),    D_ii = Σ_j W_ij,

by block-coordinate descent: one of n parties, any as likely, takes the step 1 / L_i along its block
of the gradient, L_i = D_ii (1 + μ c_i L_i^loc), with noise η_i in the gradient of L_i. Let g be its
block and z = μ D_ii c_i η_i. Since Q has an L_i-Lipschitz gradient along the block,

    Q(Θ⁺) <= Q(Θ) - g·(g + z) / L_i + |g + z|² / 2 L_i = Q(Θ) - |g|² / 2 L_i + |z|² / 2 L_i.

Σ |g|² >= 2 σ (Q - Q*) where Q is σ-strongly convex, so on average over who wakes, with
ρ = 1 - σ / (n L_max),

    E Q(Θ_T) - Q* <= ρ^T (Q(Θ_0) - Q*)
                     + Σ_{t<T} ρ^(T-1-t) (1/n) Σ_i (μ D_ii c_i)² E|η_i(t)|² / 2 L_i.

E|η_i|² is 2 p s² of Laplace noise of scale s in p numbers, p s² of Gaussian noise.

Departures: L_i is kept where the theorem has the least of all; σ is the least eigenvalue of the
graph's Laplacian + diag(μ D_ii c_i σ_i^loc), at least the theorem's μ min D_ii c_i σ_i^loc. The
theorem holds where gradients are not shortened by the clip, and as long as nobody stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel.errors import ArchipelError
from archipel.privacy.promise import Noise

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Objective:
    """Q, as the bound needs to know it."""

    weights: Array  # W [n, n], symmetric, 0 on the diagonal
    confidence: Array  # c [n]
    mu: float
    smooth: Array  # L^loc [n]: Lipschitz constants of the gradients of the local losses
    convex: Array  # σ^loc [n]: their strong convexity

    def __post_init__(self) -> None:
        n = len(self.confidence)
        if self.weights.shape != (n, n) or not np.allclose(self.weights, self.weights.T):
            raise ArchipelError(
                f"weights {[*self.weights.shape]}: give a symmetric matrix [{n}, {n}]."
            )
        if not (self.degree > 0).all():
            raise ArchipelError(
                f"weights: party {int(self.degree.argmin())} has no neighbour; give it one."
            )

    @property
    def degree(self) -> Array:
        """D_ii `[n]`."""
        found: Array = self.weights.sum(axis=1)
        return found

    @property
    def pull(self) -> Array:
        """μ D_ii c_i `[n]`: what a local loss counts for."""
        return self.mu * self.degree * self.confidence

    @property
    def blocks(self) -> Array:
        """L_i `[n]`."""
        return self.degree + self.pull * self.smooth

    @cached_property
    def strong(self) -> float:
        """σ, at least."""
        laplacian = np.diag(self.degree + self.pull * self.convex) - self.weights
        return max(float(np.linalg.eigvalsh(laplacian)[0]), float((self.pull * self.convex).min()))

    @property
    def rate(self) -> float:
        """ρ: of what is left of Q - Q* after one wake-up of anybody, without noise."""
        return 1 - self.gain

    @property
    def gain(self) -> float:
        """1 - ρ = σ / (n L_max)."""
        return self.strong / len(self.confidence) / float(self.blocks.max())

    def left(self, wakes: int) -> float:
        """ρ^T."""
        return exp(wakes * log1p(-self.gain)) if self.gain < 1 else float(wakes == 0)


class Bound(NamedTuple):
    """What E Q(Θ_T) - Q* is at most."""

    start: float  # of where it began
    noise: float

    @property
    def total(self) -> float:
        return self.start + self.noise


def bound(objective: Objective, gap: float, wakes: int, squares: Array) -> Bound:
    """The bound after so many wake-ups of anybody.

    `gap` is Q(Θ_0) - Q*, or more; `squares` are E|η_i|² `[n]` of each wake-up of party i.
    """
    if wakes < 0:
        raise ArchipelError(f"wakes = {wakes}: give a number from 0.")
    step = float((objective.pull**2 * squares / (2 * objective.blocks)).mean())
    left, gain = objective.left(wakes), objective.gain
    return Bound(left * gap, step * (1 - left) / gain if gain > 0 else wakes * step)


def squares_of(scale: Array, numbers: int, mechanism: Noise) -> Array:
    """E|η|² of noise of these scales in so many numbers."""
    return (2.0 if mechanism == "laplace" else 1.0) * numbers * scale**2


def allocation(rate: float, at: Sequence[int], mechanism: Noise = "laplace") -> Array:
    """The shares of a party's budget that make the bound least, of its wake-ups `at` these of all.

    Noise of wake-up t counts ρ^(T-1-t): later noise is forgotten less. For Laplace noise
    Σ ρ^-t / ε_t² is least at ε_t ~ ρ^(-t/3) for a given Σ ε_t (Proposition 2); for Gaussian noise
    Σ ρ^-t σ_t² at 1 / σ_t² ~ ρ^(-t/2) for a given Σ 1 / σ_t². Shares add up to 1.

    >>> allocation(0.5, [0, 3, 6]).round(3).tolist()
    [0.143, 0.286, 0.571]
    """
    t = np.asarray(at, dtype=np.float64)
    if not 0 < rate <= 1 or not len(t):
        raise ArchipelError(f"rate = {rate}, {len(t)} wake-ups: give a rate in (0, 1] and some.")
    power = 3.0 if mechanism == "laplace" else 2.0
    shares = np.exp((t - t.max()) * -np.log(rate) / power)
    found: Array = shares / shares.sum()
    return found


def gained(rate: float, at: Sequence[int], mechanism: Noise = "laplace") -> float:
    """How many times smaller the noise's part of the bound is than with even shares."""
    t = np.asarray(at, dtype=np.float64)
    counts = np.exp((t - t.max()) * -np.log(rate))
    best, power = allocation(rate, at, mechanism), 2 if mechanism == "laplace" else 1
    return float((counts * len(t) ** power).sum() / (counts / best**power).sum())
