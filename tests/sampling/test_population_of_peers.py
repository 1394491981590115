# SPDX-License-Identifier: Apache-2.0
"""What the paper found of whole populations: N = 1000, c = 20, push-pull, any peer picked."""

from functools import cache

import numpy as np
import pytest
from scipy.sparse import csgraph, csr_array

from archipel.sampling.population import cycle, dead_links, in_degrees, ring_views, star_views
from archipel.sampling.views import KINDS, NOBODY, Sampling

N, C = 1000, 20
STARTS = {"ring": ring_views, "star": star_views}


@cache
def settled(kind, start):
    """The views after thirty cycles."""
    view = STARTS[start](N, C)
    for t in range(30):
        view = cycle(Sampling.named(kind, C), view, 0, t)
    return view


def parts(view, here):
    """Into how many parts those who are here fall."""
    i = np.repeat(np.arange(N), C)
    j = view.peer.ravel()
    both = (j >= 0) & here[i] & here[np.where(j >= 0, j, 0)]
    edges = csr_array((np.ones(both.sum()), (i[both], j[both])), shape=(N, N))
    labels = csgraph.connected_components(edges, directed=False)[1]
    return len(set(labels[here].tolist()))


@pytest.mark.parametrize("start", STARTS)
def test_in_degrees_are_spread_least_by_the_swapper_and_most_by_the_blind(start):
    degrees = {kind: in_degrees(settled(kind, start)) for kind in KINDS}

    assert all(each.sum() == C * N for each in degrees.values())  # the mean is c exactly
    assert degrees["swapper"].std() < degrees["healer"].std() < degrees["blind"].std()
    assert degrees["swapper"].std() < 5 and degrees["blind"].max() < 120


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_are_connected_until_most_are_gone(kind, start):
    view, order = settled(kind, start), np.random.default_rng(0).permutation(N)

    def left(share):
        here = np.ones(N, dtype=bool)
        here[order[: int(share * N)]] = False
        return parts(view, here)

    assert left(0.0) == left(0.5) == 1
    assert left(0.95) > 1


@pytest.mark.parametrize("start", STARTS)
def test_the_healer_forgets_the_dead_within_twenty_cycles(start):
    """Without healing they are forgotten slowly: one place of c by each newcomer at most."""
    dead = np.random.default_rng(0).choice(N, N // 2, replace=False)
    left = {}
    for kind in KINDS:
        view = settled(kind, start)
        assert 0.4 < dead_links(view, dead) < 0.6
        for t in range(30, 50):
            view = cycle(Sampling.named(kind, C), view, 0, t, dead)
        left[kind] = dead_links(view, dead)

    assert left["healer"] < 0.001
    assert left["swapper"] > 0.25 and left["blind"] > 0.25


def test_the_oldest_that_does_not_answer_is_not_picked_for_ever():
    sampling = Sampling(C, C // 2, tail=True)
    view, dead = settled("healer", "ring"), np.arange(N // 2)
    for t in range(20):
        view = cycle(sampling, view, 1, t, dead)

    assert dead_links(view, dead) < 0.001
    assert (view.peer[N // 2 :] != NOBODY).all()
