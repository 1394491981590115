"""Algorithms, models and data of the user's own: in a file, or in an installed package."""

import re
import sys

import pytest
import torch

import archipel as ar
from archipel.algorithms import FedAvg
from archipel.data import load
from archipel.errors import ArchipelError
from archipel.runs.listing import resume
from archipel.study import plugins
from archipel.study.file import Study

ALGORITHM = '''\
from dataclasses import dataclass

@dataclass(frozen=True)
class Halves:
    """Half of the mean step."""

    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        return -self.lr * me.grad(w), None

    def server(self, w, uploads):
        return w + 0.5 * uploads.mean()
'''
NET = """\
from torch import nn

def net(shape: tuple[int, ...], outputs: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, outputs))
"""
DATA = """\
import torch
from archipel.data import Federation

def points(parties: int = 3, n: int = 12, seed: int = 0) -> Federation:
    draw = torch.Generator().manual_seed(seed)
    xs = [torch.randn(n, 2, generator=draw) for _ in range(parties)]
    return Federation.from_arrays(xs, [(x[:, 0] > 0).long() for x in xs], test=0.25)
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in {"halves.py": ALGORITHM, "net.py": NET, "points.py": DATA}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_an_algorithm_in_fifteen_lines(folder):
    assert len(ALGORITHM.splitlines()) <= 17  # with two blank lines
    assert plugins.find("algorithm", "halves.py", folder).__name__ == "Halves"
    assert plugins.find("algorithm", "halves.py:Halves", folder)().lr == 0.1
    assert plugins.find("algorithm", str(folder / "halves.py"))().lr == 0.1
    assert plugins.find("algorithm", "fedavg") is FedAvg


def test_a_file_is_loaded_once_and_again_when_it_changes(folder):
    first = plugins.find("algorithm", "halves.py", folder)
    again = plugins.find("algorithm", "halves.py", folder)
    (folder / "halves.py").write_text(ALGORITHM.replace("0.1", "0.7"))

    assert first is again
    assert plugins.find("algorithm", "halves.py", folder)().lr == 0.7


def test_a_file_imports_its_neighbours_and_leaves_no_trace(folder):
    (folder / "neighbour_of_mine.py").write_text("rate = 0.3")
    text = "from neighbour_of_mine import rate\n" + ALGORITHM.replace("0.1", "rate")
    (folder / "halves.py").write_text(text)

    assert plugins.find("algorithm", "halves.py", folder)().lr == 0.3
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "one class with a method party is wanted, and the file has none."),
        (ALGORITHM + ALGORITHM.replace("Halves", "Thirds"), "has Halves, Thirds: say which"),
        ("import nothing_like_it", "line 1: ModuleNotFoundError"),
        ("a = 1\nb = (", "line 2: SyntaxError"),
        ("\n\nraise ValueError('two\\nlines')", "line 3: ValueError: two lines."),
        ("def f():\n    g()\ndef g():\n    1 / 0\nf()", "line 4: ZeroDivisionError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("\0", "cannot be loaded"),
        (ALGORITHM.replace("@dataclass(frozen=True)", ""), "give a dataclass"),
        (ALGORITHM.replace("def init", "def start"), "Halves has no method init"),
        (ALGORITHM.replace("lr: float = 0.1", "lr: float"), "algorithm.lr is missing"),
        (ALGORITHM.replace("lr: float = 0.1", "lr: float = -1"), "give a learning rate from 0"),
    ],
)
def test_files_that_hold_no_algorithm(tmp_path, text, said):
    (tmp_path / "mine.py").write_text(text)

    with pytest.raises(ArchipelError, match=re.escape(said)) as caught:
        Study.of("mine.py", tmp_path, data={"name": "heart_disease"})
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")


@pytest.mark.parametrize("name", ["no.py", "~nobody-there/a.py", "a\0b.py", "x" * 300 + ".py"])
def test_files_that_are_not_there(tmp_path, name):
    with pytest.raises(ArchipelError, match=r"algorithm '.*': cannot be read"):
        plugins.find("algorithm", name, tmp_path)


def test_another_class_than_those_in_the_file(folder):
    with pytest.raises(ArchipelError, match=r"algorithm in halves.py 'Halvs': did you mean"):
        plugins.find("algorithm", "halves.py:Halvs", folder)


def test_own_model_and_own_data_by_path(folder):
    study = Study.of(
        "halves.py",
        folder,
        data={"name": "points.py", "parties": 4, "n": 16},
        model={"name": "net.py:net", "width": 5},
        study={"rounds": 2, "seed": 9},
    )
    run = study.run(None, workers=1, baselines=False)

    assert run.data.parties == 4 and int(run.data.n.sum() + run.data.n_test.sum()) == 64
    assert run.task_model.module[0].out_features == 5
    again = study.run(None, workers=1, baselines=False)
    assert run.vector.equal(again.vector)  # the network's first weights come from the seed
    other = study.with_set({"study.seed": 10}).run(None, workers=1, baselines=False)
    assert not run.data.x.equal(other.data.x)


def test_options_of_own_parts_are_checked(folder):
    def study(**sections):
        return Study.of("halves.py", folder, **sections)

    with pytest.raises(ArchipelError, match=r"unknown key of \[model\] 'widht': did you mean"):
        study(data={"name": "points.py"}, model={"name": "net.py", "widht": 5})
    with pytest.raises(ArchipelError, match=r'model.width = "a": give a whole number'):
        study(data={"name": "points.py"}, model={"name": "net.py", "width": "a"})
    with pytest.raises(ArchipelError, match=r"data\.test: 'points.py' has its own test points"):
        study(data={"name": "points.py", "test": 0.5})


def test_own_parts_that_go_wrong_say_where(folder):
    (folder / "net.py").write_text(NET.replace("    return", "    return 3 or"))
    (folder / "points.py").write_text(DATA.replace("    draw =", "    1 / 0\n    draw ="))
    study = Study.of("halves.py", folder, data={"name": "points.py"})

    with pytest.raises(ArchipelError, match=r"data: .*line 5: ZeroDivisionError"):
        study.federation()
    with pytest.raises(ArchipelError, match=r"model.name = 'net.py': returns int, not a torch"):
        study.with_set({"model.name": "net.py"}).build_model(load("heart_disease"))


@pytest.fixture
def package(folder, monkeypatch):
    """A package in an own folder, as pip would install it."""
    site = folder / "site"
    info = site / "archipel_halves-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "archipel_halves.py").write_text(ALGORITHM + NET + DATA)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: archipel-halves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[archipel.algorithms]\nhalves = archipel_halves:Halves\nbroken = archipel_no:Thing\n"
        "[archipel.models]\nsmall = archipel_halves:net\n"
        "[archipel.data]\npoints = archipel_halves:points\n"
    )
    monkeypatch.syspath_prepend(site)
    yield site
    sys.modules.pop("archipel_halves", None)


def test_names_that_a_package_adds(package):
    assert "halves" in plugins.names("algorithm") and "fedavg" in plugins.names("algorithm")
    study = Study.of(
        "halves", data={"name": "points", "n": 8}, model={"name": "small"}, study={"rounds": 1}
    )

    assert study.run(None, workers=1, baselines=False).done == 1
    assert study.algorithm_object.lr == 0.1
    with pytest.raises(ArchipelError, match="'broken' of the package archipel_no:Thing cannot be"):
        Study.of("broken", data={"name": "points"})
    with pytest.raises(ArchipelError, match="unknown algorithm 'halvs': did you mean 'halves'"):
        Study.of("halvs", data={"name": "points"})


class Until:
    """Looks on, and stops the run after a round."""

    def __init__(self, last):
        self.last = last

    def __call__(self, run):
        return run.done == self.last

    def say(self, text):
        pass


def test_a_package_s_algorithm_is_stopped_and_resumed(package, tmp_path):
    study = Study.of("halves", data={"name": "points"}, study={"rounds": 6, "name": "halves"})
    stopped = study.run(tmp_path / "runs", workers=1, baselines=False, watch=Until(2))
    (package / "archipel_halves.py").write_text("changed after it was loaded")
    whole = study.run(None, workers=1, baselines=False)
    resumed = resume("last", tmp_path / "runs")

    assert stopped.state == "stopped" and stopped.done == 2
    assert resumed.state == "done" and resumed.vector.equal(whole.vector)
    assert [e["metrics"] for e in resumed.history] == [e["metrics"] for e in whole.history]


def test_a_file_s_algorithm_is_stopped_changed_and_refused(folder):
    study = Study.of("halves.py", folder, data={"name": "points.py"}, study={"rounds": 6})
    study.run(folder / "runs", workers=1, baselines=False, watch=Until(2))
    (folder / "points.py").write_text(DATA + "# more")

    with pytest.raises(ArchipelError, match=r"points\.py changed since it began"):
        resume("last", folder / "runs")
    (folder / "points.py").write_text(DATA)
    assert resume("last", folder / "runs").done == 6


SCALED = """
from dataclasses import dataclass
from archipel.algorithms import FedAvg
from myhelper import SCALE

