"""`archipel list`, `show` and `data`."""

from pathlib import Path

import pytest

from archipel.adversaries import ATTACKS as ON_MODELS
from archipel.aggregation import SUMS
from archipel.algorithms import ALGORITHMS, scaffold
from archipel.attacks import ATTACKS
from archipel.data import DATASETS
from archipel.graphs import TOPOLOGIES
from archipel.models import MODELS
from archipel.rules import RULES
from archipel.study.file import Study
from archipel.wire import STEPS, float16


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("algorithms", ALGORITHMS),
        ("attacks", [*ATTACKS, *ON_MODELS]),
        ("data", DATASETS),
        ("models", MODELS),
        ("topologies", TOPOLOGIES),
        ("rules", RULES),
        ("wire", [*STEPS, *SUMS, "plain"]),
    ],
)
def test_lists(archipel, kind, names):
    rows = archipel("list", kind, "--json").json[kind]
    printed = archipel("list", kind).out

    assert [row["name"] for row in rows] == sorted(names)
    assert all(name in printed for name in names)
    assert all(row["about"] for row in rows)


def test_show_prints_the_file(archipel, tmp_path):
    file = Path(scaffold.__file__)
    source = file.read_text()
    done = archipel("show", "scaffold")

    assert done.out == source
    told = archipel("show", "scaffold", "--json").json
    assert told == {"name": "scaffold", "file": file.name, "source": source}
    (tmp_path / "mine.py").write_text(source.replace("class Scaffold", "class Mine"))
    assert archipel("show", "mine.py").out == (tmp_path / "mine.py").read_text()
    assert "def logistic" in archipel("show", "logistic").out
    assert archipel("show", "float16").out == Path(float16.__file__).read_text()


def test_show_a_model_of_ones_own(archipel, tmp_path):
    text = "import torch\ndef net(shape, outputs):\n    return torch.nn.Linear(*shape, outputs)\n"
    (tmp_path / "net.py").write_text(text)

    assert archipel("show", "net.py").out == text
    assert archipel("show", "net.py:net").out == text


@pytest.mark.parametrize("name", ["heart_disease", "school", "moons", "quadratics"])
def test_data_by_name(archipel, name):
    told = archipel("data", name, "--json").json
    printed = archipel("data", name).out

    assert told["name"] == name and len(told["roster"]) == told["parties"]
    assert told["training_points"] == sum(row["training_points"] for row in told["roster"])
    assert name in printed and str(told["parties"]) in printed


def test_data_dealt_out_and_drawn(archipel, tmp_path):
    done = archipel(
        "data", "heart_disease", "--partition", "dirichlet:0.5", "--parties", "7", "--seed", "3",
        "--plot", "labels.png", "--json",
    )  # fmt: skip

    assert done.json["parties"] == 7 and done.json["plot"] == "labels.png"
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_data_of_a_table_and_of_a_study(archipel, tmp_path, patients):
    sets = ["--set", "data.by=hospital", "--set", "data.target=died"]
    told = archipel("data", patients.name, *sets, "--json").json
    printed = archipel("data", patients.name, *sets).out

    assert {row["party"] for row in told["roster"]} == {"[red]north[/red]", "south [/]", "east"}
    assert "3 training" in printed
    study = '[data]\nfile = "patients.csv"\nby = "hospital"\ntarget = "died"\n'
    (tmp_path / "mine.toml").write_text(study)
    assert archipel("data", "mine.toml", "--json").json["roster"] == told["roster"]
    wrong = archipel("data", patients.name, "--set", "data.by=hopital", *sets[2:])
    assert "unknown column 'hopital': did you mean 'hospital'?" in wrong.sentence


def test_data_of_a_folder(archipel, tmp_path):
    (tmp_path / "tables").mkdir()
    for name in ("a", "b"):
        (tmp_path / "tables" / f"{name}.csv").write_text(
            "x,y\n" + "\n".join(f"{i * i},{i % 2}" for i in range(10))
        )
    told = archipel("data", "tables", "--set", "data.target=y", "--json").json

    assert [row["party"] for row in told["roster"]] == ["a", "b"]


TABLE = """\
hospital;record_id;visit;age;stage;smoker;died
lille;7;2015-03-01;48,5;1;no;1
lille;19;2015-09-12;81,0;2;yes;2
lille;12;2016-02-03;;3;yes;1
lyon;31;2016-05-30;75,25;1;no;2
lyon;40;2014-01-17;47,5;2;yes;1
lyon;44;2016-11-08;58,0;1;no;2
"""
SAID = """\
[data]
file = "all.csv"
by = "hospital"
target = "died"
missing = "mean"
test = "after:2016-01-01"
drop = ["record_id"]
"""


