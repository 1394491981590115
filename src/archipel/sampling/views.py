# SPDX-License-Identifier: Apache-2.0
"""Gossip-based peer sampling.  Jelasity, Voulgaris, Guerraoui, Kermarrec, van Steen, ACM TOCS 2007,
https://doi.org/10.1145/1275517.1275520, Figure 1.

Every peer has a view: entries for at most c others (the paper's descriptors), each with an address
and an age. In each cycle it picks one of them, sends it some of its view, gets some of that one's,
and keeps c of all. Views are ordered, `[m, c]` those of m peers at once and `[1, c]` one peer's,
with empty places at the end. Every row has a key of its own and draws from that alone, so that a
stack of peers does what its peers would do one by one.

Departures: of two that are equally old the paper does not say which goes first: here it is drawn.
A peer's own entry is dropped when it comes back. With tail selection one that does not answer
is dropped, too, since the peer would pick it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel.errors import ArchipelError, unknown
from archipel.rng import Ints, Keys, subkeys, uniform, words

NOBODY = -1  # an empty place
_BITS = np.uint64(40)  # of a draw that is compared beside an age
_MOST = 1 << 22  # ages beyond count as this

# name: H and S as parts of c
KINDS = {"blind": (0.0, 0.0), "healer": (0.5, 0.0), "swapper": (0.0, 0.5)}


class View(NamedTuple):
    """Entries for others, in order."""

    peer: Ints  # [m, c]: its address here is its number; NOBODY where there are fewer
    age: Ints  # [m, c]: cycles since the peer itself made it

    @property
    def size(self) -> Ints:
        """How many there are, `[m]`."""
        found: Ints = (self.peer >= 0).sum(axis=-1)
        return found

    def take(self, places: Ints) -> View:
        """Return the entries at these places of each row."""
        return View(
            np.take_along_axis(self.peer, places, -1), np.take_along_axis(self.age, places, -1)
        )

    def rows(self, of: Ints) -> View:
        return View(self.peer[of], self.age[of])

    def append(self, other: View) -> View:
        return View(*(np.concatenate(parts, axis=-1) for parts in zip(self, other, strict=True)))

    def older(self) -> View:
        """Increase all ages: a cycle has passed."""
        return View(self.peer, self.age + (self.peer >= 0))


@dataclass(frozen=True)
class Sampling:
    """The parameters of the service."""

    c: int = 20  # places in a view
    healing: int = 10  # H: how many of the oldest are dropped first
    swapping: int = 0  # S: how many of those that were sent are dropped next
    push: bool = True
    pull: bool = True
    tail: bool = False  # pick the oldest, not any

    def __post_init__(self) -> None:
        both = self.healing + self.swapping
        if self.c < 2 or min(self.healing, self.swapping) < 0 or both > self.c // 2:
            raise ArchipelError(
                f"peer sampling with c = {self.c}, healing = {self.healing} and swapping = "
                f"{self.swapping}: give c of 2 or more, and healing and swapping of at most c / 2 "
                "together."
            )
        if not (self.push or self.pull):
            raise ArchipelError("peer sampling neither pushes nor pulls: have it do one of them.")

    @classmethod
    def named(cls, kind: str, c: int) -> Sampling:
        """Return blind (H = S = 0), healer (H = c / 2) or swapper (S = c / 2)."""
        if kind not in KINDS:
            raise unknown("peer sampling", kind, KINDS)
        healing, swapping = KINDS[kind]
        return cls(c, int(healing * c), int(swapping * c))

    # -- what a peer does --------------------------------------------------------------------------

    def select_peer(self, view: View, keys: Keys) -> Ints:
        """Return whom each exchanges with: `[m, c] -> [m]`; NOBODY where it knows nobody."""
        if self.tail:
            place = np.where(view.peer >= 0, view.age, -1).argmax(axis=-1)
        else:
            place = (uniform(keys) * view.size).astype(np.int64)
        found: Ints = np.take_along_axis(view.peer, place[:, None], -1)[:, 0]
        return found

    def select_to_send(self, view: View, me: Ints, keys: Keys) -> tuple[View, View]:
        """Return the view in a new order, and the buffer: the own entry and the view's head.

        The order is random with the H oldest last, so that they are sent where there are no others.
        """
        view = view.take(_ranks(view.peer < 0, keys))  # view.permute()
        if self.healing:
            oldest = np.argsort(-_ages(view), axis=-1, kind="stable")[:, : self.healing]
            last = (view.peer < 0).astype(np.int8) * np.int8(2)
            there = np.maximum(np.take_along_axis(last, oldest, -1), np.int8(1))
            np.put_along_axis(last, oldest, there, -1)
            view = view.take(np.argsort(last, axis=-1, kind="stable"))
        head = self.c // 2 - 1
        own = View(me[:, None], np.zeros((len(me), 1), dtype=np.int64))
        return view, own.append(View(view.peer[:, :head], view.age[:, :head]))

    def select_to_keep(self, view: View, buffer: View, me: Ints, keys: Keys) -> View:
        """Return view.select(c, H, S, buffer): c entries of the view and of what came."""
        both = view.append(buffer)
        there = _without_duplicates(both, me)
        more = np.maximum(there.sum(axis=-1) - self.c, 0)
        if self.healing:  # view.removeOldItems(min(H, view.size - c))
            drop = np.minimum(self.healing, more)
            draws = words(_drawn(keys, 1), both.peer.shape[-1]) >> (np.uint64(64) - _BITS)
            age = _ages(both).astype(np.uint64) << _BITS | draws
            order = np.argsort(np.where(there, age, 0), axis=-1)[:, ::-1]
            there = _dropped(there, order, drop)
            more = more - drop
        if self.swapping:  # view.removeHead(min(S, view.size - c))
            drop = np.minimum(self.swapping, more)
            there = there & (there.cumsum(axis=-1) > drop[:, None])
            more = more - drop
        if more.any():  # view.removeAtRandom(view.size - c)
            there = _dropped(there, _ranks(~there, _drawn(keys, 2)), more)
        return View(*(part[:, : self.c] for part in _kept(both, there)))

    def unanswered(self, mine: View, p: Ints) -> View:
        """Return the views of those who heard nothing from p, whom they asked."""
        if self.tail:
            there = (mine.peer >= 0) & (mine.peer != p[:, None])
            mine = _kept(mine, there)
        return mine.older()

    def exchange(self, mine: View, theirs: View, i: Ints, p: Ints, keys: Keys) -> tuple[View, View]:
        """Return the views of i, who began, and of p after their exchange and their cycle."""
        nothing = View(*(np.zeros((len(i), 0), dtype=np.int64),) * 2)
        to_p, to_i = nothing, nothing
        if self.push:
            mine, to_p = self.select_to_send(mine, i, _drawn(keys, 3))
        if self.pull:
            theirs, to_i = self.select_to_send(theirs, p, _drawn(keys, 4))
            mine = self.select_to_keep(mine, to_i, i, _drawn(keys, 5))
        theirs = self.select_to_keep(theirs, to_p, p, _drawn(keys, 6))
        return mine.older(), theirs.older()


def _drawn(keys: Keys, what: int) -> Keys:
    """Return keys for one of the things that are drawn."""
    return subkeys(keys, np.array([what]))


def _ranks(empty: NDArray[np.bool_], keys: Keys) -> Ints:
    """Return the places in random order, the empty ones last."""
    draws = words(keys, empty.shape[-1]) >> np.uint64(1)
    order: Ints = np.argsort(np.where(empty, np.uint64(1 << 63), draws), axis=-1)
    return order


def _ages(view: View) -> Ints:
    """Return ages with an empty place younger than all."""
    found: Ints = np.where(view.peer >= 0, np.minimum(view.age, _MOST), -1)
    return found


def _without_duplicates(view: View, me: Ints) -> NDArray[np.bool_]:
    """Return which entries stay: of each peer the youngest, and of this one none."""
    stay: NDArray[np.bool_] = (view.peer >= 0) & (view.peer != me[:, None])
    order = np.argsort(view.peer << 23 | np.minimum(view.age, _MOST), axis=-1, kind="stable")
    peer = np.take_along_axis(view.peer, order, -1)
    first = np.ones(peer.shape, dtype=bool)
    first[:, 1:] = peer[:, 1:] != peer[:, :-1]
    youngest = np.empty_like(first)
    np.put_along_axis(youngest, order, first, -1)
    return stay & youngest


def _kept(view: View, there: NDArray[np.bool_]) -> View:
    """Return the view with these entries alone, in the same order."""
    kept = View(np.where(there, view.peer, NOBODY), np.where(there, view.age, 0))
    return kept.take(np.argsort(~there, axis=-1, kind="stable"))


def _dropped(there: NDArray[np.bool_], order: Ints, count: Ints) -> NDArray[np.bool_]:
    """Return which stay when the first `count` places of an order go."""
    goes = np.arange(there.shape[-1]) < count[:, None]
    drop = np.empty_like(there)
    np.put_along_axis(drop, order, goes, -1)
    return there & ~drop
