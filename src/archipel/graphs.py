# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom: topologies and their mixing matrices W.

W^(t) `[n, n]` is symmetric and doubly stochastic at every round t, so mixing keeps the mean of the
parties' vectors and draws them towards it. Weights are Metropolis and Hastings's, 1 / (1 + the
larger degree), which on a regular graph is the uniform 1 / (degree + 1): 1/3 on a ring [Lian 2017].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, isqrt, lcm, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csgraph, csr_array, eye_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from archipel.errors import ArchipelError, unknown
from archipel.rng import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Absent = Collection[int] | NDArray[np.int64]

TOPOLOGIES = {  # name: how a study writes it
    "alternate": "alternate:SPEC,SPEC,...",
    "complete": "complete",
    "erdos_renyi": "erdos_renyi:PROBABILITY",
    "exponential": "exponential",
    "hypercube": "hypercube",
    "local_steps": "local_steps:EVERY:SPEC",
    "matching": "matching",
    "one_peer_exponential": "one_peer_exponential",
    "random_regular": "random_regular:DEGREE",
    "ring": "ring",
    "star": "star",
    "torus": "torus or torus:ROWSxCOLUMNS",
}


@dataclass(frozen=True)
class Topology:
    """A graph over n parties, the same in every round or not, with its mixing matrices.

    Every method that takes `absent`, the parties that are away in that round, weighs the edges
    between the others anew; whoever is away or left alone keeps its own vector.
    """

    name: str
    n: int
    rule: Callable[[int], Any]  # round -> W as a sparse matrix
    period: int = 1  # rounds after which W comes again, 1 for a fixed graph, 0 for never

    def sparse(self, t: int = 0, absent: Absent = ()) -> Any:
        """Return W^(t) as a scipy CSR array, float64."""
        W = self.rule(t)
        if len(absent) == 0:
            return W
        here = np.ones(self.n, dtype=bool)
        here[np.asarray(list(absent), dtype=np.int64)] = False
        i, j = _pairs(W)
        both = here[i] & here[j]
        return _metropolis(self.n, i[both], j[both])

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
        i, j = _pairs(self.sparse(t, absent))
        return torch.from_numpy(np.stack([i, j], axis=-1).astype(np.int64))

    def mix(self, x: Tensor, t: int = 0, absent: Absent = ()) -> Tensor:
        """Return W^(t) x: `[..., n, p] -> [..., n, p]`."""
        W = self.sparse(t, absent)
        if W.nnz == self.n**2 and W.data.min() == W.data.max():
            return x.mean(dim=-2, keepdim=True).expand(x.shape).clone()
        if W.nnz * 8 > self.n**2 or x.requires_grad or x.device.type != "cpu":
            return torch.from_numpy(W.toarray()).to(x) @ x
        W = W.astype(torch.empty((), dtype=x.dtype).numpy().dtype)
        columns = x.movedim(-2, 0).reshape(self.n, -1)
        mixed = torch.from_numpy(W @ columns.numpy())
        return mixed.view(self.n, *x.shape[:-2], x.shape[-1]).movedim(0, -2)

    @cached_property
    def connected(self) -> bool:
        """Whether what a party knows reaches every other in the end."""
        union = sum((abs(self.rule(t)) for t in self._rounds()), csr_array((self.n, self.n)))
        return int(csgraph.connected_components(union, directed=False)[0]) == 1

    @cached_property
    def p(self) -> float:
        """Koloskova et al.'s rate (arXiv 2003.10422): one mixing leaves 1 - p of the squared error.

        It is 1 - l² with l the second largest modulus of W's eigenvalues. Where the graph changes,
        l² is the second eigenvalue of the mean of W², over a period or else over many rounds: the
        rate on average for rounds in any order.
        """
        if self.period == 1:
            return 1 - _second(self.rule(0)) ** 2
        rounds = self._rounds()
        return 1 - _second(sum((self.rule(t) @ self.rule(t) for t in rounds)) / len(rounds))

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|l2|, |ln|); where the graph changes, the same of p: 1 - sqrt(1 - p)."""
        return 1 - max(1 - self.p, 0.0) ** 0.5

    def _rounds(self) -> range:
        return range(self.period or 400)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the parties on a circle, thicker edges weighing more, and save it if asked.

        A topology that changes is drawn over its first rounds.
        """
        from archipel.graph_plot import draw

        return draw(self, path)
