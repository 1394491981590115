# SPDX-License-Identifier: Apache-2.0
"""Three real tables through the study file, defaults alone, beside scikit-learn on the same rows.

python experiments/tables/run.py                  # the studies as they are
python experiments/tables/run.py --seeds 5        # and on further splits: table.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from archipel.data.federation import Federation
from archipel.run import Run
from archipel.solving import PENALTIES, solve
from archipel.study import Study

HERE = Path(__file__).parent
TABLES = ("gums", "watch", "weather")
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
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
    rows: Ints  # [n] of the table, that were tested on
    worse: Floats  # [n] how much worse than pooled at each, relative: `behind` is their mean

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
    rows = rows_to_test(study)
    return Found(
        table, seed, run.metric, run.metrics[run.metric], levels["pooled"],
        scikit_learn(study, rows), levels["alone"], run.warnings, rows, worse(run),
    )  # fmt: skip


def worse(run: Run) -> Floats:
    """How much worse than the pooled model at every test point, relative, `[n]`.

    Accuracy: right or not, over the pooled accuracy. RMSE: of squares over twice the pooled mean
    square, the first order of the ratio of the two roots.
    """
    data, model = run.data.as_trained(), run.task_model
    together = data.pooled()
    w = solve(model, *together.party(0)[:2])
    _, _, x, y = (
        torch.cat(each) for each in zip(*map(data.party, range(data.parties)), strict=True)
    )
    outputs = [model.predict(each, x, model.buffers) for each in (run.vector, w)]
    if run.metric == "accuracy":
        ours, theirs = ((out.argmax(dim=-1) != y).double() for out in outputs)
        return ((ours - theirs) / (1 - theirs.mean())).numpy()
    ours, theirs = ((out.flatten() - y).double().square() for out in outputs)
    return ((ours - theirs) / (2 * theirs.mean())).numpy()


def error(found: list[Found]) -> float:
    """Standard error of the mean `behind` over splits: over rows, which several splits test on."""
    size = 1 + max(int(f.rows.max()) for f in found)
    share = np.zeros(size)
    for f in found:
        np.add.at(share, f.rows, (f.worse - f.worse.mean()) / (len(found) * len(f.rows)))
    return float(np.sqrt(np.square(share).sum()))


def scikit_learn(study: Study, rows: Ints) -> float:
    """Its own pipeline and linear model on the same table, tested on these rows."""
    asked: dict[str, Any] = study.data.model_dump()
    frame = pd.read_csv(HERE / asked["file"])
    is_test = np.isin(np.arange(len(frame)), rows)
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


def rows_to_test(study: Study) -> Ints:
    """The rows that the study tests on, party by party: no feature decides, so one may be added."""
    data = study.data
    frame = pd.read_csv(HERE / str(data.file))
    numbered = Federation.from_frame(
        frame.assign(serial=np.arange(len(frame), dtype=float)),
        by=data.by, target=data.target or "", drop=data.drop, missing=data.missing,
        columns={"serial": "number"}, seed=study.study.seed, standardise=False,
    )  # fmt: skip
    serial = list(numbered.columns or ()).index("serial")
    tests = [numbered.party(k)[2][:, serial].numpy() for k in range(numbered.parties)]
    return np.concatenate(tests).astype(np.int64)


def shown(found: list[Found]) -> str:
    """How far behind, in the mean over splits, and its standard error."""
    mean = np.mean([f.behind for f in found])
    return f"{100 * mean:+.2f} ± {100 * error(found):.2f} %"


def main(seeds: int) -> int:
    sys.path.insert(0, str(HERE.parent))
    from reporting import gates, table

    found = [measure(name, seed) for name in TABLES for seed in range(seeds)]
    heads = ["table", "seed", "metric", "federated", "pooled", "scikit-learn", "alone", "behind"]
    rows = [[f.table, f.seed, f.metric, *(f"{v:.4g}" for v in f[3:7]), shown([f])] for f in found]
    by_table = {name: [f for f in found if f.table == name] for name in TABLES}
    behind = {name: float(np.mean([f.behind for f in of])) for name, of in by_table.items()}
    apart = {name: float(np.mean([f.apart for f in of])) for name, of in by_table.items()}
    over = "" if seeds == 1 else f", mean of {seeds} splits"
    checks = [
        (
            f"federated within {FEDERATED:.0%} of pooled{over}",
            ", ".join(f"{name} {shown(of)}" for name, of in by_table.items()),
            max(behind.values()) <= FEDERATED,
        ),
        (
            f"pooled within {POOLED:.0%} of scikit-learn{over}",
            ", ".join(f"{name} {100 * value:.2f} %" for name, value in apart.items()),
            max(apart.values()) <= POOLED,
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
