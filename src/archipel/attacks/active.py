# SPDX-License-Identifier: Apache-2.0
"""Active membership inference.  Nasr, Shokri, Houmansadr, IEEE S&P 2019,
https://arxiv.org/abs/1812.00910, section III-D: gradient ascent on the records
that are asked about.

An adversary that takes part raises the loss of these records, w <- w + gamma dL(x)/dw. Where one of
them is trained on elsewhere, its owner's training lowers the loss again; where nobody has it, the
loss stays up. A party does it by what it uploads, a server by the model that it sends. What later
models make of the records is then weighed as the passive attack weighs it (`rounds.py`).

Departures: a party trains on the records as if they were its own and sends the opposite, `scale`
times as long, which is the ascent in whatever form the algorithm's uploads have; all records that
are asked about are raised at once; and as in `rounds.py`, losses stand for gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from archipel.attacks.case import Family, Has, Shadow, Signals
from archipel.attacks.rounds import OverRounds
from archipel.core import Vector
from archipel.models.model import Model
from archipel.tree import Tree, tree_map


@dataclass(frozen=True)
class Active:
    """Raise the loss of records, and see whether somebody's training pushes back."""

    scale: float = 0.5  # gamma of a party, in uploads as long as its own
    length: float = 0.1  # gamma of a server: of the model's norm
    family: ClassVar[Family] = "active"
    needs: ClassVar[frozenset[Has]] = frozenset({"acts", "sends"})

    def party(self, x: Tensor, y: Tensor) -> Ascent:
        """What a party does in a round, to records `[r, ...]`."""
        return Ascent(x, y, self.scale)

    def sent(self, model: Model, w: Vector, x: Tensor, y: Tensor) -> Vector:
        """The model that a server sends in place of w."""
        up = model.grad(w, x, y)
        raised: Vector = w + self.length * w.norm() * up / up.norm().clamp(min=1e-30)
        return raised

    def scores(self, seen: Signals, shadows: Sequence[Shadow]) -> Tensor:
        return OverRounds().scores(seen, shadows)


@dataclass(frozen=True, eq=False)
class Ascent:
    """An attack of a party by its data and by what it sends (`adversaries.attack`)."""

    x: Tensor  # [r, *shape]
    y: Tensor  # [r]
    scale: float

    def poisoned(self, points: Any, draw: Any) -> Any:
        """The records, as often as fill the party's own table."""
        at = torch.arange(len(points.x)) % len(self.x)
        return points._replace(x=self.x[at], y=self.y[at])

    def sent(self, me: Any, shared: Tree, upload: Tree, before: Tensor, rate: float) -> Tree:
        return tree_map(lambda x: -self.scale * x if x.is_floating_point() else x, upload)

    def __repr__(self) -> str:
        return f"Ascent({len(self.x)} records, scale={self.scale:g})"
