# SPDX-License-Identifier: Apache-2.0
"""Bytes of which only some travel: for steps whose codes are as long as they have to be.

In a state or a stack such bytes have room for the longest; on a line, and in every count, they are
as long as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.tree import Tree, leaves


class Varying(NamedTuple):
    """The first `length` bytes travel."""

    data: Tensor  # uint8 [..., room]
    length: Tensor  # int64 [..., 1]


def travelling(tree: Tree) -> list[Tensor]:
    """What travels of one sender's message, tensor by tensor."""
    return [
        part.data[: int(part.length)] if isinstance(part, Varying) else part
        for part in parts_of(tree)
    ]


def arrived(form: Tree, arrays: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a message of this form, of what travelled; nothing else is checked here."""
    found = list[Tensor]()
    parts = parts_of(form)
    for part, x in zip(parts, arrays, strict=False):
        if isinstance(part, Varying) and x.dtype == torch.uint8 and x.dim() == 1:
            rest = max(0, part.data.shape[-1] - len(x))
            found += [torch.nn.functional.pad(x, (0, rest)), torch.tensor([len(x)])]
        else:
            found.append(x)
    return [*found, *arrays[len(parts) :]]


def size_of(tree: Tree) -> int:
    """Bytes that travel of a message, or of all messages of a stack."""
    return sum(
        int(part.length.sum()) if isinstance(part, Varying) else part.numel() * part.element_size()
        for part in parts_of(tree)
    )


def sizes_of(tree: Tree, lead: tuple[int, ...]) -> Tensor:
    """Bytes of each message of a stack `[m]`; of a sweep's settings, the mean."""
    sizes = torch.zeros(lead or (1,), dtype=torch.int64)
    for part in parts_of(tree):
        if isinstance(part, Varying):
            sizes += part.length.view(sizes.shape)
        else:
            sizes += part.numel() * part.element_size() // sizes.numel()
    return sizes.reshape(-1, sizes.shape[-1]).sum(dim=0) // (sizes.numel() // sizes.shape[-1])


def parts_of(tree: Tree) -> list[Tensor | Varying]:
    """Tensors, and bytes with their length, from left to right."""
    if isinstance(tree, Varying):
        return [tree]
    if isinstance(tree, tuple):
        return [part for branch in tree for part in parts_of(branch)]
    return [*leaves(tree)]
