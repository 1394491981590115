# SPDX-License-Identifier: Apache-2.0
"""Topologies by the words that a study has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from archipel.errors import ArchipelError, unknown
from archipel.graphs.changing import (
    alternate,
    changing_regular,
    local_steps,
    matching,
    one_peer_exponential,
)
from archipel.graphs.file import Edge, of_edges, read
from archipel.graphs.fixed import (
    complete,
    erdos_renyi,
    exponential,
    hypercube,
    random_regular,
    ring,
    small_world,
    star,
    torus,
)
from archipel.graphs.graph import Topology
from archipel.graphs.sampled import peer_sampling

TOPOLOGIES = {  # name: how a study writes it
    "alternate": "alternate:SPEC,SPEC,...",
    "changing_regular": "changing_regular:DEGREE",
    "complete": "complete",
    "edges": "edges:I-J,I-J,... with the parties' names or numbers, or I-J*WEIGHT",
    "erdos_renyi": "erdos_renyi:PROBABILITY",
    "exponential": "exponential",
    "hypercube": "hypercube",
    "local_steps": "local_steps:EVERY:SPEC",
    "matching": "matching",
    "one_peer_exponential": "one_peer_exponential",
    "peer_sampling": "peer_sampling:PLACES or peer_sampling:PLACES:KIND (blind, healer, swapper)",
    "random_regular": "random_regular:DEGREE",
    "ring": "ring",
    "small_world": "small_world:DEGREE or small_world:DEGREE:PROBABILITY",
    "star": "star",
    "torus": "torus or torus:ROWSxCOLUMNS",
}


def topology(
    spec: str | Topology, n: int, seed: int = 0, names: Sequence[str] | None = None
) -> Topology:
    """Return the topology that a study names, over n parties; edges may have their names.

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
            case "edges":
                known = [str(k) for k in range(n)] if names is None else names
                return of_edges("edges", [*_edges(value, known)], known)
            case "random_regular":
                return random_regular(n, int(value), seed)
            case "changing_regular":
                return changing_regular(n, int(value), seed)
            case "small_world":
                degree, _, rewired = value.partition(":")
                return small_world(n, int(degree), float(rewired or 0.1), seed)
            case "peer_sampling":
                places, _, kind = value.partition(":")
                return peer_sampling(n, int(places), kind or "healer", seed)
            case "erdos_renyi":
                return erdos_renyi(n, float(value), seed)
            case "local_steps":
                every, _, then = value.partition(":")
                return local_steps(int(every), topology(then, n, seed, names))
            case "alternate":
                return alternate([topology(part, n, seed, names) for part in value.split(",")])
            case _ if not value:
                return plain[name](n)
    except ArchipelError:
        raise
    except ValueError:
        pass
    raise ArchipelError(f"topology '{spec}' is not understood: write {TOPOLOGIES[name]}.")


def _edges(value: str, names: Sequence[str]) -> Iterator[Edge]:
    """Edges as a study writes them, 0-1,1-2*0.5, between parties of these names or numbers."""
    known = {*names, *map(str, range(len(names)))}
    for row, text in enumerate(value.split(","), 1):
        pair, _, weight = text.strip().partition("*")
        found = float(weight or 1)
        if not 0 < found < inf:
            raise ValueError
        yield Edge(row, _ends(pair, known), found)


def _ends(pair: str, known: Set[str]) -> tuple[str, str]:
    """Both ends of an edge; a name may have a - in it, where there is one way to read it."""
    places = [k for k, sign in enumerate(pair) if sign == "-"]
    cuts = [(pair[:k].strip(), pair[k + 1 :].strip()) for k in places]
    good = [cut for cut in cuts if known >= {*cut}] or cuts
    (ends,) = good
    return ends


@dataclass(frozen=True)
class Described:
    """A topology as a study describes it, before it is known who the parties are."""

    name: str | None = None
    file: Path | None = None  # in place of a name: a table of edges
    weights: str = "metropolis"  # or another of `WEIGHTS`
    learned: bool = False  # by the algorithm, from here on

    def over(self, parties: Sequence[str], seed: int = 0) -> Topology:
        """Return the topology over parties of these names."""
        if self.file is not None:
            graph = of_edges(self.file.name, read(self.file), parties)
        else:
            graph = topology(str(self.name), len(parties), seed, parties)
        if self.weights != "metropolis":
            graph = graph.weighed(self.weights)
        return replace(graph, learned=self.learned)
