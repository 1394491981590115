# SPDX-License-Identifier: Apache-2.0
"""The trimmed mean, coordinate by coordinate.  Yin et al., ICML 2018,
https://arxiv.org/abs/1803.01498, Algorithm 1, option II.

Departures: `f` may be a number of parties as well as the paper's share beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from archipel.core import Uploads
from archipel.rules.rows import at_least, by_columns, liars, made


@dataclass(frozen=True)
class TrimmedMean:
    """The mean without the f largest and the f smallest numbers of each coordinate."""

    f: int | float  # beta: parties that may lie, or their share

    between_peers: ClassVar[bool] = True

    def __call__(self, uploads: Uploads) -> Uploads:
        return made(uploads, self.rows)

    def rows(self, x: Tensor) -> Tensor:
        """`[m, p] -> [1, p]`."""
        m = len(x)
        f = liars(self, self.f, m)
        at_least(self, f"f = {self.f}", m, 2 * f + 1)
        return by_columns(x, lambda column: column[:, f : m - f].mean(dim=1))
