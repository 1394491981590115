# SPDX-License-Identifier: Apache-2.0
"""How a mean is made: what a rule is, and sums that nobody can look into.

Files of one's own and installed packages add others; rules are in `archipel.rules`.
"""

from __future__ import annotations

from archipel.aggregation.gopa import GaussianGopa, Gopa
from archipel.aggregation.secure import SecureSum
from archipel.aggregation.shuffled import ShuffledSum

SUMS: dict[str, type] = {  # besides "plain", which adds up what arrives
    "gopa": Gopa,
    "gopa-gaussian": GaussianGopa,
    "secure": SecureSum,
    "shuffled": ShuffledSum,
}
