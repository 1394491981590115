"""A run that is stopped or killed in the middle goes on to the same end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file

from archipel.cli.watching import Stoppable
from archipel.runs.listing import list_runs, open_run

# fifteen lines; as long as a file "slow" lies beside it, a round takes a while
MINE = '''\
import time
from dataclasses import dataclass
from pathlib import Path

@dataclass(frozen=True)
class Mine:
    """Signs of the mean step."""
    lr: float = 0.01
    def init(self, w):
        return w, None
    def party(self, me, w, _):
        return -me.grad(w), None
    def server(self, w, uploads):
        time.sleep(0.05 * Path(__file__).with_name("slow").exists())
        return w + self.lr * uploads.mean().sign()
'''
RUN = ["run", "mine.py", "--data", "heart_disease", "--rounds", "40", "--json"]


@pytest.fixture
def start(tmp_path):
    """Start the installed command, with a round that takes 50 ms, and wait for its first rounds."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "slow").touch()
    started = []

    def call(*arguments, rounds=3):
        command = [str(Path(sys.executable).parent / "archipel"), *arguments]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        started.append(process)
        until = time.time() + 600
        while not [each for each in list_runs(tmp_path / "runs") if each.done >= rounds]:
            assert process.poll() is None, process.communicate()
            assert time.time() < until
            time.sleep(0.02)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def whole(archipel):
    """The same run, never stopped."""
    told = archipel(*RUN, "--name", "whole", "--set", "study.purpose=", "--no-baselines").json
    assert told["rounds"] == 40
    return told


def check_refused_if_changed(archipel, path):
    """Another source is another study; where it is gone, the run's copy serves."""
    path.write_text(MINE.replace("sign()", "tanh()"))
    refused = archipel("resume", "--json")
    assert refused.code == 2 and refused.out == ""
    assert "mine.py" in refused.sentence and "changed since it began" in refused.sentence
    path.unlink()


def test_ctrl_c_ends_after_the_round_and_resume_goes_on(archipel, start, tmp_path):
    process = start(*RUN, "--no-baselines")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers as well
    out, err = process.communicate(timeout=600)

    assert process.returncode == 130 and "Traceback" not in err
    assert err.startswith("archipel: stopping after this round; once more to stop at once.\n")
    assert "Stopped after round" in err and "archipel resume mine-heart_disease-001" in err
    assert '"state": "stopped"' in out
    (listed,) = list_runs("runs")
    assert listed.state == "stopped" and 3 <= listed.done < 40
    (tmp_path / "slow").unlink()
    check_refused_if_changed(archipel, tmp_path / "mine.py")
    told = archipel("resume", "--json").json
    assert told["state"] == "done" and told["rounds"] == 40
    (tmp_path / "mine.py").write_text(MINE)
    once = whole(archipel)
    assert told["metrics"] == once["metrics"] and told["bytes"] == once["bytes"]
    assert [e["metrics"] for e in told["history"]] == [e["metrics"] for e in once["history"]]
    ends = [load_file(f"runs/{run['run']}/model.safetensors") for run in (told, once)]
    assert all(ends[0][name].equal(ends[1][name]) for name in ends[1])


@pytest.mark.slow
def test_the_second_signal_ends_at_once(start, tmp_path):
    process = start(*RUN, "--no-baselines")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)

    assert process.returncode == 130 and "Traceback" not in err
    (listed,) = list_runs(tmp_path / "runs")
    assert listed.state in ("stopped", "interrupted")


def test_before_the_first_round_a_signal_ends_at_once():
    said = []
    view = Stoppable(SimpleNamespace(say=said.append, __call__=lambda run: None, quiet=False))

    with pytest.raises(KeyboardInterrupt):
        view.ask(signal.SIGINT, None)
    view._in_rounds = True
    view.ask(signal.SIGINT, None)
    assert said[1:] == ["stopping after this round; once more to stop at once"]
    with pytest.raises(KeyboardInterrupt):
        view.ask(signal.SIGINT, None)
    assert said[0] == said[2] == "stopping at once"


def test_a_run_that_is_killed_is_interrupted_and_resumes(archipel, start, tmp_path):
    process = start(*RUN, "--no-baselines")
    during = archipel("runs", "--json").json["runs"]
    assert during[0]["state"] == "running"
    refused = archipel("resume")
    assert refused.code == 2 and "is at work in process" in refused.sentence
    process.kill()
    process.communicate()

    assert [each.state for each in list_runs("runs")] == ["interrupted"]
    page = archipel("report", "--json")  # also of what there is so far
    assert page.code == 0 and Path(page.json["report"]).stat().st_size > 10_000
    (tmp_path / "slow").unlink()
    told = archipel(*RUN, "--no-baselines", "--resume").json
    assert told["run"] == "mine-heart_disease-001" and told["state"] == "done"
    assert told["metrics"] == whole(archipel)["metrics"]
    assert [event.kind for event in open_run("mine-heart_disease-001").events][-1] == "done"


def test_resuming_what_is_done_changes_nothing(archipel, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = archipel(*RUN, "--rounds", "2", "--no-baselines").json
    again = archipel("resume", "--json").json

    assert again["history"] == done["history"] and again["state"] == "done"
