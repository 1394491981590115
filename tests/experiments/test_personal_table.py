# SPDX-License-Identifier: Apache-2.0
"""The table of personal models: who is new, what is tried, and a short run of it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "personal"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(FOLDER), str(FOLDER.parent), *sys.path])
    for name in ("run", "methods", "parties", "drawing"):  # another experiment may have a run, too
        monkeypatch.delitem(sys.modules, name, raising=False)
    with mpl.rc_context():  # the experiments' style stays theirs
        import run
    yield run
    for name in ("run", "methods", "parties", "drawing"):
        sys.modules.pop(name, None)


def test_fewer_writers_train_and_the_same_are_new(script: ModuleType) -> None:
    whole, part = script.writers(seed=1), script.writers(seed=1, train=20)
    names = [np.asarray(each.fed.names) for each in (whole, part)]
    groups = [each.groups for each in (whole, part)]

    assert whole.fed.training == 264
    assert part.fed.training == 20
    assert set(names[1][groups[1]["seen"]]) < set(names[0][groups[0]["seen"]])
    for group, count in (("new", 29), ("partial", 233)):
        assert len(names[0][groups[0][group]]) == count
        assert list(names[0][groups[0][group]]) == list(names[1][groups[1][group]])
    other = script.writers(seed=2)
    assert set(np.asarray(other.fed.names)[other.groups["new"]]) != set(names[0][groups[0]["new"]])


def test_a_party_tests_on_the_two_classes_it_trains_on(script: ModuleType) -> None:
    parties = script.two_classes("mnist", seed=0, parties=30, folder=None)
    fed = parties.fed

    assert (fed.training, fed.parties) == (27, 30)
    assert parties.groups["new"] == slice(27, 30)
    for k in range(fed.parties):
        _, y, _, y_test = fed.party(k)
        assert len(y.unique()) == 2
        assert y.unique().tolist() == y_test.unique().tolist()
    assert int(fed.n.max()) - int(fed.n.min()) <= 2


def test_validation_has_no_test_point_and_no_new_party(script: ModuleType) -> None:
    parties = script.writers(seed=0, train=10, most=2)
    inside = parties.validation().fed

    assert inside.parties == 10 > inside.training
    assert set(inside.names) == set(parties.fed.names[:10])
    assert int((inside.n + inside.n_test).sum()) == int(parties.fed.n[:10].sum())


def test_every_method_has_as_many_settings_to_try(script: ModuleType) -> None:
    for name, method in script.METHODS.items():
        assert len(method.settings) == 8, name
        assert len({json.dumps(each) for each in method.settings}) == 8, name
        further = 2 if name.startswith("pefll") else 4
        copies = method.with_copies(method.settings)
        assert len({json.dumps(each) for each in copies}) == further, name
        if name != "local":
            assert {each["virtual"] for each in copies} == {0, 3}, name
            for each in [*method.settings, *copies]:
                method.make(each)


def test_a_run_tunes_goes_on_and_writes_its_table(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--quick", "--out", str(tmp_path)]
    script.main(["tune", "femnist", "local", "ditto", *few])
    script.main(["tune", "femnist", "ditto", "--copies", *few])
    script.main(["femnist", "local", "fedavg", *few])
    first = json.loads((tmp_path / "femnist" / "results.json").read_text())["runs"]
    script.main(["femnist", "local", "fedavg", "ditto", *few])
    runs = json.loads((tmp_path / "femnist" / "results.json").read_text())["runs"]
    tuned = json.loads((tmp_path / "settings.json").read_text())["femnist"]
    script.main(["femnist", "fedavg", "ditto", *few, "--writers", "5"])

    assert runs[:2] == first  # kept as they were
    assert [each["method"] for each in runs] == ["local", "fedavg", "ditto"]
    assert runs[2]["settings"] == tuned["ditto"]["chosen"]
    assert len(tuned["ditto"]["first"]["tried"]) == len(tuned["ditto"]["copies"]["tried"]) == 2
    best = max(tuned["ditto"]["copies"]["tried"], key=lambda each: each["accuracy"])
    assert tuned["ditto"]["chosen"] == best["settings"]
    assert all(sum(n for _, n in group["by_party"].values()) == group["points"]
               for each in runs for group in each["groups"].values())  # fmt: skip
    assert set(runs[0]["groups"]) == {"seen", "new", "partial"}
    assert runs[1]["joining"]["messages"] == 1 and runs[1]["joining"]["gradients"] == 0
    assert runs[2]["joining"]["gradients"] > 0
    told = (tmp_path / "femnist" / "table.md").read_text()
    assert "| Ditto " in told
    assert "against how many train" in told
    assert "cross-fitted in 5 folds" in told
    assert re.search(r"Chosen at the edge of what was tried: .*Ditto \(lr\)", told)
    assert (tmp_path / "femnist" / "plot.png").stat().st_size > 10_000
    assert (tmp_path / "femnist" / "writers.png").exists()
    assert "seen writers (%)" in capsys.readouterr().out


def test_folds_and_copies_leave_the_groups_as_they_are(script: ModuleType) -> None:
    parties = script.writers(seed=0, train=6, most=3)
    made = parties.prepared(virtual=2, folds=5, seed=0)

    names = [parties.fed.names[k] for k in range(parties.fed.parties)]
    for group, which in parties.groups.items():
        assert [made.fed.name(k) for k in made.group(group)] == names[which]
    assert made.fed.training == 18
    every = parties.fed.n + parties.fed.n_test
    assert made.fed.tested[made.group("new")].tolist() == every[parties.groups["new"]].tolist()
    assert len(made.members("new")) == 15
    assert made.members("seen").tolist() == list(range(6))
    assert 0.5 < parties.known < 1


def test_differences_are_paired_and_their_error_is_over_writers(script: ModuleType) -> None:
    import drawing

    def run(seed: int, right: dict[str, int]) -> dict[str, object]:
        by_party = {name: [count, 10] for name, count in right.items()}
        return {"seed": seed, "groups": {"new": {"by_party": by_party}}}

    ours = [run(0, {"a": 9, "b": 8}), run(1, {"a": 9, "c": 7})]
    theirs = [run(0, {"a": 8, "b": 6}), run(1, {"a": 7, "c": 7}), run(2, {"d": 1})]

    lead, error = drawing.difference(ours, theirs, "new")

    d, n = np.array([3, 2, 0]), np.array([20, 10, 10])  # a, b, c
    assert lead == pytest.approx(100 * 5 / 40)
    expected = 100 * (((d - 5 / 40 * n) ** 2).sum() * 3 / 2) ** 0.5 / 40
    assert error == pytest.approx(expected)
    assert drawing.difference(ours, [], "new") is None


def test_edges_are_of_numbers_and_of_where_rates_begin(script: ModuleType) -> None:
    from methods import edges, falling

    tried = [{"lr": 0.1, "lam": 1.0, "virtual": 0}, {"lr": falling(0.5), "lam": 1.0, "virtual": 3},
             {"lr": falling(0.3), "lam": 1.0, "virtual": 3}]  # fmt: skip
    assert edges(tried, tried[1]) == ["lr"]
    assert edges(tried, tried[2]) == []
