# SPDX-License-Identifier: Apache-2.0
"""MNIST: 70 000 handwritten digits, 28 x 28, dealt out by a partition."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import Pixels, bundled_arrays, deal_images

ABOUT = About(
    name="mnist",
    source="http://yann.lecun.com/exdb/mnist, the official 60000 / 10000 images",
    licence="usually stated CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio, Haffner, Proc. IEEE 86(11), 1998",
)


@lru_cache(maxsize=1)
def _read() -> tuple[Pixels, npt.NDArray[Any], npt.NDArray[np.bool_]]:
    data = bundled_arrays("mnist.npz")
    x = np.concatenate([data["x_train"], data["x_test"]])[:, None]
    y = np.concatenate([data["y_train"], data["y_test"]])
    return x, y, np.arange(len(y)) >= len(data["y_train"])


def load(
    partition: str = "iid",
    parties: int = 100,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return MNIST, x [N, 1, 28, 28] in 0..1; all test points together are the official set."""
    return deal_images(
        *_read(),
        classes=10,
        partition=partition,
        parties=parties,
        seed=seed,
        dtype=dtype,
        about=ABOUT,
    )
