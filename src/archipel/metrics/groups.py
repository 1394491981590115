# SPDX-License-Identifier: Apache-2.0
"""Sums over each party's points, for all parties at once.

Party i's points are rows `offsets[i]` to `offsets[i + 1]`. Sums run in double precision.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 4_000_000  # entries of a padded block: some tens of megabytes


def party_of(offsets: Tensor) -> Tensor:
    """Return the party of each point, `[K + 1] -> [N]`."""
    parties = torch.arange(offsets.numel() - 1, device=offsets.device)
    return parties.repeat_interleave(offsets.diff())


def total(values: Tensor, offsets: Tensor) -> Tensor:
    """Return each party's sum, `[N] -> [K]`."""
    total = torch.zeros(offsets.numel() - 1, dtype=torch.float64, device=values.device)
    return total.index_add_(0, party_of(offsets), values.double())


def mean(values: Tensor, offsets: Tensor) -> Tensor:
    return total(values, offsets) / offsets.diff()


def runs(*columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row, and the row after the last, of the run of equal rows each is in."""
    fresh = torch.ones_like(columns[0], dtype=torch.bool)
    fresh[1:] = torch.stack([column[1:] != column[:-1] for column in columns]).any(dim=0)
    run = fresh.cumsum(0) - 1
    size = run.bincount()
    end = size.cumsum(0)
    return (end - size)[run], end[run]


def unless_nan(scores: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
    """Return the values, NaN for a party whose model has diverged: order says nothing there."""
    return torch.where(total(scores.isnan(), offsets) > 0, torch.nan, values)


def blocks(offsets: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (parties `[m]`, rows `[m, b]`, valid `[m, b]`), every party with points once.

    Parties of like size are padded together, as many as a block holds. A padding row repeats the
    party's first.
    """
    sizes, order = offsets.diff().sort(descending=True)
    order = order[: int((sizes > 0).sum())]
    first = 0
    while first < order.numel():
        b = int(sizes[first])
        parties = order[first : first + max(1, _BLOCK // b)]
        first += parties.numel()
        column = torch.arange(b, device=offsets.device)
        valid = column < offsets.diff()[parties, None]
        yield parties, offsets[parties, None] + column * valid, valid
