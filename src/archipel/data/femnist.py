# SPDX-License-Identifier: Apache-2.0
"""FEMNIST: handwritten digits and letters by writer, from LEAF (Caldas et al. 2018)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.rows import arrange, draw_test
from archipel.data.sources import bundled_arrays, to_unit
from archipel.errors import ArchipelError

ABOUT = About(
    name="femnist",
    source="NIST Special Database 19 through LEAF, 293 whole writers and 233 partial ones",
    licence="public domain (US Government work)",
    citation="Caldas et al., LEAF, 2018; Cohen et al., EMNIST, 2017",
    note="of the 233 partial writers only a tenth is there, with more letters: their labels shift",
)


@lru_cache(maxsize=1)
def _read() -> dict[str, npt.NDArray[Any]]:
    return bundled_arrays("femnist_293w.npz")


def load(
    new: str | int | float = "partial", seed: int = 0, dtype: torch.dtype = torch.float32
) -> Federation:
    """Return 293 writers, x [N, 1, 28, 28] in 0..1 (ink is 1), 62 classes, LEAF's 90/10 split.

    `new` says who is new: "partial", the 233 writers of whom only a tenth is there, half of it to
    train on and half to test; "none"; or a number or share of the 293 writers.
    """
    data = _read()
    if isinstance(new, str) and new not in ("partial", "none"):
        raise ArchipelError(f"new='{new}': say 'partial', 'none', or a number of writers.")
    x, y = data["x"], data["y"]
    party = data["writer"].astype(np.int64)
    is_test, names = data["is_test"], data["writer_ids"]
    if new == "partial":
        writer = data["unseen_writer"].astype(np.int64)
        half = draw_test(writer, np.zeros_like(writer), 0.5, np.random.default_rng([seed, 4]))
        x, y = np.concatenate([x, data["unseen_x"]]), np.concatenate([y, data["unseen_y"]])
        party = np.concatenate([party, writer + len(names)])
        is_test = np.concatenate([is_test, half])
        names = np.concatenate([names, data["unseen_writer_ids"]])
    layout = arrange(party, is_test, len(names))
    fed = Federation(
        x=to_unit(x[layout.order][:, None], dtype),
        y=torch.from_numpy(y[layout.order].astype(np.int64)),
        offsets=torch.from_numpy(layout.offsets),
        test_from=torch.from_numpy(layout.test_from),
        training=len(data["writer_ids"]),
        task="classification",
        classes=62,
        names=tuple(names.tolist()),
        about=ABOUT,
        scan=False,
    )
    return fed if isinstance(new, str) else fed.with_new(new, seed)
