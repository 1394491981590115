# SPDX-License-Identifier: Apache-2.0
"""Memory that forked workers share.

Anonymous mappings have no name, so nothing is left behind however a process ends; pages are
taken when they are touched, so a row per party of a large population costs only the rows in use.
What would not fit in memory lies in an unlinked sparse file.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from math import prod

import torch
from torch import Tensor


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros that processes forked from now on share."""
    size = prod(shape) * torch.empty(0, dtype=dtype).element_size()
    if size == 0:
        return torch.zeros(shape, dtype=dtype)
    if size <= _memory() // 4:
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        memory = mmap.mmap(-1, size, flags=flags)
    else:
        with tempfile.TemporaryFile(prefix="archipel-") as file:
            file.truncate(size)
            memory = mmap.mmap(file.fileno(), size)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
