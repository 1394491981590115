# SPDX-License-Identifier: Apache-2.0
"""What `archipel privacy plan` says of a study whose parties wake."""

import json

from typer.testing import CliRunner

from archipel.cli import app

STUDY = """
[data]
name = "heart_disease"
[study]
name = "personal"
rounds = 10
[algorithm]
name = "coordinate"
smoothness = 4.0
l2 = 1.0
[topology]
name = "complete"
[privacy]
unit = "record"
epsilon = 4.0
delta = 1e-3
clip = 2.0
mechanism = "laplace"
neighbours = "replace"
wakes = 5
"""


def test_the_plan_has_closed_forms_and_the_bound(tmp_path):
    path = tmp_path / "personal.toml"
    path.write_text(STUDY)
    told = CliRunner().invoke(app, ["privacy", "plan", str(path), "--json"])
    found = json.loads(told.output)

    assert found["counted"] == 5 and found["wakes"]
    ways = found["composition"]
    assert ways["sum"] >= ways["pld"] == ways["least"] == found["epsilon"]
    assert 3.9 < found["epsilon"] <= 4.0
    assert found["curve"][-1]["rounds"] == 5
    utility = found["utility"]
    assert utility["start"] > 0 and utility["noise"] > 0 and utility["gained"] >= 1
    fewer = CliRunner().invoke(app, ["privacy", "plan", str(path), "--set", "privacy.wakes=1"])
    assert "Laplace" in fewer.output and "Kairouz" in fewer.output and "Q - Q*" in fewer.output


def test_the_bound_is_of_wake_ups_that_there_are(tmp_path):
    """A party wakes once a round: a budget for more is not used up. A warm start has no bound."""
    path = tmp_path / "personal.toml"
    path.write_text(STUDY)
    found = {}
    for change in ("privacy.wakes=10", "privacy.wakes=40", "algorithm.warm_rounds=2",
                   "topology.name=matching"):  # fmt: skip
        told = CliRunner().invoke(app, ["privacy", "plan", str(path), "--json", "--set", change])
        found[change] = json.loads(told.output)["utility"]

    once, more, warm, changes = found.values()
    assert warm is changes is None
    assert more["start"] == once["start"] and more["noise"] > once["noise"]
