# SPDX-License-Identifier: Apache-2.0
"""Whom a party talks to, where parties do not run in rounds: what `me` asks of its engine."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from archipel.core import Near
from archipel.tree import Tree, tree_map


class Neighbours(Protocol):
    """The other parties, as those of a stack know them: see `core.Party` for each."""

    @property
    def near(self) -> Near: ...

    @property
    def degree(self) -> Tensor: ...

    @property
    def drawn(self) -> Near: ...

    def join(self, others: Near, weight: Tensor) -> None: ...

    def swap(self, x: Tree) -> Tree: ...

    @property
    def met(self) -> Tensor: ...

    @property
    def woke(self) -> Tensor: ...


class Trial:
    """Neighbours of a party that is alone: as if all others were as it is, with edges of 1."""

    def __init__(
        self, told: Tree, count: int, asked: int, lead: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self._told, self._count, self._asked = told, count, asked
        self._lead, self._dtype = lead, dtype
        self.joined: list[Tensor] = []  # weights that were set
        self.swapped: list[Tree] = []  # what was given in meetings

    @property
    def near(self) -> Near:
        return self._some(self._count)

    @property
    def degree(self) -> Tensor:
        return torch.full((*self._lead, 1), float(self._count), dtype=self._dtype)

    @property
    def drawn(self) -> Near:
        return self._some(self._asked)

    def join(self, others: Near, weight: Tensor) -> None:
        self.joined.append(weight.expand(others.weight.shape))

    def swap(self, x: Tree) -> Tree:
        self.swapped.append(tree_map(Tensor.detach, x))
        return x

    @property
    def met(self) -> Tensor:
        return torch.zeros((*self._lead, 1), dtype=torch.int64)

    @property
    def woke(self) -> Tensor:
        return torch.ones((*self._lead, 1), dtype=self._dtype)

    def _some(self, count: int) -> Near:
        at = len(self._lead)

        def each(leaf: Tensor) -> Tensor:
            inner = leaf.shape[at:] if leaf.dim() > at else leaf.shape
            rows = leaf.expand(*self._lead, *inner).unsqueeze(at)
            return rows.expand(*self._lead, count, *inner)

        ones = torch.ones((*self._lead, count, 1), dtype=self._dtype)
        number = torch.arange(count).expand(*self._lead, count)
        return Near(number, ones, ones * self._count, tree_map(each, self._told))
