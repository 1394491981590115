# SPDX-License-Identifier: Apache-2.0
import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.core import Algorithm
from archipel.data.scaling import Scaling, Sums
from archipel.data.schema import Records, Schema
from archipel.engines.network.fitting import fitted
from archipel.errors import ArchipelError
from archipel.study.checks import schema_of
from archipel.study.file import Study

from .strategies import QUICK

CP = ["typical", "atypical", "None"]
COLUMNS: dict[str, Any] = {
    "age": "number",
    "sex": [0, 1],
    "cp": CP,
    "dose": "number",
    "ill": ["no", "yes"],
}
ROWS = """name,ill,cp,age,sex,dose
Ann,no,typical,50,0,1000.5
Bob,yes,None,61,1,1001.5
Eve,yes, atypical,70,1,999
"""


def table(text: str, folder: Path, name: str = "lille.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def made_up(rng: np.random.Generator, rows: int, holes: float) -> pd.DataFrame:
    """A hospital's table, in an order of its own and with a column that nobody asked for."""
    frame = pd.DataFrame(
        {
            "name": [f"patient {i}" for i in range(rows)],
            "ill": rng.choice(["no", "yes"], rows),
            "dose": rng.normal(1000, 1, rows),
            "cp": rng.choice(CP, rows),
            "months": rng.integers(0, 99, rows),
            "died": rng.integers(0, 2, rows),
            "age": rng.integers(20, 90, rows).astype(float),
            "sex": rng.integers(0, 2, rows).astype(float),
        }
    )
    for column in ("age", "sex", "cp", "dose"):
        frame.loc[rng.random(rows) < holes, column] = np.nan
    return frame


def added(parts: list[Records]) -> Scaling:
    total = parts[0].sums()
    for part in parts[1:]:
        total = total + part.sums()
    return total.scaling(parts[0].schema.columns)


# -- what a schema says ----------------------------------------------------------------------------


def test_a_schema_has_the_order_of_the_study() -> None:
    schema = Schema.of(COLUMNS, "ill")

    assert schema.columns == ["age", "sex=1", "cp=atypical", "cp=None", "dose"]
    assert (schema.task, schema.classes, schema.shape) == ("classification", 2, (5,))
    assert Schema.of({**COLUMNS, "ill": "number"}, "ill").task == "regression"
    survival = Schema.of({**COLUMNS, "died": [0, 1], "months": "number"}, ["months", "died"])
    assert (survival.task, survival.classes, survival.shape) == ("survival", 0, (6,))


def test_the_hash_stands_for_what_is_read() -> None:
    schema = Schema.of(COLUMNS, "ill")
    moved = {"ill": COLUMNS["ill"], **COLUMNS}  # the target has no place among features
    turned = dict(reversed(COLUMNS.items()))

    assert Schema.of(moved, ["ill"]).hash == schema.hash
    others = [
        Schema.of(turned, "ill"),
        Schema.of(COLUMNS, "ill", "drop"),
        Schema.of({**COLUMNS, "sex": ["0", "1"]}, "ill"),
        Schema.of({**COLUMNS, "sex": [1, 0]}, "ill"),
        Schema.of(COLUMNS, "sex"),
    ]
    assert len({schema.hash, *(other.hash for other in others)}) == 6


def test_the_hash_stays_where_nothing_new_is_said() -> None:
    """E7: a study of the short forms finds the table that was bound before units and ranges."""
    long = {
        name: {"kind": kind} if kind == "number" else {"values": kind}
        for name, kind in COLUMNS.items()
    }
    short = Schema.of(COLUMNS, "ill")
    parts = [[[c.name, c.values] for c in cs] for cs in (short.features, short.targets)]

    assert Schema.of(long, "ill").hash == short.hash
    assert short.hash == sha256(json.dumps([*parts, "error"]).encode()).hexdigest()


@pytest.mark.parametrize("more", [{"unit": "years"}, {"min": 0}, {"max": 120}, {"missing": 0.0}])
def test_units_and_ranges_belong_to_the_hash(more: dict[str, Any]) -> None:
    said = {**COLUMNS, "age": {"kind": "number", **more}}

    assert Schema.of(said, "ill").hash != Schema.of(COLUMNS, "ill").hash


@pytest.mark.parametrize(
    ("columns", "target", "words"),
    [
        ({"a": "numbr", "y": [0, 1]}, "y", 'schema.a = "numbr": give "number", or a list'),
        ({"a": 3, "y": [0, 1]}, "y", "schema.a = 3: give"),
        ({"a": [1], "y": [0, 1]}, "y", r"schema.a = \[1\]: give two values or more"),
        ({"a": [1, 1], "y": [0, 1]}, "y", "1 is there twice"),
        ({"a": [1, "x"], "y": [0, 1]}, "y", "not both"),
        ({"a": [True, False], "y": [0, 1]}, "y", "give whole numbers, or texts"),
        ({"a": [0.5, 1.5], "y": [0, 1]}, "y", "give whole numbers, or texts"),
        ({"a": ["x ", "y"], "y": [0, 1]}, "y", "without blanks"),
        ({"a": ["", "y"], "y": [0, 1]}, "y", "none empty"),
        ({"a": "number", "ill": [0, 1]}, "il", "data.target 'il': did you mean 'ill'"),
        ({"a": "number"}, None, "data.target is missing"),
        ({}, "y", "data.schema is empty"),
        ({"y": [0, 1]}, "y", "name columns to learn from"),
        ({"a": "number", "t": "number", "e": "number"}, ["t", "e"], r"\[0, 1\] for e"),
        ({"a": "number", "t": [0, 1], "e": [0, 1]}, ["t", "e"], '"number" for t'),
        ({"a": "number", "t": "number"}, ["t", "t"], "one column, or"),
        ({"a": {}, "y": [0, 1]}, "y", 'give kind = "number", or values, one of the two'),
        ({"a": {"kind": "number", "values": [0, 1]}, "y": [0, 1]}, "y", "one of the two"),
        ({"a": {"kind": [0, 1]}, "y": [0, 1]}, "y", 'give kind = "number", or a list of values'),
        ({"a": {"values": "number"}, "y": [0, 1]}, "y", 'give kind = "number", or a list of'),
        ({"a": {"kind": "number", "maxi": 1}, "y": [0, 1]}, "y", "did you mean 'max'"),
        ({"a": {"values": [0, 1], "min": 1}, "y": [0, 1]}, "y", "key of data.schema.a 'min'"),
        ({"a": {"kind": "number", "min": True}, "y": [0, 1]}, "y", "give min as a number"),
        ({"a": {"kind": "number", "max": float("nan")}, "y": [0, 1]}, "y", "give max as a number"),
        ({"a": {"kind": "number", "min": 2, "max": 2}, "y": [0, 1]}, "y", "a min below max"),
        ({"a": {"kind": "number", "missing": 10}, "y": [0, 1]}, "y", "a share from 0 to 1"),
        ({"a": {"kind": "number", "missing": 0.1}, "y": [0, 1]}, "y", "allows no empty cell"),
        ({"a": {"kind": "number", "unit": "k\x1bg"}, "y": [0, 1]}, "y", "unit as a short text"),
        ({"a": {"kind": "number", "unit": 3}, "y": [0, 1]}, "y", "unit as a short text"),
    ],
)
def test_a_wrong_schema_is_named(columns: dict[str, Any], target: Any, words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        Schema.of(columns, target)


@pytest.mark.parametrize("target", ["ill", "dose", ["months", "died"]])
def test_a_model_can_be_built_and_its_uploads_seen_without_data(target: Any) -> None:
    columns = {**COLUMNS, "months": "number", "died": [0, 1]}
    study = Study.parse({"data": {"schema": columns, "target": target}}, elsewhere=True)
    empty = schema_of(study.data).empty()

    algorithm: Algorithm = study.algorithm_object
    model = study.build_model(empty)
    _, anatomy = fitted(algorithm, empty, model, 0, 0)

    assert anatomy.bytes_up >= 4 * model.w.numel() > 0


# -- reading one's own table -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_only_what_is_named_is_read(kind: str, tmp_path: Path) -> None:
    path = table(ROWS, tmp_path)
    if kind == "parquet":
        frame = pd.read_csv(path, keep_default_na=False)
        path = tmp_path / "lille.parquet"
        frame.astype({"ill": "category", "sex": bool}).to_parquet(path)

    records = Schema.of(COLUMNS, "ill").read(path, test=0.0)

    assert records.x.tolist() == [
        [50, 0, 0, 0, 1000.5],
        [61, 1, 0, 1, 1001.5],  # None is one of the values here, not an empty cell
        [70, 1, 1, 0, 999],
    ]
    assert records.y.tolist() == [0, 1, 1] and not records.is_test.any()


def test_a_report_says_what_is_in_the_file(tmp_path: Path) -> None:
    path = table(ROWS + "Joe,no,,,0,1\n\nMax,no,NA,50,1,2\n", tmp_path)

    dropped = Schema.of(COLUMNS, "ill", "drop").report(path)
    filled = Schema.of(COLUMNS, "ill", "mean").report(path)

    assert dropped[:5] == (5, 3, {"age": 1, "cp": 2}, {"no": 1, "yes": 2}, ["name"])
    assert filled[:5] == (5, 5, {"age": 1, "cp": 2}, {"no": 3, "yes": 2}, ["name"])
    assert filled.read_with == {"sep": ",", "decimal": ".", "encoding": "utf-8"}
    age, sex, cp, *_ = filled.columns
    assert age.quartiles == [50, 50, 55.5, 63.25, 70]
    assert (age.missing, age.share, cp.missing) == (1, 0.2, 2)
    assert sex.counts == {"0": 2, "1": 3}
    assert cp.counts == {"typical": 1, "atypical": 1, "None": 1}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("name,ill,cp,age", "name,ILL,cp,Alter", r"no column 'age', 'ill' \(is it 'ILL'\?\); "),
        ("name,ill,cp,age", "name,ill,cp,years", "the file has name, ill, cp, years, sex, dose"),
        ("name,ill,cp,age", "age,ill,cp,age", "two columns are called 'age'"),
        ("61,1", "old,1", "column 'age', row 3: 'old' is no number"),
        ("61,1", "inf,1", "column 'age', row 3: 'inf' is no number"),
        ("61,1", "2020-01-01,1", "column 'age', row 3: '2020-01-01' is no number"),
        ("61,1", "61,2", "column 'sex', row 3: '2' is not among 0, 1; correct the file"),
        ("Bob", '\n \n"Bo\nb"', "column 'sex', row 5: '2' is not among"),
        ("yes", "maybe", r"row 3: 'maybe' is not among no, yes \(2 such rows in all\)"),
        ("61,1", ",1", 'column \'age\' is empty in row 3; fill it in, .*"drop" or "mean"'),
        ("Ann,no", "Ann,", "column 'ill' is empty in row 2; fill it in, .*\"drop\"\\."),
        ("Bob", "Bob,Jr", "cells in row 3: 7, in the header: 6, with ',' between them"),
        ("Ann", "Ann,Jr", "cells in row 2: 7, in the header: 6"),
        ("Bob,yes", "Bob", "cells in row 3: 5, in the header: 6"),
        (ROWS[ROWS.index("Ann") :], "", "has a header and no rows; add rows"),
        (ROWS, "", "is empty; add rows"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = ROWS.replace(old, new)
    if "\n" in new:
        text = text.replace("61,1", "61,2")

    with pytest.raises(ArchipelError, match=words):
        Schema.of(COLUMNS, "ill").read(table(text, tmp_path))


def test_other_things_that_are_wrong_in_a_file(tmp_path: Path) -> None:
    survival = Schema.of({"a": "number", "t": "number", "e": [0, 1]}, ["t", "e"], "mean")

    with pytest.raises(ArchipelError, match="column 't', row 2: '-1' is below 0"):
        survival.read(table("a,t,e\n1,-1,0\n", tmp_path))
    with pytest.raises(ArchipelError, match="column 'e' is empty in row 3"):
        survival.read(table("a,t,e\n,1,0\n1,1,\n", tmp_path))
    with pytest.raises(ArchipelError, match=r"is no \.csv, \.csv\.gz or \.parquet file"):
        survival.read(table("a,t,e\n1,1,0\n", tmp_path, "lille.xlsx"))
    with pytest.raises(ArchipelError, match="No such file"):
        survival.read(tmp_path / "lyon.csv")
    with pytest.raises(ArchipelError, match="cannot be read as a table"):
        survival.read(table("a,t,e\n1,1,0\n", tmp_path, "lille.parquet"))
    with pytest.raises(ArchipelError, match=r"test=1\.5"):
        survival.read(table("a,t,e\n1,1,0\n", tmp_path), test=1.5)
    empty = survival.read(table("a,t,e\n,1,0\n", tmp_path))
    with pytest.raises(ArchipelError, match="column 'a' is empty on all training rows"):
        empty.sums().scaling(survival.columns)
    with pytest.raises(ArchipelError, match="x has nan in column 'a'"):
        empty.federation()


# -- units, ranges, shares of empty cells (E7) -----------------------------------------------------


WEIGHT = {"kind": "number", "unit": "kg", "min": 30, "max": 150, "missing": 0.25}
SHARED = Schema.of(
    {"w": WEIGHT, "s": {"values": ["f", "m"], "missing": 0.5}, "y": [0, 1]}, "y", "mean"
)


def weights(folder: Path, *cells: object) -> Path:
    rows = "".join(f"{cell},{'fm'[i % 2]},{i % 2}\n" for i, cell in enumerate(cells))
    return table("w,s,y\n" + rows, folder)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            (70, 500, 80, 501),
            r"'w', row 3: '500' is out of range, 30 to 150 kg \(2 such rows in all",
        ),
        ((70, 29.9), r"row 3: '29.9' is out of range, 30 to 150 kg; correct the file, or have"),
        (
            (170, 180, 190, 200, 75),
            r"row 2: '170' .*\(4 such rows .*looks like pounds \(x 0.4536\)",
        ),
        ((70000, 65000, 80000), "looks like grams"),
        ((70, -999, 80, -999), "row 3: '-999' .*if -999 stands for nothing, leave the cell empty"),
        ((70, "", "", 80), "column 'w' is empty in 2 of 4 rows, a share of 0.5 .* allows 0.25"),
    ],
)
def test_what_was_not_agreed_is_refused(
    cells: tuple[object, ...], words: str, tmp_path: Path
) -> None:
    """E7: pounds for kilograms, stand-ins and too many empty cells are refused, and named."""
    path = weights(tmp_path, *cells)

    with pytest.raises(ArchipelError, match=words):
        SHARED.read(path)
    with pytest.raises(ArchipelError, match=words):
        SHARED.federation([path])
    (refused,) = SHARED.report(path).refused
    assert re.search(words, refused)


