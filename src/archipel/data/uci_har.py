# SPDX-License-Identifier: Apache-2.0
"""UCI HAR: six activities of 30 people with a phone on the waist, from a file of the user's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import find, user_arrays

ABOUT = About(
    name="uci_har",
    source="https://archive.ics.uci.edu/dataset/240, inertial signals",
    licence="CC BY 4.0 on the UCI page; the README inside the archive says no commercial use",
    citation="Anguita et al., ESANN 2013",
    note="not in this package",
)


def load(
    folder: str | Path | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return 30 people, x [N, 9, 128] in g and rad/s, six classes, of uci_har_inertial.npz.

    The file's own test windows are kept unless `test_fraction` asks for a new draw.
    """
    how = "put arrays x_q, scale, y, subject, is_test in uci_har_inertial.npz"
    path = find(folder, ["uci_har_inertial.npz"], "uci_har", how)
    data = user_arrays(path, ["x_q", "scale", "y", "subject", "is_test"])
    people, party = np.unique(data["subject"], return_inverse=True)
    return Federation.from_rows(
        torch.from_numpy(data["x_q"]).to(dtype) * float(data["scale"]),
        data["y"],
        party,
        test=data["is_test"] if test_fraction is None else test_fraction,
        names=[str(person) for person in people],
        classes=6,
        about=ABOUT,
        seed=seed,
    )
