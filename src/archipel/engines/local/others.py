# SPDX-License-Identifier: Apache-2.0
"""What parties of a block know of others, in simulation: neighbours, those asked, those met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from archipel.core import Near
from archipel.data.rows import ranges
from archipel.errors import ArchipelError
from archipel.exchange.neighbours import mean_of
from archipel.exchange.varying import sizes_of
from archipel.rng import Ints
from archipel.tree import Tree, tree_map

if TYPE_CHECKING:
    from archipel.engines.local.waking import Turns


@dataclass(frozen=True)
class Lists:
    """A graph as lists of neighbours, padded with -1 at the end."""

    number: Ints  # [n, d]
    near: list[list[int]]  # the same without -1
    weight: Tensor  # [n, d, 1]
    count: Ints  # [n] neighbours of each
    degree: Tensor  # [n + 1, 1] sum of the weights; 0 at the end, in the place of -1
    starts: Ints  # [n] where the neighbours of each begin, of all in one row
    all_near: Tensor  # [e] that row
    shares: Tensor  # [e] weights over degrees


def lists_of(weights: Any, dtype: torch.dtype) -> Lists:
    """The lists of a sparse matrix of weights `[n, n]`, or of a table of them."""
    if isinstance(weights, Tensor):
        row, column = weights.nonzero(as_tuple=True)
        values, n = weights[row, column].to(dtype), len(weights)
        i, j = row.numpy(), column.numpy()
    else:
        table = weights.tocoo()
        keep = table.data > 0
        i, j = (side[keep].astype(np.int64) for side in table.coords)
        order = np.lexsort((j, i))
        i, j, n = i[order], j[order], table.shape[0]
        values = torch.from_numpy(table.data[keep][order]).to(dtype)
    count = np.bincount(i, minlength=n)
    place = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
    number = np.full((n, int(count.max(initial=0))), -1)
    number[i, place] = j
    weight = torch.zeros((*number.shape, 1), dtype=dtype)
    weight[i, place, 0] = values
    degree = torch.cat([weight.sum(dim=1), torch.zeros(1, 1, dtype=dtype)])
    near = [row[:many] for row, many in zip(number.tolist(), count.tolist(), strict=True)]
    starts, shares = np.cumsum(count) - count, values / degree[torch.from_numpy(i), 0]
    return Lists(number, near, weight, count, degree, starts, torch.from_numpy(j), shares)


class _Others:
    """What parties of a block know of others, where they ask for what they may not."""

    def __init__(self, turns: Turns, t: int, ids: Ints) -> None:
        self._turns, self._t, self._ids = turns, t, ids
        self._at = torch.from_numpy(ids)

    @property
    def near(self) -> Near:
        lists = self._turns.lists(self._t)
        d = int(lists.count[self._ids].max(initial=0))
        number = torch.from_numpy(lists.number[self._ids, :d])
        places, weight = self._places(number), lists.weight.index_select(0, self._at)[:, :d]
        return Near(number, weight, lists.degree[places], self._of(places))

    @property
    def around(self) -> Tree:
        return mean_of(self.near, self.degree)

    def _places(self, number: Tensor) -> Tensor:
        """The same with the place of nobody for -1."""
        return torch.where(number < 0, self._turns.nobody, number)

    def _of(self, places: Tensor) -> Tree:
        return None

    @property
    def degree(self) -> Tensor:
        return self._turns.lists(self._t).degree[self._at]

    @property
    def drawn(self) -> Near:
        raise _not("drawn", 'an algorithm with clock = "wakes", in rounds for which asks(t) is > 0')

    def join(self, others: Near, weight: Tensor) -> None:
        raise _not("join", "an algorithm with learns_graph = True, of those that me.drawn gives")

    def swap(self, x: Tree) -> Tree:
        raise _not("swap", 'an algorithm with clock = "meetings"')

    @property
    def met(self) -> Tensor:
        raise _not("met", 'an algorithm with clock = "meetings"')

    @property
    def woke(self) -> Tensor:
        return torch.ones(len(self._ids), 1, dtype=self._turns.dtype)


class Told(_Others):
    """The neighbours of those that wake, with what they told."""

    @property
    def around(self) -> Tree:
        if self._turns.all_told is None:
            return super().around
        lists, ids = self._turns.lists(self._t), self._ids
        starts, count = lists.starts[ids], lists.count[ids]
        at = torch.from_numpy(ranges(starts, starts + count))
        near, shares = lists.all_near.index_select(0, at), lists.shares.index_select(0, at)
        begins = torch.from_numpy(np.cumsum(count) - count)

        def mean(told: Tensor) -> Tensor:
            rows = told.flatten(1).to(shares.dtype)
            found = embedding_bag(near, rows, begins, mode="sum", per_sample_weights=shares)
            return found.view(len(ids), *told.shape[1:])

        return tree_map(mean, self._turns.all_told)

    def _of(self, places: Tensor) -> Tree:
        return self._turns.told(places)


class Asked(_Others):
    """Others that are asked by those that wake, and edges to them."""

    def __init__(self, turns: Turns, t: int, ids: Ints, asked: Ints) -> None:
        super().__init__(turns, t, ids)
        self.asked = asked

    @property
    def near(self) -> Near:
        raise _not("near", "rounds for which asks(t) is 0; in others there is me.drawn")

    @property
    def degree(self) -> Tensor:
        return self._turns.degree.index_select(0, self._at)

    @property
    def drawn(self) -> Near:
        number, weight = torch.from_numpy(self.asked), self._turns.edges(self._ids, self.asked)
        degree = self._turns.degree.index_select(0, number.reshape(-1)).view_as(weight)
        return Near(number, weight, degree, self._turns.told(number))

    def join(self, others: Near, weight: Tensor) -> None:
        new = weight.expand(others.weight.shape).squeeze(-1)
        self._turns.join(self._ids, others.number.numpy(), new)


class Meeting(_Others):
    """Two that meet: the first half of the block woke, and meets the second."""

    def __init__(self, turns: Turns, t: int, ids: Ints) -> None:
        super().__init__(turns, t, ids)
        self.bytes = 0

    @property
    def near(self) -> Near:
        if not self._turns.stays:
            raise _not("near", "a graph that stays, where parties meet: take such a topology")
        return super().near

    def swap(self, x: Tree) -> Tree:
        many = len(self._ids)
        rows = tree_map(lambda leaf: leaf.expand(many, *leaf.shape[-max(1, leaf.dim() - 1) :]), x)
        self.bytes += int(sizes_of(rows, (many,)).sum())
        return tree_map(lambda leaf: leaf.detach().roll(many // 2, 0), rows)

    @property
    def met(self) -> Tensor:
        lists = self._turns.lists(self._t)
        d = int(lists.count[self._ids].max(initial=0))
        other = np.roll(self._ids, len(self._ids) // 2)[:, None]
        same = lists.number[self._ids, :d] == other
        place = np.where(same.any(axis=1), same.argmax(axis=1), d) if d else np.zeros(len(other))
        return torch.from_numpy(place.astype(np.int64))[:, None]

    @property
    def woke(self) -> Tensor:
        half = len(self._ids) // 2
        return (torch.arange(2 * half) < half).to(self._turns.dtype)[:, None]


def _not(asked: str, where: str) -> ArchipelError:
    return ArchipelError(f"me.{asked} is for {where}.")
