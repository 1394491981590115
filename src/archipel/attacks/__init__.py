# SPDX-License-Identifier: Apache-2.0
"""Attacks on privacy, one file each: what an audit tries on a study."""

from __future__ import annotations

from typing import Any

from archipel.attacks.dlg import DLG
from archipel.attacks.exact import Exact
from archipel.attacks.loss import LossThreshold

ATTACKS: dict[str, Any] = {
    "loss": LossThreshold,
    "exact": Exact,
    "dlg": DLG,
}
