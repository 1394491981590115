# SPDX-License-Identifier: Apache-2.0
"""Attacks on privacy, one file each: what an audit tries on a study."""

from __future__ import annotations

from typing import Any

from archipel.attacks.dlg import DLG
from archipel.attacks.exact import Exact
from archipel.attacks.lira import LiRA, OfflineLiRA
from archipel.attacks.loss import LossThreshold
from archipel.attacks.rounds import OverRounds
from archipel.attacks.shadows import Shadows

ATTACKS: dict[str, Any] = {
    "loss": LossThreshold,
    "shadows": Shadows,
    "lira": LiRA,
    "lira_offline": OfflineLiRA,
    "rounds": OverRounds,
    "exact": Exact,
    "dlg": DLG,
}
