# SPDX-License-Identifier: Apache-2.0
"""Files of datasets: those in the package, and those a user has."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.partition import assign, deal_test
from archipel.data.rows import arrange
from archipel.errors import ArchipelError

Pixels = npt.NDArray[np.uint8]


def bundled(name: str) -> IO[bytes]:
    """Open a file that comes with the package."""
    return (files("archipel.data") / "files" / name).open("rb")


def bundled_arrays(name: str) -> dict[str, npt.NDArray[Any]]:
    """Read an .npz file that comes with the package."""
    with bundled(name) as file, np.load(file, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def find(folder: str | Path | None, names: Sequence[str], dataset: str, how: str) -> Path:
    """Return the first of `names` in `folder`, or say how to get the dataset."""
    if folder is None:
        raise ArchipelError(f"{dataset} does not come with the package; {how}, then say folder=...")
    for name in names:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise ArchipelError(f"{dataset}: folder '{folder}' has no {' or '.join(names)}; {how}.")


def user_arrays(path: Path, needed: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Read an .npz file of a user."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in needed}
    except (ValueError, KeyError):
        raise ArchipelError(
            f"'{path}' must be an .npz file of plain arrays {', '.join(needed)}."
        ) from None


def read_idx(path: Path) -> Pixels:
    """Read an IDX file of bytes, compressed or not (the format of MNIST)."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    if raw[:3] != b"\x00\x00\x08":
        raise ArchipelError(f"'{path}' is not an IDX file of bytes; get it again.")
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4).astype(int)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def deal_images(
    x: Pixels,  # [N, channels, height, width], training images, then test images
    y: npt.NDArray[Any],  # [N]
    is_test: npt.NDArray[np.bool_],
    *,
    classes: int,
    partition: str,
    parties: int,
    seed: int,
    dtype: torch.dtype,
    about: About,
) -> Federation:
    """Deal images and their official test set out to parties; bytes become numbers in 0..1."""
    labels = y.astype(np.int64)
    party = np.empty(len(y), np.int64)
    party[~is_test] = assign(labels[~is_test], partition, parties, seed)
    party[is_test] = deal_test(labels[~is_test], party[~is_test], labels[is_test], parties, seed)
    layout = arrange(party, is_test, parties)
    return Federation(
        x=to_unit(x[layout.order], dtype),
        y=torch.from_numpy(labels[layout.order]),
        offsets=torch.from_numpy(layout.offsets),
        test_from=torch.from_numpy(layout.test_from),
        training=parties,
        task="classification",
        classes=classes,
        about=about,
        scan=False,
    )


def to_unit(pixels: Pixels, dtype: torch.dtype) -> Tensor:
    """Return bytes as numbers in 0..1."""
    return torch.from_numpy(pixels).to(dtype).div_(255)
