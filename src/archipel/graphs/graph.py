# SPDX-License-Identifier: Apache-2.0
"""A graph over the parties, in every round, with its mixing matrices W and its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.graphs.weights import (
    Edges,
    check_weights,
    given,
    pairs,
    parts,
    product,
    second,
    weighed,
    without,
)

if TYPE_CHECKING:
    from archipel.picture import Picture

Absent = Collection[int] | NDArray[np.int64]


@dataclass(frozen=True)
class Topology:
    """A graph over n parties, the same in every round or not.

    W^(t) `[n, n]` is symmetric and doubly stochastic at every round t, so mixing keeps the mean of
    the parties' vectors and draws them towards it. Besides, an edge has a weight of its own, how
    alike its two ends are: 1 unless somebody said more.

    Every method that takes `absent`, the parties that are away in that round, leaves their edges
    out, whose weight stays with the other end; whoever is away or left alone keeps its own vector.
    """

    name: str
    n: int
    rule: Callable[[int], Edges]  # by round
    period: int = 1  # rounds after which W comes again: 1 for a fixed graph, 0 for never
    known_p: float | None = None  # p where it has a closed form
    learned: bool = False  # whether the algorithm learns the graph, and this is where it begins

    def weighed(self, weights: str) -> Topology:
        """Return the same graph with other mixing matrices: one of `WEIGHTS`."""
        check_weights(weights)
        name = self.name if weights == "metropolis" else f"{self.name}, weights {weights}"
        known_p = None if weights == "given" else self.known_p  # whose graphs are regular
        rule = partial(_weighed, self.rule, weights)
        return replace(self, name=name, rule=rule, known_p=known_p)

    def sparse(self, t: int = 0, absent: Absent = ()) -> Any:
        """Return W^(t) as a scipy CSR array, float64."""
        if len(absent) == 0:
            return self._fixed if self.period == 1 else self._whole(t)
        return given(without(self.sparse(t), self._here(absent)))

    def affinity(self, t: int = 0, absent: Absent = ()) -> Any:
        """Return the weights of the edges, how alike parties are, as a scipy CSR array, float64.

        They are symmetric with a zero diagonal: 1 for the edges of a graph by name, what a file or
        `weighted` says, and W's own for `own(W)`.
        """
        A = self.rule(t).affinity
        return A if len(absent) == 0 else without(A, self._here(absent))

    def weights(self, t: int = 0, absent: Absent = ()) -> Tensor:
        """Return W^(t), float64 `[n, n]`."""
        return torch.from_numpy(self.sparse(t, absent).toarray())

    def row(self, i: int, t: int = 0, absent: Absent = ()) -> dict[int, float]:
        """Return what party i weighs in round t: its neighbours and itself, with their weights."""
        W = self.sparse(t, absent)
        part = slice(W.indptr[i], W.indptr[i + 1])
        return dict(zip(W.indices[part].tolist(), W.data[part].tolist(), strict=True))

    def neighbours(self, i: int, t: int = 0, absent: Absent = ()) -> list[int]:
        """Return the parties that party i exchanges with in round t."""
        return sorted(j for j, weight in self.row(i, t, absent).items() if j != i and weight > 0)

    def edges(self, t: int = 0, absent: Absent = ()) -> Tensor:
        """Return the pairs that exchange in round t, int64 `[e, 2]`, the smaller number first."""
        if self.period == 1 and len(absent) == 0:
            return self._fixed_edges
        return _edges(self.affinity(t, absent))

    def mix(self, x: Tensor, t: int = 0, absent: Absent = ()) -> Tensor:
        """Return W^(t) x: `[..., n, p] -> [..., n, p]`."""
        W = self.sparse(t, absent)
        if W.nnz == self.n**2 and np.ptp(W.data) < 1e-12:
            return x.mean(dim=-2, keepdim=True).expand(x.shape).clone()
        if W.nnz * 8 > self.n**2 or x.requires_grad or x.device.type != "cpu":
            return torch.from_numpy(W.toarray()).to(x) @ x
        mixed = product(W, x.movedim(-2, 0).reshape(self.n, -1))
        return mixed.view(self.n, *x.shape[:-2], x.shape[-1]).movedim(0, -2)

    @cached_property
    def connected(self) -> bool:
        """Whether what a party knows reaches every other in the end."""
        nothing = csr_array((self.n, self.n))
        joined = sum((self.rule(t).affinity for t in self._rounds()), nothing)
        return not parts(joined).any()

    @cached_property
    def p(self) -> float:
        """Koloskova et al.'s rate (arXiv 2003.10422): one mixing leaves 1 - p of the squared error.

        It is 1 - l² with l the second largest modulus of W's eigenvalues. Where the graph changes,
        l² is the second eigenvalue of the mean of W², over a period or else over many rounds: the
        rate on average for rounds in any order.
        """
        if self.known_p is not None:
            return self.known_p
        if self.period == 1:
            return max(1 - second(self._fixed) ** 2, 0.0)
        nothing = csr_array((self.n, self.n))
        squares = sum((W @ W for W in map(self._whole, self._rounds())), nothing)
        return max(1 - second(squares / len(self._rounds())), 0.0)

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|l2|, |ln|); where the graph changes, the same of p: 1 - sqrt(1 - p)."""
        return 1 - float(np.sqrt(1 - self.p))

    @cached_property
    def _fixed_edges(self) -> Tensor:
        return _edges(self.rule(0).affinity)

    @cached_property
    def _fixed(self) -> Any:
        return self._whole(0)

    def _whole(self, t: int) -> Any:
        A, weigh = self.rule(t)
        return weigh(A)

    def _rounds(self) -> range:
        return range(self.period or 400)

    def _here(self, absent: Absent) -> NDArray[np.bool_]:
        away = np.asarray(list(absent), dtype=np.int64)
        if away.min() < 0 or away.max() >= self.n:
            raise ArchipelError(
                f"absent parties are {sorted(absent)}: give numbers from 0 to {self.n - 1}."
            )
        here = np.ones(self.n, dtype=bool)
        here[away] = False
        return here

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the parties on a circle, thicker edges weighing more, and save it if asked.

        A topology that changes is drawn in its first rounds, up to four.
        """
        from matplotlib.collections import LineCollection

        from archipel.picture import Picture

        angle = np.pi / 2 - 2 * np.pi * np.arange(self.n) / self.n
        at = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        rounds = range(min(self.period or 4, 4))
        figure = Picture(figsize=(1 + 3.6 * len(rounds), 4.8), layout="constrained")
        for t, axes in enumerate(np.atleast_1d(figure.subplots(1, len(rounds)))):
            i, j, weight = pairs(self.sparse(t))
            crowd = np.clip(40 / (len(i) + 1), 0.005, 1.0)  # many edges are drawn finer and paler
            lines = LineCollection(
                list(at[np.stack([i, j], axis=-1)]),
                linewidths=(0.4 + 1.6 * weight / weight.max(initial=1e-9)) * crowd**0.5,
                color="#4878a8",
                alpha=crowd**0.5,
            )
            axes.add_collection(lines)
            axes.scatter(*at.T, s=float(np.clip(3000 / self.n, 6, 200)), color="#1f3a57", zorder=2)
            for party in range(self.n if self.n <= 24 else 0):
                axes.text(*at[party], str(party), color="w", ha="center", va="center", fontsize=7)
            axes.set(xlim=(-1.3, 1.3), ylim=(-1.15, 1.15), aspect="equal")
            axes.axis("off")
            if len(rounds) > 1:
                axes.set_title(f"round {t}", fontsize=9)
        figure.suptitle(f"{self.name}, {self.n} parties: spectral gap {self.spectral_gap:.3g}")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def _edges(A: Any) -> Tensor:
    """The pairs of A, int64 `[e, 2]`."""
    i, j, _ = pairs(A)
    return torch.from_numpy(np.stack([i, j], axis=-1).astype(np.int64))


def _weighed(rule: Callable[[int], Edges], weights: str, t: int) -> Edges:
    return weighed(rule(t).affinity, weights)
