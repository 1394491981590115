# SPDX-License-Identifier: Apache-2.0
"""Topologies by the words that a study has for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from archipel.errors import ArchipelError, unknown
from archipel.graphs.changing import alternate, local_steps, matching, one_peer_exponential
from archipel.graphs.fixed import (
    complete,
    erdos_renyi,
    exponential,
    hypercube,
    random_regular,
    ring,
    star,
    torus,
)
from archipel.graphs.topology import Topology

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


@dataclass(frozen=True)
class Described:
    """A topology as a study describes it, before it is known how many parties there are."""

    name: str
    learned: bool = False

    def over(self, n: int, seed: int = 0) -> Topology:
        """Return the topology over n parties."""
        return replace(topology(self.name, n, seed), learned=self.learned)
