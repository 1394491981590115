# SPDX-License-Identifier: Apache-2.0
"""What a run was worth and what it cost.

>>> from archipel.algorithms import FedAvg
>>> from archipel.runs.simulation import simulate
>>> card = scorecard(simulate(FedAvg(lr=0.1), "heart_disease", rounds=2, workers=1))
>>> card.efficiency.bytes_up == 2 * 4 * 28 * 4  # rounds, parties, parameters, bytes of one
True
"""

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
from archipel.scorecard.measure import scorecard
from archipel.scorecard.words import Row

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
