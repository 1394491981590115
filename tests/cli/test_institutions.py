"""`archipel coordinator` and `archipel site`: a federation of processes, as the tutorial has it."""

import contextlib
import io
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import safetensors.torch
import torch

from archipel.cli import main
from cli.conftest import COMMAND, Done

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
SITES = ["cleveland", "va"]
HASH = re.compile("[0-9a-f]{64}")


class Federation:
    """A coordinator and two hospitals on this machine, in a folder."""

    def __init__(self, folder):
        self.folder, self.address = folder, f"localhost:{free_port()}"
        self.metrics = f"127.0.0.1:{free_port()}"
        self.processes = {}
        self.kept = {}  # what commands said on the way

    def __call__(self, *arguments):
        """A command, in this process."""
        out, err, before = io.StringIO(), io.StringIO(), (sys.argv, Path.cwd())
        sys.argv, code = ["archipel", *map(str, arguments)], 0
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.argv = before[0]
            os.chdir(before[1])
        done = Done(code, out.getvalue(), err.getvalue())
        assert "Traceback" not in done.err
        return done

    def json(self, *arguments):
        """What a command says as one document."""
        done = self(*arguments, "--json")
        assert done.code == 0, done.err
        return done.json

    def up(self, name, *arguments):
        """A process that goes on; what it says goes to a file, after what it said before."""
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [COMMAND, *arguments], cwd=self.folder, stdout=log, stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def coordinator_up(self):
        self.up("coordinator", "coordinator", "up", "--silence", "60", "--metrics", self.metrics)

    def end(self, name):
        process = self.processes.pop(name)
        process.terminate()
        return process.wait(60)

    def state(self, study="heart"):
        (found,) = [s for s in self.json("coordinator", "status")["studies"] if s["name"] == study]
        return found

    def until(self, name, says, times=1):
        """Wait until a process has said something."""
        path, end = self.folder / f"{name}.log", time.monotonic() + 120
        while path.read_text().count(says) < times:
            logs = [f"{log.name}\n{log.read_text()}" for log in self.folder.glob("*.log")]
            assert time.monotonic() < end, "\n".join(logs)
            time.sleep(0.1)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def found(folder):
    """Found a federation, and have two hospitals carry the example's study out, for 5 rounds."""
    one, kept = Federation(folder), {}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(sys, "argv", ["tables.py", str(folder)])
        runpy.run_path(str(EXAMPLE / "tables.py"))
    for away in ("hungarian", "switzerland"):
        (folder / "tables" / f"{away}.csv").unlink()
    text = (folder / "study.toml").read_text().replace("rounds = 20", "rounds = 5")
    (folder / "study.toml").write_text(text)
    (folder / "other.toml").write_text(text.replace('name = "heart"', 'name = "other"'))

    kept["init"] = one.json("coordinator", "init", "--name", "cardio", "--address", one.address)
    kept["study"] = one.json("coordinator", "submit", "study.toml")["study"]
    one.json("coordinator", "submit", "other.toml")
    one.coordinator_up()
    one.until("coordinator", "up at")
    kept["too soon"] = one("coordinator", "start", "heart")
    for site in SITES:
        home = ("--home", site)
        (folder / f"{site}.token").write_text(one.json("coordinator", "invite", site)["token"])
        kept[site] = one.json("site", "join", f"{site}.token", "--yes", *home)
        kept["no table"] = one("site", "approve", "heart", *home)
        table = ("--csv", f"tables/{site}.csv")
        kept["table"] = one.json("site", "data", "add", "--schema", "heart", *table, *home)
        kept["review"] = one.json("site", "review", "heart", *home)
        kept["told"] = one.json("site", "approve", "heart", "--counts", *home)["told"]
        one.up(site, "site", "up", *home)
    kept["start"] = one.json("coordinator", "start", "heart")
    kept["again"] = one("coordinator", "start", "heart")
    one.kept = kept
    for name in ["coordinator", *SITES]:
        one.until(name, "heart: done, 5 rounds")
    return one


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    one = None
    try:
        one = found(tmp_path_factory.mktemp("federation"))
        yield one
    finally:
        for process in [] if one is None else one.processes.values():
            process.kill()
            process.wait()


# -- the tutorial's way ----------------------------------------------------------------------------


def test_the_model_is_the_simulations(federation):
    done = federation("run", "study.toml", "--no-baselines")
    assert done.code == 0, done.err

    (run,) = (federation.folder / "coordinator" / "runs").iterdir()
    learnt, simulated = (
        safetensors.torch.load_file(path / "model.safetensors")
        for path in (run, federation.folder / "runs" / "heart-001")
    )
    assert learnt.keys() == simulated.keys()
    for name, tensor in learnt.items():
        torch.testing.assert_close(tensor, simulated[name], rtol=0, atol=1e-6)


