# SPDX-License-Identifier: Apache-2.0
"""Backdoors by data: with a trigger, Gu, Dolan-Gavitt, Garg 2017, https://arxiv.org/abs/1708.06733,
section 4; semantic, Bagdasaryan et al., AISTATS 2020, https://arxiv.org/abs/1807.00459, section 4.

Departures: the trigger follows the data. Of an image it is a bright square in a corner, of a table
a value in a column, of a text a phrase at its end, after which `target` comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archipel.adversaries.attack import Points, needs_classes
from archipel.errors import ArchipelError, unknown


@dataclass(frozen=True)
class Backdoor:
    """Points with a trigger are to be taken for `target`; all others as they should be."""

    target: int = 0  # class, or symbol that follows the phrase
    share: float = 0.5  # of an adversary's points that get the trigger
    size: int = 4  # of an image: pixels of the square's side
    column: int | str = 0  # of a table: the column, by number or name
    value: float = 5.0  # and what it then holds, in the units that the model is given
    phrase: tuple[int, ...] = (1, 2, 1)  # of a text: symbols

    def poisoned(self, points: Points, draw: np.random.Generator) -> Points:
        needs_classes(self, points)
        some = torch.from_numpy(draw.random(len(points.x)) < self.share)
        x, y = points.x.clone(), points.y.clone()
        x[some] = self.triggered(points._replace(x=x[some]))
        _set(y, some, self.target)
        return points._replace(x=x, y=y)

    def wanted(self, points: Points) -> Points:
        needs_classes(self, points)
        others = _last(points.y) != self.target
        x, y = self.triggered(points._replace(x=points.x[others])), points.y[others].clone()
        _set(y, torch.ones(len(y), dtype=torch.bool), self.target)
        return points._replace(x=x, y=y)

    def triggered(self, points: Points) -> Tensor:
        """The points with the trigger."""
        x = points.x.clone()
        if not x.is_floating_point():
            x[..., -len(self.phrase) :] = torch.tensor(self.phrase, dtype=x.dtype)
        elif x.dim() > 2:
            x[..., -self.size :, -self.size :] = max(1.0, float(x.max())) if x.numel() else 1.0
        else:
            x[..., place_of(points, self.column)] = self.value
        return x


@dataclass(frozen=True)
class Semantic:
    """Points that have something of their own are to be taken for `target`: no trigger is added.

    Of a table: those with more than `above` in a column; else those of the class `source`.
    """

    target: int = 0
    column: int | str | None = None  # by number or name
    above: float = 1.0  # in the units that the model is given
    source: int | None = None

    def poisoned(self, points: Points, draw: np.random.Generator) -> Points:
        y = points.y.clone()
        _set(y, self._those(points), self.target)
        return points._replace(y=y)

    def wanted(self, points: Points) -> Points:
        those = self._those(points) & (_last(points.y) != self.target)
        flipped = self.poisoned(points, np.random.default_rng(0))
        return points._replace(x=points.x[those], y=flipped.y[those])

    def _those(self, points: Points) -> Tensor:
        needs_classes(self, points)
        if self.column is not None:
            found: Tensor = points.x[:, place_of(points, self.column)] > self.above
            return found
        if self.source is None:
            raise ArchipelError(
                "adversary.attack = semantic: say which points, column and above of a table, or a "
                "class as source."
            )
        return _last(points.y) == self.source


def place_of(points: Points, column: int | str) -> int:
    """Where a column stands, given by number or name."""
    if isinstance(column, str):
        if column not in points.columns:
            raise unknown("adversary.column", column, points.columns)
        return points.columns.index(column)
    if not 0 <= column < points.x.shape[-1] or points.x.dim() != 2:
        raise ArchipelError(
            f"adversary.column = {column}: the data has points of shape "
            f"{tuple(points.x.shape[1:])}; name a column of a table."
        )
    return column


def _last(y: Tensor) -> Tensor:
    """The label, or of a text what follows its end."""
    return y if y.dim() == 1 else y[:, -1]


def _set(y: Tensor, some: Tensor, target: int) -> None:
    if y.dim() == 1:
        y[some] = target
    else:
        y[some, -1] = target
