# SPDX-License-Identifier: Apache-2.0
"""Deep leakage from gradients.  Zhu, Liu, Han, NeurIPS 2019, https://arxiv.org/abs/1906.08935,
Algorithm 1.

Find records and labels whose gradient is the one that was seen: min over (x', y') of
|grad(x', y') - g|^2, by L-BFGS, with y' a softmax.

Departures: several starts, of which the closest is kept; the distance is divided by |g|^2, so that
L-BFGS stops at the same accuracy whatever the model; x' is kept in the features' range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.attacks.case import Family, Has, Letter, Records, Tells
from archipel.attacks.gradients import gradient_of, soft_loss

_MOST = 16  # records behind an upload: beyond, nothing is found and it takes long


@dataclass(frozen=True)
class DLG:
    """Search for records that give the same gradient, label and all."""

    steps: int = 300
    starts: int = 4
    family: ClassVar[Family] = "inversion"
    needs: ClassVar[frozenset[Has]] = frozenset({"single", "mean", "models"})
    tells: ClassVar[Tells] = "records"

    def applies(self, letter: Letter) -> str:
        if letter.classes == 0 or not letter.low.is_floating_point():
            return "records have no classes, or are text"
        if letter.records > _MOST:
            return f"{letter.records} records are behind an upload; it is tried up to {_MOST}"
        return "" if letter.steps == 1 else f"an upload is the sum of {letter.steps} steps"

    def records(self, letter: Letter) -> Records:
        starts, steps = (1, self.steps // 3) if letter.quick else (self.starts, self.steps)
        found = [self._once(letter, letter.seed + start, steps) for start in range(starts)]
        return min(found, key=lambda each: each[0])[1]

    def _once(self, letter: Letter, seed: int, steps: int) -> tuple[float, Records]:
        random = torch.Generator().manual_seed(seed)
        shape = (letter.records, *letter.shape)
        span = letter.high - letter.low
        x = (letter.low + span * torch.rand(shape, generator=random)).to(letter.w.dtype)
        y = torch.randn((letter.records, letter.classes), generator=random).to(letter.w.dtype)
        x.requires_grad_(), y.requires_grad_()
        size = letter.gradient.square().sum()
        search = torch.optim.LBFGS([x, y], lr=1.0, max_iter=steps, history_size=50,
                                   line_search_fn="strong_wolfe", tolerance_grad=1e-12,
                                   tolerance_change=1e-14)  # fmt: skip

        def distance() -> Tensor:
            search.zero_grad()
            ours = gradient_of(letter.model, letter.w, x, soft_loss(y))
            far = (ours - letter.gradient).square().sum() / size
            far.backward()
            return far

        search.step(distance)
        with torch.no_grad():
            ours = gradient_of(letter.model, letter.w, x, soft_loss(y), graph=False)
            far = float((ours - letter.gradient).square().sum() / size)
            clamped = x.clamp(letter.low, letter.high)
        return far if far == far else float("inf"), Records(clamped, y.argmax(dim=-1))
