# SPDX-License-Identifier: Apache-2.0
"""An algorithm as engines run it: every method is there, and what is around it has the same form.

What an algorithm has (a server, models of parties' own, a broadcast, ...) is found here, once.
Statistics of BatchNorm, the steps of a wire, a rule and the way a sum is made go around it: each is
`Around` another `Boxes`, so that they compose, and an engine knows `Boxes` alone.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, TypeGuard

from torch import Tensor

from archipel.core import Algorithm, Blueprint, Party, PeerAlgorithm, Uploads, Vector
from archipel.errors import unknown
from archipel.exchange.sender import Sender
from archipel.tree import Tree


class Boxes:
    """The boxes of a paper, with what each may leave out."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm: Any = algorithm  # as it was written, with its fields
        self.name = type(algorithm).__name__
        self.peer = not hasattr(algorithm, "server")
        self.has_personal = hasattr(algorithm, "personal")
        self.has_advise = hasattr(algorithm, "advise")
        self.has_predict = hasattr(algorithm, "predict")
        self.keeps_partial_work = bool(getattr(algorithm, "keeps_partial_work", False))
        self.keeps_statistics = bool(getattr(algorithm, "keeps_statistics", False))
        self.asynchronous = is_asynchronous(algorithm)
        self.clock = clock_of(algorithm)
        self.learns_graph = bool(getattr(algorithm, "learns_graph", False))
        self._says = hasattr(algorithm, "said")
        self._asks = hasattr(algorithm, "asks")
        self._broadcasts = hasattr(algorithm, "broadcast")
        self._looks_inside = "blueprint" in signature(self.algorithm.init).parameters

    @property
    def remedy(self) -> str:
        """What makes steps shorter, where a model is no longer finite."""
        smooth = hasattr(self.algorithm, "smoothness") and not hasattr(self.algorithm, "lr")
        return "raise smoothness" if smooth else "lower lr"

    def init(self, w: Vector, blueprint: Blueprint) -> Tree:
        """First states: shared and own, or of a peer its own."""
        algorithm = self.algorithm
        return algorithm.init(w, blueprint) if self._looks_inside else algorithm.init(w)

    def broadcast(self, shared: Tree, t: int) -> Tree:
        """What parties get of the shared state in round t."""
        return self.algorithm.broadcast(shared) if self._broadcasts else shared

    def party(self, me: Party, *states: Tree) -> Any:
        """A party's side of a round: of (shared, own), or of a peer's own state."""
        return self.algorithm.party(me, *states)

    def told(self, own: Tree) -> Tree:
        """What others hold of a peer that wakes."""
        return self.algorithm.told(own)

    def said(self, own: Tree) -> Tree:
        """What travels to its neighbours when it has woken."""
        return self.algorithm.said(own) if self._says else self.told(own)

    def hear(self, told: Tree, said: Tree) -> Tree:
        """What they hold of it then."""
        return self.algorithm.hear(told, said) if self._says else said

    def asks(self, t: int) -> int:
        """How many others it asks in round t, in place of its neighbours."""
        return int(self.algorithm.asks(t)) if self._asks else 0

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        return self.algorithm.server(shared, uploads)

    def receive(self, number: int, them: Sender, payload: Tree) -> Tree:
        """The upload that message `number` stands for, as it came: before any sum."""
        return payload

    def personal(self, me: Party, shared: Tree, own: Tree) -> Any:
        return self.algorithm.personal(me, shared, own)

    def advise(self, shared: Tree, uploads: Uploads) -> Tree:
        return self.algorithm.advise(shared, uploads)

    def predict(self, me: Party, w: Vector, x: Tensor, own: bool) -> Tensor:
        found: Tensor = self.algorithm.predict(me, w, x, own)
        return found


class Around(Boxes):
    """Something around an algorithm that changes some of its methods, and leaves the others."""

    def __init__(self, inner: Boxes) -> None:
        self.inner = inner
        self.algorithm, self.name, self.peer = inner.algorithm, inner.name, inner.peer
        self.has_personal, self.has_advise = inner.has_personal, inner.has_advise
        self.has_predict = inner.has_predict
        self.keeps_partial_work = inner.keeps_partial_work
        self.keeps_statistics = inner.keeps_statistics
        self.asynchronous = inner.asynchronous
        self.clock, self.learns_graph = inner.clock, inner.learns_graph

    def init(self, w: Vector, blueprint: Blueprint) -> Tree:
        return self.inner.init(w, blueprint)

    def broadcast(self, shared: Tree, t: int) -> Tree:
        return self.inner.broadcast(shared, t)

    def party(self, me: Party, *states: Tree) -> Any:
        return self.inner.party(me, *states)

    def told(self, own: Tree) -> Tree:
        return self.inner.told(own)

    def said(self, own: Tree) -> Tree:
        return self.inner.said(own)

    def hear(self, told: Tree, said: Tree) -> Tree:
        return self.inner.hear(told, said)

    def asks(self, t: int) -> int:
        return self.inner.asks(t)

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        return self.inner.server(shared, uploads)

    def receive(self, number: int, them: Sender, payload: Tree) -> Tree:
        return self.inner.receive(number, them, payload)

    def personal(self, me: Party, shared: Tree, own: Tree) -> Any:
        return self.inner.personal(me, shared, own)

    def advise(self, shared: Tree, uploads: Uploads) -> Tree:
        return self.inner.advise(shared, uploads)

    def predict(self, me: Party, w: Vector, x: Tensor, own: bool) -> Tensor:
        return self.inner.predict(me, w, x, own)


def is_peer(algorithm: object) -> TypeGuard[PeerAlgorithm]:
    """Whether an algorithm has no server."""
    return not hasattr(algorithm, "server")


CLOCKS = ("rounds", "wakes", "meetings", "walk")


def clock_of(algorithm: object) -> str:
    """When parties of an algorithm without a server have their turns."""
    clock = str(getattr(algorithm, "clock", "rounds"))
    if clock not in CLOCKS:
        raise unknown("clock", clock, CLOCKS)
    return clock


def is_asynchronous(algorithm: object) -> bool:
    """Whether parties do not wait for each other: a server step takes a buffer of uploads."""
    return bool(getattr(algorithm, "asynchronous", False))


def buffer_of(algorithm: object, at_once: int) -> int:
    """K, the uploads of a server step, where so many parties train at once; None is half of them.

    >>> from archipel.algorithms import FedBuff
    >>> buffer_of(FedBuff(buffer=10), 30), buffer_of(FedBuff(), 5)
    (10, 3)
    """
    buffer = getattr(algorithm, "buffer", None)
    return (at_once + 1) // 2 if buffer is None else int(buffer)


def has_personal(algorithm: object) -> bool:
    """Whether parties use models of their own, of which the algorithm says how they are made."""
    return hasattr(algorithm, "personal")
