# SPDX-License-Identifier: Apache-2.0
"""London school data: exam scores of 15 362 pupils in 139 schools."""

from __future__ import annotations

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


def load(
    standardise: bool = True,
    test_fraction: float = 0.25,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return 139 schools, 28 features, regression on the exam score (1 to 70).

    Features, and in training the score, are standardised over all schools' training points.
    """
    data = bundled_arrays("school.npz")
    fed = Federation.from_rows(
        torch.from_numpy(data["x"]).to(dtype),
        data["y"],
        data["school"],
        test=test_fraction,
        task="regression",
        about=ABOUT,
        seed=seed,
    )
    return fed.standardised(fed.marks) if standardise else fed
