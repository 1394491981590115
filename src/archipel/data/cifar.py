# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10 and CIFAR-100: colour images, 32 x 32, from a folder of the user's.

Two layouts are read: an .npz file of plain arrays, and the "binary version" of the official site.
The "python version" is made of pickles, which can run anything, and is not read.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import Pixels, deal_images, find, user_arrays
from archipel.errors import ArchipelError

_SITE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_TERMS = "none stated; research use with citation"
_CITE = "Krizhevsky, Learning multiple layers of features from tiny images, 2009"
ABOUT_10 = About("cifar10", _SITE, _TERMS, _CITE, "not in this package")
ABOUT_100 = About("cifar100", _SITE, _TERMS, _CITE, "not in this package")
_HOW = f"get the binary version (.bin files) from {_SITE}"
_BYTES = 3 * 32 * 32

Images = tuple[Pixels, npt.NDArray[np.uint8], npt.NDArray[np.bool_]]


def load_10(
    partition: str = "iid",
    parties: int = 100,
    folder: str | Path | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return CIFAR-10, x [N, 3, 32, 32] in 0..1, of cifar10*.npz or data_batch_*.bin."""
    path = find(folder, ["cifar10_12k.npz", "cifar10.npz", "test_batch.bin"], "cifar10", _HOW)
    if path.suffix == ".npz":
        d = user_arrays(path, ["x_train", "y_train", "x_test", "y_test"])
        x, y = (np.concatenate([d[f"{v}_train"], d[f"{v}_test"]]) for v in "xy")
        images = _first_channel(x), y, np.arange(len(y)) >= len(d["y_train"])
    else:
        train = [path.with_name(f"data_batch_{i}.bin") for i in range(1, 6)]
        images = _read_bin([f for f in train if f.is_file()], path, labels=1)
    return deal_images(
        *images,
        classes=10, partition=partition, parties=parties, seed=seed, dtype=dtype, about=ABOUT_10,
    )  # fmt: skip


def load_100(
    partition: str = "iid",
    parties: int = 100,
    folder: str | Path | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return CIFAR-100, fine labels, x [N, 3, 32, 32] in 0..1, of cifar100*.npz or train.bin."""
    path = find(folder, ["cifar100_6k.npz", "cifar100.npz", "test.bin"], "cifar100", _HOW)
    if path.suffix == ".npz":
        d = user_arrays(path, ["x", "y", "is_test"])
        images = _first_channel(d["x"]), d["y"], d["is_test"]
    else:
        images = _read_bin([path.with_name("train.bin")], path, labels=2)
    return deal_images(
        *images,
        classes=100, partition=partition, parties=parties, seed=seed, dtype=dtype, about=ABOUT_100,
    )  # fmt: skip


def _first_channel(x: npt.NDArray[np.uint8]) -> Pixels:
    return x.transpose(0, 3, 1, 2)


def _read_bin(train: list[Path], test: Path, labels: int) -> Images:
    """Read records of `labels` label bytes, the last one fine, and 3072 pixels."""
    records, sizes = [], []
    for path in [*train, test]:
        raw = np.fromfile(path, np.uint8) if path.is_file() else np.empty(0, np.uint8)
        if len(raw) == 0 or len(raw) % (labels + _BYTES):
            raise ArchipelError(f"'{path}' is missing or cut short; {_HOW}.")
        records.append(raw.reshape(-1, labels + _BYTES))
        sizes.append(len(records[-1]))
    every = np.concatenate(records)
    is_test = np.arange(len(every)) >= sum(sizes[:-1])
    return every[:, labels:].reshape(-1, 3, 32, 32), every[:, labels - 1], is_test
