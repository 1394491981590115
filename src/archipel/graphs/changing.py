# SPDX-License-Identifier: Apache-2.0
"""Graphs that change from round to round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import lcm

import numpy as np
from scipy.sparse import csr_array

from archipel.errors import ArchipelError
from archipel.graphs.fixed import at_least_one, bits_of, random_regular
from archipel.graphs.graph import Absent, Topology
from archipel.graphs.weights import Edges, joined, metropolis
from archipel.rng import generator, key


def matching(n: int, seed: int = 0) -> Topology:
    """Pair the parties at random in each round; one is left over when n is odd."""
    at_least_one("matching", n)
    p = 0.5 if n % 2 else n / (2 * (n - 1))  # the mean of W² is that of W: W averages pairs
    return Topology("matching", n, partial(_matching, n, seed), 0, p if n > 1 else 1.0)


def changing_regular(n: int, degree: int, seed: int = 0) -> Topology:
    """Join each party to `degree` others, drawn anew in each round.

    W is (I + A) / (degree + 1), and parties are alike, so the mean of W² has a closed form,
    whose second eigenvalue is (1 - degree / (n - 1)) / (degree + 1).
    """
    random_regular(n, degree, seed)  # says what cannot be
    p = 1 - (1 - degree / max(n - 1, 1)) / (degree + 1)
    name = f"changing_regular:{degree}"
    return Topology(name, n, partial(_regular, n, degree, seed), 0, p)


def one_peer_exponential(n: int) -> Topology:
    """Pair the parties 1, 2, 4 ... apart in turn: the exact mean after log2(n) rounds.

    Ying et al. (arXiv 2110.13363) send from i to i + 2^k, which is not symmetric; here the number
    i + 2^k is taken bit by bit (exclusive or), which pairs the parties and mixes as fast.
    """
    bits = bits_of("one_peer_exponential", n)
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


def _matching(n: int, seed: int, t: int) -> Edges:
    order = generator(seed, t, "matching").permutation(n)
    return Edges(joined(n, order[: n - 1 : 2], order[1::2]), metropolis)


def _regular(n: int, degree: int, seed: int, t: int) -> Edges:
    return random_regular(n, degree, key(seed, t, "changing_regular")).rule(0)


def _one_peer(n: int, bits: int, t: int) -> Edges:
    i = np.arange(n)
    return Edges(joined(n, i, i ^ (1 << t % bits if bits else 0)), metropolis)


def _alternate(parts: tuple[Topology, ...], t: int) -> Edges:
    return parts[t % len(parts)].rule(t // len(parts))


def _local_steps(every: int, then: Topology, t: int) -> Edges:
    if (t + 1) % every:
        return Edges(csr_array((then.n, then.n)), metropolis)
    return then.rule(t // every)


def _drop(graph: Topology, absent: Absent | Callable[[int], Absent], t: int) -> Edges:
    away = absent(t) if callable(absent) else absent
    return Edges(graph.affinity(t, away), lambda _: graph.sparse(t, away))
