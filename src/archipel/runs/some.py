# SPDX-License-Identifier: Apache-2.0
"""Values of the parties that were scored, where these are a sample of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from archipel.rng import Ints

WHO = "who"  # beside the values of a sample in a journal: its parties


class OfSome(Mapping[str, Any]):
    """What `Run.parties` is then: a row for each party `[K]`, NaN but for the sample's.

    Rows are made when somebody reads them, so that an evaluation costs what its sample costs.
    """

    def __init__(self, who: Ints, parties: int, values: Mapping[str, Any]) -> None:
        self.who, self.parties, self.rows = who, parties, dict(values)

    def __getitem__(self, name: str) -> Any:
        row = self.rows[name]
        full = np.full(self.parties, np.nan)
        full[self.who] = np.asarray(row, np.float64)
        if isinstance(row, np.ndarray):
            return full
        import torch  # whoever reads a run that is over does not wait for it

        return torch.from_numpy(full)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def each(self, change: Callable[[Any], Any]) -> OfSome:
        """The same with every row changed."""
        rows = {name: change(row) for name, row in self.rows.items()}
        return OfSome(self.who, self.parties, rows)
