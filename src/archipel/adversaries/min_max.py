# SPDX-License-Identifier: Apache-2.0
"""Min-max.  Shejwalkar, Houmansadr, NDSS 2021,
https://www.ndss-symposium.org/ndss-paper/manipulating-the-byzantine-optimizing-model-poisoning-attacks-and-defenses-for-federated-learning/,
section V and Algorithm 1, with the deviations as direction.

Departures: gamma is found by bisection, from the largest that could do, to one part in a million.
Adversaries know the honest uploads (omniscient), as in the paper's strongest setting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MinMax:
    """As far from the honest mean as leaves no honest upload further than two honest are apart."""

    def colluding(self, honest: Tensor, f: int) -> Tensor:
        mean, away = honest.mean(dim=0), honest.std(dim=0, correction=0)
        x = (honest - mean).double()
        most = torch.cdist(x, x).square().max()
        # |mean - gamma away - x_i|^2 = |x_i|^2 + 2 gamma x_i away + gamma^2 |away|^2, x centred
        square, along, length = (
            x.square().sum(dim=1),
            x @ away.double(),
            away.double().square().sum(),
        )
        low, high = 0.0, float((most / length.clamp(min=1e-300)).sqrt())
        while high - low > 1e-6 * high:
            gamma = (low + high) / 2
            far = (square + 2 * gamma * along + gamma * gamma * length).max()
            low, high = (gamma, high) if far <= most else (low, gamma)
        return mean - low * away
