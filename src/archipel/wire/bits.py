# SPDX-License-Identifier: Apache-2.0
"""Whole numbers in few bits: codes of b bits side by side, and rising positions."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from archipel.errors import ArchipelError


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes `uint8 [..., n]` below 2^bits, one after another: `uint8 [..., packed_size(n, bits)]`.

    >>> packed(torch.tensor([1, 0, 3, 2, 1], dtype=torch.uint8), 2).tolist()
    [177, 1]
    """
    if bits == 8:
        return codes
    if bits == 1:
        return torch.from_numpy(np.packbits(codes.numpy(), axis=-1, bitorder="little"))
    per = 8 // bits if 8 % bits == 0 else 8  # codes that fill whole bytes
    n = codes.shape[-1]
    codes = torch.nn.functional.pad(codes, (0, -n % per)).contiguous()
    words = codes.numpy().view(f"<u{per}")
    group = 1  # codes that are together: neighbours move next to each other, then pairs, then fours
    while group < per:
        even = sum(((1 << bits * group) - 1) << at for at in range(0, 8 * per, 16 * group))
        keep, apart, near = map(words.dtype.type, (even, 8 * group, bits * group))
        words = (words & keep) | ((words >> apart & keep) << near)
        group *= 2
    if 8 % bits == 0:
        return torch.from_numpy(words.astype(np.uint8))
    whole = words.view(np.uint8).reshape(*words.shape, 8)[..., :bits]
    return torch.from_numpy(whole.reshape(*codes.shape[:-1], -1))[..., : packed_size(n, bits)]


def unpacked(data: Tensor, bits: int, n: int) -> Tensor:
    """The other way: `uint8 [..., packed_size(n, bits)] -> uint8 [..., n]`."""
    if bits == 8:
        return data
    if 8 % bits == 0:
        together = _codes(bits).to(torch.uint8).numpy().view(f"<u{8 // bits}")[:, 0]
        return torch.from_numpy(np.take(together, data.numpy()).view(np.uint8))[..., :n]
    groups = -(-n // 8)
    data = torch.nn.functional.pad(data, (0, groups * bits - data.shape[-1]))
    words = torch.nn.functional.pad(data.reshape(*data.shape[:-1], groups, bits), (0, 8 - bits))
    shifts = torch.arange(8) * bits
    codes8 = (words.contiguous().view(torch.int64) >> shifts) & ((1 << bits) - 1)
    return codes8.to(torch.uint8).flatten(-2)[..., :n]


@cache
def _codes(bits: int) -> Tensor:
    """The codes in each of the 256 bytes, `[256, 8 / bits]`."""
    shifts = torch.arange(0, 8, bits)
    return (torch.arange(256)[:, None] >> shifts) & ((1 << bits) - 1)


def packed_size(n: int, bits: int) -> int:
    """Bytes of n codes."""
    return -(-n * bits // 8)


def sign_bits(x: Tensor) -> Tensor:
    """1 where a number's sign bit is set, `uint8 [..., n]`."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return torch.from_numpy((x.contiguous().view(whole).numpy() < 0).view(np.uint8))


def looked_up(data: Tensor, bits: int, n: int, values: Tensor) -> Tensor:
    """What codes of 1, 2 or 4 bits stand for, by `values [..., 2^bits]` or `[2^bits]`: `[..., n]`.

    >>> looked_up(torch.tensor([177, 1], dtype=torch.uint8), 2, 5, torch.tensor([0.0, 1, 2, 9]))
    tensor([1., 0., 9., 2., 1.])
    """
    wide = values.float() if values.element_size() < 4 else values  # numpy knows no bfloat16
    together = wide[..., _codes(bits)].numpy()  # in each of the 256 bytes
    if values.dim() == 1:
        found = torch.from_numpy(np.take(together, data.numpy(), axis=0))
    else:
        rows = zip(together.reshape(-1, *together.shape[-2:]), data.flatten(0, -2), strict=True)
        taken = [torch.from_numpy(np.take(table, row.numpy(), axis=0)) for table, row in rows]
        found = torch.stack(taken).view(*data.shape, -1)
    return found.flatten(-2)[..., :n].to(values.dtype)


def positions_coded(at: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Rising positions `[..., k]` below n, in 2 + log2(n / k) bits each [Elias 1974, Fano 1971].

    The low bits of each as they are; of the high bits h_1 <= h_2 <= ... the bit h_i + i is set.
    """
    k = at.shape[-1]
    low = _low_bits(n, k)
    spots = (at >> low) + torch.arange(k)
    marks = torch.zeros(*at.shape[:-1], 8 * _marks_size(n, k), dtype=torch.uint8)
    marks.scatter_(-1, spots, 1)
    if low == 0:
        lows = torch.zeros(*at.shape[:-1], 0, dtype=torch.uint8)
    else:
        rest = at & ((1 << low) - 1)
        planes = [(rest >> shift) & 255 for shift in range(0, low, 8)]
        widths = [min(8, low - shift) for shift in range(0, low, 8)]
        lows = torch.cat(
            [packed(x.to(torch.uint8), b) for x, b in zip(planes, widths, strict=True)], dim=-1
        )
    return lows, packed(marks, 1)


def positions(lows: Tensor, marks: Tensor, n: int, k: int) -> Tensor:
    """The other way: `[..., k]`; what stands for no positions is refused."""
    low = _low_bits(n, k)
    lead = marks.shape[:-1]
    bits = np.unpackbits(marks.numpy(), axis=-1, bitorder="little")
    if (bits.sum(axis=-1, dtype=np.int64) != k).any():
        raise ArchipelError(f"not the positions of {k} numbers among {n}: the bytes are damaged.")
    spots = torch.from_numpy(bits.reshape(-1, bits.shape[-1]).nonzero()[1]).view(*lead, k)
    at = (spots - torch.arange(k)) << low
    start = 0
    for shift in range(0, low, 8):
        width = min(8, low - shift)
        size = packed_size(k, width)
        at |= unpacked(lows[..., start : start + size], width, k).long() << shift
        start += size
    if k and (bool((at >= n).any()) or bool((at[..., 1:] <= at[..., :-1]).any())):
        raise ArchipelError(f"not {k} rising positions among {n}: the bytes are damaged.")
    return at


def _low_bits(n: int, k: int) -> int:
    return max(0, (n // max(k, 1)).bit_length() - 1)


def _marks_size(n: int, k: int) -> int:
    return packed_size(k + ((n - 1) >> _low_bits(n, k)) + 1, 1)