def test_every_column_that_is_wrong_is_told(tmp_path: Path) -> None:
    path = table("w,s,y\n200,f,0\n210,,1\n,,0\n,,1\n", tmp_path)

    with pytest.raises(ArchipelError, match="2 more columns are wrong, too"):
        SHARED.read(path)
    assert len(SHARED.report(path).refused) == 3


def test_a_share_of_empty_cells_may_be_just_what_is_allowed(tmp_path: Path) -> None:
    report = SHARED.report(weights(tmp_path, 70, "", 80, 90))

    assert report.refused == []
    assert report.columns[0].share == 0.25


@pytest.mark.parametrize(
    ("kind", "cells", "words"),
    [
        ("number", (50, 61, -9, 70), r"STANDS FOR NOTHING\? -9 in 1 cell, far from all others"),
        ("number", (50, 61, 999, 999), r"STANDS FOR NOTHING\? 999 in 2 cells"),
        ("number", (-50, 61, -999, 7), r"STANDS FOR NOTHING\? -999"),
        ("number", (5, 5, 5, 5), "constant: every value is 5"),
        (
            {"kind": "number", "unit": "mmHg", "min": 60, "max": 250},
            (16, 17, 18),
            r"like kPa \(x 7.5",
        ),
        ({"kind": "number", "unit": "kPa", "min": 5, "max": 40}, (120, 130, 140), "like mmHg"),
        ({"kind": "number", "unit": "mg/dl", "min": 0.3, "max": 15}, (80, 90, 99), "of creatinine"),
        ({"kind": "number", "unit": "mmol/l", "min": 2, "max": 30}, (90, 99, 120), "of glucose"),
        ({"kind": "number", "unit": "°C", "min": 30, "max": 45}, (98, 99, 100), "Fahrenheit"),
        ({"kind": "number", "unit": "l/min", "min": 1, "max": 15}, (4e3, 5e3), "times 0.001"),
        ({"kind": "number", "min": 0, "max": 1}, (50, 60), "in range times 0.001 or 0.01"),
    ],
)
def test_what_looks_wrong_is_told_beside_the_column(
    kind: Any, cells: tuple[float, ...], words: str, tmp_path: Path
) -> None:
    schema = Schema.of({"w": kind, "s": ["f", "m"], "y": [0, 1]}, "y")

    notes = schema.report(weights(tmp_path, *cells)).columns[0].notes

    assert any(re.search(words, note) for note in notes), notes


