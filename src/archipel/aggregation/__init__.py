# SPDX-License-Identifier: Apache-2.0
"""How a mean is made: robust rules over single uploads, and sums that nobody can look into.

No rule is bundled yet: files of one's own and installed packages add them.
"""

from __future__ import annotations

from archipel.aggregation.gopa import Gopa

RULES: dict[str, type] = {}
SUMS: dict[str, type] = {"gopa": Gopa}  # besides "plain", which adds up what arrives
