# SPDX-License-Identifier: Apache-2.0
"""Compare algorithms, or settings of one, over seeds on the same splits, with shared baselines.

>>> found = compare(["fedavg", "scaffold"], "heart_disease", seeds=2, rounds=2, out=None, workers=1)
>>> [row.label for row in found.rows]
['fedavg', 'scaffold']
"""

from archipel.comparison.bytes import Search, fewer_bytes
from archipel.comparison.design import read_grid
from archipel.comparison.results import Comparison, Result, Row, Stat
from archipel.comparison.work import Stopped, compare, find_comparison, resume_comparison

__all__ = [
    "Comparison",
    "Result",
    "Row",
    "Search",
    "Stat",
    "Stopped",
    "compare",
    "fewer_bytes",
    "find_comparison",
    "read_grid",
    "resume_comparison",
]
