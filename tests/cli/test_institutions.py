"""`archipel coordinator` and `archipel site`: a federation of processes, as the tutorial has it."""

import contextlib
import io
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from hashlib import sha256
from pathlib import Path

import pandas
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
        path, end = self.folder / f"{name}.log", time.monotonic() + 600
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
    text = (folder / "study.toml").read_text()
    text = text.replace("rounds = 20", "rounds = 5").replace("quorum = 3", "quorum = 2")
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
        kept["invite"] = one.json("coordinator", "invite", site, "--out", f"{site}.token")
        kept[site] = one.json("site", "join", f"{site}.token", "--yes", *home)
        kept["unseen"] = one("site", "approve", "heart", *home)
        kept["review"] = one.json("site", "review", "heart", *home)
        kept["no table"] = one("site", "approve", "heart", *home)
        kept["table"] = one.json("site", "data", "add", "heart", f"tables/{site}.csv", *home)
        yes = ("site", "approve", kept["study"][:12], "--yes", *home)
        kept["policy"] = one(*yes)
        one.json("site", "policy", "set", "counts=true", "least_sites=2", "digits=15", *home)
        kept["told"] = one.json(*yes)["told"]
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
    assert "5 columns" in kept["review"]["text"]
    assert kept["review"]["members"] == ["cleveland"]
    assert kept["told"] and kept["start"]["up"]
    for name, sentence in {
        "too soon": "study heart: no site has approved it yet.",
        "again": "study heart: is running already.",
        "unseen": "study 'heart': was not reviewed here; read 'archipel site review "
        f"{kept['study'][:12]}' first.",
        "policy": "study heart: this site's policy is not met: least_sites = 3: a round counts "
        "with 2 sites, at least 3 (round.quorum); counts = false: numbers of rows leave, for the "
        "algorithm weighs sites by them. Ask for another study, or change the "
        "policy with 'archipel site policy set least_sites=... counts=...'.",
        "no table": "study heart: no table of this site is bound to its columns; run 'archipel "
        "site data add heart TABLE'.",
    }.items():
        assert (kept[name].code, kept[name].sentence) == (2, sentence)


def test_a_table_is_shown_to_its_own_site(federation):
    """E7: what a table holds is seen before it is used, and again later; nothing of it leaves."""
    columns = {each["name"]: each for each in federation.kept["table"]["columns"]}
    assert len(columns["age"]["quartiles"]) == 5
    assert columns["age"]["quartiles"] == sorted(columns["age"]["quartiles"])
    assert sum(columns["cp"]["counts"].values()) == 130
    assert federation.kept["table"]["read_with"]["sep"] == ","

    again = federation.json("site", "data", "show", "heart", "--home", "va")
    assert again.pop("file").endswith("tables/va.csv")
    assert again.items() <= federation.kept["table"].items()
    (row,) = federation.json("site", "data", "list", "--home", "va")["tables"]
    assert row["unchanged"] and sorted(row["studies"].values()) == ["heart", "other"]
    shown = federation("site", "data", "list", "--home", "va").out
    assert "as it was bound" in shown and f"heart ({federation.kept['study'][:12]})" in shown


def test_a_table_that_is_written_otherwise_is_read(federation):
    """E12: a file with ';' and decimal commas is bound, and the screen says how it was read."""
    text = (federation.folder / "tables" / "va.csv").read_text()
    other = text.replace(",", ";").replace(".", ",")
    (federation.folder / "other.csv").write_bytes(other.encode("cp1252"))
    shutil.copytree(federation.folder / "va", federation.folder / "german")

    home = ("--home", "german")
    done = federation("site", "data", "add", "heart", "other.csv", *home)
    assert done.code == 0, done.err
    assert "read with ';' between cells, decimal commas, encoding utf-8" in done.out
    assert "Bound to the columns of heart" in done.out
    said = federation("site", "data", "add", "heart", "other.csv", "--sep", ",", *home)
    assert "say which character does in data.sep (--sep)" in said.sentence
    said = federation("site", "data", "add", "heart", "other.csv", "--decimal", ".", *home)
    assert "is no number where data.decimal (--decimal) = '.'" in said.sentence
    columns = federation.json("site", "data", "show", "heart", *home)["columns"]
    assert columns == federation.kept["table"]["columns"]


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


