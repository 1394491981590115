# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom: topologies and their mixing matrices W.

W^(t) `[n, n]` is symmetric and doubly stochastic at every round t, so mixing keeps the mean of the
parties' vectors and draws them towards it. Weights are Metropolis and Hastings's, 1 / (1 + the
larger degree), which on a regular graph is the uniform 1 / (degree + 1): 1/3 on a ring [Lian 2017].

One file, since every graph is a few lines that end in the same weights and the same `Topology`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import isqrt, lcm, log
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
    from archipel.picture import Picture

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
    period: int = 1  # rounds after which W comes again: 1 for a fixed graph, 0 for never
    known_p: float | None = None  # p where it has a closed form

    def sparse(self, t: int = 0, absent: Absent = ()) -> Any:
        """Return W^(t) as a scipy CSR array, float64."""
        W = self.rule(t)
        if len(absent) == 0:
            return W
        away = np.asarray(list(absent), dtype=np.int64)
        if away.min() < 0 or away.max() >= self.n:
            raise ArchipelError(
                f"absent parties are {sorted(absent)}: give numbers from 0 to {self.n - 1}."
            )
        here = np.ones(self.n, dtype=bool)
        here[away] = False
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
        return _connected(sum((self.rule(t) for t in self._rounds()), self._nothing()))

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
            return max(1 - _second(self.rule(0)) ** 2, 0.0)
        squares = sum((self.rule(t) @ self.rule(t) for t in self._rounds()), self._nothing())
        return max(1 - _second(squares / len(self._rounds())), 0.0)

    @cached_property
    def spectral_gap(self) -> float:
        """1 - max(|l2|, |ln|); where the graph changes, the same of p: 1 - sqrt(1 - p)."""
        return 1 - float(np.sqrt(1 - self.p))

    def _rounds(self) -> range:
        return range(self.period or 400)

    def _nothing(self) -> Any:
        return csr_array((self.n, self.n))

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
            i, j = _pairs(self.rule(t))
            weight = self.rule(t).tocsr()[i, j] if len(i) else np.zeros(0)
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


# -- graphs that stay ------------------------------------------------------------------------------


def ring(n: int) -> Topology:
    """Join each party to the one before and the one after."""
    _at_least_one("ring", n)
    i = np.arange(n)
    return _fixed("ring", n, i, (i + 1) % n)


def torus(n: int, rows: int | None = None) -> Topology:
    """Join each party to its four neighbours on a grid without border, as square as n allows."""
    _at_least_one("torus", n)
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
    return _fixed("torus", n, np.tile(i, 2), np.concatenate([right, below]))


def star(n: int) -> Topology:
    """Join every party to party 0."""
    _at_least_one("star", n)
    return _fixed("star", n, np.zeros(n - 1, dtype=np.int64), np.arange(1, n))


def complete(n: int) -> Topology:
    """Join every party to every other: mixing is the mean."""
    _at_least_one("complete", n)
    if n > 5000:
        raise ArchipelError(
            f"topology 'complete' has n² weights and n is {n}: use an algorithm with a server, "
            "whose mean is the same, or 'exponential'."
        )
    return Topology("complete", n, partial(_always, csr_array(np.full((n, n), 1 / n))))


def hypercube(n: int) -> Topology:
    """Join the parties whose numbers differ in one bit; n is a power of two."""
    bits = _bits("hypercube", n)
    i = np.tile(np.arange(n), bits)
    return _fixed("hypercube", n, i, i ^ np.repeat(1 << np.arange(bits), n))


def exponential(n: int) -> Topology:
    """Join each party to those 1, 2, 4, 8 ... before and after it."""
    _at_least_one("exponential", n)
    hops = 1 << np.arange((n - 1).bit_length())
    i = np.tile(np.arange(n), len(hops))
    return _fixed("exponential", n, i, (i + np.repeat(hops, n)) % n)


def random_regular(n: int, degree: int, seed: int = 0) -> Topology:
    """Join each party to `degree` others at random, all connected."""
    _at_least_one("random_regular", n)
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
        i, j = (order, np.roll(order, 1)) if degree == 2 else _regular_pairs(n, degree, rng)
        graph = _fixed(f"random_regular:{degree}", n, i, j)
        if graph.connected:
            return graph


def erdos_renyi(n: int, probability: float, seed: int = 0) -> Topology:
    """Join each pair with this probability; drawn again, up to 100 times, until connected."""
    _at_least_one("erdos_renyi", n)
    if not 0 <= probability <= 1:
        raise ArchipelError(
            f"topology 'erdos_renyi' has probability {probability}: give one from 0 to 1."
        )
    for attempt in range(100):
        rng = generator(seed, "erdos_renyi", n, attempt)
        later = [i + 1 + np.flatnonzero(rng.random(n - 1 - i) < probability) for i in range(n)]
        i = np.repeat(np.arange(n), [len(row) for row in later])
        graph = _fixed(f"erdos_renyi:{probability:g}", n, i, np.concatenate(later))
        if graph.connected:
            return graph
    raise ArchipelError(
        f"topology 'erdos_renyi:{probability:g}' left some of {n} parties apart in 100 draws: "
        f"raise the probability well above ln(n)/n = {log(n) / n:.3g}."
    )


