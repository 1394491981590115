# SPDX-License-Identifier: Apache-2.0
"""Noise that is correlated over rounds: the sum of all updates gets less of it, for the same ε.

Updates x_1 … x_T, each bounded by 1 for one participant, are released as x_t + z_t. A model is a
sum of updates, so what counts is the noise of prefix sums, and part of what z_t adds to them can be
taken back by z_t+1. With a lower triangular C and independent Z of deviation σ, z = C⁻¹ Z: all that
is released follows from C x + Z. That is Gaussian noise on C x, which one participant moves by at
most the sensitivity sens(C), so mu = sens(C) / σ whatever the updates depend on (Denisov et al.,
NeurIPS 2022, https://arxiv.org/abs/2202.08312). No sampling is assumed: the noise for everybody who
is always there, as a hospital is.

Two kinds of C, and independent noise as the first with one coefficient:

- Toeplitz, banded (Choquette-Choo et al., NeurIPS 2023, https://arxiv.org/abs/2306.08153;
  McKenna, https://arxiv.org/abs/2405.15913): c_0 on the diagonal, c_1 … c_(b−1) below it, and
  z_t = (Z_t − Σ_j c_j z_(t−j)) / c_0: the last b − 1 rows of z are all that is kept.
- a binary tree (Kairouz et al., ICML 2021, https://arxiv.org/abs/2103.00039): C x has the sum of
  every complete pair of rounds, pair of pairs and so on. The noise of a prefix is that of the log T
  nodes that make it up, each estimated by itself and by its children with the weights that give the
  least variance (Honaker 2015): v_h = 1 / (2 − 2^−h) of a node's own, at height h.

Departures: the tree is not restarted, and what it releases is written as increments z_t.

**Sensitivity.** A participant that is in the rounds p, with updates x_i of norm at most 1, moves
C x by Σ_i C_i x_i, and |Σ C_i x_i|² = Σ_ij X_ij x_i·x_j <= Σ_ij |X_ij|, with X = C'C; equal where X
has no negative entries and all x_i are the same.

- Toeplitz, c >= 0 and falling: X_(i, i+g) = Σ_r c_r c_(r+g) over r < T − i − g falls in i and in
  the gap g. So the worst rounds are 0, b, 2b …: no pair of others begins earlier or is closer.
  Exact.
- Toeplitz, not more than b coefficients: participations are orthogonal, and columns get shorter.
  The same rounds, without any condition on c. Exact.
- Toeplitz, else: the smallest falling sequence above |c| has no smaller X. A bound.
- Tree: a node that spans l rounds holds at most min(k, ⌈l / b⌉) participations and all nodes of
  that height at most k, so the squares sum to at most their product, at each height. Exact where
  T and b are powers of 2 and k = T / b.

**Noise that protects.** What leaves must not tell more by its last bits than by its value, so all
of it is made of numbers to which noise was added on a grid (`privacy.grid`), and of nothing else:

- Toeplitz: y_t = (c_0 x_t − Σ_j c_j z_(t−j) + Z_t) / c_0. The sum in the bracket is (C x)_t + Z_t
  but for Σ_j c_j y_(t−j), which left before; and z_t = y_t − x_t is kept.
- Tree: the leaf x_t + Z, and of every node that is complete now M = −(n_l + n_r) + Z, with n the
  noise in the estimates of its children: that is the node's sum, measured again, less these
  estimates, which left before. It moves the node's estimate, and y_t, by v_h M.

**A round of which nobody knows how much left** (it was broken off, and is begun anew) has used up
its rows of C: they are never used again, with other noise or other updates. The state that they
left may be lost; then noise begins anew at the next row (`begun_anew`). C falls into two blocks
with 0 in place of what joined them, and X = C'C has no larger entries, for C >= 0: the sensitivity
that was planned is still enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.privacy.curves import Array
from archipel.privacy.release import Gaussian, Release
from archipel.tree import Tree as States

Noised = Callable[[Tensor, int], Tensor]  # values + N(0, I); those of one round are numbered


@dataclass(frozen=True)
class Participation:
    """In which of the rounds one participant can be: any that are far enough apart.

    Every attempt of a round is a round here. `Participation(T)` is in all of them.
    """

    rounds: int  # T
    separation: int = 1  # b: from one participation to the next, at least
    most: int | None = None  # k: participations at most

    def __post_init__(self) -> None:
        for name in ("rounds", "separation", "most"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int) and value >= 1):
                raise ArchipelError(f"{name} = {value!r}: give a whole number from 1.")

    @property
    def times(self) -> int:
        """How often at most, with so many rounds."""
        fit = -(-self.rounds // self.separation)
        return fit if self.most is None else min(self.most, fit)


class State(NamedTuple):
    """What the next round's noise depends on. It is a secret: noise that is known hides nothing."""

    t: Tensor  # [..., 1] rounds so far
    rows: tuple[Tensor, ...]  # [..., p] in double precision, since updates depend on it


