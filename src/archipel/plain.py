# SPDX-License-Identifier: Apache-2.0
"""Values as strict JSON holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """A value as strict JSON holds it: None for what is not finite.

    >>> plain({"accuracy": float("nan"), 2: (1, 0.5)})
    {'accuracy': None, '2': [1, 0.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int | str):
        return value
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
