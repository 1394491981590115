# SPDX-License-Identifier: Apache-2.0
"""The median, coordinate by coordinate.  Yin et al., ICML 2018, https://arxiv.org/abs/1803.01498,
Algorithm 1, option I.

Departures: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from archipel.core import Uploads
from archipel.rules.rows import by_columns, made


@dataclass(frozen=True)
class Median:
    """Right while fewer than half of the uploads lie, in every coordinate by itself."""

    between_peers: ClassVar[bool] = True

    def __call__(self, uploads: Uploads) -> Uploads:
        return made(uploads, self.rows)

    def rows(self, x: Tensor) -> Tensor:
        """`[m, p] -> [1, p]`."""
        m = len(x)
        low, high = (m - 1) // 2, m // 2

        def middle(column: Tensor) -> Tensor:
            if low == high:
                return column[:, low]
            return column[:, low] / 2 + column[:, high] / 2  # a sum could overflow

        return by_columns(x, middle)
