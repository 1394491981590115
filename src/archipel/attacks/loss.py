# SPDX-License-Identifier: Apache-2.0
"""A threshold on the loss.  Yeom, Giacomelli, Fredrikson, Jha, CSF 2018,
https://arxiv.org/abs/1709.01604, Adversary 1.

Departures: the threshold is not the mean training loss; every threshold is tried, as a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from archipel.attacks.case import Family, Has, Shadow, Signals


@dataclass(frozen=True)
class LossThreshold:
    """Records that the final model knows well were used."""

    family: ClassVar[Family] = "membership"
    needs: ClassVar[frozenset[Has]] = frozenset({"final"})

    def scores(self, seen: Signals, shadows: Sequence[Shadow]) -> Tensor:
        return -seen.loss