class Strategy(Protocol):
    """A matrix C: what it measures, how far one participant moves it, and its noise, by round."""

    def __hash__(self) -> int:
        """Equal ones are one."""

    def matrix(self, rounds: int) -> Array:
        """C `[m, T]`, a row for each of Z, in the order of use."""

    def sensitivity(self, who: Participation) -> float:
        """How far one participant moves C x, at most."""

    def variances(self, rounds: int, momentum: float = 0.0) -> Array:
        """The variance of each prefix sum's noise `[T]`, for Z of variance 1."""

    def fresh(self, t: int) -> int:
        """How many rows of Z round t, from 0, uses."""

    def start(self, like: Tensor) -> State:
        """The state before the first round, for updates like this one."""

    def add(
        self, state: State, x: Tensor, noised: Noised, going: Tensor | None = None
    ) -> tuple[State, Tensor]:
        """The next state, and y_t = x_t + z_t; those of a stack that are not going keep theirs."""


@dataclass(frozen=True)
class Toeplitz:
    """C with `coefficients` below each other in every column."""

    coefficients: tuple[float, ...] = (1.0,)  # c

    def __post_init__(self) -> None:
        if not self.coefficients or not np.isfinite(self.coefficients).all():
            raise ArchipelError(f"coefficients = {self.coefficients}: give finite numbers.")
        if self.coefficients[0] <= 0:
            raise ArchipelError(
                f"coefficients = {self.coefficients}: the first is C's diagonal; give one above 0."
            )

    def matrix(self, rounds: int) -> Array:
        out = np.zeros((rounds, rounds))
        for below, c in enumerate(self.coefficients[:rounds]):
            out[np.arange(below, rounds), np.arange(rounds - below)] = c
        return out

    def sensitivity(self, who: Participation) -> float:
        return float(np.linalg.norm(column_sum(self._measured(who), who)))

    def _measured(self, who: Participation) -> Array:
        c = np.array(self.coefficients[: who.rounds])
        if len(c) <= who.separation or who.times == 1:
            return c
        return np.maximum.accumulate(np.abs(c)[::-1])[::-1]

    def variances(self, rounds: int, momentum: float = 0.0) -> Array:
        return np.asarray(np.cumsum(inverse(self.coefficients, workload(rounds, momentum)) ** 2))

    def fresh(self, t: int) -> int:
        return 1

    def start(self, like: Tensor) -> State:
        return _start(like, len(self.coefficients) - 1)

    def add(
        self, state: State, x: Tensor, noised: Noised, going: Tensor | None = None
    ) -> tuple[State, Tensor]:
        return add_toeplitz(self.coefficients, state, x, noised, going)


def add_toeplitz(
    coefficients: Sequence[float | Tensor],
    state: State,
    x: Tensor,
    noised: Noised,
    going: Tensor | None = None,
) -> tuple[State, Tensor]:
    """`Toeplitz.add`; the parties of a stack may each have coefficients `[..., 1]` of their own."""
    before = coefficients[0] * x
    for c, row in zip(coefficients[1:], state.rows, strict=True):
        before = before - c * row
    y = noised(before, 0) / coefficients[0]
    rows = (y - x, *state.rows)[: len(state.rows)]
    return _next(state, rows, going), y


