# SPDX-License-Identifier: Apache-2.0
"""Who has heard what a party last told: others get the vector itself in place of a change of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from archipel.rng import Ints


class Heard:
    """For each party the round that it last told something in, and for each edge the last."""

    def __init__(self, parties: int) -> None:
        self._told = np.full(parties, -1)
        self._edges, self._met = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def missed(self, t: int, present: Ints, edges: Ints) -> Ints:
        """Of these edges `[e, 2]` in round t: whether the other end missed what each told last.

        Those that are present tell something in this round, and who has an edge to them hears it.
        """
        names = edges[:, 0] << 32 | edges[:, 1]
        before = np.full(len(names), -1)
        if len(self._edges):
            at = np.minimum(np.searchsorted(self._edges, names), len(self._edges) - 1)
            known = self._edges[at] == names
            before[known] = self._met[at[known]]
        missed: Ints = before[:, None] != self._told[edges]
        self._told[present] = t
        every, first = np.unique(np.append(names, self._edges), return_index=True)
        self._met = np.append(np.full(len(names), t), self._met)[first]
        self._edges = every
        return missed

    def state(self) -> dict[str, Tensor]:
        found = {"told": self._told, "edges": self._edges, "met": self._met}
        return {f"heard.{name}": torch.from_numpy(x.copy()) for name, x in found.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        told, self._edges, self._met = (
            state[f"heard.{name}"].numpy().copy() for name in ("told", "edges", "met")
        )
        self._told[: len(told)] = told  # others may have come since
