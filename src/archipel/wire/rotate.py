# SPDX-License-Identifier: Apache-2.0
"""A step: structured random rotation.  Konecny et al. 2016, https://arxiv.org/abs/1610.05492.

y = H D x / sqrt(d) with H the Walsh-Hadamard matrix and D random signs, drawn at both ends: the
numbers of y are all about as large, so that few bits or few of them say more about x.

Departures: the paper pads x to a power of two, and sends up to twice the numbers. Here, where d is
none, the rotation is of the first 2^k numbers and then, with other signs, of the last 2^k, with 2^k
the largest power of two in d: orthogonal, too, every number is mixed with at least half of the
others, and no number more travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire import bits
from archipel.wire.matrices import Matrices
from archipel.wire.step import shaped


@dataclass(frozen=True)
class Rotate(Matrices):
    """Turn each matrix by a random rotation, so that its numbers are all about as large."""

    common: bool = False  # one rotation for all parties of a round: linear, errors add up

    unbiased = True
    redraws = True

    @property
    def linear(self) -> bool:
        return self.common

    def code(self, me: Sender, place: str, x: Tensor) -> Tensor:
        y = x.flatten(-2).clone()
        for first, signs in self._windows(me, place, y):
            window = y[..., first : first + signs.shape[-1]]
            window.copy_(_turned(window * signs))
        return y.unsqueeze(-2)

    def decode(self, them: Sender, place: str, coded: Tensor, one: Tensor) -> Tensor:
        y = coded.squeeze(-2).clone()
        for first, signs in reversed(self._windows(them, place, y)):
            window = y[..., first : first + signs.shape[-1]]
            window.copy_(_turned(window.clone()).mul_(signs))
        return shaped(y, one)

    def bound(self, before: float | None) -> float | None:
        return before

    def _windows(self, me: Sender, place: str, y: Tensor) -> list[tuple[int, Tensor]]:
        """Where each window begins, and its signs."""
        d = y.shape[-1]
        window = 1 << (d.bit_length() - 1)
        size = bits.packed_size(window, 1)
        starts = [0] if window == d else [0, d - window]
        drawn = me.bytes(size * len(starts), f"rotate {place}", self.common).split(size, dim=-1)
        return [
            (first, bits.looked_up(some, 1, window, y.new_tensor([1.0, -1.0])))
            for first, some in zip(starts, drawn, strict=True)
        ]


def hadamard(x: Tensor) -> Tensor:
    """H x / sqrt(d) for `[..., d]`, d a power of two: its own inverse, in d log d time."""
    return _turned(x.clone())


def _turned(x: Tensor) -> Tensor:
    """The same; x may be written over.

    H is the Kronecker product of small ones, so the numbers are turned digit by digit of their
    positions, four bits at a time: small matrix products are quicker than butterflies.
    """
    d = x.shape[-1]
    y, inner = x.reshape(-1, d).contiguous(), d
    other = torch.empty_like(y)
    while inner > 1:
        bits_left = inner.bit_length() - 1
        h = _matrix(1 << (bits_left % 4 or 4), x.dtype)  # the odd digit first
        inner //= len(h)
        rows = y.view(-1, len(h), inner)
        if inner > 1:
            torch.matmul(h, rows, out=other.view(rows.shape))
        else:
            torch.mm(rows[..., 0], h, out=other.view(-1, len(h)))
        y, other = other, y
    return y.reshape(x.shape)


@cache
def _matrix(width: int, dtype: torch.dtype) -> Tensor:
    """The Walsh-Hadamard matrix over the root of its width."""
    h = torch.ones(1, 1, dtype=dtype)
    while len(h) < width:
        h = torch.cat([torch.cat([h, h], dim=1), torch.cat([h, -h], dim=1)])
    return h.mul(width**-0.5)
