# SPDX-License-Identifier: Apache-2.0
"""The server's side of a round on one machine: once for each setting of a sweep.

Code at the parties sees a sweep's settings side by side, `[s, m, p]`, since that is where the work
is. The server takes a few steps a round: it runs once per setting, with plain numbers as fields,
and always sees vectors `[p]` and stacks `[|S|, p]`, as it does in a run of one setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from archipel.core import Blueprint, Each, Vector
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Received
from archipel.tree import Tree, tree_map


class Settings:
    """An algorithm with the settings of a sweep: side by side for parties, apart for the server."""

    def __init__(
        self,
        algorithm: Any,
        values: Mapping[str, Sequence[float]],
        dtype: torch.dtype,
        around: Callable[[Any], Boxes] = Boxes,
    ) -> None:
        """`around` makes of an algorithm, with its fields, what the engine runs."""
        self.count = None if not values else len(next(iter(values.values())))
        self.together = around(algorithm)
        self.apart = [self.together]
        if values:
            fields = {
                name: torch.tensor(list(value), dtype=dtype).view(-1, 1, 1)
                for name, value in values.items()
            }
            self.together = around(replace(algorithm, **fields))
            self.apart = [
                around(replace(algorithm, **dict(zip(values, setting, strict=True))))
                for setting in zip(*values.values(), strict=True)
            ]

    def split(self, tree: Tree) -> list[Tree]:
        """What each setting has of a tree `[s, ...]`."""
        if self.count is None:
            return [tree]
        return [tree_map(lambda leaf, a=a: leaf[a], tree) for a in range(self.count)]

    def join(self, trees: Sequence[Tree]) -> Tree:
        """The trees of all settings as one, `[s, ...]`."""
        if self.count is None:
            return trees[0]
        return tree_map(lambda *leaves: torch.stack(leaves), *trees)

    def first_states(self, w: Vector, blueprint: Blueprint) -> tuple[Tree, Tree]:
        """Shared and own state before the first round; one of each per setting of a sweep.

        Of a walk, the token is what is shared.
        """
        starts = [one.init(w, blueprint) for one in self.apart]
        if self.together.peer and self.together.clock != "walk":
            return None, self.join(starts)
        shared, own = (self.join(states) for states in zip(*starts, strict=True))
        return shared, own

    def broadcast(self, shared: Tree, t: int) -> Tree:
        """What parties get of the shared state in round t."""
        pairs = zip(self.apart, self.split(shared), strict=True)
        return self.join([one.broadcast(state, t) for one, state in pairs])

    def serve(self, shared: Tree, uploads: Received) -> Serving:
        """Begin the server's part of a round with the first uploads."""
        return Serving(self, shared, uploads)

    def received(self, uploads: Received) -> list[Received]:
        """What each setting's server gets."""
        if self.count is None:
            return [uploads]
        sums = [
            dict(zip(uploads.sums, each, strict=True))
            for each in zip(*map(self.split, uploads.sums.values()), strict=True)
        ] or [{}] * self.count
        pairs = zip(sums, self.split(uploads.rows), strict=True)
        return [replace(uploads, sums=part, rows=rows) for part, rows in pairs]


class Serving:
    """The servers of all settings in one round, message by message."""

    def __init__(self, settings: Settings, shared: Tree, uploads: Received) -> None:
        self._settings = settings
        parts = zip(settings.apart, settings.split(shared), settings.received(uploads), strict=True)
        self._talks = [Talk(one.server(state, part)) for one, state, part in parts]

    def send(self, uploads: Received) -> None:
        """Go on with the next uploads."""
        for talk, part in zip(self._talks, self._settings.received(uploads), strict=True):
            talk.send(part)

    def said(self, last: bool) -> Tree:
        """The reply, or the shared state at last: `[s, ...]`, and `[s, m, ...]` in `Each`."""
        values = [talk.said for talk in self._talks]
        kinds = {type(value) for value in values}
        if any(talk.ended != last for talk in self._talks) or (Each in kinds and len(kinds) > 1):
            raise ArchipelError(
                f"{self._settings.together.name}.server answers otherwise than before "
                "the first round: give every round, and every setting of a sweep, the same number "
                "of yields, and the same of them with Each."
            )
        if isinstance(values[0], Each):
            return Each(self._settings.join([value.rows for value in values]))
        return self._settings.join(values)
