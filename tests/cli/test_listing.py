"""`archipel list`, `show` and `data`."""

from pathlib import Path

import pytest

from archipel.algorithms import ALGORITHMS, scaffold
from archipel.data import DATASETS
from archipel.graphs import TOPOLOGIES
from archipel.models import MODELS


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("algorithms", ALGORITHMS),
        ("data", DATASETS),
        ("models", MODELS),
        ("topologies", TOPOLOGIES),
        ("wire", []),
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
