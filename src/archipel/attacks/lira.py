# SPDX-License-Identifier: Apache-2.0
"""The likelihood ratio attack.  Carlini, Chien, Nasr, Song, Terzis, Tramèr, IEEE S&P 2022,
https://arxiv.org/abs/2112.03570, Algorithm 1; offline, its section VI-C.

Departures: the runs that the adversary made itself are of the whole federation, and each record is
asked of all of them; with fewer than 16 runs on a side the deviation is common to all records, as
the paper has it for few models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.attacks.case import Family, Has, Shadow, Signals
from archipel.attacks.ratio import Fits, fits, stable


@dataclass(frozen=True)
class LiRA:
    """Compare a record's loss with that in runs with it and without it."""

    family: ClassVar[Family] = "membership"
    needs: ClassVar[frozenset[Has]] = frozenset({"final"})

    def scores(self, seen: Signals, shadows: Sequence[Shadow]) -> Tensor:
        return _fits(shadows).ratio(stable(seen.loss))


@dataclass(frozen=True)
class OfflineLiRA:
    """Compare a record's loss with that in runs without it."""

    family: ClassVar[Family] = "membership"
    needs: ClassVar[frozenset[Has]] = frozenset({"final"})

    def scores(self, seen: Signals, shadows: Sequence[Shadow]) -> Tensor:
        return _fits(shadows).over(stable(seen.loss))


def _fits(shadows: Sequence[Shadow]) -> Fits:
    values = torch.stack([stable(shadow.signals.loss) for shadow in shadows])
    return fits(values, torch.stack([shadow.used for shadow in shadows]))
