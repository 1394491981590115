# SPDX-License-Identifier: Apache-2.0
"""A whole population of peers that sample each other, cycle by cycle.

In a cycle everybody who is there begins one exchange, one after another. Exchanges that touch
nobody in common are made at once, with the result of one after another: an exchange is made when it
is the first that touches either end, and whoever was touched in the meantime picks from the view
that it has then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from archipel.rng import Ints, Keys, generator, key, keys
from archipel.sampling.views import NOBODY, Sampling, View

Mask = NDArray[np.bool_]
Pairs = tuple[Ints, Ints, Mask]  # who began, with whom, and whether there was an answer


def random_views(n: int, c: int, seed: int = 0) -> View:
    """Return views of c others each, drawn uniformly; of all others where there are no more."""
    draw = generator(seed, "views", n, c)
    size = min(c, n - 1)
    peer = np.full((n, c), NOBODY, dtype=np.int64)
    for i in range(n):
        others = draw.choice(n - 1, size, replace=False)
        peer[i, :size] = others + (others >= i)
    return View(peer, np.zeros((n, c), dtype=np.int64))


def ring_views(n: int, c: int) -> View:
    """Return views in which everybody knows the one before and the one after."""
    i, peer = np.arange(n), np.full((n, c), NOBODY, dtype=np.int64)
    if n > 1:
        peer[:, 0] = (i + 1) % n
    if n > 2:
        peer[:, 1] = (i - 1) % n
    return View(peer, np.zeros((n, c), dtype=np.int64))


def star_views(n: int, c: int) -> View:
    """Return views in which everybody knows the first, and the first as many as it can."""
    peer = np.full((n, c), NOBODY, dtype=np.int64)
    peer[1:, 0] = 0
    known = min(c, n - 1)
    peer[0, :known] = np.arange(1, known + 1)
    return View(peer, np.zeros((n, c), dtype=np.int64))


def cycle(sampling: Sampling, view: View, seed: int, t: int, dead: Ints | None = None) -> View:
    """Return all views `[n, c]` after one more cycle; the dead neither begin nor answer."""
    view = View(view.peer.copy(), view.age.copy())
    for _ in exchanges(sampling, view, seed, t, dead):
        pass
    return view


def exchanges(
    sampling: Sampling, view: View, seed: int, t: int, dead: Ints | None = None
) -> Iterator[Pairs]:
    """Make the exchanges of a cycle in place; yield those that are made at once."""
    n = len(view.peer)
    alive = np.ones(n, dtype=bool)
    if dead is not None:
        alive[dead] = False
    picking, drawing = (keys(key(seed, t, word), np.arange(n)) for word in ("pick", "exchange"))
    waiting = generator(seed, t, "cycle").permutation(n)
    waiting = waiting[alive[waiting]]
    pick = np.full(n, NOBODY, dtype=np.int64)
    pick[waiting] = sampling.select_peer(view.rows(waiting), picking[waiting])
    first = np.empty(n, dtype=np.int64)
    while len(waiting):
        p = pick[waiting]
        answers = (p >= 0) & alive[p]
        turn = np.arange(len(waiting))
        first.fill(n)
        np.minimum.at(first, waiting, turn)
        np.minimum.at(first, p[answers], turn[answers])
        now = (first[waiting] == turn) & (~answers | (first[p] == turn))
        i, p, answers = waiting[now], p[now], answers[now]
        _make(sampling, view, i, p, answers, drawing[i])
        waiting = waiting[~now]
        touched = np.zeros(n, dtype=bool)
        touched[p[answers]] = True
        changed = waiting[touched[waiting]]
        pick[changed] = sampling.select_peer(view.rows(changed), picking[changed])
        yield i, p, answers


def _make(sampling: Sampling, view: View, i: Ints, p: Ints, answers: Mask, draws: Keys) -> None:
    """Make exchanges that touch nobody in common."""
    if len(alone := i[~answers]):
        view.peer[alone], view.age[alone] = sampling.unanswered(view.rows(alone), p[~answers])
    i, p = i[answers], p[answers]
    if len(i):
        mine, theirs = sampling.exchange(view.rows(i), view.rows(p), i, p, draws[answers])
        view.peer[i], view.age[i] = mine
        view.peer[p], view.age[p] = theirs


def in_degrees(view: View) -> Ints:
    """Return how many views each is in, `[n]`."""
    found: Ints = np.bincount(view.peer[view.peer >= 0], minlength=len(view.peer))
    return found


def dead_links(view: View, dead: Ints) -> float:
    """Return which part of the entries of those who are there names somebody who is not."""
    gone = np.zeros(len(view.peer), dtype=bool)
    gone[dead] = True
    peer = view.peer[~gone]
    return float(gone[peer[peer >= 0]].mean()) if (peer >= 0).any() else 0.0
