# SPDX-License-Identifier: Apache-2.0
"""The sums that a site gives out for the scale: once for each column of a table.

Two sums over nearly the same rows, subtracted, are the rows between them. So what was given of a
column is kept, and given again as it was: to every study on the same table, and on a newer one
until enough rows of it have changed. A column that a study describes in another way, as numbers or
with its values in another order, is nearly the same sum again: it is given from the very same rows
or not at all. Any common scale serves the learning equally well. Of the values themselves only
keyed hashes are kept, to tell how many have changed.
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
from archipel.data.schema import Column, Records
from archipel.federation.certificates import write_secret
from archipel.federation.site.policy import Policy

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


class Feature(NamedTuple):
    """A feature of a table, as a study describes it, from certain rows."""

    column: Column
    name: str
    table: str
    rows: str  # hash of the table and of which rows are for training

    @property
    def stem(self) -> str:
        return f"{_stem(self.column.name)}-{_stem(self.name)}"

    @property
    def described(self) -> str:
        return json.dumps(self.column)


class Releases:
    """A folder with what a site gave out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sums(self, records: Records, policy: Policy) -> Sums:
        """Sums of the training rows' columns, as they may leave; they are kept first."""
        x, schema = records.summed, records.schema
        rows = sha256(records.table.encode() + records.is_test.numpy().tobytes()).hexdigest()
        plain = [*schema.plain.tolist(), *[False] * schema.scales_target]
        found = [
            torch.zeros(3, dtype=torch.float64)
            if plain[j]
            else self._feature(Feature(*which, records.table, rows), x[:, j].numpy(), policy)
            for j, which in enumerate(schema.summed)
        ]
        return Sums(*torch.stack(found, dim=1))

    def _feature(self, feature: Feature, values: Floats, policy: Policy) -> Tensor:
        values = values[~np.isnan(values)]
        marks = self._marks(values)
        least = max(1, policy.least_rows)
        for given in self._given(feature.stem):
            if given.table == feature.table or given.marks.changed(marks) < least:
                return given.numbers
        others = self._about(f"{_stem(feature.column.name)}-*")
        if any(
            each["column"] != feature.described and each["rows"] != feature.rows for each in others
        ):
            return torch.zeros(3, dtype=torch.float64)
        made = Given(feature.table, marks, _numbers(values, policy.least_cell))
        self._keep(feature, made)
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

    def _given(self, stem: str) -> Iterator[Given]:
        """What was given of a feature, the latest first."""
        for path in sorted(self._folder.glob(f"{stem}-*.safetensors"), reverse=True):
            with safetensors.safe_open(path, "pt") as file:
                marks = Marks(file.get_tensor("hashes").numpy(), file.get_tensor("counts").numpy())
                yield Given(file.metadata()["table"], marks, file.get_tensor("numbers"))

    def _about(self, pattern: str) -> Iterator[dict[str, str]]:
        """How the columns were described that something was given of, and from which rows."""
        for path in self._folder.glob(f"{pattern}.safetensors"):
            with safetensors.safe_open(path, "pt") as file:
                yield file.metadata()

    def _keep(self, feature: Feature, given: Given) -> None:
        before = len(list(self._folder.glob(f"{feature.stem}-*.safetensors")))
        tensors = {
            "hashes": torch.from_numpy(given.marks.hashes),
            "counts": torch.from_numpy(given.marks.counts),
            "numbers": given.numbers,
        }
        about = {"column": feature.described, "table": feature.table, "rows": feature.rows}
        path = self._folder / f"{feature.stem}-{before:06d}.safetensors"
        write_secret(path, safetensors.torch.save(tensors, about))


def _numbers(values: Floats, least: int) -> Tensor:
    """Count, total and total of squares; zeros where they would tell of fewer than `least` records.

    A column of up to three values tells how many records have each, and a record that has most of
    a column's spread is nearly the totals themselves.
    """
    different, counts = np.unique(values, return_counts=True)
    few = len(values) < least or (1 < len(different) <= 3 and int(counts.min()) < least)
    if few or (least > 1 and _has_outlier(values)):
        return torch.zeros(3, dtype=torch.float64)
    numbers = [len(values), float(values.sum()), float(np.square(values).sum())]
    return torch.tensor(numbers, dtype=torch.float64)


def _has_outlier(values: Floats) -> bool:
    """Whether one record has more than half of the spread."""
    if len(values) == 0:
        return False
    away = np.square(values - np.median(values))
    return bool(away.max() > away.sum() / 2) and bool(away.max() > 0)


def _stem(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:24]
