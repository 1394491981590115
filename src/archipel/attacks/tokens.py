# SPDX-License-Identifier: Apache-2.0
"""Which symbols of a text are behind an upload: rows of an embedding that moved.

An embedding's gradient is zero but for the rows of symbols that were read (Melis, Song, De
Cristofaro, Shmatikov, IEEE S&P 2019, https://arxiv.org/abs/1805.04049, section IV-A).

Departures: none. Where noise is in every row, the rows that stand out are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from archipel.attacks.case import Family, Has, Letter, Records, Tells
from archipel.models.model import Model

_OUT = 4.0  # times the median row, where no row is zero


@dataclass(frozen=True)
class Tokens:
    """Symbols whose embedding moved."""

    family: ClassVar[Family] = "inversion"
    needs: ClassVar[frozenset[Has]] = frozenset({"single", "mean", "models"})
    tells: ClassVar[Tells] = "symbols"

    def applies(self, letter: Letter) -> str:
        if letter.low.is_floating_point():
            return "records are not text"
        return "" if embedding(letter.model) else "the model has no embedding"

    def records(self, letter: Letter) -> Records:
        rows = letter.model.spec.views(letter.gradient)[f"{embedding(letter.model)}.weight"]
        size = rows.norm(dim=-1)
        least = 0.0 if bool((size == 0).any()) else _OUT * float(size.median())
        return Records(torch.nonzero(size > least).flatten())


def embedding(model: Model) -> str | None:
    """The name of the first embedding that is trained."""
    found = (
        name for name, layer in model.module.named_modules() if isinstance(layer, nn.Embedding)
    )
    return next((name for name in found if f"{name}.weight" in model.spec.names), None)