@dataclass(frozen=True)
class Tree:
    """C with a row for every complete node of a binary tree over `rounds` rounds."""

    rounds: int

    @property
    def heights(self) -> int:
        return self.rounds.bit_length()

    def matrix(self, rounds: int) -> Array:
        nodes = [(t + 1 - 2**h, t + 1) for t in range(rounds) for h in range(self.fresh(t))]
        out = np.zeros((len(nodes), rounds))
        for row, (first, end) in enumerate(nodes):
            out[row, first:end] = 1
        return out

    def sensitivity(self, who: Participation) -> float:
        square = 0
        for span in (2**h for h in range(who.rounds.bit_length())):
            full = min(who.times, -(-span // who.separation))
            square += full * min(who.times, full * (who.rounds // span))
        return sqrt(square)

    def variances(self, rounds: int, momentum: float = 0.0) -> Array:
        if momentum:
            weights = np.tril(
                workload(rounds, momentum)[np.subtract.outer(*[np.arange(rounds)] * 2)]
            )
            return np.asarray(((weights @ self._increments(rounds)) ** 2).sum(1))
        bits = (np.arange(1, rounds + 1)[:, None] >> np.arange(self.heights)) & 1
        return np.asarray(bits @ np.array([variance(h) for h in range(self.heights)]))

    def _increments(self, rounds: int) -> Array:
        """z in terms of Z `[T, m]`: a column for each row of Z, in the order of use."""
        count = sum(self.fresh(t) for t in range(rounds))
        rows = iter(torch.eye(count, dtype=torch.float64))
        state, out = self.start(torch.zeros(count, dtype=torch.float64)), []
        for t in range(rounds):
            state, z = drawn(self, state, [next(rows) for _ in range(self.fresh(t))])
            out.append(z.numpy())
        return np.stack(out)

    def fresh(self, t: int) -> int:
        """The leaf and all nodes that it completes: one for each bit that t + 1 turns to 0."""
        return (t ^ (t + 1)).bit_length()

    def start(self, like: Tensor) -> State:
        return _start(like, self.heights)

    def add(
        self, state: State, x: Tensor, noised: Noised, going: Tensor | None = None
    ) -> tuple[State, Tensor]:
        moving = torch.ones_like(state.t, dtype=torch.bool) if going is None else going
        if bool((moving & (state.t >= self.rounds)).any()):
            raise ArchipelError(
                f"rounds = {self.rounds}: the tree's noise is used up; make it for more rounds."
            )
        y = noised(x, 0)
        rows, node = list(state.rows), y - x  # the noise in the estimate of a node, from the leaf
        height = _trailing_ones(state.t)  # of the node that is complete now
        for h in range(int((height * moving).max())):
            done = height > h
            again = variance(h + 1) * noised(-(rows[h] + node), h + 1)
            node = torch.where(done, rows[h] + node + again, node)
            y = torch.where(done, y + again, y)
            rows[h] = torch.where(done, torch.zeros_like(node), rows[h])
        rows = [torch.where(height == h, node, row) for h, row in enumerate(rows)]
        return _next(state, rows, going), y


def _start(like: Tensor, rows: int) -> State:
    t = torch.zeros(*like.shape[:-1], 1, dtype=torch.int64)
    return State(t, tuple(torch.zeros_like(like, dtype=torch.float64) for _ in range(rows)))


def _next(state: State, rows: Sequence[Tensor], going: Tensor | None) -> State:
    """The state after a round, in those of a stack that take part in it."""
    if going is None:
        return State(state.t + 1, tuple(rows))
    kept = zip(rows, state.rows, strict=True)
    return State(state.t + going, tuple(torch.where(going, new, old) for new, old in kept))


def _trailing_ones(t: Tensor) -> Tensor:
    """How many nodes above its leaf round t, from 0, completes."""
    found, ones = torch.zeros_like(t), torch.ones_like(t, dtype=torch.bool)
    while bool((ones := ones & (t & 1 == 1)).any()):
        found, t = found + ones, t >> 1
    return found


# -- states in those of parties and servers --------------------------------------------------------


def kept_on(before: States, after: States) -> States:
    """A state as it was before a round, but for the noise: what it used is used up."""
    if isinstance(before, State):
        return after
    if isinstance(before, tuple):
        parts = [kept_on(*each) for each in zip(before, after, strict=True)]
        return type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
    return before


def begun_anew(state: States, rows: int | Tensor) -> States:
    """A state after a round that used up to so many rows of noise, of which nobody knows more."""
    if isinstance(state, State):
        return State(state.t + rows, tuple(torch.zeros_like(row) for row in state.rows))
    if isinstance(state, tuple):
        parts = [begun_anew(each, rows) for each in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def drawn(strategy: Strategy, state: State, fresh: Sequence[Tensor]) -> tuple[State, Tensor]:
    """The next state and z_t, from as many rows of Z as `Strategy.fresh` says."""
    zero = torch.zeros_like(fresh[0])
    return strategy.add(state, zero, lambda values, number: values + fresh[number])


def independent() -> Toeplitz:
    """Fresh noise in every round."""
    return Toeplitz((1.0,))


def variance(height: int) -> float:
    """Of the best estimate of a node of the tree: 1/v_h = 1 + 1/(2 v_(h−1)), v_0 = 1."""
    return 1 / (2 - 2.0**-height)


def column_sum(c: Array, who: Participation) -> Array:
    """Σ_j of C's columns 0, b, 2b … `[T]`, for as many as there are participations."""
    out = np.zeros(who.rounds)
    for start in range(0, who.times * who.separation, who.separation):
        part = c[: who.rounds - start]
        out[start : start + len(part)] += part
    return out


def workload(rounds: int, momentum: float = 0.0) -> Array:
    """The weights of an update in the sums that follow: 1, 1 + m, 1 + m + m² …"""
    if not 0 <= momentum < 1:
        raise ArchipelError(f"momentum = {momentum!r}: give a number from 0 and below 1.")
    return np.asarray(np.cumsum(momentum ** np.arange(rounds)))


def inverse(coefficients: Sequence[float], values: Array) -> Array:
    """C⁻¹ values."""
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], coefficients, values))


def error(strategy: Strategy, who: Participation, momentum: float = 0.0) -> float:
    """The expected squared error of all prefix sums together, for each coordinate, at mu = 1."""
    total = float(strategy.variances(who.rounds, momentum).sum())
    return strategy.sensitivity(who) ** 2 * total


def released(strategy: Strategy, who: Participation, noise: float) -> Release:
    """A whole run as the accountant sees it; `noise` is Z's deviation over a contribution."""
    return Release(Gaussian(noise / sensitivity(strategy, who)))


@lru_cache(maxsize=4096)
def sensitivity(strategy: Strategy, who: Participation) -> float:
    """`Strategy.sensitivity`, remembered."""
    return strategy.sensitivity(who)
