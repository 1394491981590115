# SPDX-License-Identifier: Apache-2.0
"""What a random rotation does to the error of few bits, on vectors where few numbers are large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.wire import Quantise, Rotate
from archipel.wire.chain import Chain
from archipel.wire.step import Step

SIZES = (2**14, 12_345)
BITS = (1, 2, 4, 8)
NOTED = {1: (1640, 8.5), 2: (377, 0.63), 4: (1.29, 0.027)}  # plain, rotated; one vector, d = 2^14
LEAST = 20  # times that rotation divides the error of two bits by


def heavy_tailed(d: int, seed: int) -> Tensor:
    """A vector of zeros but for one number in a hundred, whose logarithms are normal."""
    draw = np.random.default_rng(seed)
    sizes = np.exp(2 * draw.standard_normal(d)) * draw.choice([-1, 1], d)
    return torch.from_numpy(sizes * (draw.random(d) < 0.01)).float()


def relative_error(steps: Sequence[Step], x: Tensor, seed: int) -> float:
    """|x̂ - x|^2 / |x|^2 of what arrives."""
    me = Sender(seed, 0, 0, np.array([0]))
    chain = Chain.fitted(steps, x, me)
    payload, _ = chain.send(me, x, chain.init())
    arrives: Any = chain.receive(me, payload)
    return float((arrives - x).square().sum() / x.square().sum())


def errors(
    sizes: Sequence[int] = SIZES,
    vectors: int = 20,
    before: Sequence[Step] = (Rotate(),),
) -> list[dict[str, Any]]:
    """The relative errors with and without the steps `before`, for each size and number of bits."""
    rows = []
    for d in sizes:
        found = [heavy_tailed(d, seed) for seed in range(vectors)]
        for bits in BITS:
            pair = {
                name: [
                    relative_error((*steps, Quantise(bits)), x, seed)
                    for seed, x in enumerate(found)
                ]
                for name, steps in (("plain", ()), ("rotated", before))
            }
            rows.append({"d": d, "bits": bits, **pair})
    return rows


def gains(row: dict[str, Any]) -> list[float]:
    """How many times smaller each vector's error is with rotation."""
    return [a / b for a, b in zip(row["plain"], row["rotated"], strict=True)]


def checks(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """The gate at two bits: of the median vector, since one whose zeros fall on a level of the
    plain code has little to gain.
    """
    return [
        (
            f"d = {row['d']}: rotation divides the error of 2 bits by {LEAST} at least, median",
            f"{np.median(gains(row)):.0f} (single vectors {min(gains(row)):.0f} to "
            f"{max(gains(row)):.0f})",
            bool(np.median(gains(row)) >= LEAST),
        )
        for row in rows
        if row["bits"] == 2
    ]
