# SPDX-License-Identifier: Apache-2.0
"""What a server is given: sums of uploads, single uploads, or what a rule makes of either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.errors import ArchipelError
from archipel.tree import Tree, tree_map

Ask = Literal["mean", "mean by examples", "stack", "n"]


@dataclass(frozen=True)
class Received:
    """Uploads as the server asked for them before the first round: sums, rows, counts."""

    present: Tensor  # [|S|] numbers of the parties whose upload arrived
    parties: int
    sums: Mapping[Ask, Any]  # over these parties, plain and weighted by examples
    weight: float = 0.0  # examples of all of them
    rows: Tree = None  # tree of [|S|, ...], in the order of `present`
    counts: Tensor | None = None  # [|S|] examples of each
    cohort: int = 0  # parties that the round began with
    session: bytes = b""  # names the study and the attempt at the round, as parties know it
    round: int = 0

    @property
    def sampled(self) -> int:
        return len(self.present)

    @property
    def n(self) -> Tensor:
        if self.counts is None:
            raise _unasked("n")
        return self.counts

    def mean(self, by_examples: bool = False) -> Tree:
        ask: Ask = "mean by examples" if by_examples else "mean"
        if ask not in self.sums:
            raise _unasked(f"mean(by_examples={by_examples})")
        over = self.weight if by_examples else self.sampled
        return tree_map(lambda leaf: leaf / over, self.sums[ask])

    def total(self) -> Tree:
        """The sum over parties as it is: of integers to the last bit."""
        if "mean" not in self.sums:
            raise _unasked("total()")
        return self.sums["mean"]

    def stack(self) -> Tree:
        if self.rows is None:
            raise _unasked("stack()")
        return self.rows


class Chosen:
    """Some rows of uploads, or rows made of them: what a rule hands on to the server.

    `at` says which of the uploads they stand for, in order; all of them unless given.
    """

    def __init__(self, uploads: Uploads, rows: Tree, at: Tensor | None = None) -> None:
        self._uploads, self._rows = uploads, rows
        self._at = torch.arange(uploads.sampled) if at is None else at
        self.parties, self.present = uploads.parties, uploads.present[self._at]

    @property
    def sampled(self) -> int:
        return len(self.present)

    @property
    def n(self) -> Tensor:
        return self._uploads.n[self._at]

    def mean(self, by_examples: bool = False) -> Tree:
        share: Tensor | None = self.n / self.n.sum() if by_examples else None

        def over(leaf: Tensor) -> Tensor:
            if share is None:
                return leaf.mean(dim=0)
            found: Tensor = torch.tensordot(share.to(leaf.dtype), leaf, dims=1)
            return found

        return tree_map(over, self._rows)

    def stack(self) -> Tree:
        return self._rows


def _unasked(call: str) -> ArchipelError:
    return ArchipelError(
        f"the server calls uploads.{call} now but not in the first round: ask for the same in "
        "every round, since what the server sees is settled before the run."
    )
