# SPDX-License-Identifier: Apache-2.0
"""Who talks to whom: topologies, their mixing matrices W and the weights of their edges."""

from archipel.graphs.changing import (
    alternate,
    changing_regular,
    drop,
    local_steps,
    matching,
    one_peer_exponential,
)
from archipel.graphs.fixed import (
    complete,
    erdos_renyi,
    exponential,
    hypercube,
    own,
    random_regular,
    ring,
    small_world,
    star,
    torus,
    weighted,
)
from archipel.graphs.graph import Absent, Topology
from archipel.graphs.named import TOPOLOGIES, Described, topology
from archipel.graphs.sampled import PeerSampling, peer_sampling
from archipel.graphs.summary import Summary, summary
from archipel.graphs.weights import WEIGHTS, Edges

__all__ = [
    "TOPOLOGIES",
    "WEIGHTS",
    "Absent",
    "Described",
    "Edges",
    "PeerSampling",
    "Summary",
    "Topology",
    "alternate",
    "changing_regular",
    "complete",
    "drop",
    "erdos_renyi",
    "exponential",
    "hypercube",
    "local_steps",
    "matching",
    "one_peer_exponential",
    "own",
    "peer_sampling",
    "random_regular",
    "ring",
    "small_world",
    "star",
    "summary",
    "topology",
    "torus",
    "weighted",
]
