# SPDX-License-Identifier: Apache-2.0
"""What an attack on the model may do. Each of its methods may be left out.

An attack is a frozen dataclass. What it knows is what its methods are given: an adversary's own
points, its own upload with what it was sent, or, of an omniscient one, what the honest parties of
the round sent, to the server or to a neighbour. Papers assume the last; between institutions
nobody has it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from archipel.core import Party, Vector
from archipel.errors import ArchipelError
from archipel.tree import Tree


class Points(NamedTuple):
    """Points with what they are to be taken for."""

    x: Tensor  # [n, *shape]
    y: Tensor  # [n, ...]
    classes: int  # 0 where targets are numbers
    columns: tuple[str, ...] = ()  # of a table's features, where they have names


class Poisons(Protocol):
    """An attack by data: an adversary trains on other points than it has."""

    def poisoned(self, points: Points, draw: np.random.Generator) -> Points:
        """What an adversary trains on in place of its own points; as many."""

    def wanted(self, points: Points) -> Points:
        """Test points as the attack would have them taken: how often they are is its success."""


class Trains(Protocol):
    """An attack in training: what stands for an adversary's `me`."""

    def door(self, me: Party) -> Party: ...


class Sends(Protocol):
    """An attack by what is sent. `rate` is parties over adversaries; `before` the shared state
    of the party's round before, where the attack says `remembers = True`."""

    def sent(self, me: Party, shared: Tree, upload: Tree, before: Tensor, rate: float) -> Tree: ...


class Hears(NamedTuple):
    """An honest peer that adversaries talk to, and all that is said to it in an exchange."""

    number: int  # of the peer
    mine: Vector  # [p] its own vector
    honest: Tensor  # [h, p] those of its honest neighbours
    weights: Tensor  # [h] W_ij of these
    theirs: Tensor  # [f, p] those of the adversaries among its neighbours, as honest peers
    lying: Tensor  # [f] W_ij of these
    draw: np.random.Generator


class Tells(Protocol):
    """An attack between peers: what each adversary tells one honest peer, and nobody else.

    Without it an attack that has `colluding` tells a peer what that makes of the peer's own vector
    and its honest neighbours'. With `informed = True` it knows what the honest send.
    """

    def telling(self, to: Hears) -> Tensor:
        """`[f, p]`: of each, or `[p]`: the same of all."""


class Colludes(Protocol):
    """An omniscient attack: of what honest parties sent, what each of f adversaries sends."""

    def colluding(self, honest: Tensor, f: int) -> Tensor:
        """`[h, p], f -> [p]`: the same of all."""


Attack = Poisons | Trains | Sends | Tells | Colludes


def needs_classes(attack: object, points: Points) -> None:
    """Refuse an attack that names classes, where there are none."""
    if not points.classes:
        raise ArchipelError(
            f"adversary.attack: {type(attack).__name__} has points taken for another class, and "
            "the data has none; take sign_flip, alie or ipm."
        )
