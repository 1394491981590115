# SPDX-License-Identifier: Apache-2.0
"""The wire: steps between a party's upload and the server, one file each."""

from __future__ import annotations

from archipel.wire.clip import Clip
from archipel.wire.float16 import Float16

STEPS: dict[str, type] = {
    "clip": Clip,
    "float16": Float16,
}

__all__ = ["STEPS", "Clip", "Float16"]