def own(matrix: ArrayLike | Tensor, name: str = "own") -> Topology:
    """Return the topology of an adjacency matrix, or of a mixing matrix W, `[n, n]`.

    A matrix of zeros and ones is an adjacency matrix, its diagonal is not read; any other is W.
    """
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
    n = len(W)
    if np.isin(W, (0, 1)).all():
        i, j = np.nonzero(W)
        graph = _fixed(name, n, i, j)
    else:
        sums = W.sum(axis=1)
        worst = int(np.abs(sums - 1).argmax())
        if abs(sums[worst] - 1) > 1e-6:
            raise ArchipelError(
                f"topology matrix has a row, {worst}, that sums to {sums[worst]:g}: make every "
                "row of W sum to 1, or give an adjacency matrix of zeros and ones."
            )
        graph = Topology(name, n, partial(_always, csr_array((W + W.T) / 2)))
    if not graph.connected:
        raise ArchipelError("topology matrix leaves some parties apart: join them by an edge.")
    return graph


# -- graphs that change ----------------------------------------------------------------------------


def matching(n: int, seed: int = 0) -> Topology:
    """Pair the parties at random in each round; one is left over when n is odd."""
    _at_least_one("matching", n)
    p = 0.5 if n % 2 else n / (2 * (n - 1))  # the mean of W² is that of W: W averages pairs
    return Topology("matching", n, partial(_matching, n, seed), 0, p if n > 1 else 1.0)


def one_peer_exponential(n: int) -> Topology:
    """Pair the parties 1, 2, 4 ... apart in turn: the exact mean after log2(n) rounds.

    Ying et al. (arXiv 2110.13363) send from i to i + 2^k, which is not symmetric; here the number
    i + 2^k is taken bit by bit (exclusive or), which pairs the parties and mixes as fast.
    """
    bits = _bits("one_peer_exponential", n)
    return Topology("one_peer_exponential", n, partial(_one_peer, n, bits), max(bits, 1))


def alternate(parts: Sequence[Topology]) -> Topology:
    """Take the topologies in turn; each sees its own rounds 0, 1, 2 ..."""
    if not parts or len({part.n for part in parts}) > 1:
        sizes = [part.n for part in parts]
        raise ArchipelError(f"topology 'alternate' has parts of {sizes} parties: give equal sizes.")
    name = f"alternate:{','.join(part.name for part in parts)}"
    period = len(parts) * lcm(*(part.period for part in parts))
    return Topology(name, parts[0].n, partial(_alternate, tuple(parts)), period)


def local_steps(every: int, then: Topology) -> Topology:
    """Mix in every `every`-th round only, by `then`, which sees its own rounds 0, 1, 2 ..."""
    if every < 1:
        raise ArchipelError(f"topology 'local_steps' has every = {every}: give 1 or more.")
    p = None if then.known_p is None else then.known_p / every
    name = f"local_steps:{every}:{then.name}"
    return Topology(name, then.n, partial(_local_steps, every, then), every * then.period, p)


def drop(graph: Topology, absent: Absent | Callable[[int], Absent]) -> Topology:
    """Take parties away: always the same ones, or those that `absent` gives for a round."""
    period = 0 if callable(absent) else graph.period
    return Topology(f"{graph.name} with absences", graph.n, partial(_drop, graph, absent), period)


def _always(W: Any, t: int) -> Any:
    return W


def _matching(n: int, seed: int, t: int) -> Any:
    order = generator(seed, t, "matching").permutation(n)
    return _metropolis(n, order[: n - 1 : 2], order[1::2])


def _one_peer(n: int, bits: int, t: int) -> Any:
    i = np.arange(n)
    return _metropolis(n, i, i ^ (1 << t % bits if bits else 0))


