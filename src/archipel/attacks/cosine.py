# SPDX-License-Identifier: Apache-2.0
"""Inverting gradients.  Geiping, Bauermeister, Dröge, Moeller, NeurIPS 2020,
https://arxiv.org/abs/2003.14053, equation 4; several local steps as in its section 6.

Find records whose gradient has the direction that was seen, by Adam on the signs of the search's
own gradient: min over x of 1 - cos(grad(x), g) + a TV(x). An upload that is the sum of local steps
is compared with that of the same steps on x.

Departures: TV is of images alone; labels are found first (`labels.py`); which record is in which
step is not known, so those of x are taken in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from archipel.attacks.case import Family, Has, Letter, Records, Tells
from archipel.attacks.gradients import gradient_of, hard_loss
from archipel.attacks.labels import Labels, labels_of

_MOST_RECORDS, _MOST_STEPS = 64, 16


@dataclass(frozen=True)
class Cosine:
    """Search for records whose gradient has the same direction, smooth where they are images."""

    steps: int = 1200
    lr: float = 0.1  # of a feature's range
    tv: float = 1e-2  # a
    family: ClassVar[Family] = "inversion"
    needs: ClassVar[frozenset[Has]] = frozenset({"single", "mean", "models"})
    tells: ClassVar[Tells] = "records"

    def applies(self, letter: Letter) -> str:
        if letter.records > _MOST_RECORDS:
            return f"{letter.records} records are behind an upload; it is tried to {_MOST_RECORDS}"
        if letter.steps > _MOST_STEPS:
            return f"an upload is the sum of {letter.steps} steps; it is tried up to {_MOST_STEPS}"
        return Labels().applies(letter)

    def records(self, letter: Letter) -> Records:
        random = torch.Generator().manual_seed(letter.seed)
        span = letter.high - letter.low
        y = labels_of(letter)
        y = y[torch.randperm(len(y), generator=random)]
        middle = letter.low + 0.5 * span
        noise = torch.randn((letter.records, *letter.shape), generator=random)
        x = (middle + 0.1 * span * noise).to(letter.w.dtype).requires_grad_()
        count = self.steps // 6 if letter.quick else self.steps
        search = torch.optim.Adam([x], lr=self.lr)
        marks = [count * part // 8 for part in (3, 5, 7)]
        slower = torch.optim.lr_scheduler.MultiStepLR(search, marks, gamma=0.1)
        best, found = float("inf"), x.detach().clone()
        for _ in range(count):
            search.zero_grad()
            far = 1 - cosine_similarity(_upload(letter, x, y), letter.gradient, dim=-1)
            value = far + self.tv * _variation(x, span)
            value.backward()
            if x.grad is not None:
                x.grad = x.grad.sign() * span
            if (near := float(far.detach())) < best:
                best, found = near, x.detach().clone()
            search.step()
            slower.step()
            with torch.no_grad():
                x.copy_(x.clamp(letter.low, letter.high))
        return Records(found, y)


def _upload(letter: Letter, x: Tensor, y: Tensor) -> Tensor:
    """What the party would have sent of x, as a gradient."""
    if letter.steps == 1:
        return gradient_of(letter.model, letter.w, x, hard_loss(letter.model, y))
    w, places = letter.w.detach().clone().requires_grad_(), torch.arange(len(x))
    for step in range(letter.steps):
        at = (places[: letter.batch] + step * letter.batch) % len(x)
        w = w - letter.lr * gradient_of(letter.model, w, x[at], hard_loss(letter.model, y[at]))
    return letter.w - w


def _variation(x: Tensor, span: Tensor) -> Tensor:
    """Total variation of images, in the features' range; 0 of anything else."""
    if x.dim() < 3:
        return x.new_zeros(())
    z = x / span.max()
    return (z[..., 1:, :] - z[..., :-1, :]).abs().mean() + (z[..., 1:] - z[..., :-1]).abs().mean()
