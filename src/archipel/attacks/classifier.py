# SPDX-License-Identifier: Apache-2.0
"""A small classifier that attacks train on what they made themselves: logistic regression."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Classifier(NamedTuple):
    """Weights for standardised features, of which NaN counts as the mean."""

    mean: Tensor  # [f]
    sd: Tensor  # [f]
    weights: Tensor  # [f + 1], the constant last

    def scores(self, features: Tensor) -> Tensor:
        """Log-odds: `[n, f] -> [n]`."""
        return _with_one(_scaled(features, self.mean, self.sd)) @ self.weights


def fit(features: Tensor, labels: Tensor, penalty: float = 1.0, steps: int = 25) -> Classifier:
    """Logistic regression with a penalty on squared weights, by Newton's method.

    `[n, f]`, bool `[n]`. With more features than examples the dual has the smaller system.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> found = fit(x, x[:, 0] > 1)
    >>> bool((found.scores(x)[2:] > found.scores(x)[:2].max()).all())
    True
    """
    x = features.double()
    known = ~x.isnan()
    count = known.sum(dim=0).clamp(min=1)
    mean = x.nan_to_num(0.0).sum(dim=0) / count
    sd = (((x - mean).nan_to_num(0.0) ** 2).sum(dim=0) / count).sqrt()
    scale = torch.where(sd > 0, sd, torch.ones_like(sd))
    z = _with_one(_scaled(x, mean, scale))
    basis = None
    if z.shape[1] > len(z):  # weights lie in the span of the examples
        basis = torch.linalg.qr(z.T).Q
        z = z @ basis
    y, weights = labels.double(), z.new_zeros(z.shape[1])
    ridge = penalty * torch.eye(z.shape[1], dtype=z.dtype)
    for _ in range(steps):
        chance = torch.sigmoid(z @ weights)
        slope = z.T @ (y - chance) - penalty * weights
        curve = (z * (chance * (1 - chance)).unsqueeze(-1)).T @ z + ridge
        weights = weights + torch.linalg.solve(curve, slope)
    return Classifier(mean, scale, weights if basis is None else basis @ weights)


def _scaled(features: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    return ((features.double() - mean) / sd).nan_to_num(0.0)


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)
