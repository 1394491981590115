# SPDX-License-Identifier: Apache-2.0
"""Networks of the papers whose attacks are run again."""

from __future__ import annotations

from torch import nn


def leaky(shape: list[int], outputs: int) -> nn.Module:
    """Return the LeNet of Zhu et al. 2019: sigmoids, and strides in place of pooling."""
    return nn.Sequential(
        *_channel(shape),
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=1, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(12 * (shape[-1] // 4) ** 2, outputs),
    )


def small(shape: list[int], outputs: int) -> nn.Module:
    """Return a small convolution network with ReLU and no dense layer but the last."""
    return nn.Sequential(
        *_channel(shape),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (shape[-1] // 4) ** 2, outputs),
    )


def _channel(shape: list[int]) -> list[nn.Module]:
    return [nn.Unflatten(1, (1, shape[-2]))] if len(shape) == 2 else []
