# SPDX-License-Identifier: Apache-2.0
"""Fed-TCGA-BRCA: survival of 1088 breast cancer patients in six regions (FLamby, 2022)."""

from __future__ import annotations

import csv
import io

import numpy as np
import torch

from archipel.data.about import About
from archipel.data.features import Features
from archipel.data.federation import Federation
from archipel.data.schema import Column, Schema
from archipel.data.sources import bundled

ABOUT = About(
    name="tcga_brca",
    source="TCGA open-access clinical data, through FLamby's fed_tcga_brca",
    licence="open access; GDC policy: no attempt to identify anybody",
    citation="Liu et al., Cell 173, 2018; FLamby, NeurIPS 2022",
)
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")


def load(standardise: bool = True, dtype: torch.dtype = torch.float32, seed: int = 0) -> Federation:
    """Return six regions, 39 features, y = (days, death), FLamby's own train and test patients.

    Features are standardised by mean and variance over all training patients, which regions can
    compute from sums. `seed` changes nothing: there is nothing to draw.
    """
    del seed
    folds = {row["pid"]: row["fold2"] for row in _rows("tcga_brca_folds.csv")}
    rows = [row for row in _rows("tcga_brca.csv") if row["pid"] in folds]
    columns = [name for name in rows[0] if name not in ("pid", "E", "T")]
    fold = [folds[row["pid"]].split("_") for row in rows]  # such as train_3
    x = np.array([[float(row[name]) for name in columns] for row in rows])
    fed = Federation.from_rows(
        torch.from_numpy(x).to(dtype),
        np.array([[float(row["T"]), float(row["E"])] for row in rows]),
        np.array([int(region) for _, region in fold]),
        test=np.array([part == "test" for part, _ in fold]),
        names=REGIONS,
        task="survival",
        about=ABOUT,
        columns=columns,
        features=Features(Schema(tuple(map(Column, columns)), (Column("T"), Column("E", (0, 1))))),
    )
    return fed.standardised() if standardise else fed


def _rows(name: str) -> list[dict[str, str]]:
    with bundled(name) as file:
        return list(csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")))