@pytest.mark.parametrize("cells", [(1, 5, 999, 2000), (-20, -9, 3), (0, 1, 1), (99, 98, 97)])
def test_numbers_like_others_are_no_stand_ins(cells: tuple[float, ...], tmp_path: Path) -> None:
    schema = Schema.of({"w": "number", "s": ["f", "m"], "y": [0, 1]}, "y")

    assert schema.report(weights(tmp_path, *cells)).columns[0].notes == []


# -- sums ------------------------------------------------------------------------------------------


@QUICK
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 999))
def test_sums_over_sites_give_the_scaling_of_all_rows(sizes: list[int], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes) + 2, 3, generator=rng, dtype=torch.float64) * 5 + 50
    x[:, 2] = 0.1
    x[2:][torch.rand(len(x) - 2, 3, generator=rng) < 0.3] = torch.nan

    parts = [Sums.of(part) for part in x.split([2, *sizes])]
    found = sum(parts[1:], parts[0]).scaling()

    assert torch.allclose(found.mean, x.nanmean(0), rtol=1e-12)
    for column in range(2):
        known = x[~x[:, column].isnan(), column]
        assert torch.allclose(found.scale[column], known.std(correction=0), rtol=1e-9)
    assert found.scale[2] == 1.0  # constant, whatever rounding says
    scaled = found.apply(x)
    assert (scaled[x.isnan()] == 0).all() and scaled[:, 2].abs().max() < 1e-12
    assert torch.equal(found.fill(x).isnan(), torch.zeros_like(x, dtype=torch.bool))


