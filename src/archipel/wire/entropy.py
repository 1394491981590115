# SPDX-License-Identifier: Apache-2.0
"""A step: what is left is coded by how often its bytes occur, with zstandard.

Nothing is lost; codes of several numbers to a byte (`quantise`, `sign`) are coded several at a
time, which comes close to what an arithmetic coder needs (experiments/bytes measures both).
The length differs from upload to upload, by what is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import ClassVar

import numpy as np
import torch
import zstandard
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.exchange.varying import Varying
from archipel.wire.step import Vectors

_RAW, _CODED = b"\0", b"\1"  # how the first byte says that the others are


@dataclass(frozen=True)
class Entropy:
    """Code what is left by how often each byte occurs, without loss; the last step."""

    level: int = 1  # of zstandard: higher is slower and hardly smaller

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 19:
            raise ArchipelError(f"level = {self.level}: give a whole number from 1 to 19.")

    def init(self, form: Vectors) -> None:
        return None

    def send(self, me: Sender, upload: Vectors, own: None) -> tuple[Varying, None]:
        lead, count = me.lead, prod(me.lead)
        planes = [_planes(x, len(lead)).reshape(count, -1) for x in upload]
        rows = torch.cat([torch.zeros(count, 0, dtype=torch.uint8), *planes], dim=1)
        coded = [self._coded(row.numpy().tobytes()) for row in rows]
        data = torch.zeros(count, 1 + rows.shape[1], dtype=torch.uint8)
        for row, some in zip(data, coded, strict=True):
            row[: len(some)] = torch.frombuffer(bytearray(some), dtype=torch.uint8)
        length = torch.tensor([len(some) for some in coded])
        return Varying(data.view(*lead, -1), length.view(*lead, 1)), own

    def receive(self, them: Sender, payload: Varying, form: Vectors) -> Vectors:
        sizes = [x.numel() * x.element_size() for x in form]
        lead = payload.length.shape[:-1]
        data, lengths = payload.data.reshape(-1, payload.data.shape[-1]), payload.length.flatten()
        rows = [
            _decoded(row[: int(length)].numpy().tobytes(), sum(sizes))
            for row, length in zip(data, lengths, strict=True)
        ]
        whole = torch.from_numpy(np.frombuffer(bytearray(b"".join(rows)), np.uint8))
        parts = whole.view(*lead, sum(sizes)).split(sizes, dim=-1)
        return tuple(_from_planes(part, one) for part, one in zip(parts, form, strict=True))

    def bound(self, before: float | None) -> float | None:
        return before

    def _coded(self, raw: bytes) -> bytes:
        coded = _compressor(self.level).compress(raw)
        return _CODED + coded if len(coded) < len(raw) else _RAW + raw


def _decoded(data: bytes, size: int) -> bytes:
    """The bytes that were coded, which are so many; memory is taken for no more."""
    how, rest = data[:1], data[1:]
    try:
        if how == _CODED and zstandard.frame_content_size(rest) == size:
            rest = zstandard.ZstdDecompressor().decompress(rest, allow_extra_data=False)
        elif how != _RAW:
            rest = b""
    except zstandard.ZstdError:
        rest = b""
    if len(rest) != size or not data:
        raise ArchipelError(f"not {size} bytes as entropy codes them: they are damaged.")
    return rest


@cache
def _compressor(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_checksum=False)


def _planes(x: Tensor, lead: int) -> Tensor:
    """A tensor's bytes `[..., bytes]`: all first bytes of its numbers, all second ones, …"""
    flat = x.flatten(lead) if x.dim() > lead else x.unsqueeze(-1)
    if x.element_size() == 1:
        return flat.view(torch.uint8)
    raw = flat.reshape(-1).contiguous().view(torch.uint8)
    return raw.reshape(*flat.shape, x.element_size()).mT.flatten(-2)


def _from_planes(raw: Tensor, one: Tensor) -> Tensor:
    """The other way."""
    if one.element_size() > 1:
        raw = raw.reshape(*raw.shape[:-1], one.element_size(), -1).mT.flatten(-2)
    whole = raw.clone(memory_format=torch.contiguous_format)  # where numbers may begin
    return whole.view(one.dtype).reshape(*raw.shape[:-1], *one.shape)
