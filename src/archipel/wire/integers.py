# SPDX-License-Identifier: Apache-2.0
"""Vectors to integers modulo 2^b and back: clip, rotation, scale, conditional rounding.

An `Encoding` (`privacy/encoding.py`) says with what; vectors are `[..., d]`, of a stack of parties.
Rotation and rounding draw from the study's seed: who knows them knows no more of a vector, since
the norm of what is kept is bounded whatever is drawn. Noise alone protects; it is added in between.

Kairouz, Liu, Steinke, ICML 2021, https://arxiv.org/abs/2102.06387, Algorithms 1 and 2.
Departures: those of `privacy/encoding.py`. What is too long after eight attempts, with a chance of
1e-96, is rounded towards 0.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.privacy.encoding import Encoding
from archipel.wire.rotate import Rotate

_ROTATION = Rotate(common=True)
_PLACE = "integers"
_ATTEMPTS = 8


def encode(encoding: Encoding, me: Sender, x: Tensor) -> Tensor:
    """Vectors `[..., d]` as integers of norm at most R, int64 `[..., d]`."""
    lead = x.shape[:-1]
    steps = _ROTATION.code(me, _PLACE, _clipped(x, encoding.clip).unsqueeze(-2)).squeeze(-2)
    steps = steps.mul_(encoding.scale)
    low = steps.floor()
    part = steps.sub_(low)
    out, rows = low.reshape(-1, encoding.size), part.reshape(-1, encoding.size)
    most = encoding.contribution**2 * (1 - 1e-9)  # more than a sum of squares is off by
    todo = torch.arange(len(out))
    found = torch.empty_like(out, dtype=torch.int64)
    for attempt in range(_ATTEMPTS):
        drawn = _uniform(me, attempt, lead, encoding.size).reshape(-1, encoding.size)
        up = drawn.lt(rows) if attempt == 0 else drawn[todo].lt(rows[todo])
        kept = (out if attempt == 0 else out[todo]) + up
        fits = kept.square().sum(dim=-1) <= most
        found[todo[fits]] = kept[fits].long()
        todo = todo[~fits]
        if not len(todo):
            return found.view(*lead, encoding.size)
    found[todo] = (out[todo] + ((out[todo] < 0) & (rows[todo] > 0))).long()
    return found.view(*lead, encoding.size)


def _clipped(x: Tensor, clip: float) -> Tensor:
    """Double precision, of norm at most `clip`; what is not finite becomes 0."""
    wide = x.detach().double()
    norm = wide.norm(dim=-1, keepdim=True)
    factor = (clip * (1 - 1e-12) / norm.clamp_min(1e-300)).clamp_max_(1.0)
    finite = norm.isfinite()
    if bool(finite.all()):
        return wide.mul(factor)
    cut: Tensor = torch.where(finite, wide * factor, 0.0).nan_to_num(0.0, 0.0, 0.0)
    return cut


def _uniform(me: Sender, attempt: int, lead: tuple[int, ...], size: int) -> Tensor:
    """Multiples of 2^-32 in [0, 1), `[..., d]`, of each party."""
    drawn = me.bytes(4 * size, f"rounding {attempt}").contiguous().view(torch.int32)
    uniform: Tensor = drawn.expand(*lead, size).double().mul_(2.0**-32).add_(0.5)
    return uniform


def wrapped(encoding: Encoding, integers: Tensor) -> Tensor:
    """Integers as their residues modulo 2^b next to 0."""
    half = 1 << (encoding.bits - 1)
    return ((integers + half) & (2 * half - 1)) - half


def decode(encoding: Encoding, them: Sender, total: Tensor) -> Tensor:
    """The sum of vectors that a sum of their integers stands for, `[..., d]`, double."""
    steps = wrapped(encoding, total.long()).double().div_(encoding.scale).unsqueeze(-2)
    one = torch.empty(encoding.size, dtype=torch.float64)
    return _ROTATION.decode(replace(them, lead=total.shape[:-1]), _PLACE, steps, one)
