# SPDX-License-Identifier: Apache-2.0
"""What a run was worth and what it cost.

>>> from archipel.algorithms import FedAvg
>>> from archipel.runs.simulation import simulate
>>> card = scorecard(simulate(FedAvg(lr=0.1), "heart_disease", rounds=2, workers=1))
>>> card.efficiency.bytes_up == 2 * 4 * 28 * 4  # rounds, parties, parameters, bytes of one
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipel.scorecard.card import (
    Efficacy,
    Efficiency,
    Energy,
    Privacy,
    Robustness,
    Scorecard,
    Sent,
    Spread,
)
from archipel.scorecard.words import Row

if TYPE_CHECKING:
    from archipel.runs.run import Run

__all__ = [
    "Efficacy",
    "Efficiency",
    "Energy",
    "Privacy",
    "Robustness",
    "Row",
    "Scorecard",
    "Sent",
    "Spread",
    "scorecard",
]


def scorecard(run: Run) -> Scorecard:
    """Measure a run, also one that is still under way; one that is over has been."""
    from archipel.scorecard.measure import scorecard as measured  # waits for torch

    return measured(run)
