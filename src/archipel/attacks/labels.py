# SPDX-License-Identifier: Apache-2.0
"""Labels from the gradient of the last layer's biases.

For cross-entropy, dL/db_c is the mean of what the model says of class c less the share of records
that are of it. For one record its sign tells the label (iDLG: Zhao, Mopuri, Bilen 2020,
https://arxiv.org/abs/2001.02610); for several, the shares follow once it is known what the model
says on average, which it says of made-up records as well (Geng et al. 2021,
https://arxiv.org/abs/2110.09074).

Departures: what the model says is asked of uniform noise in the features' range, and shares are
made whole numbers by largest remainders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.attacks.case import Family, Has, Letter, Records, Tells
from archipel.attacks.gradients import last_dense

_ASKED = 256  # made-up records


@dataclass(frozen=True)
class Labels:
    """How many records of each class are behind an upload."""

    family: ClassVar[Family] = "inversion"
    needs: ClassVar[frozenset[Has]] = frozenset({"single", "mean", "models"})
    tells: ClassVar[Tells] = "labels"

    def applies(self, letter: Letter) -> str:
        if letter.classes == 0 or not letter.low.is_floating_point():
            return "records have no label each"
        if last_dense(letter.model) is None:
            return "the last layer has no biases"
        return ""

    def records(self, letter: Letter) -> Records:
        return Records(letter.low.new_zeros(0), labels_of(letter))


def labels_of(letter: Letter) -> Tensor:
    """The labels behind an upload, sorted: `[r]`."""
    layer = last_dense(letter.model)
    slope = letter.model.spec.views(letter.gradient)[f"{layer}.bias"].double()
    if letter.records == 1:
        return slope.argmin().view(1)
    random = torch.Generator().manual_seed(letter.seed)
    noise = torch.rand((_ASKED, *letter.shape), generator=random).to(letter.w.dtype)
    x = letter.low + (letter.high - letter.low) * noise
    said = letter.model.predict(letter.w, x).softmax(dim=-1).double().mean(dim=0)
    share = (said - slope).clamp(min=0.0)
    share = share / share.sum().clamp(min=1e-12) * letter.records
    whole = share.floor()
    rest = int(letter.records - whole.sum())
    whole[(share - whole).argsort(descending=True)[:rest]] += 1
    return torch.repeat_interleave(torch.arange(len(whole)), whole.long())
