# SPDX-License-Identifier: Apache-2.0
"""London school data: exam scores of 15 362 pupils in 139 schools."""

from __future__ import annotations

import numpy as np
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import bundled_arrays

ABOUT = About(
    name="school",
    source="Inner London Education Authority, through MALSAR's school.mat",
    licence="none stated; the toolbox that carries it is GPL-3.0",
    citation="Goldstein, The Statistician 40, 1991",
)


_PUPIL = [*range(5, 21), 27]  # columns of the pupil: sex, reading band, ethnic group; a constant


def load(
    standardise: bool = True,
    above: float | None = None,  # two classes, by whether the score is above this
    pupils: bool = False,  # the 17 features of the pupil alone, without those of school and year
    test_fraction: float = 0.25,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return 139 schools, 28 features, regression on the exam score (1 to 70), or two classes.

    Features, and in training the score, are standardised over all schools' training points. With
    `above = 20` and `pupils` it is the problem of Zantedeschi et al., AISTATS 2020.
    """
    data = bundled_arrays("school.npz")
    x = torch.from_numpy(data["x"]).to(dtype)
    fed = Federation.from_rows(
        x[:, _PUPIL] if pupils else x,
        data["y"] if above is None else (data["y"] > above).astype(np.int64),
        data["school"],
        test=test_fraction,
        task="regression" if above is None else "classification",
        classes=None if above is None else 2,
        about=ABOUT,
        seed=seed,
    )
    return fed.standardised(fed.marks) if standardise else fed
