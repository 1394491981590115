# SPDX-License-Identifier: Apache-2.0
"""The others, as a peer that has its turn by a clock of its own knows them; and that clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.core import Near
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import At, Liveness, Words
from archipel.engines.network.party_state import PartyState
from archipel.errors import ArchipelError
from archipel.exchange.neighbours import mean_of
from archipel.graphs import Topology
from archipel.tree import Tree, tree_map

PAUSE = 0.05  # seconds between two turns of a peer, on average


@dataclass
class Company:
    """Those that a peer's algorithm may ask for in one turn: see `core.Party` for each."""

    degree: Tensor  # [1]
    those: Near | None = None
    asked: Near | None = None
    other: int | None = None  # whom it meets
    giving: Callable[[Tree], Tree] | None = None
    wakes: bool = True
    joined: dict[int, float] = field(default_factory=dict)  # weights that were set, by number

    @property
    def near(self) -> Near:
        if self.those is None:
            raise _not("near", "rounds for which asks(t) is 0; in others there is me.drawn")
        return self.those

    @property
    def around(self) -> Tree:
        return mean_of(self.near, self.degree)

    @property
    def drawn(self) -> Near:
        if self.asked is None:
            where = 'an algorithm with clock = "wakes", in rounds for which asks(t) is > 0'
            raise _not("drawn", where)
        return self.asked

    def join(self, others: Near, weight: Tensor) -> None:
        if self.asked is None:
            raise _not("join", "those that me.drawn gives")
        known = set(self.asked.number.tolist())
        new = weight.detach().expand(others.weight.shape).squeeze(-1)
        for j, w in zip(others.number.tolist(), new.tolist(), strict=True):
            if not 0 <= w < float("inf"):
                raise ArchipelError(
                    "me.join: an edge has a negative weight, or none: give 0 or more."
                )
            if j in known:
                self.joined[j] = w

    def swap(self, x: Tree) -> Tree:
        if self.giving is None:
            raise _not("swap", 'an algorithm with clock = "meetings"')
        return self.giving(tree_map(Tensor.detach, x))

    @property
    def met(self) -> Tensor:
        if self.other is None or self.those is None:
            raise _not("met", 'an algorithm with clock = "meetings"')
        numbers = self.those.number.tolist()
        place = numbers.index(self.other) if self.other in numbers else len(numbers)
        return torch.tensor([place])

    @property
    def woke(self) -> Tensor:
        return torch.full((1,), float(self.wakes), dtype=self.degree.dtype)


class Turns:
    """A peer's turns by a clock of its own: where it is, and what it says of that."""

    says: ClassVar[str]  # that it does

    def __init__(
        self, state: PartyState, liveness: Liveness, words: Words, keep: Callable[[], None]
    ) -> None:
        """`keep` writes this and the peer's state to the disk, at once."""
        self._state, self.party = state, state.party
        self.liveness, self.words, self._keep = liveness, words, keep
        self.at: At = (0, 0)
        self.missing: dict[int, str] = {}
        self.up = self.down = 0

    def begin(self, t: int) -> None:
        self.at = (t, 0)
        self.missing, self.up, self.down = {}, 0, 0

    def after(self, t: int) -> int:
        """Rounds that are done after turn t."""
        return t + 1

    def told(self, j: int) -> Letter:
        return self.words.beat(self.at, self.says)

    def last(self, j: int, at: At) -> Letter | None:
        return None

    def end(self, own: Tree) -> Tree:
        return own


def near_of(
    numbers: Sequence[int],
    weights: Sequence[float],
    degrees: Sequence[float],
    told: Sequence[Tree] | None,
    form: Tree,
    dtype: torch.dtype,
) -> Near:
    """Those of one peer; where nobody is, there is no place either. `form` is what each told."""
    count = len(numbers)
    weight, degree = (torch.tensor(x, dtype=dtype).view(count, 1) for x in (weights, degrees))
    if told is None:
        tree = None
    elif told:
        tree = tree_map(lambda *leaves: torch.stack(leaves), *told)
    else:
        tree = tree_map(lambda leaf: leaf.new_zeros((0, *leaf.shape)), form)
    return Near(torch.tensor(numbers, dtype=torch.int64), weight, degree, tree)


def most_edges(topology: Topology) -> int:
    """Neighbours of a peer at most, in a graph that stays."""
    return int(np.diff(topology.affinity(0).indptr).max(initial=0))


class Pace:
    """A clock that rings at random: after pauses of so many seconds on average."""

    def __init__(self, seed: int, party: int, seconds: float = PAUSE) -> None:
        self._seed, self._party, self.seconds = seed, party, seconds

    async def __call__(self, t: int, again: int = 0) -> None:
        """Wait for the t-th time, or after it was in vain so often."""
        draw = rng.generator(self._seed, t, self._party, "pause", again)
        await asyncio.sleep(self.seconds * float(draw.exponential()))


def _not(asked: str, where: str) -> ArchipelError:
    return ArchipelError(f"me.{asked} is for {where}.")
