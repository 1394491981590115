# SPDX-License-Identifier: Apache-2.0
"""Some of a matrix's numbers, drawn alike at both ends: no index travels."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.wire.step import shaped

_LOOK = 1024  # numbers of a row that tell how large the largest are, about


def how_many(share: float, n: int) -> int:
    """How many of n numbers a share is, one at least."""
    return min(n, max(1, round(share * n)))


def check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ArchipelError(f"share = {share}: give a share of the numbers in (0, 1].")


@lru_cache(maxsize=64)
def stretches(k: int, n: int) -> tuple[Tensor, Tensor]:
    """Where k stretches of n numbers begin and how long they are, `[k]`: all alike, or one more."""
    ends = torch.arange(k + 1) * n // k
    return ends[:-1], ends.diff()


def drawn(me: Sender, place: str, k: int, n: int, common: bool = False) -> Tensor:
    """One number out of each of k stretches of n: rising positions `[..., k]`."""
    starts, lengths = stretches(k, n)
    random = me.bytes(4 * k, f"some {place}", common).contiguous().view(torch.int32)
    chance = random.long() & 0xFFFFFFFF  # of 2^32
    return starts + (chance * lengths >> 32)


def largest(sizes: Tensor, k: int) -> Tensor:
    """The positions of the k largest numbers `[..., n]`, rising; of equal ones the first.

    Where k is a small part of n, they are looked for among the numbers that are as large as
    somewhat more than the k / n largest of every few.
    """
    rows = sizes.reshape(-1, sizes.shape[-1])
    values, places = _candidates(rows, k) or (
        rows.nan_to_num(nan=torch.inf, posinf=torch.inf),
        torch.arange(rows.shape[-1]).expand_as(rows),
    )
    least = values.topk(k, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    above, equal = values > least, values == least
    left = k - above.sum(dim=-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=-1) <= left))
    return places[chosen].view(*sizes.shape[:-1], k)


def _candidates(rows: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """Few numbers of each row, the k largest among them, and where they stand; None if many."""
    m, n = rows.shape
    every = n // _LOOK
    if every < 2 or 16 * k > n:
        return None
    some = rows[:, ::every]
    expected = k * some.shape[1] / n
    rank = min(some.shape[1], math.ceil(expected + 4 * math.sqrt(expected) + 4))
    least = some.topk(rank, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    found = torch.from_numpy(np.flatnonzero((rows >= least).numpy()))
    row = found // n
    counts = torch.bincount(row, minlength=m)
    if int(counts.min()) < k or 4 * int(counts.max()) > n:
        return None
    column = torch.arange(len(found)) - (counts.cumsum(0) - counts)[row]
    values = rows.new_full((m, int(counts.max())), -1.0)
    places = torch.zeros(values.shape, dtype=torch.int64)
    values[row, column] = rows.reshape(-1)[found]
    places[row, column] = found - row * n
    return values, places


def taken(x: Tensor, at: Tensor) -> Tensor:
    """The numbers of matrices `[..., d1, d2]` at these positions, as a matrix of one row."""
    flat = x.flatten(-2)
    return flat.gather(-1, at.expand(*flat.shape[:-1], -1)).unsqueeze(-2)


def without(x: Tensor, at: Tensor) -> Tensor:
    """Set the numbers at these positions to 0, in place."""
    flat = x.flatten(-2)
    return flat.scatter_(-1, at.expand(*flat.shape[:-1], -1), 0.0).view(x.shape)


def placed(row: Tensor, at: Tensor, one: Tensor) -> Tensor:
    """The other way: matrices like `one` with these numbers, and zeros."""
    values = row.squeeze(-2)
    out = values.new_zeros(*values.shape[:-1], one.numel())
    return shaped(out.scatter_(-1, at.expand_as(values), values), one)
