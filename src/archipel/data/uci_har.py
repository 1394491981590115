# SPDX-License-Identifier: Apache-2.0
"""UCI HAR: six activities of 30 people with a phone on the waist, from a file of the user's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import find, user_arrays
from archipel.errors import ArchipelError, unknown

ABOUT = About(
    name="uci_har",
    source="https://archive.ics.uci.edu/dataset/240, inertial signals",
    licence="CC BY 4.0 on the UCI page; the README inside the archive says no commercial use",
    citation="Anguita et al., ESANN 2013",
    note="not in this package",
)


ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")


def load(
    folder: str | Path | None = None,
    only: list[str] | None = None,  # windows of these activities, numbered as they are listed
    summary: bool = False,  # statistics of each channel in place of the signals
    test_fraction: float | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return 30 people, x [N, 9, 128] in g and rad/s, six classes, of uci_har_inertial.npz.

    The file's own test windows are kept unless `test_fraction` asks for a new draw. `summary` makes
    72 features of a window: see `summarised`.
    """
    chosen = ACTIVITIES if only is None else tuple(only)
    for activity in chosen:
        if activity not in ACTIVITIES:
            raise unknown("activity", activity, ACTIVITIES)
    if len(set(chosen)) < max(2, len(chosen)):
        raise ArchipelError(f"only = {list(chosen)}: name two activities or more, each once.")
    how = "put arrays x_q, scale, y, subject, is_test in uci_har_inertial.npz"
    path = find(folder, ["uci_har_inertial.npz"], "uci_har", how)
    data = user_arrays(path, ["x_q", "scale", "y", "subject", "is_test"])
    number = np.full(len(ACTIVITIES), -1)
    number[[ACTIVITIES.index(activity) for activity in chosen]] = range(len(chosen))
    y = number[data["y"]]
    kept = y >= 0
    people, party = np.unique(data["subject"], return_inverse=True)
    x = torch.from_numpy(data["x_q"][kept]).to(dtype) * float(data["scale"])
    return Federation.from_rows(
        summarised(x) if summary else x,
        y[kept],
        party[kept],
        test=data["is_test"][kept] if test_fraction is None else test_fraction,
        names=[str(person) for person in people],
        classes=len(chosen),
        about=ABOUT,
        seed=seed,
    )


def summarised(x: Tensor) -> Tensor:
    """Eight statistics of each channel, `[N, channels, T] -> [N, 8 channels]`.

    Mean, standard deviation, least, median and largest value, mean absolute difference of
    neighbouring samples, and of the spectrum the share of the lower eighth and the strongest
    frequency, both in 0..1.
    """
    spectrum = torch.fft.rfft(x - x.mean(dim=-1, keepdim=True)).abs().square()[..., 1:]
    bins = spectrum.shape[-1]
    power = spectrum.sum(dim=-1).clamp(min=torch.finfo(x.dtype).tiny)
    parts = [
        x.mean(dim=-1),
        x.std(dim=-1),
        x.amin(dim=-1),
        x.median(dim=-1).values,
        x.amax(dim=-1),
        x.diff(dim=-1).abs().mean(dim=-1),
        spectrum[..., : max(1, bins // 8)].sum(dim=-1) / power,
        spectrum.argmax(dim=-1).to(x.dtype) / bins,
    ]
    return torch.stack(parts, dim=-1).flatten(1)
