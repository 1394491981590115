# SPDX-License-Identifier: Apache-2.0
"""Fields of an algorithm that cannot work, told in a sentence before the run."""

from __future__ import annotations

import math
import numbers
from typing import Any

from torch import Tensor

from archipel.errors import ArchipelError
from archipel.training.schedules import Rate, Schedule


def at_least(holder: object, **least: float) -> None:
    """Refuse fields below these bounds: whole numbers where the bound is whole.

    Tensors, which are sweeps, and schedules pass.

    >>> at_least(complex(-1, 0), real=0.0)
    Traceback (most recent call last):
    ...
    archipel.errors.ArchipelError: real = -1.0: give a finite number from 0.
    """
    for name, low in least.items():
        value, whole = getattr(holder, name), isinstance(low, int)
        if not _varies(value) and not (_is_number(value, whole) and value >= low):
            kind = "whole number" if whole else "finite number"
            raise ArchipelError(f"{name} = {value!r}: give a {kind} from {low:g}.")


def above_zero(holder: object, *names: str) -> None:
    """Refuse fields that are not finite numbers above 0; tensors and schedules pass."""
    for name in names:
        value = getattr(holder, name)
        if not _varies(value) and not (_is_number(value) and value > 0):
            raise ArchipelError(f"{name} = {value!r}: give a finite number above 0.")


def tuning(holder: object, epochs: int = 1) -> None:
    """Refuse `tune_epochs`, `tune_steps` and `tune_lr` that cannot work; None is as in training."""
    for name, low in (("tune_epochs", epochs), ("tune_steps", 0), ("tune_lr", 0.0)):
        if getattr(holder, name, None) is not None:
            at_least(holder, **{name: low})


def texts(holder: object, *names: str) -> None:
    """Refuse fields that are not texts."""
    for name in names:
        value = getattr(holder, name)
        if not isinstance(value, str):
            raise ArchipelError(f"{name} = {value!r}: give a text.")


def optimisers(holder: object, *names: str) -> None:
    """Refuse fields that are not optimisers."""
    for name in names:
        value = getattr(holder, name)
        if isinstance(value, type) or not (hasattr(value, "init") and hasattr(value, "step")):
            raise ArchipelError(f"{name} = {value!r}: give SGD() or Adam().")


def largest(lr: Rate) -> float:
    """A number, the largest of a tensor, or the largest rate of a schedule, warm-up or not."""
    if isinstance(lr, Schedule):
        return float(max(lr.start, getattr(lr, "end", lr.start)))
    return float(lr.max() if isinstance(lr, Tensor) else lr)


def _varies(value: Any) -> bool:
    """Whether a value is a tensor, as in a sweep, or a schedule."""
    return isinstance(value, Tensor | Schedule)


def _is_number(value: Any, whole: bool = False) -> bool:
    kind = numbers.Integral if whole else numbers.Real
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