@dataclass(frozen=True)
class {name}(FedAvg):
    def server(self, w, uploads):
        return w + SCALE * uploads.mean(by_examples=True)
"""


def test_helpers_of_the_same_name_stay_apart_and_belong_to_the_print(tmp_path):
    for folder, name, scale in (("a", "Mine", 1.0), ("b", "Other", 0.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(SCALED.format(name=name))
        (tmp_path / folder / "myhelper.py").write_text(f"SCALE = {scale}\n")
    options = {"data": {"name": "heart_disease"}, "study": {"rounds": 2}}
    first, second = (
        Study.of(f"{folder}/mine.py", tmp_path, **options).run(None, workers=1, baselines=False)
        for folder in "ab"
    )
    assert not torch.equal(first.vector, second.vector)
    assert torch.equal(second.vector, second.task_model.w)  # b's own SCALE is 0

    study = Study.of("a/mine.py", tmp_path, **options)
    assert {"a/mine.py", "a/myhelper.py"} == set(study.sources())
    study.run(tmp_path / "runs", workers=1, baselines=False, watch=Until(1))
    assert (tmp_path / "runs" / "study-001" / "code" / "a" / "myhelper.py").is_file()


def test_a_report_tells_of_the_code_that_ran(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(SCALED.format(name="Mine").replace("from myhelper import SCALE", "SCALE = 1.0"))
    study = Study.of("mine.py", tmp_path, data={"name": "heart_disease"}, study={"rounds": 2})
    run = study.run(tmp_path / "runs", workers=1, baselines=False)
    before = run.study.hash
    mine.write_text(mine.read_text().replace("Mine", "Changed"))

    opened = ar.open_run("last", tmp_path / "runs")
    assert type(opened.algorithm).__name__ == "Mine"
    assert opened.study.hash == before and torch.equal(opened.vector, run.vector)

    mine.unlink()
    assert ar.open_run("last", tmp_path / "runs").study.hash == before
