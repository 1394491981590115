# SPDX-License-Identifier: Apache-2.0
"""UCI Heart Disease: 740 patients of four hospitals, cut as FLamby does (2022)."""

from __future__ import annotations

import csv
import gzip
import io

import numpy as np
import torch

from archipel.data.about import About
from archipel.data.features import Features
from archipel.data.federation import Federation
from archipel.data.schema import Column, Schema
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
SCHEMA = Schema(
    (*map(Column, _NUMBERS), Column("cp", (1, 2, 3, 4)), Column("restecg", (0, 1, 2))),
    (Column("disease", (0, 1)),),  # num > 0
)


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
    rows = [row for row in rows if all(row[column.name] for column in SCHEMA.features)]
    columns = []
    for column in SCHEMA.features:
        numbers = np.array([float(row[column.name]) for row in rows])
        columns += [(numbers == value).astype(float) for value in column.values[1:]] or [numbers]
    fed = Federation.from_rows(
        torch.from_numpy(np.stack(columns, axis=1)).to(dtype),
        np.array([int(row["num"]) > 0 for row in rows]),
        np.array([HOSPITALS.index(row["centre"]) for row in rows]),
        test=test_fraction,
        names=HOSPITALS,
        classes=2,
        about=ABOUT,
        columns=SCHEMA.columns,
        features=Features(SCHEMA),
        seed=seed,
    )
    return fed.standardised() if standardise else fed
