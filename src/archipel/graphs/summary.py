# SPDX-License-Identifier: Apache-2.0
"""A topology in a few numbers: how many edges, how fast mixing is, who is joined to whom."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite, log, log1p
from typing import Any, NamedTuple

import numpy as np

from archipel.graphs.graph import Topology
from archipel.graphs.weights import pairs

_MOST = 20_000  # parties whose gap is computed, or fewer where the graph changes


class Summary(NamedTuple):
    """A topology in a round."""

    name: str
    parties: int
    edges: int
    spectral_gap: float | None  # None where it would take long
    within_clusters: float | None  # share of the edges' weight; None where nobody knows clusters
    changes: bool = False  # from round to round
    mixes: bool = (
        True  # parties average by W in every round, which wake-ups, meetings, walks do not
    )

    def rounds(self, factor: float) -> float | None:
        """Return how many rounds of mixing divide the parties' disagreement by this factor.

        Disagreement is how far vectors are from their mean, in norm: a round leaves 1 - gap of it.
        """
        if self.spectral_gap is None or not self.mixes:
            return None
        return rounds_to(self.spectral_gap, factor)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        tenth = self.rounds(10)
        return {
            "name": self.name,
            "edges": self.edges,
            "spectral_gap": self.spectral_gap,
            "rounds_to_tenth": None if tenth is None or not isfinite(tenth) else ceil(tenth),
            "within_clusters": self.within_clusters,
        }

    def __str__(self) -> str:
        """Say it in a sentence.

        >>> from archipel.graphs import ring
        >>> print(summary(ring(16)))
        Graph: ring, 16 edges between 16 parties; spectral gap 0.0507: mixing halves what parties \
differ by in 14 rounds, and leaves a tenth of it after 45.
        """
        each = " in its first round" if self.changes else ""
        text = f"Graph: {self.name}, {self.edges:,} edges between {self.parties:,} parties{each}"
        if self.within_clusters is not None:
            text += f", {100 * self.within_clusters:.0f} % of their weight within clusters"
        if self.spectral_gap is None:
            return f"{text}."
        text += f"; spectral gap {self.spectral_gap:.3g}"
        half, tenth = self.rounds(2), self.rounds(10)
        if half is None or tenth is None:
            return f"{text}."
        text += ": on average, with its rounds in any order, " if self.changes else ": "
        if not isfinite(half):
            return f"{text}some of what parties differ by stays for ever."
        if tenth <= 1:
            return f"{text}one round of mixing leaves the mean."
        return (
            f"{text}mixing halves what parties differ by in {_rounds(half)}, and leaves a tenth of "
            f"it after {ceil(tenth):,}."
        )


def rounds_to(gap: float, factor: float) -> float:
    """Return how many rounds divide disagreement by this, where each leaves 1 - gap of it."""
    return log(factor) / -log1p(-min(gap, 1 - 1e-12)) if gap > 1e-12 else float("inf")


def _rounds(count: float) -> str:
    return "one round" if count <= 1 else f"{ceil(count):,} rounds"


def summary(
    graph: Topology, clusters: Sequence[int] | None = None, t: int = 0, algorithm: Any = None
) -> Summary:
    """Return a topology in round t; `clusters` has the number of each party's."""
    i, j, weight = pairs(graph.affinity(t))
    rounds = 1 if graph.known_p is not None else graph.period or 400
    gap = graph.spectral_gap if graph.n * rounds <= _MOST or graph.known_p is not None else None
    within = None
    if clusters is not None and len(clusters) >= graph.n and weight.sum() > 0:
        of = np.asarray(clusters)
        within = float(weight[of[i] == of[j]].sum() / weight.sum())
    mixes = getattr(algorithm, "clock", "rounds") == "rounds"
    return Summary(graph.name, graph.n, len(i), gap, within, graph.period != 1, mixes)
