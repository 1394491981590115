"""A run's folder: whole or not there, one process at a time, found by name, read back exactly."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest
import torch

import archipel as ar
from archipel.engines.engine import Cause
from archipel.errors import RunFailed
from archipel.store import folder as folders
from archipel.store.files import write
from archipel.store.folder import Folder, reserve, runs_in

OPTIONS = {"rounds": 6, "metric": "auc", "workers": 1, "evaluate_every": 2}


def simulate(out, **more):
    return ar.simulate(ar.Scaffold(lr=0.05), "heart_disease", out=out, **{**OPTIONS, **more})


class StopAfter:
    def __init__(self, done):
        self.done = done

    def __call__(self, run):
        return run.done == self.done

    def say(self, text):
        pass


def test_a_run_is_read_back_as_it_was(tmp_path):
    first = simulate(tmp_path / "a", baselines=True, dropouts=0.3)
    again = simulate(tmp_path / "a", baselines=True, dropouts=0.3)

    assert torch.equal(first.vector, again.vector)
    assert first.history == again.history and first.notes == again.notes
    assert first.spent == again.spent and first.events == again.events
    for name in ("local", "central"):
        assert first.baselines[name].pooled == again.baselines[name].pooled
        for metric, values in first.baselines[name].parties.items():
            torch.testing.assert_close(
                again.baselines[name].parties[metric], values, equal_nan=True
            )
    assert first.elsewhere.keys() == again.elsewhere.keys()
    assert again.state == "done"


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, stop):
    whole = simulate(None)
    stopped = simulate(tmp_path / "a", watch=StopAfter(stop))
    assert (stopped.state, stopped.done) == ("stopped", stop)

    resumed = simulate(tmp_path / "a")

    assert torch.equal(resumed.vector, whole.vector)
    assert [{**e, "seconds": 0} for e in resumed.history] == [
        {**e, "seconds": 0} for e in whole.history
    ]
    assert [event.kind for event in resumed.events] == ["started", "stopped", "resumed", "done"]


def test_buffers_and_own_states_are_kept(tmp_path):
    net = torch.nn.Sequential(
        torch.nn.Linear(13, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    )
    options = {"rounds": 5, "workers": 2, "sample": 2}
    whole = ar.simulate(ar.FedAvg(), "heart_disease", net, **options)
    ar.simulate(
        ar.FedAvg(), "heart_disease", net, out=tmp_path / "a", watch=StopAfter(2), **options
    )
    resumed = ar.simulate(ar.FedAvg(), "heart_disease", net, out=tmp_path / "a", **options)

    assert torch.equal(resumed.vector, whole.vector)
    assert torch.equal(resumed.buffers, whole.buffers)


def test_another_study_in_the_same_folder_is_refused(tmp_path):
    simulate(tmp_path / "a")
    with pytest.raises(ar.ArchipelError, match=r"another one \(options.rounds differ"):
        simulate(tmp_path / "a", rounds=7)


def test_a_second_process_is_refused(tmp_path):
    simulate(tmp_path / "a", watch=StopAfter(2))
    with Folder.open(tmp_path / "a") as folder:
        assert folder.at_work
        with pytest.raises(ar.ArchipelError, match=f"in process {os.getpid()}"):
            simulate(tmp_path / "a")
    assert not folder.at_work
    assert simulate(tmp_path / "a").state == "done"


def test_the_journal_can_be_asked_in_sql(tmp_path):
    run = simulate(tmp_path / "a", away={"va": "2-3"})
    with sqlite3.connect(tmp_path / "a" / "journal.db") as db:
        rounds = db.execute("select round, missing from rounds order by round").fetchall()
        names = [name for (name,) in db.execute("select name from roster order by party")]
        (card,) = db.execute("select scorecard from runs").fetchone()

    assert [number for number, _ in rounds] == [1, 2, 3, 4, 5, 6]
    assert json.loads(rounds[1][1]) == {"3": "away"}
    assert names == ["cleveland", "hungarian", "switzerland", "va"]
    assert json.loads(card) == run.scorecard.to_json()


def test_the_model_is_a_safetensors_file(tmp_path):
    import safetensors.torch

    run = simulate(tmp_path / "a")
    stored = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")

    for name, tensor in run.model.state_dict().items():
        assert torch.equal(stored[name], tensor)


def test_damage_is_told_in_a_sentence(tmp_path):
    simulate(tmp_path / "a", watch=StopAfter(2))
    (checkpoint,) = (tmp_path / "a").glob("checkpoint-*")
    checkpoint.write_bytes(checkpoint.read_bytes()[:50])
    with pytest.raises(ar.ArchipelError, match="cannot be read"):
        simulate(tmp_path / "a")

    (tmp_path / "a" / "journal.db").write_bytes(b"no database at all, but long enough" * 50)
    with pytest.raises(ar.ArchipelError, match="journal"):
        simulate(tmp_path / "a")


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    write(tmp_path / "a", b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left"):
        write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_names_are_taken_in_turn(tmp_path):
    assert [reserve(tmp_path, "a b").name for _ in range(3)] == ["a-b-001", "a-b-002", "a-b-003"]
    assert runs_in(tmp_path) == []  # reserved, not begun


def test_runs_are_found_by_name_part_and_last(tmp_path):
    simulate(tmp_path / "heart-001")
    simulate(tmp_path / "heart-002")
    simulate(tmp_path / "table" / "cell")

    assert Folder.find("heart-001", tmp_path).path.name == "heart-001"
    assert Folder.find("002", tmp_path).path.name == "heart-002"
    assert Folder.find("last", tmp_path).path.name == "cell"
    assert Folder.find("table/cell", tmp_path).path.name == "cell"
    assert Folder.find(str(tmp_path / "heart-001"), tmp_path / "none").path.name == "heart-001"
    with pytest.raises(ar.ArchipelError, match="could be heart-001, heart-002"):
        Folder.find("heart", tmp_path)
    with pytest.raises(ar.ArchipelError, match="did you mean 'heart-001'"):
        Folder.find("hart-001", tmp_path)


def test_a_renamed_folder_is_the_same_run(tmp_path):
    run = simulate(tmp_path / "a", watch=StopAfter(2))
    (tmp_path / "a").rename(tmp_path / "b")

    assert simulate(tmp_path / "b").done == 6 and run.done == 2


def test_a_killed_run_reads_interrupted(tmp_path):
    code = (
        "import os, sys, archipel as ar\n"
        "class Die:\n"
        "    def __call__(self, run): run.done == 3 and os.kill(os.getpid(), 9)\n"
        "    def say(self, text): pass\n"
        "about = {'name': 'x', 'rounds': 9}\n"
        "s = ar.Study.of('fedavg', study=about, data={'name': 'heart_disease'})\n"
        "s.run(sys.argv[1], watch=Die(), baselines=False, workers=2, checkpoint_seconds=0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=120)
    assert ended.returncode == -9
    (listed,) = ar.list_runs(tmp_path)
    assert (listed.state, listed.done) == ("interrupted", 3)
    assert ar.open_run("last", tmp_path).done == 3

    assert ar.resume("last", tmp_path).state == "done"
    assert ar.list_runs(tmp_path)[0].state == "done"


def test_a_run_stopped_between_evaluations_keeps_the_model_it_has(tmp_path):
    import safetensors.torch

    stopped = simulate(tmp_path / "a", evaluate_every=4, watch=StopAfter(5))
    whole = simulate(None, rounds=5, evaluate_every=1)
    stored = safetensors.torch.load_file(tmp_path / "a" / "model.safetensors")

    assert torch.equal(stopped.vector, whole.vector)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(stored[name], tensor)


def test_baselines_do_not_depend_on_who_reads_them(tmp_path):
    run = simulate(tmp_path / "a", baselines=True)
    again = simulate(tmp_path / "a", baselines=True)

    assert again.scorecard.to_json() == run.scorecard.to_json()
    assert run.elsewhere["auc"].dtype == torch.float64


def test_baselines_asked_for_later_are_trained(tmp_path):
    assert simulate(tmp_path / "a").baselines == {}
    assert set(simulate(tmp_path / "a", baselines=True).baselines) == {"local", "central"}
    assert set(simulate(tmp_path / "a").baselines) == {"local", "central"}


def test_a_run_below_quorum_is_told_up_to_there(tmp_path):
    with pytest.raises(ar.ArchipelError, match="below the quorum"):
        simulate(tmp_path / "a", quorum=4, on_missing="abort", away={"va": "4-5"})
    row = Folder.open(tmp_path / "a").journal.row()

    assert (row["state"], row["done"]) == ("failed", 3)


def test_waiting_is_told_and_costs_nothing_twice(tmp_path):
    run = simulate(tmp_path / "a", quorum=4, on_missing="wait", away={"va": "2-3"})
    again = simulate(tmp_path / "a", quorum=4, on_missing="wait", away={"va": "2-3"})

    assert run.participation[1].waited == 2 and run.participation[1].blocked == {3: Cause("away")}
    assert "waited 2 times for the quorum (va away)" in run.notes[0]
    assert again.participation[1].blocked == {3: Cause("away")}


def test_what_the_rounds_cost(tmp_path):
    there = simulate(None, rounds=3)
    away = simulate(None, rounds=3, away={"va": "2"})
    below = simulate(None, rounds=3, away={"va": "2"}, quorum=4)

    assert away.spent.down == there.spent.down * 11 // 12  # who is away receives nothing
    assert below.spent.up == there.spent.up * 2 // 3  # a round that does not count costs nothing
    assert below.participation[1].counted is False


def test_another_federation_or_topology_is_another_run(tmp_path):
    from dataclasses import replace

    from archipel.graphs import topology

    data = ar.load("heart_disease")
    ring = {"topology": topology("ring", 4), "rounds": 4, "workers": 1}
    ar.simulate(ar.DSGD(), data, out=tmp_path / "a", watch=StopAfter(2), **ring)
    assert ar.simulate(ar.DSGD(), data, out=tmp_path / "a", **ring).done == 4
    with pytest.raises(ar.ArchipelError, match="another one"):
        star = {**ring, "topology": topology("star", 4)}
        ar.simulate(ar.DSGD(), data, out=tmp_path / "a", **star)
    simulate(tmp_path / "b", watch=StopAfter(2))
    fewer = replace(data, training=3)
    with pytest.raises(ar.ArchipelError, match=r"data differ"):
        ar.simulate(ar.Scaffold(lr=0.05), fewer, out=tmp_path / "b", **OPTIONS)


def test_a_hostile_checkpoint_is_refused(tmp_path):
    import safetensors.torch

    simulate(tmp_path / "a", watch=StopAfter(2))
    (path,) = (tmp_path / "a").glob("checkpoint-*")
    good = safetensors.torch.load_file(path)
    for name, bad in {
        "visited": good["visited"] + 99,
        "shared.0": good["shared.0"].double(),
        "own.0": good["own.0"][:1],
    }.items():
        safetensors.torch.save_file({**good, name: bad}, path)
        with pytest.raises(ar.ArchipelError, match="checkpoint"):
            simulate(tmp_path / "a")


def test_odd_folders_and_private_ones(tmp_path):
    run = simulate(tmp_path / "what?x=1" / "50%25")
    assert run.state == "done" and ar.list_runs(tmp_path / "what?x=1")[0].state == "done"

    code = (
        "import os; os.umask(0o077)\n"
        "import sys, archipel as ar\n"
        "ar.simulate(ar.FedAvg(), 'heart_disease', rounds=1, workers=1, out=sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "p")], check=True, timeout=120)
    modes = {path.name: path.stat().st_mode & 0o077 for path in (tmp_path / "p").iterdir()}
    assert set(modes.values()) == {0} and (tmp_path / "p").stat().st_mode & 0o077 == 0


def test_a_worker_holds_no_lock(tmp_path):
    simulate(tmp_path / "a", watch=StopAfter(2))
    with Folder.open(tmp_path / "a") as folder:
        child = os.fork()
        if child == 0:
            os._exit(1 if folders._HELD else 0)
        assert os.waitpid(child, 0)[1] == 0
        assert folder.at_work


def test_an_error_in_the_middle_is_a_failed_run(tmp_path):
    class Breaks:
        def __call__(self, run):
            if run.done == 3:
                raise ZeroDivisionError("mine")

        def say(self, text):
            pass

    with pytest.raises(ZeroDivisionError):
        simulate(tmp_path / "a", watch=Breaks())
    assert Folder.open(tmp_path / "a").journal.row()["state"] == "failed"
