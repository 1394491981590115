# SPDX-License-Identifier: Apache-2.0
"""What sums over different parties tell together: a number of each, by linear algebra.

From sums over rosters S_1, S_2, ..., each a row of ones and zeros, the numbers of those parties
follow exactly whose unit vector is in the rows' span.

Departures: none; it is what any statistical office checks before it publishes two tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from archipel.attacks.case import Family, Has

_NEAR = 1e-6


@dataclass(frozen=True)
class Differencing:
    """Take sums over different parties off each other."""

    family: ClassVar[Family] = "differencing"
    needs: ClassVar[frozenset[Has]] = frozenset({"mean"})

    def told(
        self, rosters: Sequence[Sequence[int]], sums: Sequence[float], parties: int
    ) -> dict[int, float]:
        """The numbers of those parties for whom they follow.

        >>> Differencing().told([[0, 1, 2], [0, 2]], [10.0, 7.0], 3)
        {1: 3.0}
        """
        seen = dict(zip(map(tuple, rosters), sums, strict=True))
        rows = np.zeros((len(seen), parties))
        for i, roster in enumerate(seen):
            rows[i, list(roster)] = 1
        solution, *_ = np.linalg.lstsq(rows, np.array(list(seen.values())), rcond=None)
        onto = np.linalg.pinv(rows) @ rows  # onto the rows' span
        return {
            k: round(float(solution[k]), 6)
            for k in range(parties)
            if np.abs(onto[k] - np.eye(parties)[k]).max() < _NEAR
        }
