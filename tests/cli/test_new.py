"""`archipel new` writes files that run as they are."""

import json
import tomllib

import pytest

from archipel.algorithms import ALGORITHMS
from archipel.study.sections import SECTIONS

MINE = """\
from dataclasses import dataclass, field

@dataclass(frozen=True)
class Mine:
    lr: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.99)
    most: float = float("inf")
    made: int = field(default=1, init=False)
    many: list[int] = field(default_factory=list)

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        return -self.lr * me.grad(w), None

    def server(self, w, uploads):
        return w + uploads.mean()
"""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_as_written(archipel, tmp_path, algorithm):
    made = archipel("new", "mine", "--algorithm", algorithm, "--json")
    done = archipel("run", "mine.toml", "--rounds", "1", "--workers", "1", "--no-baselines",
                    "--json")  # fmt: skip

    assert made.json == {"study": "mine.toml", "schema": None}
    assert done.code == 0 and done.json["run"] == "mine-001"
    text = (tmp_path / "mine.toml").read_text()
    keys = [key for kind in SECTIONS.values() for key in kind.model_fields]
    assert all(f"{key} = " in text for key in keys)
    assert max(map(len, text.splitlines())) <= 120


def test_it_says_what_to_type_next(archipel):
    done = archipel("new", "heart")

    assert done.code == 0 and done.out == "heart.toml is there: archipel run heart.toml\n"


def test_it_never_overwrites(archipel, tmp_path):
    archipel("new", "mine")
    before = (tmp_path / "mine.toml").read_text()
    again = archipel("new", "mine.toml", "--algorithm", "scaffold")

    assert again.code == 2 and "'mine.toml' is there already" in again.sentence
    assert (tmp_path / "mine.toml").read_text() == before


def test_values_are_written_and_the_rest_commented(archipel, tmp_path):
    archipel(
        "new", "mine", "--algorithm", "fedopt", "--data", "school", "--set", "study.rounds=7",
        "--set", "algorithm.optimiser.name=adam", "--set", 'simulate.away."a school"=3',
    )  # fmt: skip
    tables = tomllib.loads((tmp_path / "mine.toml").read_text())

    assert tables["study"] == {"name": "mine", "rounds": 7}
    assert tables["algorithm"] == {"name": "fedopt", "optimiser": {"name": "adam"}}
    assert tables["simulate"] == {"away": {"a school": "3"}}


def test_a_table_of_ones_own(archipel, patients):
    refused = archipel("new", "mine", "--data", patients.name)
    archipel(
        "new", "mine", "--data", patients.name, "--set", "data.by=hospital",
        "--set", "data.target=died", "--set", "data.test=0.3",
    )  # fmt: skip

    assert "data.target is missing: name the column to predict." in refused.sentence
    assert archipel("run", "mine.toml", "--rounds", "1", "--no-baselines").code == 0


def test_an_algorithm_of_ones_own(archipel, tmp_path):
    (tmp_path / "own.py").write_text(MINE)
    archipel("new", "mine", "--algorithm", "own.py")
    text = (tmp_path / "mine.toml").read_text()

    assert "# betas = [0.9, 0.99] " in text and "# most = ... " in text and "made" not in text
    assert archipel("run", "mine.toml", "--rounds", "1", "--no-baselines").code == 0


def test_a_schema_for_editors(archipel, tmp_path):
    told = archipel("new", "mine", "--schema", "--json").json
    schema = json.loads((tmp_path / told["schema"]).read_text())

    assert (tmp_path / "mine.toml").read_text().startswith("#:schema ./study.schema.json\n")
    assert schema["additionalProperties"] is False and {*schema["properties"]} == {*SECTIONS}
