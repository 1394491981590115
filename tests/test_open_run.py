"""A run that is over stays readable, whatever became of its data and code."""

from pathlib import Path

import numpy as np
import pytest

import archipel as ar
from archipel.bundle import writing
from archipel.report.export import export
from archipel.report.figures import save_figures

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
    return ar.Study.of(
        algorithm, folder, data={"file": "heart.csv", "by": "hospital", "target": "ill"},
        study={"rounds": rounds, "name": "s"},
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
    with pytest.raises(ar.ArchipelError, match="its data changed or is gone, and a bundle"):
        writing.of_run(opened)
    assert ar.resume("last", folder / "runs").metrics == run.metrics  # it is done


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
