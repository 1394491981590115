# SPDX-License-Identifier: Apache-2.0
"""Random federations for tests."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from archipel.data import Federation

QUICK = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def federations(draw: st.DrawFn, least: int = 0) -> Federation:
    """Small federations whose x[:, 0] numbers the rows, so that rows can be followed."""
    sizes = draw(st.lists(st.integers(least, 9), min_size=1, max_size=7))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    new = draw(st.integers(0, len(sizes) - 1))
    points = sum(sizes)
    tests = np.array([rng.integers(0, n + 1) for n in sizes], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Federation(
        x=torch.arange(points, dtype=torch.float32)[:, None].repeat(1, 2),
        y=torch.from_numpy(rng.integers(0, 3, points)),
        offsets=torch.from_numpy(offsets),
        test_from=torch.from_numpy(offsets[1:] - tests),
        training=len(sizes) - new,
        task="classification",
        classes=3,
        names=draw(st.sampled_from([None, tuple(f"p{k}" for k in range(len(sizes)))])),
    )


def rows_of(fed: Federation, k: int) -> tuple[set[int], set[int]]:
    """Return the numbers of party k's training and test rows."""
    x, _, x_test, _ = fed.party(k)
    return {int(v) for v in x[:, 0]}, {int(v) for v in x_test[:, 0]}
