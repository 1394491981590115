# SPDX-License-Identifier: Apache-2.0
"""The graph of a run without server, written down with its evaluations, so that it can be drawn.

An engine whose parties are joined has `graph()` (`engines.engine.Joined`): the topology of the run
or, where the algorithm learns it, the graph as it is now. An evaluation has it in a few numbers
and, where parties are few, up to `FRAMES` times in a run as a drawing: edges, if they are others
than before, and the metric of each party.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel.engines.engine import Engine, Joined
from archipel.rng import Ints
from archipel.runs.history import Round
from archipel.runs.run import Run

DRAWN = 300  # parties, at most
EDGES = 5000  # of a drawing, at most: the heaviest
FRAMES = 40
Floats = NDArray[np.float64]


def recorded(engine: Engine, run: Run, t: int, every: int) -> dict[str, Any]:
    """The entry of round t's evaluation, the next in the history; empty where there is no graph."""
    graph = engine.graph() if isinstance(engine, Joined) else None
    if graph is None:
        return {}
    from archipel.graphs import summary  # which brings torch, and reports do without
    from archipel.graphs.weights import pairs

    found: dict[str, Any] = summary(graph, run.data.clusters, t, run.algorithm).to_json()
    evaluations = -(-run.rounds // every)
    stride = -(-evaluations // FRAMES)
    due = len(run.history) % stride == 0 or t + 1 == run.rounds
    if graph.n <= DRAWN and due:
        i, j, weight = pairs(graph.affinity(t))
        if len(i) > EDGES:
            heaviest = np.sort(np.argsort(-weight, kind="stable")[:EDGES])
            i, j, weight = i[heaviest], j[heaviest], weight[heaviest]
        edges = {"i": i.tolist(), "j": j.tolist(), "weight": [float(f"{w:.4g}") for w in weight]}
        before = _edges(run.history)
        values = np.asarray(run.parties[run.metric], np.float64)[: graph.n]
        drawn: dict[str, Any] = {"values": [float(f"{value:.4g}") for value in values]}
        if before is None and run.data.clusters is not None:
            drawn["clusters"] = list(run.data.clusters)[: graph.n]
        found["drawn"] = drawn | (edges if before != edges else {})
    return {"graph": found}


def _edges(history: Sequence[Round]) -> dict[str, Any] | None:
    """The last edges that were written down."""
    for entry in reversed(history):
        drawn = entry.get("graph", {}).get("drawn", {})
        if "i" in drawn:
            return {name: drawn[name] for name in ("i", "j", "weight")}
    return None


def clusters(history: Sequence[Round]) -> list[int] | None:
    """The cluster of each party that is drawn, where that is known."""
    drawn = (entry.get("graph", {}).get("drawn", {}) for entry in history)
    return next((each["clusters"] for each in drawn if "clusters" in each), None)


class Frame(NamedTuple):
    """A graph at an evaluation."""

    round: int
    i: Ints  # [e] the edges: one end, the other, and what they weigh
    j: Ints
    weight: Floats
    values: Floats  # [n] each party's metric

    @property
    def pairs(self) -> set[tuple[int, int]]:
        """Who is joined."""
        return {*zip(self.i.tolist(), self.j.tolist(), strict=True)}

    @property
    def affinity(self) -> Floats:
        """The weights as a matrix, `[n, n]`."""
        found = np.zeros((len(self.values), len(self.values)))
        found[self.i, self.j] = found[self.j, self.i] = self.weight
        return found


def frames(history: Sequence[Round]) -> list[Frame]:
    """The graphs that were written down, in the order of their rounds."""
    return list(_frames(history))


def _frames(history: Sequence[Round]) -> Iterator[Frame]:
    edges: tuple[Ints, Ints, Floats] | None = None
    for entry in history:
        drawn = entry.get("graph", {}).get("drawn")
        if drawn is None:
            continue
        values = np.array(drawn["values"], np.float64)
        if "i" in drawn:
            i, j = np.array(drawn["i"], np.int64), np.array(drawn["j"], np.int64)
            edges = i, j, np.array(drawn["weight"], np.float64)
        assert edges is not None
        yield Frame(entry["round"], *edges, values)
