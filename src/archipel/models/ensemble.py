# SPDX-License-Identifier: Apache-2.0
"""Ensembles of base models that are given: f(x) = sum_j alpha_j h_j(x), and alpha alone is learnt.

Two classes, one output whose sign says which; the loss `adaboost` goes with it. The last parameter
weighs the constant base model. Parameters begin at zero.
"""

from __future__ import annotations

from math import ceil, isfinite, prod

import torch
from torch import Tensor, nn

from archipel.errors import ArchipelError


class Stumps(nn.Module):
    """Decision stumps, h_j(x) = 1 where feature j is at most its threshold and -1 above.

    >>> Stumps(torch.tensor([0, 1]), torch.tensor([0.5, 0.0]))(torch.tensor([[1.0, -2.0]]))
    tensor([[-1.,  1.]])
    """

    def __init__(self, feature: Tensor, threshold: Tensor) -> None:
        super().__init__()
        self.feature = nn.Parameter(feature, requires_grad=False)
        self.threshold = nn.Parameter(threshold, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Every stump's answer: `[..., d] -> [..., count]`."""
        above = x.index_select(-1, self.feature) > self.threshold
        return 1 - 2 * above.to(x.dtype)

    def extra_repr(self) -> str:
        return str(len(self.feature))


def stumps(
    shape: tuple[int, ...], outputs: int, count: int = 200, low: float = -1.0, high: float = 1.0
) -> nn.Module:
    """Return `count` decision stumps under one weight each: `[b, *shape] -> [b, 1]`.

    Every feature has as many, at regular thresholds between `low` and `high`, which are agreed on
    and not taken from anybody's data; which features have one less is drawn from the seed.
    """
    if not (isfinite(low) and isfinite(high) and low < high):
        raise ArchipelError(
            f"low = {low:g}, high = {high:g} of the model 'stumps': give the range in which the "
            "features lie, low below high."
        )
    features = prod(shape)
    each = ceil(count / features)
    thresholds = low + (torch.arange(each) + 0.5) * (high - low) / each
    kept = torch.randperm(features * each)[:count].sort().values
    base = Stumps(kept // each, thresholds[kept % each])
    return _weighted("stumps", base, count, outputs)


def linear_score(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a'x + c, the features as base models: `[b, *shape] -> [b, 1]`."""
    return _weighted("linear_score", None, prod(shape), outputs)


def _weighted(name: str, base: nn.Module | None, count: int, outputs: int) -> nn.Module:
    if outputs > 2:
        raise ArchipelError(
            f"the model '{name}' tells two classes apart and the data has {outputs}: choose two of "
            "them, or another model."
        )
    weights = nn.Linear(count, 1)
    nn.init.zeros_(weights.weight)
    nn.init.zeros_(weights.bias)
    return nn.Sequential(nn.Flatten(), *([] if base is None else [base]), weights)
