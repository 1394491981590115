# SPDX-License-Identifier: Apache-2.0
"""Graphs that stay the same from round to round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.graphs.graph import Topology
from archipel.graphs.weights import Edges, given, joined, metropolis
from archipel.rng import generator


def ring(n: int) -> Topology:
    """Join each party to the one before and the one after."""
    at_least_one("ring", n)
    i = np.arange(n)
    return fixed("ring", joined(n, i, (i + 1) % n))


def torus(n: int, rows: int | None = None) -> Topology:
    """Join each party to its four neighbours on a grid without border, as square as n allows."""
    at_least_one("torus", n)
    if rows is None:
        rows = next(r for r in range(isqrt(n), 0, -1) if n % r == 0)
        if rows == 1 and n > 3:
            near = isqrt(n) * (isqrt(n) + 1)
            raise ArchipelError(
                f"topology 'torus' needs n = rows x columns but n is {n}, a prime: use 'ring', or "
                f"{near} parties."
            )
    if rows < 1 or n % rows:
        raise ArchipelError(
            f"topology 'torus' cannot lay {n} parties in {rows} rows: give a divisor of {n}."
        )
    columns, i = n // rows, np.arange(n)
    right = i - i % columns + (i + 1) % columns
    below = (i + columns) % n
    return fixed("torus", joined(n, np.tile(i, 2), np.concatenate([right, below])))


def star(n: int) -> Topology:
    """Join every party to party 0."""
    at_least_one("star", n)
    return fixed("star", joined(n, np.zeros(n - 1, dtype=np.int64), np.arange(1, n)))


def complete(n: int) -> Topology:
    """Join every party to every other: mixing is the mean."""
    at_least_one("complete", n)
    if n > 5000:
        raise ArchipelError(
            f"topology 'complete' has n² weights and n is {n}: use an algorithm with a server, "
            "whose mean is the same, or 'exponential'."
        )
    return Topology("complete", n, partial(_all, n))


def hypercube(n: int) -> Topology:
    """Join the parties whose numbers differ in one bit; n is a power of two."""
    bits = bits_of("hypercube", n)
    i = np.tile(np.arange(n), bits)
    return fixed("hypercube", joined(n, i, i ^ np.repeat(1 << np.arange(bits), n)))


def exponential(n: int) -> Topology:
    """Join each party to those 1, 2, 4, 8 ... before and after it."""
    at_least_one("exponential", n)
    hops = 1 << np.arange((n - 1).bit_length())
    i = np.tile(np.arange(n), len(hops))
    return fixed("exponential", joined(n, i, (i + np.repeat(hops, n)) % n))


def random_regular(n: int, degree: int, seed: int = 0) -> Topology:
    """Join each party to `degree` others at random, all connected."""
    at_least_one("random_regular", n)
    if not 0 <= degree < n or n * degree % 2:
        odd = 0 <= degree < n
        raise ArchipelError(
            f"topology 'random_regular' cannot give {n} parties {degree} neighbours each: "
            + ("n x degree must be even, so " if odd else "")
            + f"take a degree of {degree + 1 if odd and degree + 1 < n else min(2, n - 1)}."
        )
    if degree < 2 and n > degree + 1:
        raise ArchipelError(
            f"topology 'random_regular:{degree}' leaves parties apart: take a degree of 2 or more, "
            "or 'matching' to pair them anew in each round."
        )
    rng = generator(seed, "random_regular", n, degree)
    while True:
        order = rng.permutation(n)  # two neighbours each and all connected: a ring in some order
        i, j = (order, np.roll(order, 1)) if degree == 2 else regular_pairs(n, degree, rng)
        graph = fixed(f"random_regular:{degree}", joined(n, i, j))
        if graph.connected:
            return graph


def erdos_renyi(n: int, probability: float, seed: int = 0) -> Topology:
    """Join each pair with this probability; drawn again, up to 100 times, until connected."""
    at_least_one("erdos_renyi", n)
    if not 0 <= probability <= 1:
        raise ArchipelError(
            f"topology 'erdos_renyi' has probability {probability}: give one from 0 to 1."
        )
    for attempt in range(100):
        rng = generator(seed, "erdos_renyi", n, attempt)
        later = [i + 1 + np.flatnonzero(rng.random(n - 1 - i) < probability) for i in range(n)]
        i = np.repeat(np.arange(n), [len(row) for row in later])
        graph = fixed(f"erdos_renyi:{probability:g}", joined(n, i, np.concatenate(later)))
        if graph.connected:
            return graph
    raise ArchipelError(
        f"topology 'erdos_renyi:{probability:g}' left some of {n} parties apart in 100 draws: "
        f"raise the probability well above ln(n)/n = {log(n) / n:.3g}."
    )


def small_world(n: int, degree: int, rewired: float = 0.1, seed: int = 0) -> Topology:
    """Join each party to its `degree` nearest on a ring, and turn some edges elsewhere at random.

    Watts and Strogatz (Nature 1998): every edge keeps one end, and with probability `rewired` gets
    another that is drawn. Drawn again, up to 100 times, until connected.
    """
    at_least_one("small_world", n)
    if degree < 2 or degree % 2 or degree >= n:
        raise ArchipelError(
            f"topology 'small_world:{degree}' cannot be over {n} parties: give an even number of "
            "neighbours from 2 on, below the number of parties."
        )
    if not 0 <= rewired <= 1:
        raise ArchipelError(
            f"topology 'small_world' has a probability of rewiring of {rewired:g}: give one from 0 "
            "to 1."
        )
    name = f"small_world:{degree}" + (f":{rewired:g}" if rewired != 0.1 else "")
    for attempt in range(100):
        rng = generator(seed, "small_world", n, degree, attempt)
        graph = fixed(name, joined(n, *_rewired(n, degree, rewired, rng)))
        if graph.connected:
            return graph
    raise ArchipelError(
        f"topology '{name}' left some of {n} parties apart in 100 draws: take more neighbours, or "
        "rewire fewer edges."
    )


def _rewired(
    n: int, degree: int, probability: float, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    i = np.tile(np.arange(n), degree // 2)
    j = (i + np.repeat(np.arange(1, degree // 2 + 1), n)) % n
    near: list[set[int]] = [set() for _ in range(n)]
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        near[a].add(b)
        near[b].add(a)
    for e in np.flatnonzero(rng.random(len(i)) < probability).tolist():
        a, b = int(i[e]), int(j[e])
        if len(near[a]) == n - 1:  # joined to everybody already
            continue
        other = next(
            c for c in iter(lambda: int(rng.integers(n)), None) if c != a and c not in near[a]
        )
        j[e] = other
        near[a] ^= {b, other}
        near[b].discard(a)
        near[other].add(a)
    return i, j


def own(matrix: ArrayLike | Tensor, name: str = "own") -> Topology:
    """Return the topology of an adjacency matrix, or of a mixing matrix W, `[n, n]`.

    A matrix of zeros and ones is an adjacency matrix, its diagonal is not read; any other is W. A W
    keeps its weights where parties are away: what those would have had stays with the others. For
    weights that say how alike parties are, see `weighted`.
    """
    W = _symmetric(matrix)
    if np.isin(W, (0, 1)).all():
        return _of_matrix(name, W, metropolis)
    sums = W.sum(axis=1)
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > 1e-6:
        raise ArchipelError(
            f"topology matrix has a row, {worst}, that sums to {sums[worst]:g}: make every row of "
            "W sum to 1, give an adjacency matrix of zeros and ones, or any weights to 'weighted'."
        )
    return _of_matrix(name, W, given)


def weighted(matrix: ArrayLike | Tensor, name: str = "weighted") -> Topology:
    """Return the topology of edges with weights, `[n, n]`, which say how alike two parties are.

    Any symmetric weights >= 0; the diagonal is not read. Mixing is by degrees, not by them.

    >>> weighted([[0, 2.5, 0], [2.5, 0, 1], [0, 1, 0]]).affinity().toarray()[0].tolist()
    [0.0, 2.5, 0.0]
    """
    return _of_matrix(name, _symmetric(matrix), metropolis)


def _symmetric(matrix: ArrayLike | Tensor) -> NDArray[np.float64]:
    W = np.asarray(matrix, dtype=np.float64)
    if W.ndim != 2 or W.shape[0] != W.shape[1] or not W.size:
        raise ArchipelError(f"topology matrix has shape {list(W.shape)}: give [n, n].")
    if not np.isfinite(W).all() or (W < 0).any():
        raise ArchipelError("topology matrix has a negative or infinite entry: weights are >= 0.")
    if not np.allclose(W, W.T, rtol=0, atol=1e-9):
        i, j = np.argwhere(~np.isclose(W, W.T, rtol=0, atol=1e-9))[0].tolist()
        raise ArchipelError(
            f"topology matrix is not symmetric: entry ({i}, {j}) is {W[i, j]:g} but ({j}, {i}) is "
            f"{W[j, i]:g}, so give both edges the same weight."
        )
    return (W + W.T) / 2


def _of_matrix(name: str, W: NDArray[np.float64], weigh: Callable[[Any], Any]) -> Topology:
    graph = fixed(name, csr_array(W * (1 - np.eye(len(W)))), weigh)
    if not graph.connected:
        raise ArchipelError("topology matrix leaves some parties apart: join them by an edge.")
    return graph


def fixed(name: str, A: Any, weigh: Callable[[Any], Any] = metropolis) -> Topology:
    """Return the topology whose edges are A in every round."""
    return Topology(name, A.shape[0], partial(_always, Edges(A, weigh)))


def _always(edges: Edges, t: int) -> Edges:
    return edges


def _all(n: int, t: int) -> Edges:
    return Edges(csr_array(1 - np.eye(n)), metropolis)  # made when asked for: n may be thousands


def regular_pairs(
    n: int, degree: int, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw the edges of a regular graph, nearly uniformly.

    The parties' free ends are paired at random; a pair that is a loop or a repeat then swaps an end
    with some other pair where both become new edges. A dense graph is a sparse one's complement.
    """
    if degree > (n - 1) / 2:
        others = ~np.eye(n, dtype=bool)
        i, j = regular_pairs(n, n - 1 - degree, rng)
        others[i, j] = others[j, i] = False
        rows, columns = np.nonzero(others)
        return rows, columns
    i, j = rng.permutation(np.repeat(np.arange(n), degree)).reshape(2, -1)
    for _ in range(100):
        edge, index, count = np.unique(
            np.minimum(i, j) * n + np.maximum(i, j), return_inverse=True, return_counts=True
        )
        bad = np.flatnonzero((count[index] > 1) | (i == j))
        if not len(bad):
            return i, j
        taken = set(edge.tolist())
        for a, b in zip(bad.tolist(), rng.integers(len(i), size=len(bad)).tolist(), strict=True):
            new = {min(u, v) * n + max(u, v) for u, v in ((i[a], j[b]), (i[b], j[a])) if u != v}
            if len(new) == 2 and not new & taken:
                j[a], j[b] = j[b], j[a]
                taken |= new
    return regular_pairs(n, degree, rng)


def at_least_one(name: str, n: int) -> None:
    if n < 1:
        raise ArchipelError(f"topology '{name}' has n = {n} parties: give 1 or more.")


def bits_of(name: str, n: int) -> int:
    """Return log2(n)."""
    at_least_one(name, n)
    if n & (n - 1):
        raise ArchipelError(
            f"topology '{name}' needs a power of two but n is {n}: use 'exponential', or take "
            f"{1 << (n.bit_length() - 1)} or {1 << n.bit_length()} parties."
        )
    return n.bit_length() - 1
