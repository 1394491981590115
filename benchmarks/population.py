# SPDX-License-Identifier: Apache-2.0
"""Whole runs against the number of parties: 1,000 sampled, SCAFFOLD's state, recorded.

Unlike `scale.py`, which times the engine's rounds, this times what a study costs: sampling, the
parties' points (made on demand, or from mapped shards), their rounds, what they keep, checkpoints
and the journal, and an evaluation on a sample. Every run is a process of its own, and populations
take turns, so that what else the machine does falls on each.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from processes import describe, memory
from workloads import CACHE

RESULTS = Path(__file__).resolve().parent / "results"
POPULATIONS = (10**4, 10**6)
SOURCES = ("generator", "shards")
SAMPLED = 1000
FEATURES, CLASSES = 16, 4
LIMIT = 1.3  # of time and memory, against the smallest population
MOST_MB = 2000  # at the peak


def shards(parties: int) -> Path:
    """Return a folder of shards, written at the first call."""
    from archipel.data import load
    from archipel.data.shards import write

    folder = CACHE / "population" / str(parties)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write(load("crowd", parties=parties, features=FEATURES, classes=CLASSES), folder, 64 << 20)
    return folder


class Clock:
    """When each round was over, and the most memory so far."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.peak = self.own = 0.0

    def __call__(self, run: Any) -> None:
        self.marks.append(time.perf_counter())
        if run.done % 10 == 0:
            used = memory(os.getpid())
            self.peak = max(self.peak, used.pss)
            self.own = max(self.own, used.pss - used.pss_file)
            self.marks[-1] = time.perf_counter()  # looking is no part of the next round

    def say(self, text: str) -> None:
        """Nobody reads it."""


def run(parties: int, source: str, rounds: int) -> dict[str, Any]:
    """Run one population in this process."""
    import archipel as ar

    began = time.perf_counter()
    if source == "shards":
        fed = ar.Federation.open(shards(parties))
    else:
        fed = ar.load("crowd", parties=parties, features=FEATURES, classes=CLASSES)
    clock, out = Clock(), Path(tempfile.mkdtemp(dir=CACHE)) / "run"
    try:
        ran = ar.simulate(
            ar.Scaffold(lr=0.1, local_epochs=1, batch_size=10),
            fed,
            "logistic",
            rounds=rounds,
            sample=SAMPLED,
            evaluate_every=rounds // 2,
            evaluate_sample=1000,
            plan=ar.Plan("stacked", 64, 2),
            out=out,
            watch=clock,
        )
        disk = sum(path.stat().st_blocks * 512 for path in out.rglob("*") if path.is_file())
        checkpoint = sum(path.stat().st_size for path in out.glob("checkpoint-*"))
    finally:
        shutil.rmtree(out.parent)
    took = np.diff(clock.marks)[5:] * 1e3  # the first fetch code
    last = ran.history[-1]
    return {
        "parties": parties,
        "source": source,
        "ms": float(np.median(took)),
        "quartiles_ms": np.quantile(took, (0.25, 0.75)).tolist(),
        "ready_seconds": clock.marks[0] - began,
        "peak_mb": clock.peak,
        "own_mb": clock.own,
        "touched": len({k for cohort in ran.participation for k in cohort.sampled.tolist()}),
        "disk_mb": disk / 1e6,
        "checkpoint_bytes": checkpoint,
        "accuracy": last["metrics"]["accuracy"],
        "interval": last.get("intervals", {}).get("accuracy"),
    }


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of a population's runs."""
    numbers = [key for key, value in rows[0].items() if isinstance(value, int | float)]
    found = {key: statistics.median(row[key] for row in rows) for key in numbers}
    return rows[0] | found | {"parties": rows[0]["parties"]}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| points from | parties | ms per round | relative | peak PSS MB | relative "
        "| without files MB | relative | parties touched | run on disk MB | checkpoint bytes |",
        "|---|" + "---:|" * 10,
    ]
    for row in rows:
        base = next(each for each in rows if each["source"] == row["source"])
        cells = [f"{row['ms']:.3g}", f"{row['ms'] / base['ms']:.2f}"]
        for key in ("peak_mb", "own_mb"):
            cells += [f"{row[key]:.0f}", f"{row[key] / base[key]:.2f}"]
        cells += [f"{row['touched']:,.0f}", f"{row['disk_mb']:.1f}"]
        cells += [f"{row['checkpoint_bytes']:,.0f}"]
        lines.append(f"| {row['source']} | {row['parties']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--populations", default=",".join(map(str, POPULATIONS)))
    parser.add_argument("--sources", default=",".join(SOURCES))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3, help="of each, by turns")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    if options.one:
        parties, _, source = options.one.partition(":")
        print(json.dumps(run(int(parties), source, options.rounds)))
        return
    populations = [int(each) for each in options.populations.split(",")]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for source in options.sources.split(","):
        for parties in populations if source == "shards" else ():
            shards(parties)
        for _ in range(options.repeats):
            for parties in populations:
                command = [sys.executable, __file__, "--one", f"{parties}:{source}"]
                command += ["--rounds", str(options.rounds)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                row = json.loads(done.stdout.strip().splitlines()[-1])
                found.setdefault((source, parties), []).append(row)
    rows = [summed(each) for each in found.values()]
    host = {**describe(), "torch": torch.__version__}
    text = f"""# Cost of a study against the number of parties

{SAMPLED:,} parties sampled per round, logistic model {FEATURES}-{CLASSES}, SCAFFOLD, B=10, E=1, 2
workers, recorded in a folder as it goes on, on {host["cpu"]}, {host["cores"]} cores. Medians of
{options.rounds} rounds and of {options.repeats} runs by turns; memory of the process and its
workers. Wanted: at most {LIMIT} times the time and memory of the smallest, and {MOST_MB:,} MB.

{table(rows)}

Made by `python benchmarks/population.py --sources {options.sources} --rounds
{options.rounds} --repeats {options.repeats}`.
"""
    options.output.mkdir(parents=True, exist_ok=True)
    report = {"machine": host, "rounds": options.rounds, "rows": rows}
    (options.output / "population.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.output / "population.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
