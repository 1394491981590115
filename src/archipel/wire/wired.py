# SPDX-License-Identifier: Apache-2.0
"""An algorithm on a wire: its messages pass the steps where they leave and where they arrive.

The algorithm sees what arrives, the engine what travels. `receive` undoes the steps at the server's
door, before anything is added up, so that a server which needs sums still sees sums alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from archipel.core import Blueprint, Each, Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import pair
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.talk import Talk
from archipel.tree import Tree, leaves
from archipel.wire.chain import Chain, Payload
from archipel.wire.changes import Change, Changes
from archipel.wire.structured import Structured


class Kept(NamedTuple):
    """What a party keeps: the algorithm's own state, and the steps' for every message."""

    inner: Tree
    steps: tuple[Tree, ...]


class Wired(Around):
    """A server algorithm whose uploads and replies pass steps: a chain for each message."""

    def __init__(self, inner: Boxes, up: Sequence[Chain], down: Sequence[Chain], seed: int) -> None:
        super().__init__(inner)
        self.up, self.down = up, down  # of the uploads; of what is broadcast and the replies
        self._first = up[0].steps[0] if up and up[0].steps else None
        self._seed, self._round = seed, 0

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Tree, Kept]:
        shared, own = pair(f"{self.name}.init", "shared, own", self.inner.init(w, blueprint))
        return shared, Kept(own, tuple(chain.init() for chain in self.up))

    def broadcast(self, shared: Tree, t: int) -> Tree:
        self._round = t  # replies of the round are coded by it, too
        return self._tell(0, self.inner.broadcast(shared, t))

    def party(self, me: Any, *states: Tree) -> Any:
        sent, own = states
        if isinstance(self._first, Structured):
            dtype = self.up[0].layout.form[0].dtype
            me.within = self._first.restrict(me.sender(0), me.blueprint.spec, dtype)
        talk = Talk(self.inner.party(me, self._told(0, me, sent), own.inner))
        kept = list(own.steps)
        for number, chain in enumerate(self.up):
            upload, after = (
                (talk.said, None)
                if not talk.ended
                else pair(f"{self.name}.party", "upload, own", talk.said)
            )
            payload, kept[number] = chain.send(me.sender(number), upload, kept[number])
            if talk.ended:
                return payload, Kept(after, tuple(kept))
            talk.send(self._told(number + 1, me, (yield payload)))
        raise AssertionError("a party sends as often as its anatomy says")

    def receive(self, number: int, them: Sender, payload: Payload) -> Tree:
        return self.up[number].receive(them, payload)

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        talk, number = Talk(self.inner.server(shared, uploads)), 0
        while not talk.ended:
            number += 1
            talk.send((yield self._tell(number, talk.said)))
        return talk.said

    def personal(self, me: Any, shared: Tree, own: Kept) -> Any:
        return self.inner.personal(me, self._told(0, me, shared), own.inner)

    # -- the way down ------------------------------------------------------------------------------

    def _tell(self, number: int, reply: Tree) -> Tree:
        """What travels of a reply; one to each party has a row for each."""
        if not self.down:
            return reply
        rows = reply.rows if isinstance(reply, Each) else reply
        lead = (len(leaves(rows)[0]),) if isinstance(reply, Each) else ()
        payload, _ = self.down[number].send(
            self._server(number, self._round, lead), rows, self.down[number].init()
        )
        return Each(payload) if isinstance(reply, Each) else payload

    def _told(self, number: int, me: Any, payload: Tree) -> Tree:
        """A reply as it came to a party."""
        return (
            self.down[number].receive(self._server(number, me.round), payload)
            if self.down
            else payload
        )

    def _server(self, number: int, t: int, lead: tuple[int, ...] = ()) -> Sender:
        return Sender(self._seed, t, number, np.array([-1]), lead)


class WiredPeers(Around):
    """A peer algorithm whose vectors pass steps on their way to neighbours.

    With x̂ for what arrives of x, a peer gets x - x̂ + Σ_j W_ij x̂_j in place of Σ_j W_ij x_j: the
    mean over peers stays what it was, whatever the steps leave out. Of a vector that neighbours
    hold (`me.coded`) the change passes them, and Σ_j W_ij x_j is exact.
    """

    def __init__(self, inner: Boxes, up: Sequence[Chain | Changes]) -> None:
        super().__init__(inner)
        self.up = up  # of the vectors that a round mixes, in order

    def init(self, w: Vector, blueprint: Blueprint) -> Kept:
        return Kept(self.inner.init(w, blueprint), tuple(chain.init() for chain in self.up))

    def party(self, me: Party, *states: Tree) -> Kept:
        (own,) = states
        door = _Door(me, self.up, own.steps, self.name)
        return Kept(self.inner.party(door, own.inner), tuple(door.kept))


class _Door:
    """A peer's door to the outside, with the wire in it."""

    def __init__(
        self, me: Any, chains: Sequence[Chain | Changes], kept: Sequence[Any], name: str
    ) -> None:
        self._me, self._chains, self.kept, self._mixes = me, chains, list(kept), 0
        self._name, self._told = name, list[_Told]()

    @property
    def blueprint(self) -> Blueprint:
        kept = (chain.kept for chain in self._chains if isinstance(chain, Changes))
        found: Blueprint = self._me.blueprint._replace(kept=min(kept, default=1.0))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._me, name)

    def coded(self, x: Vector, held: Vector) -> Vector:
        chain, them = self._chains[self._mixes], self._me.sender(self._mixes)
        if not isinstance(chain, Changes):
            raise self._astray("calls me.coded where it did not in a first round")
        change, arrives = chain.send(them, x.detach() - held)
        self._told = [_Told(held + arrives, held, change)]
        return self._told[0].x

    def mix(self, x: Vector) -> Vector:
        number, self._mixes = self._mixes, self._mixes + 1
        chain, them = self._chains[number], self._me.sender(number)
        if isinstance(chain, Changes):
            told, self._told = self._told, []
            if not told or not torch.equal(told[0].x, x):
                raise self._astray("mixes another vector than me.coded returned")
            found: Vector = self._me.mix(x, Coded(told[0].change, chain, told[0].held))
            return found
        payload, self.kept[number] = chain.send(them, x, self.kept[number])
        arrives: Vector = chain.receive(them, payload)
        mixed: Vector = self._me.mix(arrives, Coded(payload, chain))
        return x - arrives + mixed

    def _astray(self, what: str) -> ArchipelError:
        return ArchipelError(
            f"{self._name}.party {what}: in every round, give me.mix what the me.coded before it "
            "returned."
        )


class _Told(NamedTuple):
    """What neighbours are about to have of a vector."""

    x: Vector
    held: Vector
    change: Change


class Coded(NamedTuple):
    """A vector as it travels to neighbours, and what undoes that."""

    payload: Payload | Change
    chain: Chain | Changes
    held: Vector | None = None  # what neighbours have, of which the payload is a change
