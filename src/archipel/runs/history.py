# SPDX-License-Identifier: Apache-2.0
"""What a run's evaluations tell: when a target was reached, who was in them, how parties differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Round = dict[str, Any]  # one entry of a run's history


def rounds_to(
    rounds: list[int], values: list[float], target: float, larger_is_better: bool
) -> float | None:
    """When the best value so far reaches a target, between two evaluations by interpolation.

    >>> rounds_to([10, 20], [0.5, 0.7], 0.6, larger_is_better=True)
    15.0
    """
    sign = 1 if larger_is_better else -1
    before, best = 0.0, -float("inf")
    for t, value in zip(rounds, values, strict=True):
        if sign * value >= sign * target:
            if best == -float("inf"):
                return float(t)
            return before + (t - before) * (sign * target - best) / (sign * value - best)
        best, before = max(best, sign * value), t
    return None


def absent(history: Sequence[Round]) -> list[list[str]]:
    """Of each evaluation, the sites that it lacks and another one has in its mean.

    >>> absent([{"sites": ["ulm", "bonn"]}, {"sites": ["ulm"]}])
    [[], ['bonn']]
    """
    everybody = dict.fromkeys(site for entry in history for site in entry.get("sites", ()))
    there = [everybody.keys() & entry.get("sites", everybody) for entry in history]
    return [[site for site in everybody if site not in each] for each in there]


def spread(values: Tensor, larger_is_better: bool = True) -> dict[str, float] | None:
    """Mean, standard deviation and mean of the worst tenth over parties that have a value."""
    values = values[~values.isnan()].sort(descending=not larger_is_better).values
    if len(values) == 0:
        return None
    tenth = values[: max(1, len(values) // 10)]
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(correction=0)),
        "worst_tenth": float(tenth.mean()),
        "parties": len(values),
    }
