"""Runs a study in forked processes that are killed with SIGKILL; started by test_crash.py."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import archipel as ar
from archipel.engines.local import memory
from archipel.engines.local.slots import Slots
from archipel.store.folder import Folder
from archipel.store.journal import Journal
from archipel.study.file import Study


def study(algorithm):
    if algorithm == "scaffold-on-disk":  # what parties keep lies in files beside the checkpoint
        algorithm, memory.LARGE = "scaffold", 0
    topology = {"name": "ring"} if algorithm == "dsgd" else {}
    if algorithm == "fedbuff":  # parties in flight, from several versions
        return Study.of(
            algorithm,
            study={"name": "crash", "rounds": 25, "evaluate_every": 2, "metric": "auc"},
            data={"name": "heart_disease"},
            round={"sample": 3},
            simulate={"dropouts": 0.3, "away": {"va": "3-6"}, "speed": 100, "speed_spread": 1.0},
        )
    return Study.of(
        algorithm,
        study={"name": "crash", "rounds": 25, "evaluate_every": 2, "metric": "auc"},
        data={"name": "heart_disease"},
        round={"quorum": 2, "on_missing": "wait"},
        topology=topology,
        simulate={"dropouts": 0.3, "away": {"va": "3-6"}},
    )


def start(algorithm, folder, prepare=lambda: None):
    """Fork a process that goes on with the run; return its pid and a pipe that says it began."""
    ready, begun = os.pipe()
    pid = os.fork()
    if pid == 0:
        prepare()
        os.write(begun, b".")
        study(algorithm).run_in(folder, baselines=False, workers=2, checkpoint_seconds=0)
        os._exit(0)
    os.close(begun)
    os.read(ready, 1)
    os.close(ready)
    return pid


def die_at(place, count):
    """Kill this process at the count-th call of something that writes."""

    def prepare():
        owner, name, when = (PLACES | ON_DISK)[place]
        original, calls = getattr(owner, name), [0]

        def call(*arguments, **named):
            calls[0] += 1
            if calls[0] == count and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*arguments, **named)
            if calls[0] == count and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, call)

    return prepare


PLACES = {
    "file written, not synced": (os, "fsync", "before"),
    "file synced": (os, "fsync", "after"),
    "checkpoint not yet in place": (Path, "replace", "before"),
    "checkpoint in place, journal behind": (Journal, "commit", "before"),
    "journal written, old checkpoint there": (Journal, "commit", "after"),
    "old checkpoint half gone": (Path, "unlink", "before"),
    "folder made, not in place": (Path, "rename", "before"),
}

ON_DISK = {
    "rows in place, not in the index": (Slots, "save", "before"),
    "rows and index written, no checkpoint": (Slots, "save", "after"),
    "index cut, not written": (os, "pwrite", "before"),
    "index written, not synced": (os, "pwrite", "after"),
    "committed, rows not yet free": (Slots, "forget", "before"),
    "files about to grow": (Slots, "grow", "before"),
    "rows not yet in the folder": (memory.Kept, "moved", "before"),
}


def result(run):
    return {
        "vector": [float(value).hex() for value in run.vector],
        "history": [{**entry, "seconds": 0} for entry in run.history],
        "parties": {name: [float(v).hex() for v in values] for name, values in run.parties.items()},
        "participation": [
            [c.sampled.tolist(), c.present.tolist(), sorted(c.missing.items()), c.waited]
            for c in run.participation
        ],
        "spent": list(run.spent),
        "rounds": run.done,
    }


def main(algorithm, out, seed, most):
    out, draw = Path(out), random.Random(int(seed))
    whole = study(algorithm).run_in(out / "whole", baselines=False, workers=2, checkpoint_seconds=0)
    began = time.perf_counter()  # the first had a plan to time
    os.waitpid(start(algorithm, out / "again"), 0)
    lasts = time.perf_counter() - began
    folder, kills, progress = out / "killed", 0, []
    while kills < int(most):
        pid = start(algorithm, folder)
        time.sleep(draw.uniform(0, lasts / 2))  # the first quarter is before the folder is there
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):  # it was done before
            assert os.WEXITSTATUS(status) == 0
            folder = out / f"killed-{kills}"
            continue
        kills += 1
        if Folder.exists(folder):
            progress.append(Folder.open(folder).journal.row()["done"])
    places, at_places = [], PLACES | (ON_DISK if algorithm == "scaffold-on-disk" else {})
    for place in at_places:
        at = out / f"place-{len(places)}"
        once = ("folder made, not in place", "rows not yet in the folder")
        count = 1 if place in once else draw.randint(1, 5)
        pid = start(algorithm, at, die_at(place, count))
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), place
        places.append(at)
    finished = [folder, *places]
    for each in finished:
        pid = start(algorithm, each)
        _, status = os.waitpid(pid, 0)
        assert status == 0, each
    leftovers = [
        str(path.relative_to(out))
        for each in finished
        for path in each.iterdir()
        if path.name.startswith(".") or path.name.count("checkpoint") > 1
    ]
    print(
        json.dumps(
            {
                "whole": result(whole),
                "killed": [result(read(algorithm, each)) for each in finished],
                "progress": progress,
                "leftovers": leftovers,
            }
        )
    )


def read(algorithm, folder):
    run = ar.open_run(folder)
    rounds = Folder.open(folder).journal.rounds()
    assert [row["round"] for row in rounds] == list(range(1, run.rounds + 1))  # each once
    return run


if __name__ == "__main__":
    torch.set_num_threads(1)  # a forked process has no threads of its parent
    main(*sys.argv[1:])