def test_both_sides_can_show_what_was_sent(federation):
    """M6, E5: evidence at the coordinator, anchors kept by the other side."""
    folder = federation.folder
    rows = federation.json("coordinator", "evidence", "heart")["evidence"]
    assert sorted({(row["site"], row["kind"]) for row in rows}) == [
        (site, kind) for site in SITES for kind in ("scores", "sums", "upload")
    ]
    assert federation.json("coordinator", "evidence", "heart", "--verify")["entries"] == len(rows)
    assert "upload" in federation("coordinator", "evidence", "heart").out
    entries = federation.json("site", "audit", "--home", "va")["entries"]
    digests = {e["detail"]["digest"] for e in entries if e["what"] == "sent"}
    assert digests == {row["digest"] for row in rows if row["site"] == "va"}

    (folder / "kept.json").write_text(federation("coordinator", "anchors", "va", "--json").out)
    (folder / "theirs.json").write_text(federation("site", "anchors", "--home", "va", "--json").out)
    anchor = ("--verify", "--anchor")
    done = federation("site", "audit", *anchor, "kept.json", "--home", "va")
    assert done.code == 0 and "nothing up to it was cut" in done.out
    assert federation("coordinator", "audit", *anchor, "theirs.json").code == 0
    done = federation("site", "audit", *anchor, "kept.json", "--home", "cleveland")
    assert (done.code, done.sentence) == (
        2, "'kept.json': has no anchor of cleveland, only of va.",
    )  # fmt: skip
    assert federation("site", "audit", "--anchor", "kept.json", "--home", "va").code == 2


@pytest.mark.parametrize("left", [0, 8, None])
def test_a_log_that_was_cut_emptied_or_removed_fails(federation, left):
    """E5: with the anchor that the coordinator kept, and for an empty one without."""
    folder = federation.folder
    (folder / "kept.json").write_text(federation("coordinator", "anchors", "va", "--json").out)
    copy = folder / f"cut-{left}"
    shutil.copytree(folder / "va", copy)
    log = copy / "audit.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.unlink() if left is None else log.write_text("".join(lines[:left]))
    home = ("--home", copy.name)

    done = federation("site", "audit", "--verify", "--anchor", "kept.json", *home)
    assert done.code == 2
    assert ("no audit log here" if left is None else "the end was cut off") in done.sentence
    assert federation("site", "audit", "--verify", *home).code == (0 if left else 2)
    (row,) = federation.json("site", "budget", *home)["studies"]
    assert row["lacks"]
    assert "the log lacks entries" in federation("site", "budget", *home).out


def test_a_site_gets_the_model(federation):
    made = federation.json("site", "personalise", "heart", "--home", "cleveland")

    (run,) = (federation.folder / "coordinator" / "runs").iterdir()
    own, shared = (
        safetensors.torch.load_file(federation.folder / path)
        for path in (made["model"], run / "model.safetensors")
    )
    assert all(torch.equal(own[name], shared[name]) for name in shared)
    assert made["metrics"]["auc"] > 0.8


def test_the_models_of_coordinator_and_site_predict_alike(federation):
    """E2: what a study learnt is applied to a table, without the study's data."""
    made = federation.json("site", "personalise", "heart", "--home", "cleveland")
    (run,) = (federation.folder / "coordinator" / "runs").iterdir()
    told = federation.json("export", run, "--bundle", "heart-model")
    about = json.loads((federation.folder / "heart-model" / "bundle.json").read_text())
    text = (federation.folder / "heart-model" / "study.toml").read_bytes()
    predicted = [
        federation.json("predict", bundle, "complete.csv", "--score")
        for bundle in (made["bundle"], "heart-model")
        if complete(federation.folder)
    ]

    assert about["study"]["hash"] == federation.kept["study"] == sha256(text).hexdigest()
    assert told["reported"]["auc"] > 0.8 and told["metrics"] == {}
    assert predicted[0]["rows"] == predicted[1]["rows"]
    assert predicted[0]["classes"] == [0, 1] and predicted[0]["metrics"]["auc"] > 0.8
    sentence = federation("export", run, "--bundle", "x", "--party", "va").sentence
    assert "--party va: sites' own models are at the sites" in sentence