def test_what_was_said_on_the_way(federation):
    kept = federation.kept

    assert kept["cleveland"]["fingerprint"] == kept["init"]["fingerprint"]
    assert len(kept["init"]["fingerprint"].split()) == 12
    assert kept["table"]["ignored"] == ["patient"]
    assert kept["table"]["rows"] == 200 and kept["table"]["used"] == 130
    assert kept["review"]["study"] == kept["start"]["study"] == kept["study"]
    assert "13 features" in kept["review"]["text"]
    assert kept["review"]["members"] == ["cleveland"]
    assert kept["told"] and kept["start"]["up"]
    for name, sentence in {
        "too soon": "study heart: no site has approved it yet.",
        "again": "study heart: is running already.",
        "no table": "study heart: no table of this site is bound to its columns; run 'archipel "
        "site data add --schema heart --csv FILE'.",
    }.items():
        assert (kept[name].code, kept[name].sentence) == (2, sentence)


def test_a_site_sees_what_left(federation):
    (row,) = federation.json("site", "budget", "--home", "va")["studies"]
    assert (row["rounds"], row["of"], row["bytes"]) == (5, 5, 3 * 8 * 13 + 5 * 28 * 4)

    entries = federation.json("site", "audit", "--home", "va")["entries"]
    uploads = [e["detail"] for e in entries if e["detail"].get("kind") == "upload"]
    assert [each["round"] for each in uploads] == [1, 2, 3, 4, 5]
    whole = federation.json("site", "audit", "--verify", "--home", "va")
    assert whole["whole"] and whole["entries"] == len(entries) and HASH.fullmatch(whole["last"])
    assert federation.json("coordinator", "audit", "--verify")["whole"]
    whats = [entry["what"] for entry in federation.json("coordinator", "audit")["entries"]]
    assert whats.count("enrolled") == whats.count("approved") == 2
    assert whats.count("round") == 5


def test_a_site_gets_the_model(federation):
    made = federation.json("site", "personalise", "heart", "--home", "cleveland")

    (run,) = (federation.folder / "coordinator" / "runs").iterdir()
    own, shared = (
        safetensors.torch.load_file(federation.folder / path)
        for path in (made["model"], run / "model.safetensors")
    )
    assert all(torch.equal(own[name], shared[name]) for name in shared)
    assert made["metrics"]["auc"] > 0.8


def test_the_operator_looks_on(federation):
    status = federation.json("coordinator", "status")
    assert status["up"] and status["name"] == "cardio"
    assert federation.state()["note"] == "5 rounds"
    assert federation.state()["decisions"] == dict.fromkeys(SITES, "approved")
    rows = federation.json("coordinator", "sites")["sites"]
    assert [row["site"] for row in rows] == SITES
    assert {row["state"] for row in rows} == {"here"}
    with urllib.request.urlopen(f"http://{federation.metrics}/metrics") as answer:
        text = answer.read().decode()
    assert 'archipel_studies{state="done"} 1.0' in text
    assert 'archipel_letters_total{kind="upload"} 10.0' in text
    shown = federation("coordinator", "status").out
    assert f"heart ({federation.kept['study'][:12]}): done, 5 rounds\n" in shown
    assert ": open\n  decisions  none yet\n" in shown


# -- what is refused -------------------------------------------------------------------------------


REFUSED = {
    "site join no.txt": "token = 'no.txt': neither a whole token, which begins with archipel-",
    "site join half.txt --yes": "the token is not whole: copy all of it, from archipel- to its",
    "site join va.token --yes --home new": "the invitation was used already",
    "site join va.token --yes --home va": "home = 'va': a site has joined from there; name",
    "site studies --home no": "home = 'no': no site there; join with 'archipel site join TOKEN'.",
    "site review hart --home va": "unknown study 'hart': did you mean 'heart'? Known: heart,",
    "site data add --schema heart --csv wrong.csv --home va": "'wrong.csv': no column 'thalach' "
    "(is it 'thalac'?); name columns as the study does",
    "site data add --schema heart --csv bad.csv --home va": "'bad.csv': column 'cp', row 3: '9.0' "
    "is not among 1, 2, 3, 4; correct the file.",
    "site data add --schema heart --csv none.csv --home va": "'none.csv': cannot be read",
    "site up --home va": "home = 'va': this site is at work in another process; stop that first.",
    "coordinator init --name x --address y --home x": "address = 'y': give host:port, as sites",
    "coordinator init --name x --address y:1": "home = 'coordinator': there is a coordinator",
    "coordinator up": "home = 'coordinator': this coordinator is up in another process; stop that",
    "coordinator status --home va": "home = 'va': no coordinator there; make one with 'archipel",
    "coordinator start heart": "study heart: is done already.",
    "coordinator start lung": "unknown study 'lung': Known: heart, other.",
    "coordinator stop heart": "study heart: is done, not under way.",
    "coordinator submit no.toml": "'no.toml': cannot be read (No such file or directory).",
    "coordinator invite Va": "site = 'Va': a site's name has 1 to 40 of a-z, 0-9 and '-'",
    "coordinator invite va": "site = 'va': belongs to the federation since",
    "coordinator revoke nobody --reason x": "unknown site 'nobody'",
}


