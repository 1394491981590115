# SPDX-License-Identifier: Apache-2.0
"""Edges as sparse matrices, and the mixing matrix W of them.

Every rule gives a W that is symmetric and doubly stochastic: Metropolis and Hastings's weights are
1 / (1 + the larger degree of the two), those of the maximum degree 1 / (1 + the largest degree of
the graph), and weights may be given. What a party does not give to others stays with it, on the
diagonal. On a regular graph the first two are the uniform 1 / (degree + 1): 1/3 on a ring
[Lian 2017].

Where parties are away, the weight of an edge that does not come about goes to the diagonal at both
of its ends. So W stays symmetric and doubly stochastic whoever is away, and nobody needs to know
more than its own row: peers that see no more than their neighbours do the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, csgraph, csr_array, diags_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from archipel.errors import ArchipelError, unknown
from archipel.rng import generator

WEIGHTS = {  # name: what it is
    "metropolis": "1 / (1 + the larger degree of the two)",
    "max_degree": "1 / (1 + the largest degree of the graph)",
    "given": "the weights of the edges themselves",
}


class Edges(NamedTuple):
    """The edges of one round, and how they are weighed."""

    affinity: Any  # A as a scipy CSR array: symmetric, zero diagonal, positive on edges
    weigh: Callable[[Any], Any]  # A -> W


def joined(n: int, i: NDArray[Any], j: NDArray[Any], weight: NDArray[Any] | None = None) -> Any:
    """Return A of the edges (i, j), 1 unless weighted; loops are left out.

    An edge may be given more than once, in either direction, where it has no weight.
    """
    low, high = np.minimum(i, j), np.maximum(i, j)
    if weight is None:
        low, high = np.divmod(np.unique((low * n + high)[low != high]), n)
        weight = np.ones(len(low))
    entries = np.concatenate([weight, weight])
    where = np.concatenate([low, high]), np.concatenate([high, low])
    return coo_array((entries, where), shape=(n, n)).tocsr()


def product(W: Any, x: Tensor) -> Tensor:
    """Return W x of `[n, p]`, in x's precision: torch takes half of the time that scipy does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: support is in beta state
        start, column, weight = map(torch.from_numpy, (W.indptr, W.indices, W.data))
        A = torch.sparse_csr_tensor(
            start, column, weight.to(x.dtype), size=W.shape, check_invariants=False
        )
        found: Tensor = A @ x
    return found


def metropolis(A: Any) -> Any:
    """Return W by the larger degree of an edge's two ends."""
    degree = np.diff(A.indptr)
    rows = np.repeat(np.arange(len(degree)), degree)
    return _with_diagonal(A, 1 / (1 + np.maximum(degree[rows], degree[A.indices])))


def max_degree(A: Any) -> Any:
    """Return W by the largest degree of the graph."""
    most = np.diff(A.indptr).max(initial=0)
    return _with_diagonal(A, np.full(A.nnz, 1 / (1 + most)))


def given(A: Any) -> Any:
    """Return the W whose weights between parties are A's."""
    return _with_diagonal(A, A.data)


def check_weights(name: str) -> None:
    """Whether there are weights of this name."""
    if name not in WEIGHTS:
        raise unknown("topology.weights", name, WEIGHTS)


def weighed(A: Any, name: str) -> Edges:
    """Return the edges with the weights of this name."""
    if name != "given":
        return Edges(A, max_degree if name == "max_degree" else metropolis)
    sums = np.asarray(A.sum(axis=1)).ravel()
    worst = int(sums.argmax())
    if sums[worst] > 1 + 1e-9:
        raise ArchipelError(
            f"topology.weights = 'given': the edges of party {worst} weigh {sums[worst]:g} "
            "together, and W has room for 1; make them smaller, or take 'metropolis'."
        )
    return Edges(A, given)


def _with_diagonal(A: Any, weight: NDArray[Any]) -> Any:
    between = csr_array((weight, A.indices, A.indptr), shape=A.shape)
    return (between + diags_array(np.maximum(1 - between.sum(axis=1), 0))).tocsr()


def without(A: Any, here: NDArray[Any]) -> Any:
    """Return the edges of A, or of W, between those that are here, a mask `[n]`."""
    entries = A.tocoo()
    i, j = entries.coords
    both = here[i] & here[j] & (i != j)
    return coo_array((entries.data[both], (i[both], j[both])), shape=A.shape).tocsr()


def pairs(A: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the edges i < j of a matrix, with their weights."""
    entries = A.tocoo()
    i, j = entries.coords
    upper = (i < j) & (entries.data > 0)
    return i[upper], j[upper], entries.data[upper]


def parts(A: Any) -> NDArray[np.int32]:
    """Return the part of the graph that each party is in, `[n]`: 0 for those joined to party 0."""
    found: NDArray[np.int32] = csgraph.connected_components(A, directed=False)[1]
    return found


def second(W: Any) -> float:
    """Return the largest modulus of an eigenvalue of W but the 1 of the constant vector."""
    n = W.shape[0]
    if n <= 2000:
        return float(np.abs(np.linalg.eigvalsh(W.toarray() - 1 / n)).max())
    deflated = LinearOperator((n, n), matvec=lambda x: W @ x - x.mean(), dtype=np.float64)
    start = generator(0, "lanczos").standard_normal(n)
    found = partial(eigsh, v0=start, ncv=40, tol=1e-7, return_eigenvectors=False)
    try:
        ends = found(deflated, k=1, maxiter=30)
    except ArpackNoConvergence:  # a small gap: a ring or a torus, whose matrix factors cheaply
        first, last = found(W, k=2, sigma=1 + 1e-9), found(W, k=1, sigma=-1 - 1e-9)
        ends = np.append(last, first.min())
    return float(np.abs(ends).max())
