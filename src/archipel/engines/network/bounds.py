# SPDX-License-Identifier: Apache-2.0
"""How large the numbers may be that one member sends to the others, and how long it may take.

All of them are far beyond what an honest site needs. A study that meets one has a member that lies,
or one whose model has diverged; it goes on without that member.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from archipel.data.shadow import MOST_ROWS
from archipel.engines.network.transport import Refused
from archipel.metrics import METRICS, SHARES

LARGEST = 1e12  # absolute number in a shared state or in a message that a study takes
LONGEST = 3600.0  # seconds of a round or an evaluation whose study has no deadline
MOST_GRADIENTS = 1 << 36  # of one upload; 2^27 of them add up to what a database holds
MOST_REFUSED = 16  # uploads or scores of one party, after which it is not waited for any more

_NEAR = 1e-9  # what rounding may add to them


def tame(arrays: Iterable[Tensor]) -> bool:
    """Whether every number is finite, and none larger than a study takes."""
    return all(largest(leaf) <= LARGEST for leaf in arrays if leaf.is_floating_point())


def largest(leaf: Tensor) -> float:
    """The largest absolute number; infinite where one is not finite."""
    if leaf.numel() == 0:
        return 0.0
    most = max(abs(float(end)) for end in torch.aminmax(leaf))
    return most if math.isfinite(most) else math.inf


def adds_up(leaf: Tensor, weight: float) -> bool:
    """Whether the numbers are tame, and sums of so many times as much are finite."""
    if not leaf.is_floating_point():
        return True
    return largest(leaf) <= min(LARGEST, 0.99 * torch.finfo(leaf.dtype).max / weight)


def check_counts(t: int, n: float, gradients: int, weighs: bool) -> None:
    """Refuse an upload's number of points or of gradients that cannot be."""
    if not (weighs <= n <= MOST_ROWS and n == int(n)):
        raise Refused(
            f"round {t + 1}: n = {n:g} is no number of training points; give a whole one up to "
            f"{MOST_ROWS:,}."
        )
    if not 0 <= gradients <= MOST_GRADIENTS:
        raise Refused(
            f"round {t + 1}: gradients = {gradients} are no counts; give a number up to "
            f"{MOST_GRADIENTS:,}."
        )


def check_scores(scores: Mapping[str, Any] | None, points: int) -> None:
    """Refuse what is no metric: it would be shown to people, and averaged."""
    for name, value in (scores or {}).items():
        if name not in METRICS or type(value) is not float:
            raise Refused("the scores are not numbers by the names of metrics.")
        most = 1 + _NEAR if name in (*SHARES, "r2") else math.inf
        if value > most or (name in SHARES and value < -_NEAR):
            raise Refused(f"the scores are not possible: {name} = {value:g}.")
    if not 0 <= points <= MOST_ROWS:
        raise Refused("the scores are not of a number of points.")


def defined(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores, NaN for those of a model that has diverged: no mean is taken over them."""
    return {name: value if abs(value) <= LARGEST else math.nan for name, value in scores.items()}
