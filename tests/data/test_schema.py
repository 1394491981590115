# SPDX-License-Identifier: Apache-2.0
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
from archipel.engines.network.seat import anatomy_of
from archipel.errors import ArchipelError
from archipel.sections import schema_of
from archipel.study import Study

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
    anatomy = anatomy_of(algorithm, empty, model, 0, 0)

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

    assert dropped == (5, 3, {"age": 1, "cp": 2}, {"no": 1, "yes": 2}, ["name"])
    assert filled == (5, 5, {"age": 1, "cp": 2}, {"no": 3, "yes": 2}, ["name"])


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
        ("Bob", "Bob,Jr", r"cannot be read as a table \(.*line 3"),
        ("Ann", "Ann,Jr", "cannot be read as a table"),
        (ROWS[ROWS.index("Ann") :], "", "no row is left"),
        (ROWS, "", "cannot be read as a table"),
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
    with pytest.raises(ArchipelError, match=r"is no \.csv or \.parquet file"):
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
    sites = {name: part.federation(scaling, name, standardise) for name, part in parts.items()}

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
