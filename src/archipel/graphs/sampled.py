# SPDX-License-Identifier: Apache-2.0
"""The graph of a peer-sampling service: in round t, the parties' views after t cycles.

Views follow from the seed, whoever asks and in whatever order; a run that goes on from round t
makes the t cycles anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from archipel.graphs.fixed import at_least_one
from archipel.graphs.graph import Topology
from archipel.graphs.weights import Edges, joined, metropolis
from archipel.rng import Ints
from archipel.sampling.population import cycle, random_views
from archipel.sampling.views import Sampling, View

AwayAt = Callable[[int], Ints]  # who is away in a round


class Views:
    """The views of n parties after any number of cycles, the last of them at hand."""

    def __init__(self, n: int, sampling: Sampling, seed: int, away: AwayAt | None) -> None:
        self.n, self.sampling, self.seed, self.away = n, sampling, seed, away
        self._at: tuple[int, View] | None = None

    def after(self, t: int) -> View:
        """Return the views `[n, c]` after t cycles."""
        at, view = self._at or (0, random_views(self.n, self.sampling.c, self.seed))
        if at > t:
            at, view = 0, random_views(self.n, self.sampling.c, self.seed)
        for k in range(at, t):
            dead = None if self.away is None else self.away(k)
            view = cycle(self.sampling, view, self.seed, k, dead)
        self._at = t, view
        return view


@dataclass(frozen=True)
class PeerSampling(Topology):
    """A topology whose edges are the pairs of which one has the other in its view."""

    views: Views | None = None

    def without(self, away: AwayAt) -> PeerSampling:
        """Return the same where some parties are away in some rounds.

        They exchange no views then: they stay in those of others until these forget them.
        """
        assert self.views is not None
        views = Views(self.n, self.views.sampling, self.views.seed, away)
        return replace(self, views=views, rule=partial(_sampled, views))

    def _rounds(self) -> range:
        return range(50)  # views of far rounds cost all cycles before

    def partners(self, t: int, present: Ints) -> tuple[Ints, Ints]:
        """Return whom each party may draw in round t: its view without those who are away.

        They are `[n, c]`, the first of each row, and how many these are, `[n]`.
        """
        assert self.views is not None
        peer = self.views.after(t).peer
        here: NDArray[np.bool_] = np.zeros(self.n + 1, dtype=bool)
        here[present] = True  # the last place is nobody's
        there = here[peer]
        first = np.argsort(~there, axis=1, kind="stable")
        return np.take_along_axis(peer, first, axis=1), there.sum(axis=1)


def peer_sampling(n: int, c: int, kind: str = "healer", seed: int = 0) -> PeerSampling:
    """Join each party to those in its view of c others, and to those whose view it is in.

    It begins with views drawn at random; `kind` is blind, healer or swapper.
    """
    at_least_one("peer_sampling", n)
    views = Views(n, Sampling.named(kind, c), seed, None)
    name = f"peer_sampling:{c}" if kind == "healer" else f"peer_sampling:{c}:{kind}"
    return PeerSampling(name, n, partial(_sampled, views), 0, views=views)


def _sampled(views: Views, t: int) -> Edges:
    peer = views.after(t).peer
    known = peer >= 0
    i = np.broadcast_to(np.arange(views.n)[:, None], peer.shape)[known]
    return Edges(joined(views.n, i, peer[known]), metropolis)
