# SPDX-License-Identifier: Apache-2.0
"""A little is enough.  Baruch, Baruch, Goldberg, NeurIPS 2019, https://arxiv.org/abs/1902.06156,
Algorithm 3.

Departures: mean and deviation are of all honest uploads (omniscient), where the paper's adversaries
take those of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor


@dataclass(frozen=True)
class ALIE:
    """All adversaries send mean - z deviations of the honest, coordinate by coordinate."""

    z: float | None = None  # as many deviations as keep most of the honest further out

    def colluding(self, honest: Tensor, f: int) -> Tensor:
        z = largest(len(honest) + f, f) if self.z is None else self.z
        return honest.mean(dim=0) - z * honest.std(dim=0, correction=0)


def largest(m: int, f: int) -> float:
    """z_max of m uploads, f of them adversaries': s honest ones are further from the mean.

    >>> round(largest(50, 24), 2), round(largest(25, 5), 2)
    (1.43, 0.25)
    """
    supporters = m // 2 + 1 - f  # s
    share = (m - f - supporters) / (m - f)
    return NormalDist().inv_cdf(min(max(share, 1e-6), 1 - 1e-6))
