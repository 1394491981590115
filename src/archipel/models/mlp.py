# SPDX-License-Identifier: Apache-2.0
"""Fully connected networks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn


def mlp(shape: tuple[int, ...], outputs: int, widths: Sequence[int] = (64,)) -> nn.Module:
    """Return a network with one ReLU layer per width: `[b, *shape] -> [b, outputs]`."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, width in pairwise((prod(shape), *widths)):
        layers += [nn.Linear(before, width), nn.ReLU()]
    last = widths[-1] if widths else prod(shape)
    return nn.Sequential(*layers, nn.Linear(last, outputs))


def two_nn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return McMahan et al.'s 2NN (arXiv 1602.05629), 784-200-200-10 on MNIST: 199,210 weights."""
    return mlp(shape, outputs, widths=(200, 200))
