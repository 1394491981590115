# SPDX-License-Identifier: Apache-2.0
"""The sums that a site gives out for the scale: once for each column of a table.

Two sums over nearly the same rows, subtracted, are the rows between them. So what was given of a
column is kept, and given again as it was: to every study on the same table, and on a newer one
until enough rows of it have changed. Any common scale serves the learning equally well. Of the
values themselves only keyed hashes are kept, to tell how many have changed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from hashlib import blake2b, sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from archipel.data.scaling import Sums
from archipel.data.schema import Records
from archipel.federation.authority import write_secret
from archipel.federation.policy import Policy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Marks(NamedTuple):
    """A column's values without showing them: a keyed hash of each, and how often it is there."""

    hashes: Ints  # sorted
    counts: Ints

    def changed(self, other: Marks) -> int:
        """How many values are in one of the two and not in the other: the larger number."""
        every = np.union1d(self.hashes, other.hashes)
        mine, theirs = np.zeros((2, len(every)), np.int64)
        mine[np.searchsorted(every, self.hashes)] = self.counts
        theirs[np.searchsorted(every, other.hashes)] = other.counts
        gone = np.maximum(mine - theirs, 0).sum()
        return int(max(gone, np.maximum(theirs - mine, 0).sum()))


class Given(NamedTuple):
    """What was given out of a column."""

    table: str  # hash of the file's bytes
    marks: Marks
    numbers: Tensor  # float64 [3]: count, total, total of squares; zeros where it was held back


class Releases:
    """A folder with what a site gave out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sums(self, records: Records, policy: Policy) -> Sums:
        """Sums of the training rows' columns, as they may leave; they are kept first."""
        x, schema = records.x[~records.is_test].double(), records.schema
        none = torch.zeros(3, dtype=torch.float64)
        found = [
            none if plain else self._column(name, x[:, j].numpy(), records.table, policy)
            for j, (name, plain) in enumerate(zip(schema.columns, schema.plain, strict=True))
        ]
        return Sums(*torch.stack(found, dim=1))

    def _column(self, name: str, values: Floats, table: str, policy: Policy) -> Tensor:
        values = values[~np.isnan(values)]
        marks = self._marks(values)
        for given in self._given(name):
            if given.table == table or given.marks.changed(marks) < max(1, policy.least_rows):
                return given.numbers
        made = Given(table, marks, _numbers(values, policy.least_cell))
        self._keep(name, made)
        return made.numbers

    def _marks(self, values: Floats) -> Marks:
        key = self._key()
        different, counts = np.unique(values, return_counts=True)
        hashes = np.array(
            [
                int.from_bytes(blake2b(each, key=key, digest_size=8).digest(), "big", signed=True)
                for each in different.view("V8").tolist()
            ],
            np.int64,
        )
        order = np.argsort(hashes)
        return Marks(hashes[order], counts[order])

    def _key(self) -> bytes:
        path = self._folder / "key"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_secret(path, secrets.token_bytes(32))
        return path.read_bytes()

    def _given(self, name: str) -> Iterator[Given]:
        """What was given of a column, the latest first."""
        for path in sorted(self._folder.glob(f"{_stem(name)}-*.safetensors"), reverse=True):
            with safetensors.safe_open(path, "pt") as file:
                marks = Marks(file.get_tensor("hashes").numpy(), file.get_tensor("counts").numpy())
                yield Given(file.metadata()["table"], marks, file.get_tensor("numbers"))

    def _keep(self, name: str, given: Given) -> None:
        before = len(list(self._folder.glob(f"{_stem(name)}-*.safetensors")))
        tensors = {
            "hashes": torch.from_numpy(given.marks.hashes),
            "counts": torch.from_numpy(given.marks.counts),
            "numbers": given.numbers,
        }
        about = {"column": json.dumps(name), "table": given.table}
        path = self._folder / f"{_stem(name)}-{before:06d}.safetensors"
        write_secret(path, safetensors.torch.save(tensors, about))


def _numbers(values: Floats, least: int) -> Tensor:
    """Count, total and total of squares; zeros where they would tell of fewer than `least` records.

    A column of two values tells how many records have each.
    """
    different, counts = np.unique(values, return_counts=True)
    few = len(values) < least or (len(different) <= 2 and int(counts.min()) < least)
    if few and not (len(different) == 1 and len(values) >= least):
        return torch.zeros(3, dtype=torch.float64)
    numbers = [len(values), float(values.sum()), float(np.square(values).sum())]
    return torch.tensor(numbers, dtype=torch.float64)


def _stem(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:24]
