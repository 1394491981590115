# SPDX-License-Identifier: Apache-2.0
"""An algorithm some of whose parties attack: in what they send, or in what the server is given.

What an adversary does by itself stands next to the algorithm, inside a clip or the steps of a wire,
which it passes as others do. What adversaries make of the honest uploads of a round stands outside
all of that, where these are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.adversaries.adversary import Adversary
from archipel.core import Blueprint, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import pair
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Chosen
from archipel.rng import Ints
from archipel.tree import Tree, fill, leaves


class Remembered(NamedTuple):
    """What a party keeps: the algorithm's own state, and the model that it was last sent."""

    inner: Tree
    before: Tensor


class Adversarial(Around):
    """An algorithm with a server, some of whose parties train or send something else.

    Parties that are run together all attack, or none does.
    """

    def __init__(self, inner: Boxes, adversary: Adversary, who: Ints, parties: int) -> None:
        super().__init__(inner)
        self._adversary, self._who = adversary, frozenset(who.tolist())
        self._attack: Any = adversary.attack
        self._rate = parties / len(who)
        self._remembers = bool(getattr(self._attack, "remembers", False))

    def init(self, w: Vector, blueprint: Blueprint) -> Tree:
        shared, own = pair(f"{self.name}.init", "shared, own", self.inner.init(w, blueprint))
        if not self._remembers:
            return shared, own
        return shared, Remembered(own, _model_in(self.inner.broadcast(shared, 0)).clone())

    def party(self, me: Any, *states: Tree) -> Any:
        shared, own = states
        inner, before = own if self._remembers else (own, _model_in(shared))
        lies = self._lies(me)
        door = self._attack.door(me) if lies and hasattr(self._attack, "door") else me
        talk = Talk(self.inner.party(door, shared, inner))
        while not talk.ended:
            talk.send((yield talk.said))
        upload, inner = pair(f"{self.name}.party", "upload, own", talk.said)
        if lies and hasattr(self._attack, "sent"):
            upload = self._attack.sent(me, shared, upload, before, self._rate)
        if not self._remembers:
            return upload, inner
        return upload, Remembered(inner, _model_in(shared).expand_as(before).clone())

    def personal(self, me: Any, shared: Tree, own: Tree) -> Any:
        return self.inner.personal(me, shared, own.inner if self._remembers else own)

    def _lies(self, me: Any) -> bool:
        lying = {number in self._who for number in me.number.flatten().tolist()}
        if len(lying) > 1:
            raise ArchipelError("honest parties and adversaries are run in one block: cut it.")
        return lying == {True} and self._adversary.at_work(me.round)


class Colluding(Around):
    """An algorithm whose server is given uploads of adversaries that know those of the honest."""

    def __init__(
        self,
        inner: Boxes,
        adversary: Adversary,
        who: Ints,
        messages: int,
        clip: float | None = None,
    ) -> None:
        """With `clip`, no upload that the server takes has a larger norm."""
        super().__init__(inner)
        self._adversary, self._who = adversary, torch.from_numpy(np.asarray(who))
        self._messages, self._clip, self._round = messages, clip, 0

    def broadcast(self, shared: Tree, t: int) -> Tree:
        self._round = t
        return self.inner.broadcast(shared, t)

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        last = self._messages - 1
        talk = Talk(self.inner.server(shared, self._told(uploads) if last == 0 else uploads))
        for number in range(1, self._messages):
            uploads = yield talk.said
            talk.send(self._told(uploads) if number == last else uploads)
        return talk.said

    def _told(self, uploads: Uploads) -> Uploads:
        """Uploads with what the adversaries send, in place of what they would have as honest."""
        rows = uploads.stack()
        _ = uploads.n  # a mean may be weighed by it, and what is asked is asked in every round
        lies = torch.isin(uploads.present, self._who)
        f = int(lies.sum())
        if not 0 < f < len(lies) or not self._adversary.at_work(self._round):
            return Chosen(uploads, rows)
        parts = leaves(rows)
        some = [part for part in parts if part.is_floating_point()]
        x = torch.cat([part.flatten(1) for part in some], dim=1)
        attack: Any = self._adversary.attack
        said = attack.colluding(x[~lies], f).to(x.dtype)
        if self._clip is not None:
            said = said * (self._clip / said.norm().clamp(min=self._clip))
        pieces = iter(said.split([part[0].numel() for part in some]))
        made = [
            _put(part, lies, next(pieces)) if part.is_floating_point() else part for part in parts
        ]
        return Chosen(uploads, fill(rows, made))


def _model_in(shared: Tree) -> Tensor:
    """The model that parties are told, or what stands first in its place; nothing in some."""
    parts = leaves(shared)
    return parts[0] if parts else torch.zeros(0)


def _put(part: Tensor, lies: Tensor, said: Tensor) -> Tensor:
    part = part.clone()
    part[lies] = said.view(part.shape[1:])
    return part