def test_data_lists_what_becomes_of_every_column(archipel, tmp_path):
    (tmp_path / "all.csv").write_text(TABLE)
    (tmp_path / "mine.toml").write_text(SAID)

    told = archipel("data", "mine.toml", "--json").json
    printed = archipel("data", "mine.toml").out
    said = archipel("data", "mine.toml", "--set", 'data.columns.stage="category"', "--json").json

    kept = ("kind", "values", "missing", "range", "becomes", "features", "refused")
    found = {each["name"]: [each[key] for key in kept] for each in told["columns"]}
    assert found == {
        "hospital": ["category", ["lille", "lyon"], 0, [], "says whose row it is", 0, False],
        "record_id": ["number", [], 0, [7, 25, 44], "left out, as said", 0, False],
        "visit": ["date", [], 0, ["2014-01-17", "2015-11-23", "2016-11-08"],
                  "says when, for the test rows; no feature", 0, False],
        "age": ["number", [], 1, [47.5, 58, 81], "number, standardised", 1, False],
        "stage": ["number", [], 0, [1, 1.5, 3], "number, standardised", 1, False],
        "smoker": ["category", ["no", "yes"], 0, [], "one 0/1 feature", 1, False],
        "died": ["category", [1, 2], 0, [], "target: 2 classes", 0, False],
    }  # fmt: skip
    assert told["task"] == "classification" and told["task_guessed"]
    assert told["target"] == {"died": {"1": 3, "2": 3}} and told["rows"] == 6
    assert [(row["training_points"], row["test_points"]) for row in told["roster"]] == [
        (2, 1), (1, 2),
    ]  # fmt: skip
    assert said["columns"][4]["becomes"] == "2 0/1 features"
    assert said["shape"] == [4] == [sum(each["features"] for each in said["columns"])]
    assert "classification (guessed; data.task says it), 3 features" in printed
    assert "died: 1 in 3 rows (50.0%), 2 in 3 rows (50.0%)" in printed


def test_data_shows_a_table_that_is_refused(archipel, tmp_path):
    (tmp_path / "all.csv").write_text(TABLE.replace("48,5", "unknown"))
    (tmp_path / "mine.toml").write_text(SAID.replace("drop", "# drop"))

    done = archipel("data", "mine.toml")
    told = archipel("data", "mine.toml", "--json")

    assert done.code == told.code == 2
    assert "column 'record_id' by its name is an identifier" in done.sentence
    assert "Refused as well: age; see 'archipel data'" in done.sentence
    assert done.out.count("REFUSED") == 2 and "smoker" in done.out
    refused = {each["name"] for each in told.json["columns"] if each["refused"]}
    assert refused == {"record_id", "age"}


def test_data_of_tables_that_a_study_describes(archipel, tmp_path):
    (tmp_path / "all.csv").write_text(TABLE)
    study = SAID.partition("test")[0] + '[data.schema]\nage = "number"\ndied = [1, 2]\n'
    (tmp_path / "mine.toml").write_text(study)

    told = archipel("data", "mine.toml", "--json").json

    assert [each["becomes"] for each in told["columns"]] == [
        "number, standardised", "target: 2 classes",
    ]  # fmt: skip
    assert told["notes"] == [
        "not read, for data.schema does not name them: record_id, smoker, stage, visit"
    ]


@pytest.mark.parametrize(
    "more", ["", '[data.schema]\ndose = "number"\nflag = "number"\nsex = ["f", "m"]\ny = [0, 1]\n']
)
def test_data_says_standardised_of_what_is(archipel, tmp_path, more):
    """Zeros and ones stay as they are, unless a schema calls them numbers."""
    cells = ["1,0.5,0,f,0", "1,2.5,1,m,1", "1,1,0,,1", "2,7,1,m,0", "2,,0,f,1", "2,3,1,f,0"]
    (tmp_path / "t.csv").write_text("\n".join(["by,dose,flag,sex,y", *cells, ""]))
    said = '[data]\nfile = "t.csv"\nby = "by"\ntarget = "y"\nmissing = "mean"\ntest = 0.0\n'
    (tmp_path / "mine.toml").write_text(said + more)

    told = archipel("data", "mine.toml", "--json").json

    scaling = Study.read(tmp_path / "mine.toml").federation().features.scaling
    features = [each for each in told["columns"] if each["features"]]
    assert [each["name"] for each in features] == ["dose", "flag", "sex"]
    assert ["standardised" in each["becomes"] for each in features] == (scaling.scale != 1).tolist()
