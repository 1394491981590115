"""A run that is over stays readable, whatever became of its data and code."""

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

import archipel as ar
from archipel.bundle import writing
from archipel.report import html
from archipel.report.export import contents, export
from archipel.report.figures import save_figures
from archipel.runs.listing import read_run
from archipel.store.folder import Folder

ALGORITHM = """
from dataclasses import dataclass
from archipel.algorithms import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    keep: float = 0.5

    def server(self, w, uploads):
        return w + (1 - self.keep) * uploads.mean(by_examples=True)
"""


def table(path, rows=60, seed=0):
    random = np.random.default_rng(seed)
    lines = ["hospital,age,dose,ill"]
    for k in range(rows):
        age, dose = random.normal(50, 10), random.normal()
        lines.append(f"h{k % 3},{age:.2f},{dose:.3f},{int(age + 10 * dose > 50)}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path):
    table(tmp_path / "heart.csv")
    (tmp_path / "mine.py").write_text(ALGORITHM)
    return tmp_path


def study(folder, algorithm="fedavg", rounds=3):
    ring = {"topology": {"name": "ring"}} if algorithm == "dsgd" else {}
    return ar.Study.of(
        algorithm, folder, data={"file": "heart.csv", "by": "hospital", "target": "ill"},
        study={"rounds": rounds, "name": "s"}, **ring,
    )  # fmt: skip


def done(folder, algorithm="fedavg", rounds=3, watch=None):
    given = study(folder, algorithm, rounds)
    return given.run(folder / "runs", workers=1, baselines=True, watch=watch)


@pytest.mark.parametrize(
    ("what", "algorithm"),
    [("gone", "fedavg"), ("changed", "mine.py"), ("another form", "ditto")],
)
def test_a_finished_run_is_reported_once_its_table_is_gone_or_changed(folder, what, algorithm):
    run = done(folder, algorithm)
    stands_for, card = run.resolved_hash, run.scorecard.to_json()
    if what == "gone":
        (folder / "heart.csv").unlink()
    elif what == "changed":
        table(folder / "heart.csv", rows=90, seed=1)
    else:
        (folder / "heart.csv").write_text("a;b\n1;2\n")

    opened = ar.open_run("last", folder / "runs")

    assert opened.state == "done" and opened.metrics == run.metrics
    assert opened.resolved_hash == stands_for
    assert [opened.points(k) for k in range(3)] == [run.points(k) for k in range(3)]
    assert opened.vector.equal(run.vector)
    assert opened.scorecard.to_json() == card
    page = opened.report().read_text()
    assert "Targets and sizes" not in page and "changed since, or is gone" in page
    save_figures(opened, folder / "figures")
    assert not list((folder / "figures").glob("data*"))
    files = export(opened, folder / "exported")
    assert "model.safetensors" in files
    with pytest.raises(ar.ArchipelError, match="gone, and a party's own model is made of its"):
        writing.of_run(opened, "h0")
    assert ar.resume("last", folder / "runs").metrics == run.metrics  # it is done


@pytest.mark.parametrize("algorithm", ["fedavg", "ditto", "dsgd"])
def test_a_run_is_told_alike_with_and_without_its_parts(folder, algorithm):
    run = done(folder, algorithm)
    shown = html.render(read_run("last", folder / "runs"))
    assert shown == html.render(ar.open_run("last", folder / "runs"))
    assert "Targets and sizes" in shown  # of the data, which is there
    (folder / "heart.csv").unlink()

    opened, told = ar.open_run("last", folder / "runs"), read_run("last", folder / "runs")

    assert type(told) is not ar.Run
    assert told.scorecard == opened.scorecard
    assert told.joining == opened.joining and told.warnings == opened.warnings
    assert told.levels == pytest.approx(run.levels) and told.by_party == run.by_party
    assert html.render(told) == html.render(opened)
    plain, whole = contents(told), contents(opened)
    assert plain.keys() == whole.keys()
    assert all(plain[name] == whole[name] for name in plain if name != "model.safetensors")
    one, other = (safetensors.torch.load(each["model.safetensors"]) for each in (plain, whole))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("weights", [{}, {"class_weights": "balanced"}])
def test_a_bundle_is_made_once_the_table_is_gone(folder, weights):
    given = study(folder).with_set({f"model.{name}": each for name, each in weights.items()})
    run = given.run(folder / "runs", workers=1, baselines=False)
    writing.write(writing.of_run(ar.open_run("last", folder / "runs")), folder / "before")
    (folder / "heart.csv").rename(folder / "elsewhere.csv")

    writing.write(writing.of_run(ar.open_run("last", folder / "runs")), folder / "after")

    before, after = (ar.load_bundle(folder / name) for name in ("before", "after"))
    assert after.about.reported == run.metrics and after.about.metrics == {}
    for part in ("features", "network", "study", "classes", "model"):
        assert getattr(after.about, part) == getattr(before.about, part)
    table = folder / "elsewhere.csv"
    one, other = (bundle.predict(table).probabilities for bundle in (before, after))
    assert np.array_equal(one, other)
    assert "its data is not here any more" in (folder / "after" / "card.md").read_text()


def test_a_run_whose_journal_tells_too_little_is_opened_with_its_parts(folder):
    done(folder)
    journal = Folder.find("last", folder / "runs").journal
    row = journal.row()["description"]
    del row["record"]["layers"]
    journal.commit({"description": row})
    (folder / "heart.csv").unlink()
    assert type(read_run("last", folder / "runs")) is ar.Run
    del row["record"]
    journal.commit({"description": row})
    with pytest.raises(ar.ArchipelError, match="a run of an earlier version does not tell how"):
        writing.of_run(ar.open_run("last", folder / "runs"))


class Until:
    def __call__(self, run):
        return run.done == 1

    def say(self, text):
        pass


def test_going_on_needs_the_data_and_says_where_it_was(folder):
    done(folder, watch=Until())
    (folder / "heart.csv").rename(folder / "elsewhere.csv")
    with pytest.raises(ar.ArchipelError) as error:
        ar.resume("last", folder / "runs")
    assert str(error.value) == (
        f"run 's-001': heart.csv is no longer in {folder}; put back what was there, or start a "
        "new run."
    )
    table(folder / "heart.csv", seed=2)
    with pytest.raises(ar.ArchipelError, match=r"run 's-001': heart.csv changed since it began"):
        ar.resume("last", folder / "runs")
    (folder / "elsewhere.csv").rename(folder / "heart.csv")
    assert ar.resume("last", folder / "runs").done == 3


def test_going_on_without_the_algorithm_s_file_names_the_right_folder(folder):
    done(folder, "mine.py", watch=Until())
    (folder / "mine.py").unlink()
    with pytest.raises(ar.ArchipelError) as error:
        ar.resume("last", folder / "runs")
    copies = folder / "runs" / "s-001" / "code"
    assert str(error.value) == (
        f"run 's-001': mine.py is no longer in {folder}; put back what was there ({copies} has a "
        "copy), or start a new run."
    )
    assert ar.open_run("last", folder / "runs").done == 1  # with the copy
    assert Path(copies / "mine.py").is_file()


def test_what_was_made_in_python_says_how_it_is_opened(folder):
    data = study(folder).federation()
    ar.simulate(ar.FedAvg(), data, "logistic", rounds=1, workers=1, out=folder / "runs" / "py")
    (listed,) = ar.list_runs(folder / "runs")
    assert listed.state == "done" and listed.summary["algorithm"] == "FedAvg"
    with pytest.raises(ar.ArchipelError, match=r"run 'py' was made from objects in Python: call"):
        ar.open_run("py", folder / "runs")
    told = read_run("py", folder / "runs")
    assert told.metrics["accuracy"] == listed.summary["value"]
    page = told.report().read_text()
    assert "FedAvg()" in page and "Its data was given in Python" in page
    assert "model.safetensors" in export(told, folder / "exported")
