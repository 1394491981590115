"""Makes what is in this folder anew: `python tests/recorded/make.py`, from the root of a clone.

What is here was made by the version that `README.md` names, so that later ones are tested with it;
make it anew only beside what there is, never in its place.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import archipel as ar  # noqa: E402
from archipel.federation.certificates import Authority  # noqa: E402
from archipel.federation.coordinator import enrolment  # noqa: E402
from network.processes import Drill  # noqa: E402

INTERRUPTED = {
    "study": {"name": "interrupted", "rounds": 6, "seed": 3},
    "data": {"name": "heart_disease"},
    "algorithm": {"name": "scaffold", "lr": 0.05, "local_steps": 5},
    "round": {"sample": 0.5},
}
PERSONAL = {
    "study": {"name": "personal", "rounds": 3, "target": 0.8},
    "data": {"name": "heart_disease"},
    "algorithm": {"name": "ditto", "lr": 0.05},
}
TABLE = {
    "study": {"name": "table", "purpose": "To be read without its table.", "rounds": 3},
    "data": {"file": "patients.csv", "by": "hospital", "target": "stay"},
    "algorithm": {"name": "fedavg", "lr": 0.05},
    "model": {"name": "mlp"},
}
CHANGES = {
    "study.rounds": 6, "study.evaluate_every": 2, "algorithm.name": "scaffold",
    "algorithm.lr": 0.05, "round.quorum": 1.0, "round.on_missing": "wait",
}  # fmt: skip


class Killed:
    """Ends the process without a word after three rounds."""

    def __call__(self, run):
        if run.done == 3:
            os._exit(9)

    def say(self, text):
        pass


def interrupted(folder, dies):
    study = ar.Study.parse(INTERRUPTED, folder)
    watch = Killed() if dies else None
    return study.run(folder / "runs", baselines=True, workers=1, watch=watch, checkpoint_seconds=0)


def of_simulations(folder):
    """An interrupted run, and what becomes of it; a run with own models; one of an own table."""
    code = f"import sys; sys.path[:0] = {sys.path!r}; import make; from pathlib import Path; "
    code += f"make.interrupted(Path({str(folder)!r}), True)"
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, check=False)
    assert done.returncode == 9
    whole = folder / "whole"
    whole.mkdir()
    write(interrupted(whole, False), "interrupted.json")
    ar.Study.parse(PERSONAL, folder).run(folder / "runs", baselines=True, workers=1)
    patients(folder / "patients.csv")
    run = ar.Study.parse(TABLE, folder).run(folder / "runs", baselines=True, workers=1)
    write(run, "table.json")
    for path in (folder / "runs").iterdir():
        shutil.copytree(path, HERE / "runs" / path.name)


def write(run, name):
    """What came of a run, to every bit, and on what it was computed."""
    found = {**run.to_json(), "folder": None, "vector": run.vector.double().tolist()}
    found |= {"torch": run.environment["torch"], "processor": processor()}
    (HERE / name).write_text(json.dumps(found) + "\n")


def processor():
    """The model of this machine's processor: another may round otherwise."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def patients(path):
    """A table of three hospitals and how long patients stayed."""
    draws = np.random.default_rng(0)
    lines = ["hospital,age,sex,stay"]
    for k in range(90):
        age, sex = draws.normal(60, 10), draws.choice(["f", "m"])
        stay = 5 + 0.1 * age + 2 * (sex == "f") + draws.normal()
        lines.append(f"{['north', 'south', 'east'][k % 3]},{age:.1f},{sex},{stay:.2f}")
    path.write_text("\n".join(lines) + "\n")


def of_federation(folder):
    """A coordinator and three sites, all killed after three rounds of six.

    Sites' certificates last as long as the federation's own, not 30 days as they usually do.
    """
    valid = timedelta(days=3600)
    Authority.issue.__defaults__ = (valid,)
    enrolment.VALID = valid

    async def main():
        async with Drill(folder, 3, CHANGES, rows=40) as drill:
            await drill.enrol()
            await drill.start()
            await drill.until_round(3)
            await drill.coordinator.kill()
            for process in drill.processes:
                await process.kill()
            write(drill.study.run(None, baselines=False, workers=1), "federation.json")

    asyncio.run(main())
    target = HERE / "federation"
    for name in ("coordinator", "site-0", "site-1", "site-2", "tables"):
        shutil.copytree(folder / name, target / name)


def main():
    with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
        for name, make in (("simulated", of_simulations), ("federation", of_federation)):
            (Path(folder) / name).mkdir()
            make(Path(folder) / name)


if __name__ == "__main__":
    main()
