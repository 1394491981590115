# SPDX-License-Identifier: Apache-2.0
"""Attacks on privacy, one file each: what an audit tries on a study."""

from __future__ import annotations

from typing import Any

from archipel.attacks.active import Active
from archipel.attacks.cosine import Cosine
from archipel.attacks.differencing import Differencing
from archipel.attacks.dlg import DLG
from archipel.attacks.exact import Exact
from archipel.attacks.imprint import Imprint
from archipel.attacks.labels import Labels
from archipel.attacks.lira import LiRA, OfflineLiRA
from archipel.attacks.loss import LossThreshold
from archipel.attacks.properties import Properties
from archipel.attacks.rounds import OverRounds
from archipel.attacks.shadows import Shadows
from archipel.attacks.tokens import Tokens

ATTACKS: dict[str, Any] = {
    "loss": LossThreshold,
    "shadows": Shadows,
    "lira": LiRA,
    "lira_offline": OfflineLiRA,
    "rounds": OverRounds,
    "active": Active,
    "exact": Exact,
    "dlg": DLG,
    "cosine": Cosine,
    "labels": Labels,
    "tokens": Tokens,
    "properties": Properties,
    "differencing": Differencing,
    "imprint": Imprint,
}