def _alternate(parts: tuple[Topology, ...], t: int) -> Any:
    return parts[t % len(parts)].rule(t // len(parts))


def _local_steps(every: int, then: Topology, t: int) -> Any:
    if (t + 1) % every:
        return eye_array(then.n, format="csr")
    return then.rule(t // every)


def _drop(graph: Topology, absent: Absent | Callable[[int], Absent], t: int) -> Any:
    return graph.sparse(t, absent(t) if callable(absent) else absent)


# -- from a word -----------------------------------------------------------------------------------


def topology(spec: str | Topology, n: int, seed: int = 0) -> Topology:
    """Return the topology that a study names, over n parties.

    >>> topology("torus:4x8", 32).neighbours(0)
    [1, 7, 8, 24]
    """
    if isinstance(spec, Topology):
        if spec.n != n:
            raise ArchipelError(
                f"the topology joins {spec.n} parties, not {n}: make it with n={n}."
            )
        return spec
    name, _, value = spec.partition(":")
    if name not in TOPOLOGIES:
        raise unknown("topology", name, TOPOLOGIES)
    plain = {
        "complete": complete,
        "exponential": exponential,
        "hypercube": hypercube,
        "one_peer_exponential": one_peer_exponential,
        "ring": ring,
        "star": star,
    }
    try:
        match name:
            case "matching" if not value:
                return matching(n, seed)
            case "torus" if not value:
                return torus(n)
            case "torus":
                rows, columns = (int(side) for side in value.split("x"))
                if rows * columns != n:
                    raise ArchipelError(
                        f"topology '{spec}' has {rows * columns} places for {n} parties: "
                        f"write 'torus' for the squarest grid of {n}."
                    )
                return torus(n, rows)
            case "random_regular":
                return random_regular(n, int(value), seed)
            case "erdos_renyi":
                return erdos_renyi(n, float(value), seed)
            case "local_steps":
                every, _, then = value.partition(":")
                return local_steps(int(every), topology(then, n, seed))
            case "alternate":
                return alternate([topology(part, n, seed) for part in value.split(",")])
            case _ if not value:
                return plain[name](n)
    except ArchipelError:
        raise
    except ValueError:
        pass
    raise ArchipelError(f"topology '{spec}' is not understood: write {TOPOLOGIES[name]}.")


# -- parts -----------------------------------------------------------------------------------------


def _fixed(name: str, n: int, i: NDArray[Any], j: NDArray[Any]) -> Topology:
    return Topology(name, n, partial(_always, _metropolis(n, i, j)))


def _metropolis(n: int, i: NDArray[Any], j: NDArray[Any]) -> Any:
    """Return W of the edges (i, j), each given at least once in some direction; loops are left."""
    low, high = np.minimum(i, j), np.maximum(i, j)
    low, high = np.divmod(np.unique((low * n + high)[low != high]), n)
    degree = np.bincount(low, minlength=n) + np.bincount(high, minlength=n)
    weight = 1 / (1 + np.maximum(degree[low], degree[high]))
    kept = 1 - np.bincount(low, weight, minlength=n) - np.bincount(high, weight, minlength=n)
    party = np.arange(n)
    entries = np.concatenate([weight, weight, kept])
    rows, columns = np.concatenate([low, high, party]), np.concatenate([high, low, party])
    return coo_array((entries, (rows, columns)), shape=(n, n)).tocsr()


def _pairs(W: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the edges i < j of a mixing matrix."""
    entries = W.tocoo()
    i, j = entries.coords
    upper = (i < j) & (entries.data > 0)
    return i[upper], j[upper]


def _connected(W: Any) -> bool:
    return int(csgraph.connected_components(W, directed=False)[0]) == 1


def _second(W: Any) -> float:
    """Return the largest modulus of an eigenvalue of W but the 1 of the constant vector."""
    n = W.shape[0]
    if n <= 2000:
        return float(np.abs(np.linalg.eigvalsh(W.toarray() - 1 / n)).max())
    deflated = LinearOperator((n, n), matvec=lambda x: W @ x - x.mean(), dtype=np.float64)
    start = generator(0, "lanczos").standard_normal(n)
    try:
        found = eigsh(
            deflated, k=1, v0=start, ncv=40, maxiter=30, tol=1e-7, return_eigenvectors=False
        )
    except ArpackNoConvergence:  # a small gap: a ring or a torus, whose matrix factors cheaply
        found = eigsh(W, k=2, sigma=1 + 1e-9, v0=start, return_eigenvectors=False)
        return float(np.sort(found)[0])
    return float(np.abs(found).max())


def _regular_pairs(
    n: int, degree: int, rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw the edges of a regular graph, nearly uniformly.

    The parties' free ends are paired at random; a pair that is a loop or a repeat then swaps an end
    with some other pair where both become new edges. A dense graph is a sparse one's complement.
    """
    if degree > (n - 1) / 2:
        others = ~np.eye(n, dtype=bool)
        i, j = _regular_pairs(n, n - 1 - degree, rng)
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
    return _regular_pairs(n, degree, rng)


def _at_least_one(name: str, n: int) -> None:
    if n < 1:
        raise ArchipelError(f"topology '{name}' has n = {n} parties: give 1 or more.")


def _bits(name: str, n: int) -> int:
    """Return log2(n)."""
    _at_least_one(name, n)
    if n & (n - 1):
        raise ArchipelError(
            f"topology '{name}' needs a power of two but n is {n}: use 'exponential', or take "
            f"{1 << (n.bit_length() - 1)} or {1 << n.bit_length()} parties."
        )
    return n.bit_length() - 1
