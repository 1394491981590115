# SPDX-License-Identifier: Apache-2.0
"""Some of a matrix's numbers, drawn alike at both ends: no index travels."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.wire.step import shaped


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


def taken(x: Tensor, at: Tensor) -> Tensor:
    """The numbers of matrices `[..., d1, d2]` at these positions, as a matrix of one row."""
    flat = x.flatten(-2)
    return flat.gather(-1, at.expand(*flat.shape[:-1], -1)).unsqueeze(-2)


def placed(row: Tensor, at: Tensor, one: Tensor) -> Tensor:
    """The other way: matrices like `one` with these numbers, and zeros."""
    values = row.squeeze(-2)
    out = values.new_zeros(*values.shape[:-1], one.numel())
    return shaped(out.scatter_(-1, at.expand_as(values), values), one)