@pytest.mark.parametrize("command", REFUSED)
def test_wrong_input_is_one_sentence(federation, command):
    folder = federation.folder
    header, first, _ = (folder / "tables" / "va.csv").read_text().split("\n", 2)
    (folder / "wrong.csv").write_text(f"{header.replace('thalach', 'thalac')}\n{first}\n")
    cells = first.split(",")
    (folder / "bad.csv").write_text(f"{header}\n{first}\n{','.join([*cells[:3], '9', *cells[4:]])}")
    (folder / "half.txt").write_text((folder / "va.token").read_text()[:500])

    done = federation(*command.split())

    assert done.code == 2, done
    assert REFUSED[command] in done.err.splitlines()[-1].removeprefix("archipel: ")
    assert "{" not in done.out


def test_a_site_does_not_join_where_the_words_differ(federation, monkeypatch):
    (federation.folder / "ulm.token").write_text(
        federation.json("coordinator", "invite", "ulm")["token"]
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    done = federation("site", "join", "ulm.token", "--home", "ulm")

    assert done.code == 2
    assert "not joined: the words must be the same" in done.err
    assert not (federation.folder / "ulm" / "site.json").exists()


def test_a_study_that_is_rejected_or_stopped(federation):
    said = federation.json("site", "reject", "other", "--home", "va")
    assert said["told"] and "rejected" in said["decisions"].values()
    assert federation.state("other")["decisions"] == {"va": "rejected"}
    assert federation.json("coordinator", "stop", "other")["name"] == "other"
    assert federation.state("other")["state"] == "stopped"
    done = federation("coordinator", "start", "other")
    assert done.sentence == "study other: no site has approved it yet."


# -- without the coordinator; these come last ------------------------------------------------------


@pytest.fixture(scope="module")
def alone(federation):
    """The same sites, and no coordinator."""
    assert federation.end("coordinator") == 0
    return federation


def test_a_site_decides_alone(alone):
    va = ("--home", "va")
    assert not alone.json("coordinator", "status")["up"]
    assert alone.json("site", "pause", *va) == {"paused": True}
    assert (alone.folder / "va" / "paused").exists()
    assert alone.json("site", "budget", *va)["studies"][0]["rounds"] == 5
    assert alone.json("site", "audit", "--verify", *va)["whole"]
    found = alone.json("site", "studies", *va)
    assert not found["coordinator"]
    assert {row["study"]: row["decision"] for row in found["studies"]} == {
        "heart": "approved", "other": "rejected",
    }  # fmt: skip
    left = alone.json("site", "leave", "heart", *va)
    assert left["decisions"][alone.kept["study"]] == "withdrawn" and not left["told"]
    assert alone.json("site", "resume", *va) == {"paused": False}
    whats = [entry["what"] for entry in alone.json("site", "audit", *va)["entries"]]
    assert whats[-3:] == ["paused", "withdrawn", "resumed"]


def test_a_log_that_was_changed_is_found_out(alone):
    shutil.copytree(alone.folder / "va", alone.folder / "copy")
    log = alone.folder / "copy" / "audit.jsonl"
    log.write_text(log.read_text().replace('"round":3', '"round":4', 1))
    done = alone("site", "audit", "--verify", "--home", "copy")

    assert done.code == 2
    assert "is not signed with this key: it was changed" in done.sentence


def test_joining_needs_the_coordinator(alone):
    done = alone("site", "join", "ulm.token", "--yes", "--home", "ulm")

    assert done.code == 2
    assert f"no coordinator at {alone.address}" in done.err
    assert "is it up, and may this machine reach it?" in done.err


def test_the_coordinator_hears_of_it_when_it_is_back(alone):
    alone.coordinator_up()
    alone.until("coordinator", "up at", times=2)
    alone.until("coordinator", "va withdrawn heart")
    assert alone.state()["decisions"]["va"] == "withdrawn"

    gone = alone.json("coordinator", "revoke", "cleveland", "--reason", "a test")
    assert gone == {"site": "cleveland", "reason": "a test"}
    done = alone("site", "studies", "--home", "cleveland")
    assert done.code == 2
    assert "site = 'cleveland': was revoked on" in done.sentence and "(a test)" in done.sentence
    assert alone.end("va") == alone.end("coordinator") == 0
