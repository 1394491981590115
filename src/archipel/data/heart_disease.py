# SPDX-License-Identifier: Apache-2.0
"""UCI Heart Disease: 740 patients of four hospitals, cut as FLamby does (2022)."""

from __future__ import annotations

import csv
import gzip
import io

import numpy as np
import numpy.typing as npt
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.sources import bundled

ABOUT = About(
    name="heart_disease",
    source="https://archive.ics.uci.edu/dataset/45/heart+disease",
    licence="CC BY 4.0",
    citation="Janosi, Steinbrunn, Pfisterer, Detrano, UCI 1989; FLamby, NeurIPS 2022",
    note="slope, ca and thal dropped, then incomplete rows, as in FLamby",
)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_NUMBERS = ("age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak")
_KINDS = {"cp": (2.0, 3.0, 4.0), "restecg": (1.0, 2.0)}  # one 0/1 column each; the first left out


def load(
    test_fraction: float = 0.34,
    standardise: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return four hospitals, 13 features, target 1 for disease (num > 0).

    Test points are drawn per hospital, balanced over the classes (FLamby: 34 %). Features are
    standardised by the mean and variance over the four hospitals' training points, which
    hospitals can compute from sums; test points do not count.
    """
    with bundled("heart_disease.csv.gz") as file, gzip.open(file) as plain:
        rows = list(csv.DictReader(io.TextIOWrapper(plain, "utf-8")))
    needed = (*_NUMBERS, *_KINDS)
    rows = [row for row in rows if all(row[name] for name in needed)]
    table = {name: np.array([float(row[name]) for row in rows]) for name in needed}
    columns: dict[str, npt.NDArray[np.float64]] = {name: table[name] for name in _NUMBERS}
    for name, kinds in _KINDS.items():
        columns |= {f"{name}={kind:g}": (table[name] == kind).astype(float) for kind in kinds}
    fed = Federation.from_rows(
        torch.from_numpy(np.stack(list(columns.values()), axis=1)).to(dtype),
        np.array([int(row["num"]) > 0 for row in rows]),
        np.array([HOSPITALS.index(row["centre"]) for row in rows]),
        test=test_fraction,
        names=HOSPITALS,
        classes=2,
        about=ABOUT,
        columns=tuple(columns),
        seed=seed,
    )
    return fed.standardised() if standardise else fed
