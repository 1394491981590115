# SPDX-License-Identifier: Apache-2.0
"""Unintended features.  Melis, Song, De Cristofaro, Shmatikov, IEEE S&P 2019,
https://arxiv.org/abs/1805.04049, Algorithm 3 (passive).

The adversary makes uploads itself, of records that have a property and of others, and trains a
classifier on them; then it asks that of the party's upload.

Departures: a logistic regression with a penalty stands for the paper's random forest; each upload
is one example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from archipel.attacks.case import Family, Has
from archipel.attacks.classifier import fit


@dataclass(frozen=True)
class Properties:
    """Whether most of a party's records have something in common that is not the label."""

    penalty: float = 10.0
    family: ClassVar[Family] = "property"
    needs: ClassVar[frozenset[Has]] = frozenset({"single", "mean", "models"})

    def scores(self, known: Tensor, has: Tensor, seen: Tensor) -> Tensor:
        return fit(known, has, self.penalty).scores(seen)