@settings(QUICK, max_examples=12)
@given(
    st.lists(st.integers(4, 30), min_size=1, max_size=4),
    st.integers(0, 999),
    st.sampled_from(["drop", "mean"]),
    st.sampled_from(["ill", "dose", ["months", "died"]]),
    st.booleans(),
)
def test_sites_on_their_own_have_what_a_simulation_has(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    seed: int,
    missing: str,
    target: str | list[str],
    standardise: bool,
) -> None:
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("sites")
    roles = {target} if isinstance(target, str) else set(target)
    tables = {f"site {k}": made_up(rng, n, 0.1) for k, n in enumerate(sizes)}
    for name, frame in tables.items():
        frame.loc[:1, list(COLUMNS)] = [40.0, 1, "None", 1.5, "no"]  # to have something to learn
        frame["dose"] = frame["dose"].fillna(7.0) if "dose" in roles else frame["dose"]
        frame.to_csv(folder / f"{name}.csv", index=False)
    columns = {**COLUMNS, **({"months": "number", "died": [0, 1]} if len(roles) == 2 else {})}
    asked = {"schema": columns, "target": target, "test": 0.34, "missing": missing}
    asked |= {"standardise": standardise}
    mixed = pd.concat([t.assign(site=name, at=range(len(t))) for name, t in tables.items()])
    mixed.sort_values("at", kind="stable").to_csv(folder.with_suffix(".csv"), index=False)
    described = Study.parse({"study": {"seed": seed}, "data": asked}, elsewhere=True)
    schema = schema_of(described.data)

    parts = {name: schema.read(folder / f"{name}.csv", 0.34) for name in tables}
    scaling = added(list(parts.values()))
    sites = {name: part.federation(scaling, name) for name, part in parts.items()}

    for where in ({"folder": folder.name}, {"file": f"{folder.name}.csv", "by": "site"}):
        study = {"study": {"seed": seed}, "data": {**asked, **where}}
        simulated = Study.parse(study, folder.parent).federation()
        assert list(simulated.names or ()) == list(tables)
        assert list(simulated.columns or ()) == schema.columns
        for name, site in sites.items():
            assert (site.task, site.classes) == (simulated.task, simulated.classes)
            for mine, there in zip(site.party(0), simulated.party(name), strict=True):
                assert mine.dtype == there.dtype
                assert torch.allclose(mine, there, rtol=1e-6, atol=1e-6)
            trained = simulated.as_trained().party(name)[1]
            assert torch.allclose(site.as_trained().party(0)[1], trained, rtol=1e-5, atol=1e-5)


def test_a_newcomer_is_scaled_by_the_sums_of_the_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        made_up(rng, 20, 0.1).to_csv(tmp_path / f"{name}.csv", index=False)
    asked = {"schema": COLUMNS, "target": "ill", "missing": "mean", "folder": ".", "new": 1}
    study = Study.parse({"data": asked}, tmp_path)

    simulated, schema = study.federation(), schema_of(study.data)

    read = {name: schema.read(tmp_path / f"{name}.csv") for name in map(simulated.name, range(4))}
    *others, newcomer = read
    scaling = added([read[name] for name in others])
    mine, there = read[newcomer].federation(scaling).party(0), simulated.party(newcomer)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(mine, there, strict=True))
