"""Runs and a federation of an earlier version open, and go on, as if nothing had moved."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import archipel as ar
from archipel.cli import app
from archipel.report.export import export
from recorded.make import processor

HERE = Path(__file__).parent / "recorded"
SITES = ["site-0", "site-1", "site-2"]


def told(name):
    """What the earlier version got."""
    return json.loads((HERE / f"{name}.json").read_text())


def same(found, expected, exact):
    """Equal, with numbers to every bit or else to rounding."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key], exact) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected, [exact] * len(found)))
    if isinstance(expected, float) and not exact:
        return found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    return found == expected


def scores(history):
    """A history without what depends on the machine's pace."""
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in history]


@pytest.fixture
def runs(tmp_path):
    """The recorded runs, where they may be written to."""
    return Path(shutil.copytree(HERE / "runs", tmp_path / "runs"))


# -- runs ------------------------------------------------------------------------------------------


def test_an_interrupted_run_goes_on_to_the_very_numbers_of_one_that_was_not(runs):
    assert ar.open_run("interrupted-001", runs).state == "interrupted"
    expected = told("interrupted")
    here = {"torch": torch.__version__, "processor": processor()}
    exact = here.items() <= expected.items()  # another machine may round otherwise

    run = ar.resume("interrupted-001", runs)

    assert (run.state, run.done) == ("done", 6)
    assert same(run.vector.double().tolist(), expected["vector"], exact)
    found = json.loads(json.dumps(run.to_json()))
    for name in ("metrics", "baselines", "elsewhere", "participation", "bytes", "resolved_hash"):
        assert same(found[name], expected[name], exact), name
    assert same(scores(found["history"]), scores(expected["history"]), exact)


@pytest.mark.parametrize(
    ("name", "algorithm"), [("personal-001", "Ditto"), ("table-001", "FedAvg")]
)
def test_a_finished_run_opens_reports_and_exports(runs, tmp_path, name, algorithm):
    (listed,) = [each for each in ar.list_runs(runs) if each.name == name]
    assert (listed.state, listed.done, listed.summary["algorithm"]) == ("done", 3, algorithm)

    run = ar.open_run(name, runs)

    assert run.metrics[run.metric] == listed.summary["value"]
    kept = load_file(runs / name / "model.safetensors")
    assert all(tensor.equal(kept[key]) for key, tensor in run.weights.items())
    page = run.report(tmp_path / "report.html").read_text()
    assert algorithm in page and ("is gone" in page) == (name == "table-001")
    files = export(run, tmp_path / "exported")
    assert "model.safetensors" in files and "history.csv" in files


def test_a_run_without_its_table_tells_what_it_told(runs):
    run, expected = ar.open_run("table-001", runs), told("table")

    found = json.loads(json.dumps(run.to_json())) | {"folder": None}

    for name in ("memory", "forecast"):  # which it did not tell yet
        assert found.pop(name, None) is None
    assert found["scorecard"]["privacy"].pop("wire") == []
    assert found["scorecard"]["privacy"].pop("promise") is None
    for each in (found, expected):
        assert "could look at every upload" in each["scorecard"]["privacy"].pop("sees")
        assert each["scorecard"]["privacy"].pop("guarantee").startswith("none: ")
    assert found == {name: expected[name] for name in found}
    assert run.vector.double().tolist() == expected["vector"]


# -- the federation --------------------------------------------------------------------------------


class Moved:
    """The recorded federation in a new folder, with its tables and addresses there."""

    def __init__(self, folder):
        self.folder = Path(shutil.copytree(HERE / "federation", folder / "federation"))
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.address = f"127.0.0.1:{server.getsockname()[1]}"
        change(self.folder / "coordinator" / "coordinator.json", address=self.address)
        for name in SITES:
            change(self.folder / name / "site.json", address=self.address)
            (bound,) = (self.folder / name / "data").glob("*.json")
            change(bound, file=str(self.folder / "tables" / f"{name}.csv"))
        self.processes = []

    def __call__(self, *arguments):
        """What a command says as one document, in this process."""
        done = CliRunner().invoke(app, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def up(self, *arguments):
        with (self.folder / "log").open("a") as log:
            self.processes += [
                subprocess.Popen(
                    [sys.executable, "-m", "archipel", *arguments], cwd=self.folder,
                    stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            ]  # fmt: skip

    def until(self, says, times):
        """Wait until the processes have said something so many times."""
        end = time.monotonic() + 300
        while (text := (self.folder / "log").read_text()).count(says) < times:
            assert time.monotonic() < end, text
            assert all(process.poll() is None for process in self.processes), text
            time.sleep(0.1)

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture
def federation(tmp_path, monkeypatch):
    found = Moved(tmp_path)
    monkeypatch.chdir(found.folder)
    yield found
    found.end()


def test_a_federation_in_the_middle_of_a_study_goes_on_to_its_end(federation):
    (study,) = federation("coordinator", "status")["studies"]
    assert (study["name"], study["note"]) == ("drill", "round 3 of 6")
    assert study["state"] == "waits for the coordinator to be up"
    assert study["decisions"] == dict.fromkeys(SITES, "approved")
    (there,) = federation("site", "studies", "--home", "site-1")["studies"]
    assert (there["study"], there["hash"]) == ("drill", study["hash"])
    assert (there["decision"], there["told"], there["readable"]) == ("approved", True, True)
    before = federation("site", "audit", "--verify", "--home", "site-1")
    assert before["whole"]

    federation.up("coordinator", "up")
    for name in SITES:
        federation.up("site", "up", "--home", name)
    federation.until("drill: done, 6 rounds", 4)
    federation.end()

    (study,) = federation("coordinator", "status")["studies"]
    assert study["state"] == "done"
    after = federation("site", "audit", "--verify", "--home", "site-1")
    assert after["whole"] and after["entries"] > before["entries"]
    assert federation("coordinator", "audit", "--verify")["whole"]
    run, expected = ar.open_run(federation.folder / study["path"]), told("federation")
    vector = torch.tensor(expected["vector"])
    torch.testing.assert_close(run.vector, vector, rtol=1e-5, atol=1e-6)
    assert [entry["round"] for entry in run.history] == [2, 4, 6]
    assert not any(cohort.missing for cohort in run.participation)
    assert "drill" in run.report(federation.folder / "report.html").read_text()
