# SPDX-License-Identifier: Apache-2.0
"""A part of the space of models that local training is restricted to, another for each party."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Subspace:
    """A linear one, by the orthogonal projection onto it."""

    bases: tuple[Tensor, ...]  # [..., *any] what the projection needs, of each party
    project: Callable[[Tensor, tuple[Tensor, ...]], Tensor]  # [..., p], bases -> [..., p]

    def __call__(self, x: Tensor) -> Tensor:
        return self.project(x, self.bases)

    def rows(self, lead: int) -> Subspace:
        """The same with a row for each party, `[r, *any]`, a sweep's settings side by side."""
        rows = (x.transpose(0, 1).flatten(0, 1) if lead == 2 else x for x in self.bases)
        return replace(self, bases=tuple(x if lead else x[None] for x in rows))

    def __getitem__(self, chosen: int | slice | Tensor) -> Subspace:
        """Of some rows."""
        return replace(self, bases=tuple(x[chosen] for x in self.bases))


def kept(moved: Tensor, w: Tensor, within: Subspace | None, only: Tensor | None) -> Tensor:
    """Where a step from w to `moved` ends that must stay in a subspace, and moves some numbers."""
    if within is not None:
        moved = w + within(moved - w)
    return moved if only is None else torch.where(only, moved, w)
