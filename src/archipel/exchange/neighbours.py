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
    def around(self) -> Tree: ...

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


def mean_of(near: Near, degree: Tensor) -> Tree:
    """What they told, on average by weight; zeros where nobody is near."""

    def mean(told: Tensor) -> Tensor:
        inner = told.dim() - near.number.dim()
        shares = near.weight / torch.where(degree > 0, degree, 1).unsqueeze(-2)
        shares = shares.reshape(*near.number.shape, *[1] * inner)
        return (shares * told).sum(dim=-1 - inner)

    return tree_map(mean, near.told)


class Trial:
    """Neighbours to try an algorithm with: all others have told the same, with edges of weight 1.

    `told` is what one party tells; `lead` has the parties of a stack.
    """

    def __init__(
        self, told: Tree, count: int, asked: int, dtype: torch.dtype, lead: tuple[int, ...] = ()
    ) -> None:
        self._told, self._count, self._asked, self._dtype = told, count, asked, dtype
        self._lead = lead
        self.swapped: list[Tree] = []  # what was given in meetings

    @property
    def near(self) -> Near:
        return self._some(self._count)

    @property
    def around(self) -> Tree:
        return mean_of(self.near, self.degree)

    @property
    def degree(self) -> Tensor:
        return torch.full((*self._lead, 1), float(self._count), dtype=self._dtype)

    @property
    def drawn(self) -> Near:
        return self._some(self._asked)

    def join(self, others: Near, weight: Tensor) -> None:
        weight.expand(others.weight.shape)

    def swap(self, x: Tree) -> Tree:
        self.swapped.append(tree_map(Tensor.detach, x))
        return x

    @property
    def met(self) -> Tensor:
        return torch.zeros(*self._lead, 1, dtype=torch.int64)

    @property
    def woke(self) -> Tensor:
        return torch.ones(*self._lead, 1, dtype=self._dtype)

    def _some(self, count: int) -> Near:
        rows = (*self._lead, count)
        ones = torch.ones((*rows, 1), dtype=self._dtype)
        told = tree_map(lambda leaf: leaf.expand(*rows, *leaf.shape).clone(), self._told)
        return Near(torch.arange(count).expand(rows), ones, ones * self._count, told)
