"""`--engine ray`: one JSON document, nothing left behind, a sentence for what cannot be."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from safetensors.torch import load_file

from archipel.runs.listing import list_runs

pytest.importorskip("ray")
from archipel.engines.ray.cluster import folder_of_ray

# as long as a file "slow" lies beside it, a round takes a while
MINE = '''\
import time
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True)
class Mine:
    """The mean step, with something that every party keeps."""
    lr: float = 0.01
    def init(self, w):
        return w, w * 0
    def party(self, me, w, own):
        g = me.grad(w, me.batch(8))
        return -g, own + g
    def server(self, w, uploads):
        time.sleep(0.1 * Path(__file__).with_name("slow").exists())
        return w + self.lr * uploads.mean()
'''
HEART = ["--data", "heart_disease", "--rounds", "30", "--workers", "2", "--no-baselines"]
RUN = ["run", "mine.py", *HEART, "--engine", "ray", "--json"]
COMMAND = str(Path(sys.executable).parent / "archipel")


def descendants(process):
    """Processes that one started, and those that they started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


def alive(processes):
    return {each for each in processes if descendants(each) or _runs(each)}


def _runs(process):
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def gone(processes):
    """Wait until none of these is there any more."""
    until = time.time() + 120
    while left := alive(processes):
        assert time.time() < until, left
        time.sleep(0.2)


def started(folder, *arguments):
    return subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def await_rounds(folder, process, rounds=3):
    until = time.time() + 600
    while not [each for each in list_runs(folder / "runs") if each.done >= rounds]:
        assert process.poll() is None, process.communicate()
        assert time.time() < until
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "slow").touch()
    return tmp_path


@pytest.mark.slow
def test_killed_with_all_that_it_started_and_resumed_to_the_same_bits(folder, archipel):
    home = Path.home() / ".ray" / "auth_token"
    had = home.exists()
    process = started(folder, *RUN)
    await_rounds(folder, process)
    theirs = descendants(process.pid)
    process.kill()
    process.communicate()
    gone(theirs)
    (folder / "slow").unlink()

    again = started(folder, "resume", "--json")
    out, err = again.communicate(timeout=600)

    assert again.returncode == 0 and err == ""
    told = json.loads(out)  # and nothing else, whatever Ray prints
    assert told["engine"] == "ray" and told["state"] == "done" and told["rounds"] == 30
    whole = archipel("run", "mine.py", *HEART, "--name", "whole", "--json").json
    assert whole["engine"] == "local"
    assert told["metrics"] == whole["metrics"] and told["bytes"] == whole["bytes"]
    ends = [load_file(f"runs/{run['run']}/model.safetensors") for run in (told, whole)]
    assert all(ends[0][name].equal(ends[1][name]) for name in ends[1])
    assert home.exists() == had  # Ray would write a token there


@pytest.mark.slow
def test_ctrl_c_ends_after_the_round_with_all_processes(folder):
    process = started(folder, *RUN)
    await_rounds(folder, process)
    theirs = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)

    assert process.returncode == 130 and "Traceback" not in err, err
    assert json.loads(out)["state"] == "stopped" and "archipel resume" in err
    gone(theirs)


@pytest.mark.slow
def test_an_error_ends_all_processes(folder):
    (folder / "mine.py").write_text(MINE.replace("g = me", "me.round == 4 and 1 / 0; g = me"))
    process, theirs = started(folder, *RUN), set()
    while process.poll() is None:
        theirs |= descendants(process.pid)
        time.sleep(0.1)
    out, err = process.communicate()

    assert process.returncode == 1 and out == "" and len(theirs) > 5
    assert err.count("\n") == 1 and "round 5, party" in err and "ZeroDivisionError" in err, err
    gone(theirs)


def test_folders_of_killed_processes_are_taken_away(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = tmp_path if len(str(tmp_path)) <= 13 else Path("/tmp")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    killed = place / f"archipel-ray-{ended.pid}-test"
    running = place / f"archipel-ray-{os.getpid()}-test"
    for each in (killed, running):
        (each / "session").mkdir(parents=True)

    with folder_of_ray() as folder:
        assert Path(folder).is_dir() and running.is_dir() and not killed.exists()

    assert not Path(folder).exists()
    shutil.rmtree(running)


# -- what cannot be --------------------------------------------------------------------------------


def refused(archipel, *flags):
    done = archipel("run", "fedavg", *HEART, *flags)
    assert done.code == 2 and done.out == ""
    return done.sentence


def test_flags_that_do_not_fit(archipel):
    def said(*flags):
        return refused(archipel, *flags)

    assert "did you mean 'ray'" in said("--engine", "rai")
    assert "the engine is local" in said("--ray-address", "auto")
    assert "HOST:PORT" in said("--engine", "ray", "--ray-address", "ray://head:10001")
    assert "HOST:PORT" in said("--engine", "ray", "--ray-address", "somewhere")
    assert "ray_cpus = 0" in said("--engine", "ray", "--ray-cpus", "0")
    assert "ray_cpus = 1.5" in said("--engine", "ray", "--ray-cpus", "1.5")
    assert "needs one" in said("--engine", "ray", "--device", "cuda", "--ray-gpus", "0")


def test_the_extra_is_not_installed(archipel, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)

    assert "pip install 'archipel[ray]'" in refused(archipel, "--engine", "ray")


def test_no_cluster_at_the_address(archipel):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    said = refused(archipel, "--engine", "ray", "--ray-address", f"127.0.0.1:{port}")

    assert said.startswith(f"ray_address = '127.0.0.1:{port}': nothing answers there (")


class Silent(BaseHTTPRequestHandler):
    def log_message(self, *_):
        return


@pytest.mark.parametrize("talks", [False, True])
def test_something_else_at_the_address(archipel, monkeypatch, talks):
    monkeypatch.setattr("archipel.engines.ray.cluster._PATIENCE", 2.0)
    with HTTPServer(("127.0.0.1", 0), Silent) as server:
        if talks:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"

        said = refused(archipel, "--engine", "ray", "--ray-address", address)
        if talks:
            server.shutdown()

    assert said.startswith(f"ray_address = '{address}': what answers there is no Ray cluster")
