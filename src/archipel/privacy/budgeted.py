# SPDX-License-Identifier: Apache-2.0
"""Parties that wake by clocks of their own, each with a budget of its own: T_k wake-ups.

Every wake-up of a party releases a model that was made of noisy gradients of its records, and costs
ε_k; others' wake-ups cost it nothing. How often it woke is a part of its own state, so that it is
kept over crashes with the model. When its T_k wake-ups are spent, nothing of its records is read
any more: it rests, and tells its last model whenever it is asked; or it goes on waking with the
mean of the noisy gradients that it has released already, which costs nothing ("propagate").

Bellet, Guerraoui, Taziki, Tommasi, AISTATS 2018, https://arxiv.org/abs/1705.08435, section 4.
Departures: there a party rests. With the mean g of its noisy gradients in their place it goes on to
minimise 1/2 Σ_{i<j} W_ij |θ_i - θ_j|² + μ Σ D_ii c_i g_i·θ_i and what else the algorithm adds: as
their model propagation, it takes away noise by averaging over neighbours, after the fact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel.core import Batch, Blueprint, Descent, LocalWork, Vector
from archipel.exchange.boxes import Around, Boxes
from archipel.privacy.door import Door, Noised
from archipel.training.descent import descend
from archipel.tree import Tree, tree_map


class Awake(NamedTuple):
    """What a party keeps: the algorithm's own state, how often it woke, and what it released."""

    inner: Tree
    woke: Tensor  # [..., 1]
    mean: Vector  # of its noisy gradients; of no numbers where a party rests


def spent(own: Tree, most: int) -> bool:
    """Whether a party with this state, whatever is around it, has woken as often as it may."""
    if isinstance(own, Awake):
        return bool((own.woke >= most).all())
    return isinstance(own, tuple) and any(spent(part, most) for part in own)


class _Paying:
    """The private door, where some parties of a stack have nothing left to pay with."""

    def __init__(self, door: Door, left: Tensor, mean: Vector) -> None:
        self._door, self._left, self.mean, self.fresh = door, left, mean, mean

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)

    def grad(self, w: Vector, batch: Batch | None = None) -> Vector:
        if not bool(self._left.any()):
            return self.mean
        self.fresh = self._door.grad(w, batch)
        return torch.where(self._left, self.fresh, self.mean)

    def descend(
        self,
        w: Vector,
        work: LocalWork,
        shift: Vector | None = None,
        pull: float | Tensor = 0.0,
        towards: Vector | None = None,
        only: Tensor | None = None,
        aside: bool = False,
    ) -> Descent:
        me: Any = self
        return descend(me, w, work, shift, pull, towards, only)


class Budgeted(Around):
    """An algorithm behind the private door whose parties pay for `most` wake-ups."""

    def __init__(self, inner: Boxes, noised: Noised, most: int, propagate: bool) -> None:
        super().__init__(inner)
        self._noised, self._most, self._propagate = noised, most, propagate

    def init(self, w: Vector, blueprint: Blueprint) -> Awake:
        mean = torch.zeros_like(w) if self._propagate else w.new_zeros(0)
        return Awake(self.inner.init(w, blueprint), w.new_zeros(1), mean)

    def party(self, me: Any, *states: Tree) -> Any:
        (own,) = states
        left, door = own.woke < self._most, Door(me, self._noised, self.name)
        woke = own.woke + left.to(own.woke)
        if self._propagate:
            paying: Any = _Paying(door, left, own.mean)
            new = self.inner.party(paying, own.inner)
            mean = own.mean + torch.where(left, paying.fresh - own.mean, 0.0) / woke.clamp(min=1)
            return Awake(new, woke, mean)
        if not bool(left.any()):
            return own
        lead = left.shape[:-1]

        def kept(after: Tensor, before: Tensor) -> Tensor:
            return torch.where(left.view(*lead, *[1] * (before.dim() - len(lead))), after, before)

        return Awake(tree_map(kept, self.inner.party(door, own.inner), own.inner), woke, own.mean)

    def told(self, own: Any) -> Tree:
        return self.inner.told(own.inner)

    def said(self, own: Any) -> Tree:
        return self.inner.said(own.inner)
