# SPDX-License-Identifier: Apache-2.0
"""Whatever a table is like, a model is fed what a careful person makes of it, or it is refused.

The careful person is scikit-learn's pipeline on the same rows: means in empty cells, numbers
standardised by training rows, 0/1 features as they are. There is no third case.
"""

import datetime
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from archipel.errors import ArchipelError
from archipel.study.file import Study

CAREFUL = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)  # fmt: skip
WORDS = ["é", "Süd", "a b", "n.", "x;y", "x,y", "II", "III", "yes", "ß"]


class Kind(NamedTuple):
    """A kind of column: how cells are drawn, and what a careful person makes of it."""

    cells: st.SearchStrategy[Any]
    becomes: str  # number, category, date, or ask: then it has to be refused


KINDS = {
    "number": Kind(st.decimals(-99, 99, places=2).map(float), "number"),
    "whole": Kind(st.integers(-9, 9), "number"),
    "huge": Kind(st.sampled_from([1e-7, 2.5e8, -3e9, 0.0]), "number"),
    "code": Kind(st.integers(1, 4), "number"),
    "said": Kind(st.integers(1, 4), "category"),
    "word": Kind(st.sampled_from(WORDS), "category"),
    "flag": Kind(st.booleans(), "category"),
    "only": Kind(st.just("same"), "category"),
    "const": Kind(st.just(4.5), "number"),
    "date": Kind(st.dates(datetime.date(1950, 1, 1), datetime.date(2030, 1, 1)), "date"),
    "visit": Kind(st.dates(datetime.date(1950, 1, 1), datetime.date(2030, 1, 1)), "ask"),
    "record_id": Kind(st.integers(1, 99), "ask"),
    "typo": Kind(st.sampled_from(["1", "2.5", "<5"]), "ask"),
    "mixed": Kind(st.integers(1, 40).map(lambda i: "unknown" if i > 30 else str(i)), "number"),
}


class Case(NamedTuple):
    """A table in files, what is said of it, and what it holds."""

    frame: pd.DataFrame  # with column "site"
    kinds: dict[str, str]  # of the columns: names of KINDS
    form: dict[str, Any]  # how files are written
    classes: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows = draw(st.integers(12, 40))
    right = sorted(name for name, kind in KINDS.items() if kind.becomes != "ask")
    names = sorted(KINDS) if draw(st.integers(0, 3)) == 0 else right
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=5, unique=True))
    gap = draw(st.sampled_from([0.0, 0.0, 0.2]))
    columns: dict[str, list[Any]] = {}
    for name in chosen:
        cells = draw(st.lists(KINDS[name].cells, min_size=rows, max_size=rows))
        if gap:
            empty = draw(st.lists(st.floats(0, 1), min_size=rows, max_size=rows))
            cells = [None if e < gap else cell for cell, e in zip(cells, empty, strict=True)]
        columns[name] = cells
    classes = draw(st.booleans())
    targets = st.sampled_from(["ill", "well"]) if classes else KINDS["number"].cells
    columns["y"] = draw(st.lists(targets, min_size=rows, max_size=rows))
    columns["test"] = draw(st.lists(st.sampled_from([0, 0, 1]), min_size=rows, max_size=rows))
    sites = draw(st.lists(st.sampled_from(["a", "b", "c-d"]), min_size=rows, max_size=rows))
    cells = {name: pd.Series(column, dtype=object) for name, column in columns.items()}
    frame = pd.DataFrame({"site": sites, **cells}).astype({"test": int})
    if draw(st.booleans()):
        frame = frame.sort_values("y", ignore_index=True)
    if draw(st.booleans()):
        frame = pd.concat([frame, frame.iloc[:3]], ignore_index=True)
    form = {
        "sep": draw(st.sampled_from([",", ";", "\t"])),
        "decimal": draw(st.sampled_from([".", ","])),
        "encoding": draw(st.sampled_from(["utf-8", "cp1252"])),
        "folder": draw(st.booleans()),
        "empty_file": draw(st.booleans()),
        "shuffled": draw(st.booleans()),
    }
    return Case(frame, {name: name for name in chosen}, form, classes)


