"""Comparisons: the same splits and baselines for all, chosen without test points, resumable."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from archipel.algorithms import DSGD, FedAvg, FedProx
from archipel.cli.compare import progress
from archipel.cli.watching import Stoppable
from archipel.comparison import (
    Comparison,
    Stat,
    Stopped,
    compare,
    read_grid,
    resume_comparison,
    tuning,
)
from archipel.comparison import levels as levels_module
from archipel.comparison.design import read_spec
from archipel.comparison.results import CENTRAL, LOCAL, Result, quantiles
from archipel.errors import ArchipelError, RunFailed
from archipel.graphs import ring
from archipel.plain import plain
from archipel.report.tables import Cell, Column, Table
from archipel.runs import baselines
from archipel.runs.listing import list_runs, open_run
from archipel.study.file import Study

MINE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    lr: float = 0.1
    def init(self, w):
        return w, None
    def party(self, me, w, _):
        return -self.lr * me.grad(w), None
    def server(self, w, uploads):
        return w + uploads.mean()
"""


def small(algorithms=("fedavg", "scaffold"), **options):
    """Four hospitals, three rounds, two seeds, in memory."""
    data = {} if options.get("study") else {"data": "heart_disease"}
    chosen = {**data, "rounds": 3, "seeds": 2, "out": None, "workers": 1, **options}
    return compare(list(algorithms), **chosen)


def numbers(comparison):
    """All but times and places."""

    def kept(value):
        if isinstance(value, dict):
            return {k: kept(v) for k, v in value.items() if k not in ("seconds", "folder")}
        return [kept(each) for each in value] if isinstance(value, list) else value

    return {**kept(comparison.to_json()), "comparison": None}


class Killed(Exception):
    """Stands for the end of the process."""


class Kill:
    """Ends everything in round `at` of the run with this label and seed."""

    def __init__(self, label, seed, at):
        self.label, self.seed, self.at, self.said = label, seed, at, []

    def __call__(self, run):
        if self.said[-1].startswith(f"{self.label}, seed {self.seed} ") and run.done == self.at:
            raise Killed

    def say(self, text):
        self.said.append(text)


# -- what is compared ------------------------------------------------------------------------------


def test_rows_are_means_and_sample_deviations_over_seeds():
    found = small(seeds=3)
    fedavg, scaffold = found.rows
    values = [run.history[-1]["metrics"]["accuracy"] for run in fedavg.results]

    assert (fedavg.label, scaffold.label) == ("fedavg", "scaffold")
    assert fedavg.figures["points"].mean == pytest.approx(sum(values) / 3)
    assert fedavg.figures["points"].sd == pytest.approx(float(torch.tensor(values).double().std()))
    assert [row.label for row in found.baselines] == [LOCAL, CENTRAL]


def test_a_cell_is_the_run_of_its_study():
    found = small(["fedprox:mu=0.5"], seeds=[4])
    tables = {"data": {"name": "heart_disease"}, "algorithm": {"name": "fedprox", "mu": 0.5}}
    study = Study.parse(tables)
    run = study.with_set({"study.seed": 4, "study.rounds": 3}).run(None, baselines=False, workers=1)

    (result,) = found.results
    assert result.history[-1]["metrics"] == run.metrics
    assert result.bytes == {"up": run.spent.up, "down": run.spent.down}


def test_same_seed_same_split_and_same_first_model():
    options = {"data": {"name": "heart_disease"}, "study": {"seed": 5}}
    studies = [Study.of(name, **options) for name in ("fedavg", "scaffold", "dsgd")]
    feds = [study.federation() for study in studies]
    models = [study.build_model(fed) for study, fed in zip(studies, feds, strict=True)]

    for fed, model in zip(feds[1:], models[1:], strict=True):
        assert torch.equal(fed.x, feds[0].x) and torch.equal(fed.test_from, feds[0].test_from)
        assert torch.equal(model.w, models[0].w)


def test_the_same_comparison_twice_gives_the_same_numbers():
    first = small(grid={"lr": [0.01, 0.1]})

    assert numbers(small(grid={"lr": [0.01, 0.1]})) == numbers(first)


def test_specs():
    assert read_spec("fedprox:mu=0.1,lr=0.05") == ("fedprox", {"mu": 0.1, "lr": 0.05})
    assert read_spec("mine.py:Mine:lr=1") == ("mine.py:Mine", {"lr": 1})
    _, settings = read_spec('fedavg:optimiser={name="adam",beta1=0.8},local_steps=3')
    assert settings == {"optimiser": {"name": "adam", "beta1": 0.8}, "local_steps": 3}
    assert read_spec("fedopt:server_optimiser=yogi")[1] == {"server_optimiser": "yogi"}
    assert read_grid(["lr=0.1, 1", "mu=0"]) == {"lr": [0.1, 1], "mu": [0]}


def test_objects_studies_and_settings():
    assert [row.label for row in small([FedProx(mu=0.5), FedAvg()], seeds=1).rows] == [
        "fedprox mu=0.5",
        "fedavg",
    ]
    sections = {"data": {"name": "heart_disease"}, "study": {"rounds": 2}}
    studies = [Study.parse({"algorithm": {"lr": lr}, **sections}) for lr in (0.1, 0.01)]
    found = compare(studies, seeds=1, out=None, workers=1)

    assert [row.label for row in found.rows] == ["fedavg lr=0.1", "fedavg lr=0.01"]


