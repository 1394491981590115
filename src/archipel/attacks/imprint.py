# SPDX-License-Identifier: Apache-2.0
"""A model made to read records.  Fowl, Geiping, Czaja, Goldblum, Goldstein, ICLR 2022, "Robbing the
Fed", https://arxiv.org/abs/2110.13057, section 3.

All units of a dense first layer measure the same, v x, and wake at rising thresholds c_i; what
follows treats them alike. The gradients of two neighbours then differ by the records between their
thresholds alone, and where that is one record, it is the difference of the weights' gradients over
that of the biases'.

Departures: no layer is added. A server can send any parameters, but not another model than was
approved, so the imprint goes into the layer that is there, with as many thresholds as it has units.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import SystemRandom
from typing import ClassVar

import torch
from torch import Tensor, nn

from archipel.attacks.case import Family, Has, Letter, Records
from archipel.attacks.exact import first_dense
from archipel.core import Vector
from archipel.models.model import Model

_ALIKE = 0.999  # cosine from which two units measure the same
_COMPARED = 512  # units, drawn anew each time, that all are held against
_MANY = 0.5  # of the units: from this share on it is no accident


@dataclass(frozen=True)
class Imprint:
    """Send a model whose first layer sorts records, and take neighbours' gradients off."""

    family: ClassVar[Family] = "imprint"
    needs: ClassVar[frozenset[Has]] = frozenset({"sends"})

    def applies(self, model: Model) -> str:
        if not sorting_units(model):
            return "the model has no dense layer with ReLU between its input and its output"
        return ""

    def sent(self, model: Model, w: Vector, mean: Tensor, sd: Tensor, seed: int) -> Vector:
        """The model that is sent in place of w; records are taken to vary by `mean` and `sd`."""
        layer, after = first_dense(model), _next_dense(model)
        parts = {name: part.clone() for name, part in model.spec.views(w).items()}
        units = len(parts[f"{layer}.bias"])
        random = torch.Generator().manual_seed(seed)
        v = torch.randn(mean.numel(), generator=random).to(w.dtype)
        centre, wide = v @ mean.flatten().to(w.dtype), _width(v, sd.flatten().to(w.dtype))
        chance = (torch.arange(units, dtype=torch.float64) + 0.5) / units
        cuts = (centre + wide * torch.special.ndtri(chance)).to(w.dtype)
        parts[f"{layer}.weight"] = v.expand(units, -1).clone()
        parts[f"{layer}.bias"] = -cuts
        following = parts[f"{after}.weight"]
        parts[f"{after}.weight"] = following[:, :1].expand_as(following).clone() / units
        return model.spec.flatten(parts)

    def records(self, letter: Letter) -> Records:
        """The records between neighbouring thresholds."""
        layer = first_dense(letter.model)
        parts = letter.model.spec.views(letter.gradient.double())
        weight, bias = parts[f"{layer}.weight"], parts[f"{layer}.bias"]
        none = torch.zeros_like(weight[:1])
        dw = weight - torch.cat([weight[1:], none])
        db = bias - torch.cat([bias[1:], bias.new_zeros(1)])
        told = db.abs() > 1e-6 * bias.abs().max()
        x = dw[told] / db[told].unsqueeze(-1)
        return Records(x.view(-1, *letter.shape).to(letter.w.dtype))


def imprinted(model: Model, w: Vector) -> bool:
    """Whether a model that was sent looks like one: units of the first layer measure the same."""
    layer = first_dense(model)
    if sorting_units(model) < 4:
        return False
    rows = model.spec.views(w)[f"{layer}.weight"].double()
    unit = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    drawn = SystemRandom().sample(range(len(unit)), min(_COMPARED, len(unit)))
    some = unit[drawn]  # where more than half are alike, one of them is here
    alike = [(part @ some.T).abs() > _ALIKE for part in unit.split(_COMPARED)]
    return bool(sum(each.double().sum(dim=0) for each in alike).max() > _MANY * len(unit))


def sorting_units(model: Model) -> int:
    """Units of a dense first layer that could hold an imprint; 0 where there is none."""
    layer = first_dense(model)
    if layer is None or _next_dense(model) is None:
        return 0
    return len(model.spec.views(model.w)[f"{layer}.bias"])


def _width(v: Tensor, sd: Tensor) -> Tensor:
    """The deviation of v x where features vary by themselves."""
    return ((v * sd) ** 2).sum().sqrt().clamp(min=1e-12)


def _next_dense(model: Model) -> str | None:
    """The dense layer that follows the first one and a ReLU; None where something else does."""
    layers = [
        (name, layer)
        for name, layer in model.module.named_modules()
        if not any(True for _ in layer.children())
    ]
    kinds = [type(layer) for _, layer in layers if not isinstance(layer, nn.Flatten)]
    names = [name for name, layer in layers if not isinstance(layer, nn.Flatten)]
    return names[2] if kinds[:3] == [nn.Linear, nn.ReLU, nn.Linear] else None
