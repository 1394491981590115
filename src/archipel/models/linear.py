# SPDX-License-Identifier: Apache-2.0
"""Models that are linear in the features: regression, logistic regression, Cox."""

from __future__ import annotations

from math import prod

from torch import nn

from archipel.errors import ArchipelError


def linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return x -> A x + c: `[b, *shape] -> [b, outputs]`."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))


def logistic(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the logits of (multinomial) logistic regression: `[b, *shape] -> [b, classes]`."""
    return linear(shape, outputs)


def cox(shape: tuple[int, ...], outputs: int = 1) -> nn.Module:
    """Return the log-risk of Cox's model: `[b, *shape] -> [b, 1]`.

    It has no intercept, which the partial likelihood cannot see.
    """
    if outputs != 1:
        raise ArchipelError(f"the model 'cox' gives one log-risk, not {outputs}: set outputs to 1.")
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 1, bias=False))
