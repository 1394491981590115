# SPDX-License-Identifier: Apache-2.0
"""What commands that compute nothing cost: seconds of processor time, of a process each.

Modules are compiled before anything is measured, as they are once a command was used. The folders
are those of `tests/recorded`: three runs, and a federation in the middle of a study, whose
coordinator is away. For comparison, report and export of a finished run whose table is gone, made
by this version (new) and by one that did not journal what a run was (old), and importing torch.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "tests" / "recorded"
RESULTS = Path(__file__).parent / "results"
GOAL = 0.6  # seconds
COMMANDS = [
    "--help",
    "list algorithms",
    "runs",
    "site pause --home site-0",
    "site studies --home site-0",
    "coordinator status",
]
BESIDES = [  # without a goal
    "report new-001",
    "export new-001 --to exported.zip",
    "report table-001",
    "export table-001 --to exported.zip",
]
MADE = """
from pathlib import Path
import archipel as ar

table = Path("table.csv")
rows = "".join(f"h{k % 3},{k % 50},{k % 7}\\n" for k in range(90))
table.write_text("hospital,age,stay\\n" + rows)
data = {"file": "table.csv", "by": "hospital", "target": "stay"}
ar.Study.of("fedavg", data=data, study={"name": "new", "rounds": 3}).run("runs", workers=1)
table.unlink()
"""
ARCHIPEL = [sys.executable, "-m", "archipel"]
TORCH = [sys.executable, "-c", "import torch"]


def seconds(command: list[str], folder: Path, compiled: Path) -> float:
    """Of user and system, of one process."""
    (folder / "exported.zip").unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(repetitions: int) -> dict[str, list[float]]:
    """The times of every command, by what is typed; repetitions of all take turns."""
    commands = {f"archipel {line}": ARCHIPEL + line.split() for line in (*COMMANDS, *BESIDES)}
    commands["python -c 'import torch'"] = TORCH
    taken: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as place:
        folder, compiled = Path(place) / "folder", Path(place) / "compiled"
        shutil.copytree(RECORDED / "federation", folder)
        shutil.copytree(RECORDED / "runs", folder / "runs")
        seconds([sys.executable, "-c", MADE], folder, compiled)
        for command in commands.values():  # compiles; a site reads a study that is new to it
            seconds(command, folder, compiled)
        for _ in range(repetitions):
            for name, command in commands.items():
                taken[name].append(seconds(command, folder, compiled))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=7)
    options = parser.parse_args()
    taken = measure(options.reps)
    lines = [
        "# What commands that compute nothing cost",
        "",
        f"`python benchmarks/startup.py --reps {options.reps}`: processor seconds (user and "
        "system) of a process each, with modules",
        "compiled before. Median over repetitions, range in brackets.",
        "",
        "| command | seconds | goal |",
        "|---|---:|---:|",
    ]
    results = {}
    for name, times in taken.items():
        goal = GOAL if name.removeprefix("archipel ") in COMMANDS else None
        results[name] = {"seconds": statistics.median(times), "times": sorted(times), "goal": goal}
        lines.append(
            f"| `{name}` | {results[name]['seconds']:.2f} ({min(times):.2f}-{max(times):.2f}) | "
            f"{'' if goal is None else f'under {goal}'} |"
        )
    text = "\n".join(lines) + "\n"
    (RESULTS / "startup.md").write_text(text)
    (RESULTS / "startup.json").write_text(json.dumps(results, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
