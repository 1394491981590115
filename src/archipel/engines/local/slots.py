# SPDX-License-Identifier: Apache-2.0
"""What parties keep, in files of a run's folder: rows, and an index of whose row is where.

Rows that a checkpoint names are never written again before the next one is committed: who changes
gets another row, and the old one is free once nothing names it. So a process may be killed at any
moment, and what it wrote since the last commit is not read. The index is appended to; how much of
it counts is in the checkpoint. Both cost what the parties cost that took part since.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from archipel.errors import ArchipelError, RunFailed
from archipel.rng import Ints

Form = tuple[tuple[int, ...], torch.dtype]  # of one party's row

_ROWS, _BYTES = 1 << 10, 16 << 20  # that a file grows by, at most
_LOOSE = 4096  # entries of the index beyond four for each party, before it is written anew


class Slots:
    """Files with rows of these forms, `rows-0`, `rows-1`, ..., and an index."""

    def __init__(self, folder: Path, forms: Sequence[Form], parties: int, writes: bool) -> None:
        """Without `writes` what is there is mapped for this process alone."""
        self.folder, self._writes = folder, writes
        self._most = 3 * parties if writes else 0  # of each a row that counts, a new one, a spare
        self._files: list[tuple[int, mmap.mmap | None, int]] = []
        self.stores: list[Tensor] = []
        self._rows, self._generation, self._entries = 0, 0, 0
        self._found: list[int] = []  # rows that each file had when it was opened
        try:
            if writes:
                folder.mkdir(parents=True, exist_ok=True)
            for number, (shape, dtype) in enumerate(forms):
                self._open(folder / f"rows-{number}", shape, dtype)
            if writes:
                self.grow(1)
        except OSError as error:
            raise RunFailed(
                f"'{folder}': what {parties:,} parties keep cannot be there "
                f"({error.strerror or error}); make room, or name another folder."
            ) from error

    def _open(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        row = prod(shape) * torch.empty(0, dtype=dtype).element_size()
        handle = os.open(path, os.O_RDWR | os.O_CREAT if self._writes else os.O_RDONLY, 0o666)
        size = os.fstat(handle).st_size
        self._found += [size // row] if row else []
        memory = None
        if self._writes and row:
            os.ftruncate(handle, self._most * row)  # to be mapped; it takes what is written
            memory = mmap.mmap(handle, self._most * row)
            os.ftruncate(handle, size)
        elif size and row:
            memory = mmap.mmap(handle, size, access=mmap.ACCESS_COPY)
        rows = self._most if self._writes else size // row if row else 0
        if memory is None:
            self.stores.append(torch.zeros((rows, *shape), dtype=dtype))
        else:
            flat = torch.frombuffer(memory, dtype=dtype)[: rows * prod(shape)]
            self.stores.append(flat.view(rows, *shape))
        self._files.append((handle, memory, row))

    def close(self) -> None:
        """Let go of the files; their mappings end with the tensors over them."""
        for handle, _, _ in self._files:
            os.close(handle)
        self._files = []

    def grow(self, rows: int) -> None:
        """Have room for so many rows: a page that the disk has not would end who writes it."""
        if rows <= self._rows:
            return
        largest = max((row for _, _, row in self._files), default=1)
        step = max(1, min(_ROWS, _BYTES // max(1, largest)))
        self._rows = -(-rows // step) * step
        try:
            for handle, _, row in self._files:
                size = os.fstat(handle).st_size
                if size < self._rows * row:
                    _extend(handle, size, self._rows * row)
        except OSError as error:
            raise _full(self.folder, error) from error

    def release(self) -> None:
        """Take pages out of this process that the system has anyway, in memory or on the disk."""
        for _, memory, _ in self._files:
            if memory is not None and self._writes and hasattr(mmap, "MADV_DONTNEED"):
                memory.madvise(mmap.MADV_DONTNEED)

    # -- what a checkpoint says ------------------------------------------------------------------

    def save(
        self, ids: Ints, rows: Ints, parties: int, everybody: Callable[[], tuple[Ints, Ints]]
    ) -> Tensor:
        """Have all rows on the disk, and these new ones in the index; what a checkpoint says of it.

        Where the index has grown far beyond the parties that have a row, one of `everybody` takes
        its place.
        """
        try:
            for handle, memory, _ in self._files:
                if memory is not None:
                    os.fsync(handle)
            if self._entries + len(ids) > 4 * parties + _LOOSE:
                self._generation, self._entries = self._generation + 1, 0
                ids, rows = everybody()
            pairs = np.stack([ids, rows], axis=1).astype("<i8")
            handle = os.open(self._index(self._generation), os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.ftruncate(handle, 16 * self._entries)
                os.pwrite(handle, pairs.tobytes(), 16 * self._entries)
                os.fsync(handle)
            finally:
                os.close(handle)
            self._sync()
        except OSError as error:
            raise _full(self.folder, error) from error
        self._entries += len(ids)
        return torch.tensor([self._generation, self._entries])

    def forget(self) -> None:
        """Delete indices that no checkpoint names any more."""
        for path in self.folder.iterdir():
            if re.fullmatch(r"index-\d+", path.name) and path != self._index(self._generation):
                path.unlink()

    def read(self, mark: Tensor, parties: int) -> tuple[Ints, Ints]:
        """Whose row is where, by what a checkpoint says."""
        self._generation, self._entries = (int(each) for each in mark)
        path = self._index(self._generation)
        try:
            with path.open("rb") as file:
                content = file.read(16 * self._entries)
        except OSError:
            content = b""
        pairs = np.frombuffer(content[: len(content) // 16 * 16], "<i8").reshape(-1, 2)
        ids, rows = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
        there = min(self._found, default=0)
        inside = (ids >= 0) & (ids < parties) & (rows >= 0) & (rows < there)
        if len(pairs) != self._entries or not inside.all():
            raise ArchipelError(
                f"'{path}' or the rows beside it are not what the checkpoint names: put '"
                f"{self.folder}' back from a copy, or start the run anew."
            )
        last = np.full(parties, -1, np.int64)
        last[ids] = rows  # the last entry of a party counts
        found = np.unique(ids)
        return found, last[found]

    def _index(self, generation: int) -> Path:
        return self.folder / f"index-{generation}"

    def _sync(self) -> None:
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _extend(handle: int, size: int, to: int) -> None:
    """Have a file larger, its blocks on the disk where the system can say so."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, size, to - size)
    else:
        os.ftruncate(handle, to)


def _full(folder: Path, error: OSError) -> RunFailed:
    return RunFailed(
        f"'{folder}' cannot be written ({error.strerror}): make room, or name another folder."
    )
