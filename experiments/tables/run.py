# SPDX-License-Identifier: Apache-2.0
"""Three real tables through the study file, defaults alone, beside scikit-learn on the same rows.

python experiments/tables/run.py                  # the studies as they are
python experiments/tables/run.py --seeds 3        # and on further splits
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from archipel.data.federation import Federation
from archipel.runs.solving import PENALTIES
from archipel.study.file import Study

HERE = Path(__file__).parent
TABLES = ("gums", "watch", "weather")
FEDERATED, POOLED = 0.02, 0.01  # worse than pooled at most; apart from scikit-learn at most


class Found(NamedTuple):
    """The metric of one study on one split."""

    table: str
    seed: int
    metric: str
    federated: float
    pooled: float
    scikit: float
    alone: float
    warnings: list[str]

    @property
    def behind(self) -> float:
        """How much worse than pooled, relative; below 0 where it is better."""
        sign = -1 if self.metric == "accuracy" else 1
        return sign * (self.federated / self.pooled - 1)

    @property
    def apart(self) -> float:
        return abs(self.pooled / self.scikit - 1)


def measure(table: str, seed: int = 0) -> Found:
    """Run a study as it is, or on the split of another seed."""
    study = Study.read(HERE / f"{table}.toml")
    study = study if seed == 0 else study.with_set({"study.seed": seed})
    run = study.run(None, workers=1)
    levels = run.levels
    return Found(
        table, seed, run.metric, run.metrics[run.metric], levels["pooled"],
        scikit_learn(study), levels["alone"], run.warnings,
    )  # fmt: skip


def scikit_learn(study: Study) -> float:
    """Its own pipeline and linear model on the same table and split."""
    asked: dict[str, Any] = study.data.model_dump()
    frame = pd.read_csv(HERE / asked["file"])
    is_test = rows_to_test(frame, study)
    x = frame.drop(columns=[asked["by"], asked["target"], *asked["drop"]])
    y = frame[asked["target"]]
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
    )
    classes = y.dtype.kind not in "if"
    linear = LogisticRegression(max_iter=5000) if classes else RidgeCV(PENALTIES)
    fitted = make_pipeline(columns, linear).fit(x[~is_test], y[~is_test])
    told = fitted.predict(x[is_test])
    if classes:
        return float((told == y[is_test]).mean())
    return float(np.sqrt(np.square(told - y[is_test]).mean()))


def rows_to_test(frame: pd.DataFrame, study: Study) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows the study tests on: its split does not look at features, so one may be added."""
    data = study.data
    numbered = Federation.from_frame(
        frame.assign(serial=np.arange(len(frame), dtype=float)),
        by=data.by, target=data.target or "", drop=data.drop, missing=data.missing,
        columns={"serial": "number"}, seed=study.study.seed, standardise=False,
    )  # fmt: skip
    serial = list(numbered.columns or ()).index("serial")
    tests = [numbered.party(k)[2][:, serial].numpy() for k in range(numbered.parties)]
    return np.isin(np.arange(len(frame)), np.concatenate(tests).astype(int))


def main(seeds: int) -> int:
    sys.path.insert(0, str(HERE.parent))
    from reporting import gates, table

    found = [measure(name, seed) for name in TABLES for seed in range(seeds)]
    heads = ["table", "seed", "metric", "federated", "pooled", "scikit-learn", "alone", "behind"]
    rows = [
        [f.table, f.seed, f.metric, *(f"{v:.4g}" for v in f[3:7]), f"{100 * f.behind:+.2f} %"]
        for f in found
    ]
    first = [f for f in found if f.seed == 0]
    checks = [
        (
            f"federated within {FEDERATED:.0%} of pooled",
            ", ".join(f"{100 * f.behind:+.2f} %" for f in first),
            all(f.behind <= FEDERATED for f in first),
        ),
        (
            f"pooled within {POOLED:.0%} of scikit-learn",
            ", ".join(f"{100 * f.apart:.2f} %" for f in first),
            all(f.apart <= POOLED for f in first),
        ),
        (
            "nothing diverges",
            f"{sum(bool(f.warnings) for f in found)} of {len(found)}",
            not any(f.warnings for f in found),
        ),
    ]
    text = f"{table(heads, rows)}\n\n{gates(checks)}\n"
    (HERE / "table.md").write_text(text)
    print(text)
    return 0 if all(holds for _, _, holds in checks) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    sys.exit(main(parser.parse_args().seeds))
