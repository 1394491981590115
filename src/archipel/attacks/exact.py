# SPDX-License-Identifier: Apache-2.0
"""Records from the gradient of a dense first layer, exactly.

Phong, Aono, Hayashi, Wang, Moriai, IEEE TIFS 2018, https://doi.org/10.1109/TIFS.2017.2787987:
for z = W x + b, dL/dW_i = dL/dz_i x and dL/db_i = dL/dz_i, so x = (dL/dW_i) / (dL/db_i) for every
unit i that one record alone moves.

With several records a unit gives their mean, weighted by what each moves it: a record by itself
where all others leave the unit at rest, as ReLU does. So every unit gives a candidate.

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from archipel.attacks.case import Family, Has, Letter, Records, Tells
from archipel.models.model import Model

_SMALL = 1e-6  # of the largest bias' gradient: below, a quotient is rounding


@dataclass(frozen=True)
class Exact:
    """Divide the gradient of a dense first layer's weights by that of its biases."""

    most: int = 512  # candidates, those of the largest gradients
    family: ClassVar[Family] = "inversion"
    needs: ClassVar[frozenset[Has]] = frozenset({"single", "mean", "models"})
    tells: ClassVar[Tells] = "records"

    def applies(self, letter: Letter) -> str:
        return "" if first_dense(letter.model) else "the first layer is not dense, with biases"

    def records(self, letter: Letter) -> Records:
        layer = first_dense(letter.model)
        assert layer is not None
        parts = letter.model.spec.views(letter.gradient)
        weight, bias = parts[f"{layer}.weight"], parts[f"{layer}.bias"]
        size = bias.abs()
        told = torch.nonzero(size > _SMALL * size.max()).flatten()
        told = told[size[told].argsort(descending=True)][: self.most]
        x = weight[told] / bias[told].unsqueeze(-1)
        return Records(x.view(-1, *letter.shape))


def first_dense(model: Model) -> str | None:
    """The name of the first layer that has parameters, if it is dense and has biases."""
    for name, layer in model.module.named_modules():
        if any(True for _ in layer.parameters(recurse=False)):
            dense = isinstance(layer, nn.Linear) and layer.bias is not None
            return name if dense and f"{name}.bias" in model.spec.names else None
    return None


def rows_of(model: Model, w: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """A dense layer's weights `[h, d]` and biases `[h]`."""
    parts = model.spec.views(w)
    return parts[f"{layer}.weight"], parts[f"{layer}.bias"]
