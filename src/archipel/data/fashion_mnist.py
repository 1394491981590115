# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST: 70 000 images of clothes, 28 x 28, from Debian's package or a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import deal_images, find, read_idx

ABOUT = About(
    name="fashion_mnist",
    source="https://github.com/zalandoresearch/fashion-mnist; apt install dataset-fashion-mnist",
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf, 2017",
    note="not in this package",
)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
HOW = "apt install dataset-fashion-mnist, or get the four IDX files"


def load(
    partition: str = "iid",
    parties: int = 100,
    folder: str | Path | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return Fashion-MNIST, x [N, 1, 28, 28] in 0..1, of the IDX files in `folder`."""
    folder = folder or DEBIAN
    parts = [
        read_idx(find(folder, [f"{name}-ubyte.gz", f"{name}-ubyte"], "fashion_mnist", HOW))
        for name in (
            "train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1",
        )
    ]  # fmt: skip
    return deal_images(
        np.concatenate([parts[0], parts[2]])[:, None],
        np.concatenate([parts[1], parts[3]]),
        np.repeat([False, True], [len(parts[1]), len(parts[3])]),
        classes=10,
        partition=partition,
        parties=parties,
        seed=seed,
        dtype=dtype,
        about=ABOUT,
    )