def test_shared_fields_go_to_the_algorithms_that_have_them():
    found = small(["fedavg", "fedprox"], seeds=1, algorithm={"mu": 0.25, "lr": 0.05})
    fedavg, fedprox = found.results

    assert fedprox.settings["mu"] == 0.25 and "mu" not in fedavg.settings
    assert fedavg.settings["lr"] == fedprox.settings["lr"] == 0.05


def test_a_topology_is_for_the_peers():
    found = small(["fedavg", "dsgd"], seeds=1, sections={"topology": {"name": "ring"}})
    fedavg, dsgd = found.rows

    assert fedavg.figures["mean_model"].mean is None
    last = dsgd.results[0].history[-1]
    assert dsgd.figures["points"].mean == last["own"]["accuracy"]
    assert dsgd.figures["mean_model"].mean == last["metrics"]["accuracy"]
    assert dsgd.figures["bytes"].mean == dsgd.results[0].bytes["up"]


def test_a_given_graph_is_not_for_those_that_learn_theirs(tmp_path):
    (tmp_path / "given.csv").write_text("from,to\n0,1\n1,2\n2,3\n")
    short = {"alone": 1, "graph_rounds": 1, "model_rounds": 1, "kappa": 2}
    base = Study.parse(
        {
            "study": {"rounds": 3},
            "data": {"name": "heart_disease"},
            "algorithm": {"name": "dada", "learned": False, **short},
            "topology": {"file": "given.csv"},
        },
        tmp_path,
    )
    rows = ["alone", "fedavg", "dada", "dada:learned=true"]
    found = small(rows, study=base, seeds=1, baselines=False)

    graphs = [result.history[-1].get("graph") for result in found.results]
    assert graphs[1] is None and graphs[2]["edges"] == 3
    learned = Study.of("dada", data={"name": "heart_disease"}, study={"rounds": 3}, algorithm=short)
    assert graphs[3] == learned.run(None, baselines=False, workers=1).history[-1]["graph"]
    assert [row.label for row in found.rows] == ["alone", "fedavg", "dada", "dada learned=True"]


@pytest.mark.parametrize("name", ["fedavg", "dsgd"])
def test_rounds_to_a_target_are_those_of_the_run(name):
    ring = {"topology": {"name": "ring"}} if name == "dsgd" else {}
    found = small([name], seeds=1, rounds=6, sections=ring, baselines=False)
    study = Study.of(name, data={"name": "heart_disease"}, study={"rounds": 6}, **ring)
    run = study.run(None, baselines=False, workers=1)
    (result,) = found.results
    reached = []
    for target in [0.3 + 0.02 * i for i in range(30)]:
        reached.append(run.rounds_to(target))
        assert result.rounds_to(target, "accuracy") == pytest.approx(reached[-1])

    assert len(set(reached)) > 3
    assert [list(pair) for pair in zip(*run.curve(), strict=True)] == result.curve


def test_new_parties_have_columns_where_there_are_some():
    found = small(["fedavg"], data={"name": "heart_disease", "new": 1}, seeds=2)

    assert found.rows[0].figures["new_parties"].mean is not None
    assert "mean over new parties" in found.table("md")
    assert "new parties" not in small(["fedavg"], seeds=1).table("md")


