# SPDX-License-Identifier: Apache-2.0
"""Model replacement.  Bagdasaryan et al., AISTATS 2020, https://arxiv.org/abs/1807.00459,
Algorithm 1: constrain and scale, and evasion of a bound by train and scale.

Departures: the anomaly loss is the squared distance to the shared model, so that
alpha L_class + (1 - alpha) L_anomaly is a pull towards it, with `pull` = 2 (1 - alpha) / alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.adversaries.attack import Points
from archipel.adversaries.backdoor import Backdoor
from archipel.core import Descent, LocalWork, Party, Vector
from archipel.errors import ArchipelError
from archipel.training.descent import work_of
from archipel.tree import Tree, fill, leaves


@dataclass(frozen=True)
class Replacement:
    """Adversaries train a backdoor, and send it so long that the mean becomes their model."""

    target: int = 0  # as of backdoor
    share: float = 0.5
    size: int = 4
    column: int | str = 0
    value: float = 5.0
    phrase: tuple[int, ...] = (1, 2, 1)
    scale: float | None = None  # gamma; parties over adversaries
    epochs: int | None = None  # that they train; as many as others
    lr: float | None = None  # at what rate; as others
    pull: float = 0.0  # towards the shared model
    most: float | None = None  # S: norm of the upload at most, below what a defence lets pass

    def poisoned(self, points: Points, draw: np.random.Generator) -> Points:
        return self._backdoor.poisoned(points, draw)

    def wanted(self, points: Points) -> Points:
        return self._backdoor.wanted(points)

    def door(self, me: Party) -> Party:
        return _Longer(me, self)

    def sent(self, me: Party, shared: Tree, upload: Tree, before: Tensor, rate: float) -> Tree:
        parts = [x for x in leaves(upload) if x.is_floating_point()]
        gamma: Any = rate if self.scale is None else self.scale
        if self.most is not None:
            if self.most <= 0:
                raise ArchipelError(f"adversary.most = {self.most}: give a number above 0.")
            square = sum(
                (x.double().square().sum(dim=-1, keepdim=True) for x in parts), torch.zeros(1)
            )
            gamma = (self.most / square.sqrt().clamp(min=1e-300)).clamp(max=gamma)
        scaled = (
            x * torch.as_tensor(gamma, dtype=x.dtype) if x.is_floating_point() else x
            for x in leaves(upload)
        )
        return fill(upload, list(scaled))

    @property
    def _backdoor(self) -> Backdoor:
        return Backdoor(self.target, self.share, self.size, self.column, self.value, self.phrase)


class _Longer:
    """An adversary's `me`: it trains as the attack says."""

    def __init__(self, me: Party, attack: Replacement) -> None:
        self._me, self._attack = me, attack

    def __getattr__(self, name: str) -> Any:
        return getattr(self._me, name)

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
        attack, task = self._attack, work_of(work)
        if attack.epochs is not None:
            task = task._replace(local_epochs=attack.epochs, local_steps=None)
        if attack.lr is not None:
            task = task._replace(lr=attack.lr)
        return self._me.descend(w, task, shift, pull + attack.pull, towards, only, aside)
