"""`archipel runs`, `report` and `export`: what is on the disk."""

import csv
import json
import re
import time
import tomllib
import zipfile
from io import StringIO
from pathlib import Path

import pytest
from safetensors import safe_open

RUN = ["run", "fedavg", "--data", "heart_disease", "--rounds", "2", "--workers", "1",
       "--no-baselines"]  # fmt: skip


@pytest.fixture
def ran(archipel):
    archipel(*RUN)
    return archipel


def test_runs_lists_states(archipel):
    assert "No run in 'runs' yet" in archipel("runs").out
    assert archipel("runs", "--json").json == {"runs": []}
    archipel(*RUN, "--name", "good")
    archipel(*RUN, "--name", "bad", "--set", "algorithm.lr=1e38")
    listed = archipel("runs", "--json").json["runs"]
    printed = archipel("runs").out

    assert {each["name"]: each["state"] for each in listed} == {
        "good-001": "done",
        "bad-001": "failed",
    }
    for word in ("good-001", "done", "2/2", "FedAvg", "heart_disease", "accuracy", "failed"):
        assert word in printed


def test_a_report_of_a_run_that_is_done(ran, tmp_path):
    told = ran("report", "--json").json
    page = tmp_path / "runs" / "fedavg-heart_disease-001" / "report.html"

    assert Path(told["report"]).samefile(page) and "heart_disease" in page.read_text()
    assert {*told["scorecard"]} >= {"efficacy", "efficiency", "robustness", "privacy"}
    done = ran("report", "fedavg", "--to", "mine.html", "--figures", "drawn")
    assert done.out.strip() == "mine.html" and (tmp_path / "mine.html").is_file()
    assert {path.suffix for path in (tmp_path / "drawn").iterdir()} == {".png", ".svg"}


def test_a_page_follows_a_run_until_it_ends(ran, tmp_path, monkeypatch):
    page = tmp_path / "runs" / "fedavg-heart_disease-001" / "report.html"
    states, pages = iter(["running", "running", "running", "done"]), []
    monkeypatch.setattr("archipel.runs.listing.state_of", lambda folder, row: next(states))
    monkeypatch.setattr(time, "sleep", lambda seconds: pages.append(page.read_text()))
    done = ran("report", "--follow")

    assert "report.html: open it; it follows the run." in done.err
    assert len(pages) == 2 and pages[0] == pages[1]  # nothing new: not written again
    assert '<meta http-equiv="refresh" content="2">' in pages[0]
    assert 'http-equiv="refresh"' not in page.read_text()


def test_a_report_of_a_run_that_failed(archipel):
    archipel(*RUN, "--set", "algorithm.lr=1e38")
    done = archipel("report", "--json")

    assert done.code == 0 and "failed" in Path(done.json["report"]).read_text()


def test_runs_by_part_of_their_name(ran):
    ran(*RUN, "--name", "fedavg-other")

    assert ran("report", "other", "--json").json["run"] == "fedavg-other-001"
    assert "could be fedavg-heart_disease-001, fedavg-other-001: say which." in (
        ran("report", "fedavg").sentence
    )
    assert "unknown run in 'runs' 'scaffold'" in ran("report", "scaffold").sentence
    assert ran("report", "runs/fedavg-other-001", "--json").code == 0


@pytest.mark.parametrize("to", ["folder", "all.zip"])
def test_an_export_is_plain_files(ran, tmp_path, to):
    told = ran("export", "last", "--to", to, "--json").json
    if to.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / to) as archive:
            archive.extractall(tmp_path / "folder")
    folder = tmp_path / "folder"
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    assert sorted(told["files"]) == found
    for name in found:
        check_parses(folder / name)
    assert {Path(name).suffix for name in found} >= {".safetensors", ".csv", ".json", ".toml"}


def check_parses(path):
    """Files are of the kind that their name says."""
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            assert all(file.get_tensor(name).isfinite().all() for name in file.keys())  # noqa: SIM118
    elif path.suffix == ".csv":
        rows = [*csv.reader(StringIO(path.read_text()))]
        assert len({len(row) for row in rows}) == 1
    elif path.suffix == ".json":
        json.loads(path.read_text(), parse_constant=pytest.fail)
    elif path.suffix == ".toml":
        tomllib.loads(path.read_text())


def test_an_export_overwrites_nothing(ran, tmp_path):
    (tmp_path / "thesis.zip").write_text("mine")
    done = ran("export", "--to", "thesis.zip")

    assert done.code == 2 and "--to thesis.zip: is there already" in done.sentence
    assert (tmp_path / "thesis.zip").read_text() == "mine"


def test_an_export_of_a_run_that_failed(archipel, tmp_path):
    archipel(*RUN, "--set", "algorithm.lr=1e38")
    told = archipel("export", "--json").json

    assert told["to"] == "fedavg-heart_disease-001-export"
    for name in told["files"]:
        check_parses(tmp_path / told["to"] / name)


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "--to", "/proc/nowhere/x"],
        ["export", "--to", "/proc/nowhere/x.zip"],
        ["report", "--to", "/proc/nowhere.html"],
        ["report", "--figures", "/proc/nowhere"],
        ["data", "heart_disease", "--plot", "/proc/nowhere.png"],
        ["data", "heart_disease", "--plot", "picture.xyz"],
    ],
    ids=" ".join,
)
def test_places_that_cannot_be_written(ran, arguments):
    done = ran(*arguments, "--json")

    assert done.code in (1, 2) and done.out == ""
    assert arguments[-1] in done.sentence and "cannot be written" in done.sentence


def test_a_broken_journal_stops_nobody_else(ran, tmp_path):
    broken = tmp_path / "runs" / "broken" / "journal.db"
    broken.parent.mkdir()
    broken.write_text("not a database")

    assert "broken/journal.db cannot be used" in ran("report", "broken").sentence
    assert ran("report", "heart", "--json").code == 0
    assert ran(*RUN, "--resume", "--json").json["run"] == "fedavg-heart_disease-001"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_list_fits_a_terminal(ran, monkeypatch, columns):
    ran(*RUN, "--name", "a-rather-long-name-that-is-given-to-a-run-by-someone")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = re.sub(r"\x1b\[[\d;]*m", "", ran("runs").out).splitlines()

    assert max(map(len, lines)) <= columns
    assert "fedavg-heart_disease-001" in "".join(line.split()[0] for line in lines)
