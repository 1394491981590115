# SPDX-License-Identifier: Apache-2.0
"""Parties that wake by clocks of their own, each with a budget of its own: T_k wake-ups.

Every wake-up of a party releases a model that was made of noisy gradients of its records, and costs
ε_k; others' wake-ups cost it nothing. What it may wake for is counted in its own state, so that it
is kept over crashes with the model. A party that has woken T_k times tells its last model from then
on, whenever it is asked: nothing of its records is read any more.

Bellet, Guerraoui, Taziki, Tommasi, AISTATS 2018, https://arxiv.org/abs/1705.08435, section 4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel.core import Blueprint, Vector
from archipel.exchange.boxes import Around, Boxes
from archipel.tree import Tree, tree_map


class Awake(NamedTuple):
    """What a party keeps: the algorithm's own state, and how often it woke."""

    inner: Tree
    woke: Tensor  # [..., 1]


class Budgeted(Around):
    """An algorithm behind the private door whose parties wake `most` times, and then rest."""

    def __init__(self, inner: Boxes, most: int) -> None:
        super().__init__(inner)
        self._most = most

    def init(self, w: Vector, blueprint: Blueprint) -> Awake:
        return Awake(self.inner.init(w, blueprint), w.new_zeros(1))

    def party(self, me: Any, *states: Tree) -> Any:
        (own,) = states
        left = own.woke < self._most
        new = self.inner.party(me, own.inner)
        lead = left.shape[:-1]

        def kept(after: Tensor, before: Tensor) -> Tensor:
            return torch.where(left.view(*lead, *[1] * (before.dim() - len(lead))), after, before)

        return Awake(tree_map(kept, new, own.inner), own.woke + left.to(own.woke))

    def told(self, own: Any) -> Tree:
        return self.inner.told(own.inner)

    def said(self, own: Any) -> Tree:
        return self.inner.said(own.inner)
