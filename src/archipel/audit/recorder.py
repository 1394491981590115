# SPDX-License-Identifier: Apache-2.0
"""A recorder at the server's place: what passes there, as it passes, and no more.

It stands in two places, and is `Around` an algorithm in both. Around all that is around it, wire,
sum and noise, it writes down what arrives of every party, where uploads arrive one by one: a sum
that a protocol makes is never opened. Around the algorithm itself it writes down what the server's
code is told, `uploads.mean()` after wire, sum and noise, and the model that goes back. Of peers it
writes down what each sends to its neighbours.

What a party's training used is written down beside it, to judge attacks by; no attack is given it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.core import Uploads, Vector
from archipel.engines.local.engine import Watched
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Received
from archipel.tree import Tree, fill, first, leaves, tree_map

Tamper = Callable[[Vector, int], Vector]  # the model that is sent instead, in a round


@dataclass
class Round:
    """A round as it passed the server's place, or as peers' vectors passed theirs."""

    t: int
    shared: Tree = None  # what the server has before it
    sent: Vector | None = None  # [p] the model as it is sent
    after: Vector | None = None  # [p] the model after it
    present: tuple[int, ...] = ()
    mean: Tree = None  # what the server's code is told
    weight: float | None = None  # number of examples behind it, where that is told with it
    arrived: dict[int, Tree] = field(default_factory=dict)  # by party, where each comes by itself
    left: dict[int, Tree] = field(default_factory=dict)  # by party, as it left the algorithm
    used: dict[int, Tensor] = field(default_factory=dict)  # bool [N] by party: to judge by


class Recorder:
    """Writes down some rounds of a run; `tamper` is what a malicious server sends instead."""

    def __init__(self, rounds: frozenset[int], tamper: Tamper | None = None) -> None:
        self._wanted, self._tamper = rounds, tamper
        self.rounds: dict[int, Round] = {}
        self.server: Boxes | None = None  # the algorithm itself
        self._on, self._t = False, 0
        self.summed = False  # whether a protocol shows sums alone
        self._points = 0

    @property
    def watched(self) -> Watched:
        return Watched(lambda boxes: _Inside(boxes, self), lambda boxes: _Outside(boxes, self))

    def start(self, anatomy: Anatomy, points: int) -> None:
        """From here on it is no trial: a round of the run, of so many points."""
        self._on, self.summed, self._points = True, anatomy.summed, points

    def at(self, t: int) -> Round | None:
        """Where to write round t down; None where nobody wants to know."""
        if not self._on or t not in self._wanted:
            return None
        return self.rounds.setdefault(t, Round(t))

    def sent(self, shared: Tree, told: Tree, t: int) -> Tree:
        """What goes to the parties: the algorithm's, or what a malicious server sends."""
        if self._on and self._tamper is not None:
            model = self._tamper(first(told), t)
            told = _with_first(told, model)
        self._t = t
        if (seen := self.at(t)) is not None:
            seen.shared, seen.sent = tree_map(Tensor.clone, shared), first(told).clone()
        return told

    def told(self, mean: Tree, uploads: Any, by_examples: bool) -> None:
        if (seen := self.at(self._t)) is not None:
            seen.mean = tree_map(Tensor.clone, mean)
            seen.present = tuple(uploads.present.tolist())
            if by_examples:
                seen.weight = float(getattr(uploads, "weight", 0.0)) or None

    def changed(self, shared: Tree) -> None:
        if (seen := self.at(self._t)) is not None:
            seen.after = first(shared).clone()

    def came(self, me: Any, upload: Tree, whole: bool) -> None:
        """An upload of a block's parties: as it arrived (`whole`), or as it left the algorithm."""
        seen = self.at(me.round)
        if seen is None or (whole and self.summed):
            return
        place = seen.arrived if whole else seen.left
        ids = me.number.flatten().tolist()
        for i, k in enumerate(ids):
            rows = tree_map(lambda leaf, i=i: _row(leaf, i, len(ids)), upload)
            place.setdefault(k, rows)

    def use(self, me: Any) -> None:
        if self.at(me.round) is not None:
            me.used = torch.zeros(self._points, dtype=torch.bool)

    def used(self, me: Any) -> None:
        seen = self.at(me.round)
        if seen is None or me.used is None:
            return
        starts = me.data.offsets[me.ids].numpy()
        for k, start, n in zip(me.ids.tolist(), starts, me.data.n[me.ids].numpy(), strict=True):
            mine = torch.zeros_like(me.used)
            mine[start : start + n] = me.used[start : start + n]
            seen.used[k] = mine