def written(case: Case, folder: Path) -> dict[str, Any]:
    """Write the table to one file or to one per site; return what a study says of where it is."""
    form = {"sep": case.form["sep"], "index": False, "encoding": case.form["encoding"]}
    text = case.frame.map(lambda cell: _cell(cell, case.form["decimal"]))
    if not case.form["folder"]:
        text.to_csv(folder / "all.csv", **form)
        return {"file": "all.csv", "by": "site"}
    (folder / "sites").mkdir()
    for k, (site, part) in enumerate(text.groupby("site")):
        part = part.drop(columns="site")
        if case.form["shuffled"] and k:  # columns in another order
            part = part[part.columns[::-1]]
        part.to_csv(folder / "sites" / f"{site}.csv", **form)
    if case.form["empty_file"]:
        text.drop(columns="site").iloc[:0].to_csv(folder / "sites" / "b-0.csv", **form)
    return {"folder": "sites"}


def _cell(cell: Any, decimal: str) -> str:
    if cell is None or cell != cell:
        return ""
    return f"{cell:.10g}".replace(".", decimal) if isinstance(cell, float) else str(cell)


def careful(case: Case) -> pd.DataFrame:
    """What scikit-learn makes of the table."""
    frame = case.frame.copy()
    for name in case.kinds:
        cells, becomes = frame.pop(name), KINDS[name].becomes
        if becomes == "category":
            words = cells.map(str, na_action="ignore").dropna().to_frame()
            onehot = OneHotEncoder(drop="first", sparse_output=False).fit(words)
            for value, column in zip(
                onehot.categories_[0][1:], onehot.transform(words).T, strict=True
            ):
                frame[f"{name}={value}"] = pd.Series(column, words.index)
        elif (cells := cells.replace("unknown", None)).nunique() > 1:
            if becomes == "date":
                cells = (pd.to_datetime(cells) - pd.Timestamp("1970-01-01")).dt.days
            frame[name] = pd.to_numeric(cells).astype(float)
    features = frame.drop(columns=["site", "test", "y"])
    marks = [name for name in features if features[name].dropna().isin([0, 1]).all()]
    fill = SimpleImputer(strategy="mean")
    scale = make_pipeline(fill, StandardScaler())
    numbers = [name for name in features if name not in marks]
    steps = ColumnTransformer([("marks", fill, marks), ("numbers", scale, numbers)])
    steps.fit(features[frame["test"] == 0])
    return pd.DataFrame(steps.transform(features), columns=[*marks, *numbers])


def study_of(case: Case, folder: Path) -> Study:
    kinds = {"said": "category", "date": "date"}
    data = {
        **written(case, folder),
        "target": "y",
        "task": "classification" if case.classes else "regression",
        "test": "test",
        "missing": "mean",
        "empty": ["unknown"],
        "columns": {name: kind for name, kind in kinds.items() if name in case.kinds},
    }
    return Study.parse({"data": data}, folder)


REFUSED = (
    "no value in any row|empty on all training rows|no column is left|no row is left|"
    "numbers the rows|target column 'y' is '.*' in every row"
)


@CAREFUL
@given(cases())
def test_a_model_is_fed_what_a_careful_person_makes_of_a_table_or_it_is_refused(
    tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    asked = {name for name in case.kinds if KINDS[name].becomes == "ask"}
    study = study_of(case, tmp_path_factory.mktemp("x"))
    try:
        fed = study.federation()
    except ArchipelError as error:
        event("refused")
        assert asked or re.search(REFUSED, str(error)), str(error)
        return
    event("read")

    wanted = careful(case)
    site = case.frame["site"].astype("category").cat.codes
    order = np.lexsort((case.frame["test"], site))
    assert not asked
    assert sorted(fed.columns or ()) == sorted(wanted)
    found = pd.DataFrame(fed.x.numpy(), columns=list(fed.columns or ()))
    np.testing.assert_allclose(
        found[list(wanted)], wanted.iloc[order], atol=2e-5, rtol=2e-5, err_msg=str(case)
    )
    y = case.frame["y"].iloc[order]
    schema = fed.features.schema
    assert schema is not None
    if case.classes:
        assert [schema.targets[0].values[i] for i in fed.y.tolist()] == y.tolist()
    else:
        np.testing.assert_allclose(fed.y, y.astype(float), rtol=1e-6)
