# SPDX-License-Identifier: Apache-2.0
"""Views: as the paper's pseudo-code says, whoever is computed together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel.rng import keys as keys_of
from archipel.rng import subkeys, uniform, words
from archipel.sampling.population import cycle, exchanges, random_views, ring_views, star_views
from archipel.sampling.views import KINDS, NOBODY, Sampling, View

PEERS = 12


@st.composite
def samplings(draw):
    c = draw(st.integers(2, 9))
    healing = draw(st.integers(0, c // 2))
    swapping = draw(st.integers(0, c // 2 - healing))
    push, pull = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    return Sampling(c, healing, swapping, push, pull, draw(st.booleans()))


@st.composite
def stacks(draw):
    """A service, and views of some peers: unlike sizes, ages and orders."""
    sampling = draw(samplings())
    n, seed = draw(st.integers(2, PEERS)), draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    peer = np.full((n, sampling.c), NOBODY)
    for i in range(n):
        others = rng.permutation(np.delete(np.arange(n), i))
        size = rng.integers(0, min(sampling.c, n - 1) + 1)
        peer[i, :size] = others[:size]
    age = np.where(peer >= 0, rng.integers(0, 4, peer.shape), 0)
    return sampling, View(peer, age), seed


# -- the paper's pseudo-code on lists, with the same draws -----------------------------------------


class Listed:
    """One peer as in Figure 1: a view is a list of (address, age)."""

    def __init__(self, sampling, me, view):
        self.s, self.me = sampling, me
        self.view = [(int(p), int(a)) for p, a in zip(*view, strict=True) if p >= 0]

    def select_peer(self, key):
        if not self.view:
            return NOBODY
        if self.s.tail:
            return max(self.view, key=lambda item: item[1])[0]
        return self.view[int(uniform(key)[0] * len(self.view))][0]

    def to_send(self, key):
        draws = words(key, self.s.c)[0]
        order = sorted(range(len(self.view)), key=lambda k: draws[k] >> np.uint64(1))
        self.view = [self.view[k] for k in order]
        by_age = sorted(range(len(self.view)), key=lambda k: -self.view[k][1])
        oldest = sorted(by_age[: self.s.healing])
        rest = [k for k in range(len(self.view)) if k not in oldest]
        self.view = [self.view[k] for k in rest + oldest]
        return [(self.me, 0), *self.view[: self.s.c // 2 - 1]]

    def select(self, buffer, key, width):
        s, draw = self.s, {}
        places = [*self.view, *[None] * (s.c - len(self.view)), *buffer]
        for number, what in ((1, "old"), (2, "random")):
            draw[what] = words(subkeys(key, np.array([number])), width)[0]
        items = [(k, *item) for k, item in enumerate(places) if item and item[0] != self.me]
        youngest = {p: min(a for _, q, a in items if q == p) for _, p, _ in items}
        kept, seen = [], set()
        for k, p, a in items:  # removeDuplicates
            if a == youngest[p] and p not in seen:
                kept.append((k, p, a))
                seen.add(p)
        for _ in range(min(s.healing, len(kept) - s.c)):  # removeOldItems
            kept.remove(max(kept, key=lambda item: (item[2], draw["old"][item[0]])))
        del kept[: max(0, min(s.swapping, len(kept) - s.c))]  # removeHead
        while len(kept) > s.c:  # removeAtRandom
            kept.remove(min(kept, key=lambda item: draw["random"][item[0]]))
        self.view = [(p, a) for _, p, a in kept]

    def increase_age(self):
        self.view = [(p, a + 1) for p, a in self.view]


def exchange_listed(i, p, key):
    """The active thread of i and the passive thread of p."""
    s, part = i.s, [subkeys(key, np.array([number])) for number in range(7)]
    to_p = i.to_send(part[3]) if s.push else []
    if s.pull:
        to_i = p.to_send(part[4])
        i.select(to_i, part[5], s.c + s.c // 2)
    p.select(to_p, part[6], s.c + (s.c // 2 if s.push else 0))
    i.increase_age()
    p.increase_age()


def as_view(listed, c):
    rows = [peer.view + [(NOBODY, 0)] * (c - len(peer.view)) for peer in listed]
    both = np.array(rows).reshape(len(rows), c, 2)
    return View(both[..., 0], both[..., 1])


def same(one, other):
    return np.array_equal(one.peer, other.peer) and np.array_equal(one.age, other.age)


@given(stacks())
def test_an_exchange_is_the_papers(made):
    sampling, view, seed = made
    key = keys_of(seed, np.array([0]))
    i, p = np.array([0]), np.array([1])
    listed = [Listed(sampling, k, (view.peer[k], view.age[k])) for k in (0, 1)]
    picked = listed[0].select_peer(key)
    exchange_listed(*listed, key)

    assert sampling.select_peer(view.rows(i), key)[0] == picked
    mine, theirs = sampling.exchange(view.rows(i), view.rows(p), i, p, key)
    assert same(mine, as_view(listed[:1], sampling.c))
    assert same(theirs, as_view(listed[1:], sampling.c))


@given(stacks())
def test_peers_together_are_peers_one_by_one(made):
    sampling, view, seed = made
    half = len(view.peer) // 2
    i, p = np.arange(half), np.arange(half, 2 * half)
    draws = keys_of(seed, i)
    together = sampling.exchange(view.rows(i), view.rows(p), i, p, draws)

    for k in range(half):
        row = np.array([k])
        alone = sampling.exchange(view.rows(i[row]), view.rows(p[row]), i[row], p[row], draws[row])
        assert all(same(one.rows(row), other) for one, other in zip(together, alone, strict=True))


@given(stacks(), st.integers(0, 3))
def test_a_cycle_is_its_exchanges_one_after_another(made, dead):
    """Whoever picks does so from the view it has then, never from one it had before."""
    sampling, view, seed = made
    n = len(view.peer)
    gone = np.arange(min(dead, n - 1))
    listed = [Listed(sampling, k, (view.peer[k], view.age[k])) for k in range(n)]
    now, t = View(view.peer.copy(), view.age.copy()), 3
    began = []
    for i, p, answers in exchanges(sampling, now, seed, t, gone):
        began += zip(i.tolist(), p.tolist(), answers.tolist(), strict=True)
    picking = keys_of(ar.rng.key(seed, t, "pick"), np.arange(n))
    drawing = keys_of(ar.rng.key(seed, t, "exchange"), np.arange(n))
    for i, p, answered in began:
        assert listed[i].select_peer(picking[i : i + 1]) == p
        assert answered == (p >= 0 and p not in gone)
        if answered:
            exchange_listed(listed[i], listed[p], drawing[i : i + 1])
        else:
            if sampling.tail:
                listed[i].view = [item for item in listed[i].view if item[0] != p]
            listed[i].increase_age()

    assert sorted(i for i, _, _ in began) == [i for i in range(n) if i not in gone]
    assert same(now, as_view(listed, sampling.c))


@given(stacks())
def test_views_have_nobody_twice_nor_oneself_and_never_shrink(made):
    sampling, view, seed = made
    after = cycle(sampling, view, seed, 0)

    assert not (after.peer == np.arange(len(view.peer))[:, None]).any()
    assert (after.size >= np.minimum(view.size, sampling.c)).all()
    for row in after.peer:
        there = row[row >= 0]
        assert len(set(there.tolist())) == len(there)
        assert (row[len(there) :] == NOBODY).all()


@given(stacks())
def test_what_is_sent_is_oneself_and_the_young(made):
    sampling, view, seed = made
    me = np.arange(len(view.peer))
    after, buffer = sampling.select_to_send(view, me, keys_of(seed, me))

    assert buffer.peer.shape == (len(me), max(1, sampling.c // 2))
    assert (buffer.peer[:, 0] == me).all() and (buffer.age[:, 0] == 0).all()
    assert np.array_equal(np.sort(after.peer), np.sort(view.peer))
    for row in range(len(me)):
        size = int(view.size[row])
        young = after.age[row, : max(0, size - sampling.healing)]
        old = after.age[row, max(0, size - sampling.healing) : size]
        assert not len(young) or not len(old) or young.max() <= old.min()


@pytest.mark.parametrize("kind", KINDS)
def test_all_cycles_follow_from_the_seed(kind):
    sampling = Sampling.named(kind, 6)

    def played(seed):
        view = random_views(40, 6, seed)
        for t in range(5):
            view = cycle(sampling, view, seed, t)
        return view

    assert same(played(1), played(1)) and not same(played(1), played(2))


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("start", [random_views, ring_views, star_views])
def test_few_peers_come_to_know_all(n, start):
    view = start(n, 6)
    for t in range(20):
        view = cycle(Sampling(6, 3), view, 0, t)

    assert (view.size == n - 1).all()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"c": 1, "healing": 0}, "give c of 2 or more"),
        ({"c": 8, "healing": 5}, "at most c / 2 together"),
        ({"c": 8, "healing": -1}, "at most c / 2 together"),
        ({"push": False, "pull": False}, "neither pushes nor pulls"),
    ],
)
def test_what_cannot_work_is_refused(fields, why):
    with pytest.raises(ar.ArchipelError, match=why):
        Sampling(**fields)
    with pytest.raises(ar.ArchipelError, match="healer"):
        Sampling.named("heeler", 8)