@pytest.mark.parametrize(
    ("algorithms", "options", "words"),
    [
        (["fedavgg"], {}, "did you mean 'fedavg'"),
        (["fedavg:lrr=0.1"], {}, "did you mean 'lr'"),
        (["fedavg:lr=x"], {}, "algorithm.lr"),
        (["fedavg:lr="], {}, "field=value"),
        (["fedavg:lr=" + "[" * 3000], {}, "algorithm.lr"),
        (["fedavg:lr=" + "[" * 3000 + "]" * 3000], {}, "algorithm.lr"),
        (["fedavg"], {"grid": read_grid(["lr=" + "[" * 3000])}, "algorithm.lr"),
        ([], {}, "name at least one"),
        (["fedavg", "fedavg"], {}, "there twice"),
        (["fedavg"], {"algorithm": {"mu": 1}}, "unknown field of the algorithms 'mu'"),
        (["fedavg"], {"grid": {"lrr": [1, 2]}}, "did you mean 'lr'"),
        (["fedavg"], {"grid": {"lr": [-1.0]}}, "lr"),
        (["fedavg"], {"grid": {"ditto.lam": [1]}}, "unknown algorithm in the grid 'ditto'"),
        (["fedavg", "ditto"], {"grid": {"ditto.mu": [1]}}, "unknown field of ditto in the grid"),
        (["fedavg", "ditto:lam=1"], {"grid": {"ditto.lam": [1]}}, "leave it out here or there"),
        (["fedavg"], {"grid": {"lr": []}}, "give a list of values"),
        (["fedavg"], {"seeds": 0}, "seeds = 0"),
        (["fedavg"], {"seeds": [1, 1]}, "different"),
        (["fedavg"], {"data": "heart"}, "heart_disease"),
        (["fedavg"], {"data": torch.zeros(2)}, "give a name"),
        (["fedavg"], {"sections": {"topology": {"name": "ring"}}}, "topology"),
        (["nothere.py"], {}, "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_runs(algorithms, options, words, tmp_path):
    with pytest.raises(ArchipelError, match=words) as raised:
        small(algorithms, **{"out": tmp_path / "runs", **options})

    assert "\n" not in str(raised.value)
    assert not (tmp_path / "runs").exists()


def test_studies_must_share_their_data():
    one = Study.of("fedavg", data={"name": "heart_disease"})
    two = Study.of("scaffold", data={"name": "synthetic"})
    with pytest.raises(ArchipelError, match=r"differ in \[data\]"):
        compare([one, two], out=None)
    with pytest.raises(ArchipelError, match=r"study\.rounds: the studies"):
        compare([one], rounds=3, out=None)


# -- settings are chosen on validation points ------------------------------------------------------


def test_test_points_have_no_say_in_the_choice(monkeypatch):
    grid = {"lr": [0.001, 0.01, 0.1, 0.5]}
    before = small(grid=grid)
    whole = Study.federation

    def spoilt(study):
        fed = whole(study)
        y = fed.y.clone()
        for k in range(fed.parties):
            test = slice(int(fed.test_from[k]), int(fed.offsets[k + 1]))
            y[test] = 1 - y[test]
        return replace(fed, y=y)

    monkeypatch.setattr(Study, "federation", spoilt)
    after = small(grid=grid)

    assert [each.chosen for each in after.results] == [each.chosen for each in before.results]
    assert all(each.chosen for each in after.results)
    scores = [row.figures["points"].mean for row in (before.rows[0], after.rows[0])]
    assert scores[1] == pytest.approx(1 - scores[0])  # the labels were turned round


def test_the_choice_is_the_best_on_the_validation_points():
    study = Study.of("fedavg", data={"name": "heart_disease"}, study={"rounds": 3, "metric": "auc"})
    data = study.federation()
    settings = [{"lr": 0.0001}, {"lr": 0.05}]
    choice = tuning.choose(study, settings, data, workers=1)
    validation = data.validation(0.2, 0)
    alone = study.with_set({"algorithm.lr": 0.05})
    run = tuning.simulate(
        alone.algorithm_object, validation, study.build_model(validation), rounds=3, workers=1
    )

    assert choice.settings == {"lr": 0.05} and choice.values[1] > choice.values[0]
    assert choice.values[1] == pytest.approx(run.metrics["auc"], abs=1e-6)
    assert tuning.at_edge(choice) == {"lr": "largest"}


def test_smaller_is_better_for_a_loss():
    study = Study.of(
        "fedavg", data={"name": "heart_disease"}, study={"rounds": 3, "metric": "loss"}
    )
    choice = tuning.choose(study, [{"lr": 0.0001}, {"lr": 0.05}], study.federation(), workers=1)

    assert choice.settings == {"lr": 0.05} and choice.values[1] < choice.values[0]


def test_numbers_that_are_not_finite_lose():
    study = Study.of("fedavg", data={"name": "school"}, study={"rounds": 3})
    choice = tuning.choose(study, [{"lr": 1e20}, {"lr": 1e-4}], study.federation(), workers=1)

    assert choice.settings == {"lr": 1e-4} and choice.values[0] is None
    with pytest.raises(RunFailed, match="no setting gave finite numbers"):
        tuning.choose(study, [{"lr": 1e20}, {"lr": 1e21}], study.federation(), workers=1)


@pytest.mark.parametrize("settings", [[{"local_epochs": 1}, {"local_epochs": 4}]])
def test_what_cannot_run_side_by_side_runs_one_by_one(settings, monkeypatch):
    monkeypatch.setattr(tuning, "sweep", None)
    study = Study.of("fedavg", data={"name": "heart_disease"}, study={"rounds": 2})
    choice = tuning.choose(study, settings, study.federation(), workers=1)

    assert choice.settings in settings and None not in choice.values


def test_side_by_side_equals_one_by_one(monkeypatch):
    study = Study.of("scaffold", data={"name": "heart_disease"}, study={"rounds": 3})
    settings, data = [{"lr": 0.01}, {"lr": 0.1}], study.federation()
    swept = tuning.choose(study, settings, data, workers=1)
    monkeypatch.setattr(tuning, "_side_by_side", lambda *_: False)

    assert tuning.choose(study, settings, data, workers=1).values == pytest.approx(swept.values)


def test_the_grid_leaves_alone_what_a_spec_fixes_and_flags_edges():
    grid = {"lr": [0.0001, 0.001], "mu": [0.1]}
    found = small(["fedavg", "fedprox:lr=0.2"], seeds=1, grid=grid)
    fedavg, fedprox = found.results

    assert fedprox.chosen == {"mu": 0.1} and fedprox.settings["lr"] == 0.2
    assert fedavg.edges and "widen the grid" in found.table("md")
    assert "test points had no say" in found.table("md")


def test_a_grid_may_be_one_algorithm_s():
    grid = read_grid(["lr=0.01,0.05", "ditto.lam=0.1,1.0", "finetuned.lr=0.02"])
    found = small(["fedavg", "ditto", "finetuned", "fedprox:mu=0.1"], seeds=1, grid=grid)
    fedavg, ditto, finetuned, fedprox = found.results

    assert fedavg.chosen.keys() == fedprox.chosen.keys() == {"lr"}
    assert ditto.chosen.keys() == {"lr", "lam"}
    assert finetuned.chosen == {"lr": 0.02}  # its own in place of everybody's
    assert [each.tried for each in found.results] == [2, 4, 1, 2]
    assert "Settings tried: fedavg 2, ditto 4, finetuned 1" in found.table("md")
    even = small(["fedavg", "ditto:lam=1.0"], seeds=1, grid={"lr": [0.01, 0.05]})
    assert "Settings tried" not in even.table("md")


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_settings_of_own_models_are_chosen_by_own_models(metric, monkeypatch):
    monkeypatch.setattr(tuning, "sweep", None)  # scores the shared vector only
    about = {"rounds": 3, "metric": metric}
    study = Study.of("ditto", data={"name": "heart_disease", "new": 1}, study=about)
    data = study.federation()
    choice = tuning.choose(study, [{"lam": 0.01}, {"lam": 5.0}], data, workers=1)
    validation = data.validation(0.2, 0)
    run = tuning.simulate(
        study.with_set({"algorithm.lam": 0.01}).algorithm_object,
        validation,
        study.build_model(validation),
        rounds=3,
        workers=1,
        metric=metric,
    )
    values = run.parties[metric][: data.training]

    points = validation.n_test[: data.training].double()
    mean = float(values.mean())  # scores of different models have no common order
    over = float((values * points).sum() / points.sum()) if metric == "accuracy" else mean
    assert choice.values[0] == pytest.approx(over)


# -- models of parties' own ------------------------------------------------------------------------


def test_own_models_at_seen_and_new_parties_and_what_they_need(tmp_path):
    heart = {"name": "heart_disease", "new": 1}
    found = small(["fedavg", "ditto", "finetuned"], data=heart, out=tmp_path)
    fedavg, ditto, finetuned = (row.figures for row in found.rows)
    local, pooled = (row.figures for row in found.baselines)
    one = found.rows[1].results[0]
    entry = one.history[-1]

    assert one.points("accuracy") == entry["own"]["accuracy"]
    assert one.new_points("accuracy") == entry["own_new"]["accuracy"]
    assert ditto["mean_model"].values[0] == entry["metrics"]["accuracy"]
    for figures in (fedavg, ditto, finetuned, local, pooled):
        for name in ("points", "parties", "new_points", "new_parties"):
            assert figures[name].mean is not None and figures[name].sd is not None
    levels = found.levels[0].history[-1]
    assert local["points"].values[0] == levels["own"]["accuracy"]
    assert local["new_points"].values[0] == levels["new"]["accuracy"]
    assert fedavg["joining_gradients"].mean == 0 < finetuned["joining_gradients"].mean
    assert ditto["joining_messages"].mean == pooled["joining_messages"].mean == 1
    assert ditto["joining_bytes"].mean == pooled["joining_bytes"].mean > 0
    assert ditto["bytes"].mean == fedavg["bytes"].mean  # up and down, as there is a server
    again = resume_comparison(tmp_path / found.name)
    assert again.to_json() == found.to_json()
    assert open_run(tmp_path / found.name / one.run).joining.gradients == one.joining["gradients"]


def test_a_table_of_own_models_fits_a_terminal_and_says_what_it_leaves_out():
    heart = {"name": "heart_disease", "new": 1}
    found = small(["fedavg", "ditto"], data=heart, grid={"lr": [0.01, 0.05]})
    console = Console(width=100, record=True, file=StringIO())
    console.print(found)
    text = console.export_text()

    assert max(map(len, text.splitlines())) <= 100
    assert text.count("every party alone  ") == 3  # quality, cost, what a new party needs
    assert "Also in md, csv, latex and json: worst tenth of parties" in text
    head = found.table("csv").splitlines()[0].split(",")
    assert {"new_points", "new_worst_tenth", "mean_model", "joining_seconds"} < {*head}
    assert "joining" not in small(["fedavg"], seeds=1).table("csv")


def test_what_was_stored_before_there_were_own_models_is_read():
    document = small(["fedavg"], seeds=1).to_json()
    for row in (*document["algorithms"], *(document["baselines"][n] for n in ("local", "central"))):
        for run in row["runs"]:
            for name in ("served", "tried", "joining"):
                del run[name]
    again = Comparison.of_json(json.loads(json.dumps(document)), None)

    assert again.rows[0].figures["points"].mean is not None
    assert again.table("md")


# -- baselines -------------------------------------------------------------------------------------


def test_baselines_are_trained_once_per_seed(monkeypatch):
    calls = []
    for name in ("alone", "pooled"):
        whole = getattr(baselines, name)

        def counted(work, *rest, name=name, whole=whole, **options):
            calls.append((name, options["seed"], work.lr))
            return whole(work, *rest, **options)

        monkeypatch.setattr(levels_module.baselines, name, counted)
    found = small(["fedsgd", "fedavg:lr=0.05", "scaffold"])

    names = ("alone", "pooled")
    assert sorted(calls) == [(name, seed, 0.05) for name in names for seed in (0, 1)]
    assert "the local work of fedavg lr=0.05" in found.table("md")
    assert found.to_json()["baselines"]["central"]["points"]["mean"] > 0.5


def test_baselines_are_those_of_a_run():
    found = small(["fedavg"], seeds=1)
    study = Study.of("fedavg", data={"name": "heart_disease"}, study={"rounds": 3})
    run = study.run(None, workers=1)

    for row, name in zip(found.baselines, ("local", "central"), strict=True):
        parties = run.baselines[name].parties["accuracy"]
        assert row.figures["parties"].mean == pytest.approx(float(parties.mean()))
    points = [row.figures["points"].mean for row in found.baselines]
    assert points == pytest.approx([run.levels["alone"], run.levels["pooled"]])
    assert found.to_json()["baselines"]["local"]["points"]["mean"] == points[0]


def test_a_party_s_own_model_on_all_points_is_left_out_of_many_parties():
    found = small(["fedavg"], data="synthetic", seeds=1, parties=21, rounds=1)

    assert found.baselines[0].figures["points"].mean is None
    assert found.baselines[0].figures["parties"].mean is not None
    assert "everybody's it is left out where there are many parties" in found.table("md")
    assert len(found.plot().axes) == 2


def test_pooled_baselines_of_several_seeds_run_side_by_side():
    alone, together = small(["fedavg"]), small(["fedavg"], workers=2)

    for one, two in zip(alone.levels, together.levels, strict=True):
        assert one.history[-1]["metrics"] == pytest.approx(two.history[-1]["metrics"], abs=1e-3)


def test_without_baselines():
    found = small(["fedavg"], seeds=1, baselines=False)

    assert found.baselines == [] and found.to_json()["baselines"]["local"] is None
    assert CENTRAL not in found.table("md")


def test_an_algorithm_that_diverges_is_a_gap_and_its_baselines_are_not():
    found = small(["fedavg:lr=1e30"], data="school", seeds=1)

    assert found.failed and found.baselines[1].figures["points"].mean < 11  # it is solved
    assert "seed 0 failed: " in found.table("md")
    json.dumps(found.to_json(), allow_nan=False)


# -- on the disk -----------------------------------------------------------------------------------


def test_files_and_runs(tmp_path):
    found = small(seeds=1, out=tmp_path)
    folder = tmp_path / "compare-heart_disease-001"

    assert found.folder == folder
    names = {path.name for path in folder.iterdir()}
    assert {"table.md", "table.csv", "table.tex", "plot.png", "plot.svg"} <= names
    assert {"comparison.json", "fedavg-seed0", "scaffold-seed0"} <= names
    assert (folder / "table.md").read_text() == found.table("md")
    assert {each.state for each in list_runs(tmp_path)} == {"done"}
    run = open_run("compare-heart_disease-001/fedavg-seed0", tmp_path)
    assert run.metrics == found.results[0].history[-1]["metrics"]
    read = resume_comparison(folder)
    assert numbers(read) == numbers(found) and read.folder == folder


@pytest.mark.parametrize(("label", "seed", "at"), [("fedavg", 0, 0), ("scaffold", 1, 2)])
def test_a_killed_comparison_goes_on_to_the_same_table(label, seed, at, tmp_path):
    options = {"grid": {"lr": [0.01, 0.1]}, "rounds": 4}
    whole = small(**options)
    kill = Kill(label, seed, at)
    with pytest.raises(Killed):
        small(**options, out=tmp_path, watch=kill)
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "comparison.json").read_text())["state"] == "running"
    after = Kill("nobody", 0, 0)
    found = resume_comparison(folder, after, workers=1)

    assert not any(text.startswith("choosing lr for fedavg, seed 0") for text in after.said)
    again, expected = numbers(found), numbers(whole)
    for document in (again, expected):
        for row in document["algorithms"]:
            for run in row["runs"]:
                run.pop("run")  # kept in memory, it has no folder
    assert again == expected
    assert resume_comparison(folder).table("md") == found.table("md")


def test_resume_finds_the_same_design_and_nothing_else(tmp_path):
    first = small(seeds=1, out=tmp_path, resume=True)
    again = small(seeds=1, out=tmp_path, resume=True)
    other = small(seeds=1, out=tmp_path, resume=True, rounds=2)

    assert again.folder == first.folder != other.folder
    assert again.to_json() == first.to_json()


@pytest.mark.parametrize("content", ['{"version": 999}', "{", "[]", "[" * 100_000])
def test_resume_leaves_alone_what_it_cannot_read(content, tmp_path):
    for name in ("another-001", "zebra-001"):  # older, and newer
        first = small(seeds=1, out=tmp_path, resume=True, baselines=False)
        (tmp_path / name).mkdir()
        (tmp_path / name / "comparison.json").write_text(content)
    again = small(seeds=1, out=tmp_path, resume=True, baselines=False)

    assert again.folder == first.folder and again.to_json() == first.to_json()
    with pytest.raises(ArchipelError, match=r"zebra-001/comparison\.json"):
        resume_comparison(tmp_path / "zebra-001")


def test_kill_9_and_resume(tmp_path):
    program = (
        "import os, signal\n"
        "from archipel.comparison import compare\n"
        "class Watch:\n"
        "    def say(self, text): self.text = text\n"
        "    def __call__(self, run):\n"
        "        if run.done == 2 and self.text.startswith('scaffold, seed 1'):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "compare(['fedavg', 'scaffold'], 'heart_disease', rounds=3, seeds=2, workers=1,\n"
        "        out='runs', watch=Watch())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    found = resume_comparison(tmp_path / "runs" / "compare-heart_disease-001", workers=1)

    assert found.table("csv").count("\n") == 5
    for one, two in zip(found.results, small().results, strict=True):
        assert one.history[-1]["metrics"] == two.history[-1]["metrics"]


def test_stopping_says_how_to_go_on(tmp_path):
    class Stop(Kill):
        def __call__(self, run):
            return run.done == 1

    with pytest.raises(Stopped, match="archipel resume compare-heart_disease-001"):
        small(out=tmp_path, watch=Stop("", 0, 0))
    found = resume_comparison(tmp_path / "compare-heart_disease-001", workers=1)
    assert found.results[0].history == small().results[0].history or found.rows  # times differ
    assert numbers(found)["baselines"] == numbers(small())["baselines"]


def test_own_algorithm_by_path_and_changed_in_between(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    kill = Kill("Mine lr=0.3", 0, 1)
    with pytest.raises(Killed):
        small(["fedavg", "mine.py:Mine:lr=0.3"], out="runs", watch=kill, seeds=1)
    folder = tmp_path / "runs" / "compare-heart_disease-001"
    assert (folder / "Mine-lr-0.3-seed0").is_dir()
    Path("mine.py").write_text(MINE.replace("uploads.mean()", "2 * uploads.mean()"))
    with pytest.raises(ArchipelError, match=r"mine\.py differ"):
        resume_comparison(folder, workers=1)
    Path("mine.py").write_text(MINE)

    assert resume_comparison(folder, workers=1).rows[1].label == "Mine lr=0.3"


def test_files_are_looked_for_here_and_not_beside_the_study(tmp_path, monkeypatch):
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "heart.toml").write_text('[data]\nname = "heart_disease"\n')
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    found = small(["mine.py"], study=Study.read("studies/heart.toml"), seeds=1, rounds=2)

    assert found.results[0].algorithm == "../mine.py"


def test_a_folder_that_is_no_comparison(tmp_path):
    with pytest.raises(ArchipelError, match="is no comparison"):
        resume_comparison(tmp_path)
    (tmp_path / "comparison.json").write_text("{")
    with pytest.raises(ArchipelError, match="is not JSON"):
        resume_comparison(tmp_path)


# -- tables ----------------------------------------------------------------------------------------


def made(values, metric="accuracy", **options):
    """A comparison of these last values, algorithm -> one per seed, over ten rounds."""
    results = [
        Result(
            label,
            seed,
            bytes={"up": 1000, "down": 1000},
            gradients=5,
            seconds=1.0,
            history=[
                {
                    "round": t,
                    "metrics": {metric: value * t / 10},
                    "own": None,
                    "seen_parties": {"mean": value, "worst_tenth": value},
                    "new_parties": None,
                    "bytes": {"up": 100 * t, "down": 100 * t},
                }
                for t in (5, 10)
            ],
            curve=[[t, value * t / 10] for t in (5, 10)],
            spread=[value],
        )
        for label, each in values.items()
        for seed, value in enumerate(each)
    ]
    facts = {
        "data": "a_b & c",
        "partition": None,
        "parties": 4,
        "new_parties": 0,
        "model": "net",
        "rounds": 10,
        "sample": 3,
    }
    seeds = tuple(range(len(next(iter(values.values())))))
    rest = {"asked": None, "grid": {}, "work": None, **options}
    return Comparison("c", None, facts, metric, seeds=seeds, results=tuple(results), **rest)


def test_one_seed_has_no_deviation():
    found = made({"a": [0.8], "b": [0.5]})

    assert found.rows[0].figures["points"].sd is None
    assert "±" not in found.table("md").split("|")[-1] and "0.800 ±" not in found.table("md")
    assert "One seed" in found.table("md") and "**0.8" not in found.table("md")
    assert found.to_json()["algorithms"][0]["metrics"]["accuracy"]["sd"] is None


def test_bold_only_where_the_lead_exceeds_the_deviations():
    assert "**0.800" in made({"a": [0.79, 0.81], "b": [0.69, 0.71]}).table("md")
    assert "**0.8" not in made({"a": [0.6, 1.0], "b": [0.69, 0.71]}).table("md")
    assert "**0.700" in made({"a": [0.79, 0.81], "b": [0.69, 0.71]}, metric="loss").table("md")


def test_target_rounds_and_bytes():
    found = made({"a": [0.8, 0.8], "b": [0.4, 0.4]}, asked=0.6)
    a, b = (row.figures for row in found.rows)

    assert a["rounds_to_target"].mean == pytest.approx(7.5)  # between 0.4 and 0.8
    assert a["bytes_to_target"].mean == pytest.approx(1500)
    assert b["rounds_to_target"].mean is None
    assert made({"a": [0.8], "b": [0.4]}).target == 0.76
    assert made({"a": [0.8], "b": [0.4]}, metric="loss").target == 0.42
    some = made({"a": [0.8, 0.5]}, asked=0.6)
    assert "1 of 2 seeds" in some.table("md")


def test_a_failed_run_leaves_a_gap_and_is_told():
    found = made({"a": [0.8, 0.7]})
    failed = replace(found.results[1], failed="round 3: the shared model is no longer finite.")
    found = replace(found, results=(found.results[0], failed))

    assert found.rows[0].figures["points"].mean is None and found.failed
    assert "a, seed 1 failed: round 3" in found.table("md")


def test_latex_escapes_and_closes():
    found = made({"my_alg 50% & {x}": [0.8, 0.7], "b\\c#d$": [0.5, 0.5]})
    text = found.table("latex")

    assert r"my\_alg 50\% \& \{x\}" in text and r"b\textbackslash{}c\#d\$" in text
    assert r"0.750 $\pm$ 0.071" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert text.isascii()
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert line.replace(r"\&", "").count("&") in (3, 5)


def test_markdown_rows_have_as_many_cells_as_headings():
    text = made({"a|b\n*c*": [0.8, 0.7]}).table("md")

    assert r"a\|b \*c\*" in text
    for block in text.split("\n\n")[1:3]:
        assert len({line.replace(r"\|", "").count("|") for line in block.splitlines()}) == 1


def test_csv_parses_to_the_numbers():
    found = small()
    rows = list(csv.DictReader(StringIO(found.table("csv"))))

    assert [row["algorithm"] for row in rows] == ["fedavg", "scaffold", LOCAL, CENTRAL]
    for row, expected in zip(rows, found.rows, strict=False):
        assert float(row["points"]) == expected.figures["points"].mean
        assert float(row["points_sd"]) == expected.figures["points"].sd
    assert rows[2]["bytes"] == ""


def test_json_is_strict_and_complete():
    found = small(seeds=1, data="school", rounds=2, algorithm={"lr": 1e-4})
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    row = document["algorithms"][0]

    assert set(row["metrics"]["rmse"]) == {"mean", "sd", "values"}
    assert row["bytes"]["up"]["mean"] > 0 and len(row["runs"][0]["history"]) == 2
    assert document["baselines"]["local"]["seen_parties"]["mean"]["mean"] > 0
    assert numbers(Comparison.of_json(document, None)) == numbers(found)


def test_pooled_auc_of_different_models_is_left_out():
    sections = {"study": {"metric": "auc"}, "topology": {"name": "ring"}}
    found = small(["fedavg", "dsgd"], seeds=1, sections=sections)
    fedavg, dsgd = (row.figures for row in found.rows)

    assert dsgd["points"].mean is None and dsgd["parties"].mean is not None
    assert fedavg["points"].mean > 0.5 and found.baselines[0].figures["points"].mean > 0.5
    assert "no common order" in found.table("md")


@pytest.mark.parametrize("width", [50, 80, 160])
def test_terminal_table_breaks_no_number(width):
    found = made({"a" * 15: [0.8, 0.7], "b": [0.5, 0.6]})
    console = Console(width=width, record=True, file=StringIO())
    console.print(found)
    text = console.export_text()

    assert max(map(len, text.splitlines())) <= width
    assert "0.750 ± 0.071" in text and "…" not in text


def test_plain_values():
    value = {1: torch.tensor([0.5, math.nan]), "b": (True, None, math.inf), "c": Path("x")}

    assert plain(value) == {"1": [0.5, None], "b": [True, None, None], "c": "x"}


def test_a_table_with_no_number_columns():
    table = Table("t", [Column("", "name")], [[[Cell("x")]]])

    assert table.render("csv") == "name\nx\n"
    with pytest.raises(ArchipelError, match="unknown format 'html'"):
        table.render("html")


def test_quantiles_and_stats():
    assert quantiles(torch.tensor([3.0, math.nan, 1.0])) == [1.0, 3.0]
    assert len(quantiles(torch.arange(1000.0))) == 101
    assert Stat((1.0, None)).mean is None and Stat(()).mean is None
    assert Stat((1.0, 3.0)).sd == pytest.approx(math.sqrt(2))


def test_plot(tmp_path):
    found = small(seeds=2)
    figure = found.plot(tmp_path / "plot.png")
    left, right = figure.axes

    assert (tmp_path / "plot.png").stat().st_size > 10_000
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ["fedavg", "scaffold", LOCAL, CENTRAL]
    assert [text.get_text() for text in right.get_yticklabels()] == labels
    assert made({"a": [0.5]}).plot() is not None


# -- the command line ------------------------------------------------------------------------------


def command(*arguments):
    from archipel.cli import app
    from archipel.cli.compare import compare as verb

    if all(each.callback is not verb for each in app.registered_commands):
        app.command()(verb)
    return CliRunner().invoke(app, ["compare", *map(str, arguments)], catch_exceptions=False)


def test_command_line_prints_one_document(tmp_path):
    flags = ["--data", "heart_disease", "--rounds", 2, "--seeds", 2, "--workers", 1]
    done = command("fedavg", "fedprox:mu=0.1", *flags, "--out", tmp_path, "--json")
    document = json.loads(done.stdout)

    assert done.exit_code == 0 and document["seeds"] == [0, 1]
    assert [row["label"] for row in document["algorithms"]] == ["fedavg", "fedprox mu=0.1"]
    again = command("fedavg", "fedprox:mu=0.1", *flags, "--out", tmp_path, "--json", "--resume")
    assert json.loads(again.stdout) == document


def test_command_line_tables_and_flags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("heart.toml").write_text('[data]\nname = "heart_disease"\n[algorithm]\nname = "fedprox"\n')
    Path("mine.py").write_text(MINE)
    flags = ["--study", "heart.toml", "--rounds", 2, "--seeds", 1, "--seed", 7, "--workers", 1]
    done = command(
        "fedavg", "mine.py", *flags, "--grid", "lr=0.01,0.1", "--set", "algorithm.batch_size=20",
        "--no-baselines", "--format", "csv", "--name", "here",
    )  # fmt: skip
    rows = list(csv.DictReader(StringIO(done.stdout)))

    assert [row["algorithm"] for row in rows] == ["fedavg", "mine"]
    assert rows[0]["chosen"].startswith("lr 0.")
    assert Path("runs/here-001/fedavg-seed7").is_dir()
    shown = command(*flags, "--no-baselines")  # the study's own algorithm
    assert "fedprox" in shown.stdout and "keeps table.md" in shown.stdout
    two = command("heart.toml", "--rounds", 2, "--seeds", 1, "--workers", 1, "--format", "md")
    assert "fedprox" in two.stdout


def test_command_line_failures_have_exit_codes(tmp_path):
    flags = ["--rounds", 2, "--seeds", 1, "--workers", 1, "--out", tmp_path, "--format", "csv"]
    assert command("fedavg:lr=1e30", "--data", "school", *flags).exit_code == 1
    with pytest.raises(ArchipelError, match="did you mean 'scaffold'"):
        command("scafold", "--data", "heart_disease", *flags)
    with pytest.raises(ArchipelError, match="unknown format 'tsv'"):
        command("fedavg", "--data", "heart_disease", "--format", "tsv")


class Slow:
    """Runs the command, and signals it as soon as a run has done some rounds."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "mine.py").write_text(SLOW)

    def __call__(self, *arguments, number, rounds=3):
        command = [str(Path(sys.executable).parent / "archipel"), *arguments]
        process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            until = time.time() + 60
            while not [each for each in list_runs(self.folder / "runs") if each.done >= rounds]:
                assert process.poll() is None and time.time() < until
                time.sleep(0.02)
            if number == signal.SIGINT:  # as a terminal does, to the workers as well
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            _, error = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        return process.returncode, error


SLOW = MINE.replace("from dataclasses", "import time\nfrom dataclasses", 1).replace(
    "        return w + uploads", "        time.sleep(0.05)\n        return w + uploads"
)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_stops_after_the_round_and_resume_goes_on(number, tmp_path):
    code, error = Slow(tmp_path)(
        "compare", "mine.py", "--data", "heart_disease", "--rounds", "20", "--seeds", "1",
        "--no-baselines", number=number,
    )  # fmt: skip
    folder = tmp_path / "runs" / "compare-heart_disease-001"

    assert code == 130 and "Traceback" not in error
    assert f"stopped in mine, seed 0: archipel resume {folder.name} goes on." in error
    (listed,) = list_runs(tmp_path / "runs")
    assert listed.state == "stopped" and 3 <= listed.done < 20
    assert resume_comparison(folder, workers=1).results[0].history[-1]["round"] == 20


class View:
    """Keeps what is said."""

    quiet = False

    def __init__(self):
        self.said = []

    def __call__(self, run):
        return None

    def say(self, text):
        self.said.append(text)


def test_asked_to_stop_in_the_last_round_nothing_else_begins():
    watch = Stoppable(View())
    watch.say("fedavg, seed 0")
    assert watch(None) is False
    watch.ask(signal.SIGTERM, None)
    with pytest.raises(KeyboardInterrupt):
        watch.say("training every party alone")


def test_rows_with_the_same_graph_say_it_once(capsys):
    watch, data = Stoppable(View()), SimpleNamespace(clusters=None)
    for algorithm in (DSGD(), DSGD(lr=0.2), DSGD(lr=0.3)):
        watch(SimpleNamespace(topology=ring(4), data=data, algorithm=algorithm))

    assert capsys.readouterr().err.count("Graph: ring, 4 edges") == 1


def test_between_runs_a_signal_ends_at_once():
    watch = Stoppable(View())
    watch(None)
    watch.say("training every party alone")
    with pytest.raises(KeyboardInterrupt):
        watch.ask(signal.SIGTERM, None)


def test_an_interrupt_is_a_sentence_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="--resume goes on"), progress():
        os.kill(os.getpid(), signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is before
