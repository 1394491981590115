# SPDX-License-Identifier: Apache-2.0
"""What is made of columns that nobody described, and what has to be said of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from archipel.data import Federation
from archipel.errors import ArchipelError
from archipel.study.file import Study

RNG = np.random.default_rng(0)
N = 60


def frame(**columns: Any) -> pd.DataFrame:
    plain = {
        "site": ["a", "b", "c"] * (N // 3),
        "age": np.random.default_rng(0).normal(60, 9, N).round(1),
        "y": [0, 1] * (N // 2),
    }
    return pd.DataFrame(plain | columns)


def made(table: pd.DataFrame, **said: Any) -> Federation:
    plain = {"by": "site", "target": "y", "test": 0.2, "standardise": False}
    return Federation.from_frame(table, **plain | said)


def refused(table: pd.DataFrame, **said: Any) -> str:
    with pytest.raises(ArchipelError) as found:
        made(table, **said)
    return str(found.value)


def columns(fed: Federation) -> list[str]:
    return list(fed.columns or ())


# -- kinds -----------------------------------------------------------------------------------------


def test_words_of_many_letters_stay_whole_where_cells_are_empty() -> None:
    """REVIEW 4.1: 16 wind directions are 16 values, with a gap as well."""
    wind = ["N", "NNE", "NE", "ENE", "E", None] * (N // 6)

    fed = made(frame(wind=wind), missing="mean")

    assert columns(fed) == ["age", "wind=ENE", "wind=N", "wind=NE", "wind=NNE"]


def test_a_file_without_rows_or_with_an_empty_column_changes_nothing(tmp_path: Path) -> None:
    """REVIEW 4.2."""
    table = frame().drop(columns="site")
    table.iloc[:30].to_csv(tmp_path / "a.csv", index=False)
    table.iloc[30:].assign(age="").to_csv(tmp_path / "b.csv", index=False)
    (tmp_path / "c.csv").write_text("age,y\n")

    fed = Federation.from_folder(tmp_path, target="y", missing="mean")

    assert columns(fed) == ["age"] and list(fed.names or ()) == ["a", "b"]
    assert fed.about.note == "party 'c' has a table without rows: left out"


@pytest.mark.parametrize("word", ["unknown", "<5", "1,2", "?", "Größe"])
def test_a_word_among_numbers_is_asked_about(word: str) -> None:
    """REVIEW 4.3: column, word, number of cells, party and row, and what to say."""
    table = frame().astype({"age": object})
    table.loc[[7, 12], "age"] = word

    said = refused(table)

    assert f"column 'age' has numbers, but '{word}'" in said
    assert "in 2 of 60 cells, the first in party 'b', row 8" in said
    assert f'data.empty = ["{word}"]' in said and 'data.columns.age = "category"' in said
    filled = made(table, empty=[word], missing="mean")
    assert columns(filled) == ["age"]
    assert len(made(table, empty=[word], missing="drop").x) == N - 2
    assert "empty cells in 'age' (2)" in refused(table, empty=[word])
    assert len(columns(made(table, columns={"age": "category"}))) > 20


def test_a_number_that_means_nothing_is_an_empty_cell() -> None:
    table = frame()
    table.loc[3, "age"] = -999

    fed = made(table, empty=["-999.0"], missing="mean")

    assert float(fed.x.min()) > 0


@pytest.mark.parametrize(
    "form", ["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d %b %Y", "%Y%m%d", "%Y-%m-%d %H:%M"]
)
@pytest.mark.parametrize("typed", [False, True])
def test_dates_are_never_categories(form: str, typed: bool) -> None:
    """REVIEW 4.3: they are days if that is said."""
    days = pd.Series(pd.date_range("2015-01-01", periods=N, freq="17D"))
    table = frame(visit=days if typed else days.dt.strftime(form))

    said = refused(table)
    fed = made(table, columns={"visit": "date"}, test=0.0)

    assert "column 'visit' has dates" in said and 'data.columns.visit = "date"' in said
    assert columns(fed) == ["age", "visit"]
    wanted = (days - pd.Timestamp("1970-01-01")).dt.days
    assert sorted(fed.x[:, 1].tolist()) == wanted.tolist()


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["03/04/2015", "05/06/2015"], "no row tells whether the day or the month comes first"),
        (["13/04/2015", "05/26/2015"], "in some rows"),
        (["13/04/15", "05/06/15"], "a year of two digits"),
        (["2015-02-30", "2015-02-01"], "'2015-02-30' is no date"),
        (["2015-02-03", "soon"], "'soon' is no date"),
    ],
)
def test_dates_that_may_be_others_are_refused(cells: list[str], words: str) -> None:
    table = frame(visit=cells * (N // 2))

    assert words in refused(table, columns={"visit": "date"})


@pytest.mark.parametrize(
    ("name", "cells", "kind"),
    [
        ("patient", [f"P{i:03}" for i in range(N)], "category"),
        ("note", [f"saw {i % 40}" for i in range(N)], "category"),
        ("row", list(range(N)), "number"),
        ("x", [i + 1 for i in range(N)], "number"),
        ("x", RNG.permutation(N).tolist(), "number"),
        ("t", [i // 3 for i in range(N)], "number"),
        ("patient_id", RNG.integers(0, 9, N).tolist(), "number"),
        ("caseNumber", (RNG.permutation(N) * 7).tolist(), "number"),
    ],
)
def test_what_tells_rows_apart_is_no_feature_unasked(
    name: str, cells: list[Any], kind: str
) -> None:
    table = frame(**{name: cells})

    said = refused(table)

    assert f"column '{name}'" in said and f'data.drop = ["{name}"]' in said
    assert f'data.columns.{name} = "{kind}"' in said
    assert columns(made(table, drop=[name])) == ["age"]
    assert len(columns(made(table, columns={name: kind}))) >= 2
    assert columns(made(table, columns={name: "skip"})) == ["age"]


def test_codes_are_numbers_unless_they_are_called_a_category() -> None:
    table = frame(stage=[1, 2, 3] * (N // 3), acid=RNG.integers(3, 90, N), only=[7] * N)

    assert columns(made(table)) == ["age", "stage", "acid"]  # one that never differs is left out
    assert columns(made(table, columns={"stage": "category"})) == [
        "age", "stage=2", "stage=3", "acid",
    ]  # fmt: skip
    assert columns(made(table, columns={"stage": [3, 2, 1]}))[1:3] == ["stage=2", "stage=1"]
    categories = table.astype({"stage": "category"})
    assert columns(made(categories))[1:3] == ["stage=2", "stage=3"]


def test_flags_are_one_feature() -> None:
    table = frame(smoker=[True, False, False] * (N // 3), drinks=["yes", "no"] * (N // 2))

    fed = made(table, test=0.0)

    assert columns(fed) == ["age", "smoker=True", "drinks=yes"]
    assert int(fed.x[:, 1].sum()) == N // 3


def test_two_spellings_are_asked_about_and_never_two_values_unasked() -> None:
    """One hospital writes TRUE where another writes True."""
    table = frame(smoker=["TRUE", "False", "True"] * (N // 3))
    said = refused(table)
    assert "column 'smoker' has 'TRUE' and 'True', which differ in capitals alone" in said
    assert 'data.columns.smoker = "category" if they are two' in said
    assert columns(made(table, columns={"smoker": "category"})) == [
        "age", "smoker=TRUE", "smoker=True",
    ]  # fmt: skip

    table = frame(y=["yes", "no", "Yes", "no"] * (N // 4))
    for task in (None, "classification"):
        assert "column 'y' has 'Yes' and 'yes'" in refused(table, task=task)
    assert made(table, columns={"y": "category"}).classes == 3

    fed = made(frame(site=["Bonn", "bonn", "c"] * (N // 3)))
    assert fed.parties == 3
    assert "parties 'Bonn' and 'bonn' differ in capitals alone" in fed.about.note


def test_a_type_of_pandas_says_nothing_of_columns_that_are_no_features() -> None:
    """Whose row it is, test rows and what is left out may be of type category as well."""
    table = frame(note=["u", "v"] * (N // 2), role=["train", "train", "test"] * (N // 3),
                  code=[1, 2, 3] * (N // 3))  # fmt: skip
    typed = table.astype(dict.fromkeys(["site", "note", "role", "code", "y"], "category"))

    fed = made(typed, test="role", drop=["note"], task="regression")

    assert list(fed.names or ()) == ["a", "b", "c"] and fed.task == "regression"
    assert columns(fed) == ["age", "code=2", "code=3"]
    twice = pd.concat([typed, typed[["age"]]], axis=1)
    assert "two columns are called 'age'" in refused(twice)


def test_limits_of_a_column_hold_without_a_schema() -> None:
    table = frame()
    limits = {"kind": "number", "unit": "years", "min": 0, "max": 50}

    assert "is out of range, 0 to 50 years" in refused(table, columns={"age": limits})
    assert columns(made(table, columns={"age": {**limits, "max": 120}})) == ["age"]


def test_all_that_has_to_be_said_is_told_at_once() -> None:
    table = frame(visit=pd.date_range("2015-01-01", periods=N), patient_id=range(N))

    assert "Refused as well: patient_id; see 'archipel data'" in refused(table)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"columns": {"agee": "number"}}, "unknown column in data.columns 'agee': did you mean"),
        ({"columns": {"age": "nmber"}}, "unknown kind of data.columns.age 'nmber': did you mean"),
        ({"columns": {"age": {"kind": "number", "low": 1}}}, "unknown key of data.columns.age"),
        ({"columns": {"age": "number"}, "drop": ["age"]}, "is in data.drop as well"),
        ({"columns": {"site": "category"}}, "data.columns.site: is no feature"),
        ({"columns": {"age": "date"}}, "is no date such as 2016-01-31"),
        ({"columns": {"y": "skip"}}, "is among the columns to leave out"),
        ({"drop": ["y"]}, "data.target 'y': is among the columns to leave out"),
        ({"by": "y"}, "is data.target 'y' as well"),
    ],
)
def test_wrong_words_are_named(said: dict[str, Any], words: str) -> None:
    assert words in refused(frame(), **said)


# -- empty cells -----------------------------------------------------------------------------------


def test_remedies_for_empty_cells_are_right() -> None:
    """REVIEW 4.12: all columns with counts; nobody is told to drop the target or the party."""
    table = frame(dose=[1.5, None, 2.5] * (N // 3))
    table.loc[4, "age"] = np.nan
    said = refused(table)
    assert "empty cells in 'age' (1), 'dose' (20)" in said
    assert 'data.missing = "drop" (the rows) or "mean", or data.drop = ["age", "dose"]' in said

    many = frame(**{name: [1.5, None, 2.5] * (N // 3) for name in "pqrs"})
    assert 'data.drop = ["p", "q", "r", "s"]' in refused(many)

    for column in ("y", "site"):
        table = frame().astype({column: object})
        table.loc[2, column] = None
        for missing in ("error", "mean"):
            said = refused(table, missing=missing)
            assert f"empty cells in '{column}' (1), the first in" in said and "row 3" in said
            assert 'data.missing = "drop"' in said and "data.drop" not in said
        assert len(made(table, missing="drop").x) == N - 1


def test_a_party_whose_rows_all_have_gaps_is_named() -> None:
    table = frame()
    table.loc[table["site"] == "c", "age"] = np.nan

    fed = made(table, missing="drop")

    assert list(fed.names or ()) == ["a", "b"]
    assert "party 'c' has no row without an empty cell: left out" in fed.about.note


def test_blanks_around_a_party_make_no_other_party() -> None:
    """REVIEW 4, smaller: "hospital " is the same hospital."""
    fed = made(frame(site=["a", "a ", " b"] * (N // 3)))

    assert list(fed.names or ()) == ["a", "b"]
    assert "blanks around names in column 'site' do not count" in fed.about.note


# -- the task --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "task", "classes"),
    [
        ([1, 2], "classification", [1, 2]),
        ([0.0, 1.0], "classification", [0, 1]),
        ([-1, 1], "classification", [-1, 1]),
        ([3, 7], "classification", [3, 7]),
        (["no", "yes", "maybe"], "classification", ["maybe", "no", "yes"]),
        ([True, False], "classification", ["False", "True"]),
        ([0, 1, 2], "classification", [0, 1, 2]),
        ([1, 2, 3, 4], "classification", [1, 2, 3, 4]),
        ([0.5, 1.0, 2.0], "regression", []),
    ],
)
def test_a_task_that_is_evident_is_guessed(cells: list[Any], task: str, classes: list[Any]) -> None:
    """REVIEW 4.4: labels 1 and 2 are two classes, named so."""
    fed = made(frame(y=(cells * N)[:N]))

    assert fed.features.schema is not None
    assert fed.task == task and fed.classes == len(classes)
    assert list(fed.features.schema.targets[0].values) == classes
    assert sorted(set(fed.y.tolist())) == list(range(len(classes))) or task == "regression"


def test_a_target_with_blanks_keeps_its_task() -> None:
    table = frame().astype({"y": float})
    table.loc[[1, 5], "y"] = np.nan

    fed = made(table, missing="drop")

    assert fed.task == "classification" and fed.classes == 2


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([3, 4, 5, 8], 'Say data.task = "classification" or "regression"'),
        (list(range(N)), 'Say data.task = "classification" or "regression"'),
        ([0.5, 1.5], 'Say data.task = "classification" or "regression"'),
        ([0], "is '0' in every row: there is nothing to learn"),
        (["x"], "is 'x' in every row"),
        (["1", "2", "x"], "'x' is no number (20 of 60 cells, the first in party 'c', row 3)"),
        ([f"w{i}" for i in range(N)], "is text with 60 different values"),
        (["2016-01-01", "2017-01-01"], "has dates"),
    ],
)
def test_a_target_that_may_be_either_is_asked_about(cells: list[Any], words: str) -> None:
    assert words in refused(frame(y=(cells * N)[:N]))


def test_the_task_can_be_said() -> None:
    table = frame(y=[3, 4, 5, 8] * (N // 4), dose=RNG.normal(0, 1, N))

    classes = made(table, task="classification")
    number = made(table, task="regression")

    assert classes.classes == 4 and set(classes.y.tolist()) == {0, 1, 2, 3}
    assert number.task == "regression" and set(number.y.tolist()) == {3, 4, 5, 8}
    assert made(table, columns={"y": "category"}).classes == 4
    assert made(table, columns={"y": [8, 5, 4, 3]}).party("a")[1][0] in (0, 1, 2, 3)
    assert "does not fit" in refused(table, task="regression", columns={"y": "category"})
    assert "give two, [time, event]" in refused(table, task="survival")
    assert "two columns, time and event" in refused(table, target=["age", "y"], task="regression")
    assert "unknown data.task 'clasification'" in refused(table, task="clasification")
    assert "has fractions" in refused(frame(y=RNG.normal(0, 1, N)), task="classification")
    assert "is no number" in refused(frame(y=["a", "b"] * (N // 2)), task="regression")


def test_a_study_says_it_all(tmp_path: Path) -> None:
    table = frame(y=[3, 4, 5, 8] * (N // 4), stage=[1, 2, 3] * (N // 3)).astype({"age": object})
    table.loc[5, "age"] = "unknown"
    table.to_csv(tmp_path / "all.csv", index=False)
    said = {
        "file": "all.csv", "by": "site", "target": "y", "task": "classification",
        "missing": "mean", "empty": ["unknown"], "columns": {"stage": "category"},
    }  # fmt: skip
    study = Study.parse({"data": said}, tmp_path)
    other = Study.parse({"data": {**said, "empty": ["unknown", "?"]}}, tmp_path)

    fed = study.federation()

    assert columns(fed) == ["age", "stage=2", "stage=3"] and fed.classes == 4
    assert Study.parse(study.toml(), tmp_path).hash == study.hash != other.hash


# -- test rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [[0, 1], [False, True], ["train", "test"], ["0", "1"]])
def test_a_column_says_which_rows_test(flags: list[Any]) -> None:
    table = frame(which=[flags[0], flags[0], flags[1], flags[0], flags[1], flags[0]] * (N // 6))

    fed = made(table, test="which")

    assert columns(fed) == ["age"]
    assert fed.n_test.tolist() == [0, 10, 10]
    assert "no test rows: party 'a'" in fed.about.note


@pytest.mark.parametrize("numbers", [False, True])
def test_rows_from_a_date_on_test(numbers: bool) -> None:
    days = pd.Series(pd.date_range("2015-01-01", periods=N, freq="30D"))
    when = days.dt.year + (days.dt.day_of_year - 1) / 366 if numbers else days
    table = frame(when=when, age=np.arange(N) * 2.5)
    first = "after:2018" if numbers else "after:2018-01-01"

    fed = made(table, test=first, time="when")
    found = made(table, test=first, time=None if not numbers else "when")
    fed_days = made(table, test=first, columns={"when": "number" if numbers else "date"},
                    time="when")  # fmt: skip

    late = table["age"][(days >= "2018-01-01").to_numpy()]
    tests = [row for k in range(3) for row in fed.party(k)[2][:, 0].tolist()]
    assert sorted(tests) == late.tolist()
    assert columns(fed) == ["age"] and columns(found) == ["age"]
    assert columns(fed_days) == ["when", "age"] or columns(fed_days) == ["age", "when"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"test": "after:2015-06-01"}, "no column has dates; say which column in data.time"),
        ({"test": "after:soon", "time": "age"}, 'write "after:2016-01-31", or a number'),
        ({"test": "after:2015-06-01", "time": "age"}, "has numbers; give one as in"),
        ({"test": "after:1", "time": "age"}, "no row is left to train on"),
        ({"test": "after:999", "time": "age"}, "no row is left to test on"),
        ({"test": "after:1", "time": "agee"}, "unknown column 'agee'"),
        ({"test": 0.2, "time": "age"}, 'is for data.test = "after:2016-01-01"'),
        ({"test": "age"}, "must be true on test rows"),
        ({"test": "y"}, "is data.target 'y' as well"),
    ],
)
def test_wrong_test_rows_are_named(said: dict[str, Any], words: str) -> None:
    assert words in refused(frame(dose=RNG.normal(0, 1, N)), **said)


def test_what_fills_and_scales_comes_from_training_rows_alone(tmp_path: Path) -> None:
    table = frame(when=[2015] * 40 + [2016] * 20)
    table["age"] = [1.0, np.nan, 3.0, 5.0] * 10 + [1000.0] * 20
    table.to_csv(tmp_path / "all.csv", index=False)
    said = {"file": "all.csv", "by": "site", "target": "y", "missing": "mean",
            "test": "after:2016", "time": "when"}  # fmt: skip

    features = Study.parse({"data": said}, tmp_path).federation().features

    assert features.fill is not None and features.scaling is not None
    assert features.fill.tolist() == [3.0] and features.scaling.mean.tolist() == [3.0]


def test_a_share_that_is_none_is_refused_wherever_the_tables_are() -> None:
    said = {"schema": {"age": "number", "y": [0, 1]}, "target": "y"}
    for test in (1.0, -0.1, 5):
        with pytest.raises(ArchipelError, match="give a number from 0 below 1"):
            Study.parse({"data": {**said, "test": test}}, elsewhere=True)


def test_names_of_files_stay_as_they_are(tmp_path: Path) -> None:
    """And have the order of names, not of files: "a-b.csv" would come before "a.csv"."""
    for name in ("02", "10", "a-b", "a"):
        frame().drop(columns="site").to_csv(tmp_path / f"{name}.csv", index=False)

    assert list(Federation.from_folder(tmp_path, target="y").names or ()) == [
        "02", "10", "a", "a-b",
    ]  # fmt: skip


def test_a_word_beside_decimal_commas_is_the_one_that_is_named(tmp_path: Path) -> None:
    cells = ["unknown" if i == 9 else f"{i},5" for i in range(20)]
    lines = [f"{'ab'[i % 2]};{cell};{i % 2}" for i, cell in enumerate(cells)]
    (tmp_path / "all.csv").write_text("\n".join(["site;age;y", *lines]))
    said: dict[str, Any] = {"file": "all.csv", "by": "site", "target": "y", "missing": "mean"}

    with pytest.raises(ArchipelError, match=r"but 'unknown' in 1 of 20 cells.*b', row 11"):
        Study.parse({"data": said}, tmp_path).federation()
    said |= {"empty": ["unknown"], "standardise": False, "test": 0.0}
    fed = Study.parse({"data": said}, tmp_path).federation()
    assert sorted(fed.x[:, 0].tolist())[:3] == [0.5, 1.5, 2.5]


def test_values_that_look_like_numbers_may_be_text(tmp_path: Path) -> None:
    for name, cells in {"a": ["1", "", "2"], "b": ["2", "x", "1"]}.items():
        lines = [f"{cell},{i % 2},{i * i}" for i, cell in enumerate(cells * 4)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["code,y,age", *lines]))

    for kind in (["1", "2", "x"], {"values": ["1", "2", "x"]}, "category"):
        fed = Federation.from_folder(tmp_path, target="y", missing="mean", columns={"code": kind})
        assert columns(fed) == ["code=2", "code=x", "age"]


def test_sites_draw_their_own_test_rows() -> None:
    schema = {"age": "number", "y": [0, 1]}
    for test in ("which", "after:2016-01-01"):
        said = {"schema": schema, "target": "y", "test": test}

        with pytest.raises(ArchipelError, match="every site draws its test rows itself"):
            Study.parse({"data": said}, elsewhere=True)