class _Inside(Around):
    """Around the algorithm itself."""

    def __init__(self, inner: Boxes, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder
        recorder.server = inner

    def broadcast(self, shared: Tree, t: int) -> Tree:
        return self._recorder.sent(shared, self.inner.broadcast(shared, t), t)

    def party(self, me: Any, *states: Tree) -> Any:
        if self.peer:
            return self.inner.party(me, *states)
        return self._party(me, *states)

    def _party(self, me: Any, *states: Tree) -> Any:
        talk = Talk(self.inner.party(me, *states))
        while not talk.ended:
            self._recorder.came(me, talk.said, whole=False)
            talk.send((yield talk.said))
        self._recorder.came(me, talk.said[0], whole=False)
        return talk.said

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        talk = Talk(self.inner.server(shared, _Told(uploads, self._recorder)))
        while not talk.ended:
            talk.send(_Told((yield talk.said), self._recorder))
        self._recorder.changed(talk.said)
        return talk.said


class _Outside(Around):
    """Around all that is around the algorithm."""

    def __init__(self, inner: Boxes, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder

    def party(self, me: Any, *states: Tree) -> Any:
        self._recorder.use(me)
        if self.peer:
            return self._peer(me, *states)
        return self._party(me, *states)

    def _party(self, me: Any, *states: Tree) -> Any:
        talk, number = Talk(self.inner.party(me, *states)), 0
        while not talk.ended:
            self._arrives(me, number, talk.said)
            number += 1
            talk.send((yield talk.said))
        self._arrives(me, number, talk.said[0])
        self._recorder.used(me)
        return talk.said

    def _arrives(self, me: Any, number: int, payload: Tree) -> None:
        if self._recorder.at(me.round) is None or self._recorder.summed:
            return
        upload = self.inner.receive(number, me.sender(number), payload)
        self._recorder.came(me, upload, whole=True)

    def _peer(self, me: Any, *states: Tree) -> Any:
        mixing = me.mixing

        def heard(x: Vector, coded: Any = None) -> Vector:
            self._recorder.came(me, x, whole=True)
            mixed: Vector = mixing(x) if coded is None else mixing(x, coded)
            return mixed

        if mixing is not None:
            me.mixing = heard
        own = self.inner.party(me, *states)
        self._recorder.used(me)
        return own


class _Told:
    """Uploads that say what was asked of them."""

    def __init__(self, uploads: Any, recorder: Recorder) -> None:
        self._uploads, self._recorder = uploads, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._uploads, name)

    def mean(self, by_examples: bool = False) -> Tree:
        mean: Tree = self._uploads.mean(by_examples)
        self._recorder.told(mean, self._uploads, by_examples)
        return mean


def alone(recorder: Recorder, seen: Round, k: int, upload: Tree) -> Vector | None:
    """The model that the server's code makes of one upload by itself; None where it takes several.

    Everybody who knows the study's algorithm can make it.
    """
    if recorder.server is None or recorder.server.peer:
        return first(upload)
    one: dict[Any, Any] = {"mean": upload, "mean by examples": upload}
    rows = tree_map(lambda leaf: leaf.unsqueeze(0), upload)
    counts = torch.ones(1, dtype=leaves(upload)[0].dtype)
    lone = Received(torch.tensor([k]), 1, one, 1.0, rows, counts, 1)
    talk = Talk(recorder.server.server(seen.shared, lone))
    return first(talk.said) if talk.ended else None


def spread(total: int, most: int) -> frozenset[int]:
    """Some of so many rounds: the first, the last, and as many between.

    >>> sorted(spread(40, 5)), sorted(spread(3, 8))
    ([0, 10, 20, 29, 39], [0, 1, 2])
    """
    return frozenset(np.linspace(0, total - 1, min(total, most)).round().astype(int).tolist())


def _row(leaf: Tensor, i: int, rows: int) -> Tensor:
    """A party's of a stack; what is common to all is everybody's."""
    found = leaf[i] if leaf.dim() > 1 or len(leaf) == rows else leaf
    return found.detach().clone()


def _with_first(tree: Tree, model: Vector) -> Tree:
    """The same with another model."""
    if isinstance(tree, Tensor):
        return model
    return fill(tree, [model, *leaves(tree)[1:]])
