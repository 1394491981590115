# SPDX-License-Identifier: Apache-2.0
"""Mean 0 and variance 1 from sums, which parties can add up without showing a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.errors import ArchipelError

_CONSTANT = 1e-12  # variance over mean square, below which rounding is all there is to it


class Scaling(NamedTuple):
    """What features, or numbers to predict, are moved and divided by."""

    mean: Tensor  # float64, of the shape of a point; of no dimension for numbers to predict
    scale: Tensor  # the same

    def without(self, plain: Tensor) -> Scaling:
        """The same, but for features that stay as they are: a mask of the shape of a point."""
        return Scaling(self.mean.where(~plain, 0.0), self.scale.where(~plain, 1.0))

    def fill(self, x: Tensor) -> Tensor:
        """Put the mean in empty cells (NaN)."""
        return torch.where(x.isnan(), self.mean.to(x.dtype), x)

    def apply(self, x: Tensor) -> Tensor:
        """Give features mean 0 and variance 1; empty cells become 0, which is the mean."""
        return ((self.fill(x.double()) - self.mean) / self.scale).to(x.dtype)

    def undo(self, x: Tensor) -> Tensor:
        """Turn scaled numbers back, in double precision."""
        return x.double() * self.scale + self.mean


class Sums(NamedTuple):
    """What a party tells of its training points so that all can scale alike; these add up.

    >>> one, two = (Sums.of(torch.tensor([[value], [5.0]])) for value in (1.0, 3.0))
    >>> (one + two).scaling().mean.tolist()
    [3.5]
    """

    counts: Tensor  # float64, of the shape of a point: cells that are not empty
    totals: Tensor  # their sum
    squares: Tensor  # the sum of their squares

    @classmethod
    def of(cls, x: Tensor) -> Sums:
        """Add up points [n, *shape]; empty cells (NaN) do not count."""
        x = x.double()
        return cls((~x.isnan()).sum(0).double(), x.nansum(0), x.square().nansum(0))

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    def scaling(self, columns: Sequence[str] | None = None) -> Scaling:
        """Return mean and standard deviation, 1 for features that are constant.

        `columns` are the names of the features, for a message about one that is empty everywhere.
        """
        for column in (self.counts < 1).flatten().nonzero().flatten().tolist():
            name = column if columns is None else f"'{columns[column]}'"
            raise ArchipelError(f"column {name} is empty on all training rows; leave it out.")
        mean, square = self.totals / self.counts, self.squares / self.counts
        if not bool((mean.isfinite() & square.isfinite()).all()):
            raise ArchipelError("the sums of a feature are no numbers; find values that are huge.")
        variance = square - mean.square()
        varies = variance > _CONSTANT * square
        return Scaling(mean, torch.where(varies, variance, 1.0).sqrt())