def complete(folder):
    """Write the rows of cleveland's table that have no empty cell."""
    table = pandas.read_csv(folder / "tables" / "cleveland.csv")
    table.dropna().to_csv(folder / "complete.csv", index=False)
    return True


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
    found, path = federation.state()["result"], federation.state()["path"]
    assert f"  result     {found['metric']} {found['value']:.3f}, in {path}\n" in shown
    assert federation("report", path, "--out", "report.html").code == 0
    assert federation("coordinator", "status", "--check").code == 0
    for line in (federation.folder / "coordinator.log").read_text().splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line), line
    log = (federation.folder / "coordinator.log").read_text()
    assert log.count("va approved heart") == 1
    assert "heart: started after round 0 with 2 sites" in log
    assert ": open\n  decisions  none yet\n" in shown


# -- what is refused -------------------------------------------------------------------------------


REFUSED = {
    "site join no.txt": "token = 'no.txt': neither a whole token, which begins with archipel-",
    "site join half.txt --yes": "the token is not whole: copy all of it, from archipel- to its",
    "site join va.token --yes --home new": "the invitation was used already",
    "site join va.token --yes --home va": "home = 'va': a site has joined from there; name",
    "site studies --home no": "home = 'no': no site there; join with 'archipel site join TOKEN'.",
    "site review hart --home va": "unknown study 'hart': did you mean 'heart'? Known: heart,",
    "site data add heart wrong.csv --home va": "'wrong.csv': no column 'thalach' "
    "(is it 'thalac'?); name columns as the study does",
    "site data add heart bad.csv --home va": "'bad.csv': column 'cp', row 3: '9.0' "
    "is not among 1, 2, 3, 4; correct the file.",
    "site data add heart none.csv --home va": "'none.csv': cannot be read",
    "site up --home va": "home = 'va': this site is at work in another process; stop that first.",
    "coordinator init --name x --address y --home x": "address = 'y': give host:port, as sites",
    "coordinator init --name x --address y:1": "home = 'coordinator': there is a coordinator",
    "coordinator up": "home = 'coordinator': this coordinator is up in another process; stop that",
    "coordinator status --home va": "home = 'va': no coordinator there; make one with 'archipel",
    "coordinator start heart": "study heart: is done already.",
    "coordinator start lung": "unknown study 'lung': Known: heart, other.",
    "coordinator stop heart": "study heart: is done, not under way.",
    "coordinator submit no.toml": "'no.toml': cannot be read (No such file or directory).",
    "coordinator submit study.toml --for vaa": "unknown site 'vaa': did you mean 'va'?",
    "coordinator invite ulm --out no/ulm.token": "--out 'no/ulm.token': there is no such folder",
    "coordinator evidence lung": "unknown study 'lung'",
    "coordinator anchors ulm": "unknown log 'ulm': Known: cleveland, va.",
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


def test_a_token_is_its_owners_and_need_not_be_on_a_command_line(federation, monkeypatch):
    path = federation.folder / "va.token"
    assert "token" not in federation.kept["invite"]
    assert path.stat().st_mode & 0o777 == 0o600

    monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text()))
    done = federation("site", "join", "-", "--yes", "--home", "new")
    assert "the invitation was used already" in done.err.splitlines()[-1]
    done = federation("site", "join", "-", "--home", "new")
    assert done.code == 2 and "standard input cannot bring the token and the answer" in done.err


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


def test_why_nobody_answers_is_said(alone):
    """E10: a command that goes on without the coordinator says what to check."""
    done = alone("site", "studies", "--home", "va")

    assert done.code == 0
    assert f"no connection: nobody listens at {alone.address}; check the address" in done.err


def test_a_command_ends_without_a_word_of_what_was_under_way():
    """E10: "Task was destroyed but it is pending!" stood at the end of a command."""
    code = (
        "import asyncio\nfrom archipel.cli.folder import run as _run\n"
        "async def main(): asyncio.get_running_loop().create_task(asyncio.sleep(600))\n"
        "_run(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


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
    said = f"not joined: no connection: nobody listens at {alone.address}; check the address,"
    assert done.sentence.startswith(said)


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
    assert alone.state()["decisions"]["cleveland"] == "revoked"
    alone.until("coordinator", "cleveland was revoked")
    with urllib.request.urlopen(f"http://{alone.metrics}/metrics") as answer:
        assert "archipel_refused_total 0.0" not in answer.read().decode()
    assert alone.end("va") == alone.end("coordinator") == 0
    for log in alone.folder.glob("*.log"):  # E10: nobody's log ends in a traceback
        assert "Traceback" not in log.read_text() and "destroyed" not in log.read_text()
