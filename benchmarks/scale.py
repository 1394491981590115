# SPDX-License-Identifier: Apache-2.0
"""Time and memory of a round against the number of parties, 100 of them sampled.

Each population and algorithm runs in its own process on memory-mapped data. SCAFFOLD keeps a
control variate per party; what it costs should follow the parties that took part, not all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from processes import describe, memory
from workloads import CACHE

RESULTS = Path(__file__).resolve().parent / "results"
POPULATIONS = (10**3, 10**4, 10**5, 10**6)
ALGORITHMS = ("fedavg", "scaffold")
SAMPLED = 100
FEATURES, CLASSES = 16, 4
LOW, HIGH = 10, 30  # examples of a party, uniform
BLOCK = 10**5  # parties written at a time


def data(parties: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Return memory-mapped x, y and offsets, written block by block at the first call."""
    folder = CACHE / "scale" / str(parties)
    if not (folder / "offsets.npy").exists():
        _write(folder, parties)
    x = np.load(folder / "x.npy", mmap_mode="c")
    y = np.load(folder / "y.npy", mmap_mode="c")
    return x, y, np.load(folder / "offsets.npy")


def _write(folder: Path, parties: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(LOW, HIGH + 1, parties))])
    teacher = rng.standard_normal((FEATURES, CLASSES), dtype=np.float32)
    rows = int(offsets[-1])
    create = np.lib.format.open_memmap
    x = create(folder / "x.npy", mode="w+", dtype=np.float32, shape=(rows, FEATURES))
    y = create(folder / "y.npy", mode="w+", dtype=np.int64, shape=(rows,))
    for first in range(0, parties, BLOCK):
        low, high = int(offsets[first]), int(offsets[min(first + BLOCK, parties)])
        x[low:high] = rng.standard_normal((high - low, FEATURES), dtype=np.float32)
        y[low:high] = (x[low:high] @ teacher).argmax(1)
    x.flush()
    y.flush()
    np.save(folder / "offsets.npy", offsets)


def sampled(parties: int, t: int) -> NDArray[np.int64]:
    """Return 100 distinct parties of round t, at a cost that does not grow with the population."""
    rng = np.random.default_rng(1000 + t)
    found = np.unique(rng.integers(0, parties, 2 * SAMPLED))
    return rng.permutation(found)[:SAMPLED]


def run(parties: int, name: str, rounds: int, warm: int) -> dict[str, Any]:
    """Time rounds on one population in this process."""
    import archipel as ar

    x, y, offsets = data(parties)
    began = time.perf_counter()
    rows = torch.from_numpy(offsets)
    federation = ar.Federation(
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        offsets=rows,
        test_from=rows[1:],
        training=parties,
        task="classification",
        classes=CLASSES,
        scan=False,  # it reads all data once; a saved federation was scanned when it was made
    )
    torch.manual_seed(0)
    model = ar.Model(nn.Linear(FEATURES, CLASSES), loss="cross_entropy")
    algorithm = {"fedavg": ar.FedAvg, "scaffold": ar.Scaffold}[name](
        lr=0.1, local_epochs=1, batch_size=10
    )
    times: list[float] = []
    with ar.LocalEngine(algorithm, federation, model, seed=0) as engine:
        for t in range(warm):
            engine.round(t, sampled(parties, t))
        ready = time.perf_counter() - began
        for t in range(warm, warm + rounds):
            chosen = sampled(parties, t)
            start = time.perf_counter()
            engine.round(t, chosen)
            times.append(time.perf_counter() - start)
        used = memory(os.getpid())
    return {
        "parties": parties,
        "algorithm": name,
        "ms": statistics.median(times) * 1e3,
        "quartiles_ms": [float(q) * 1e3 for q in np.quantile(times, (0.25, 0.75))],
        "ready_seconds": ready,
        **{f"{k}_mb": v for k, v in vars(used).items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown, with time and memory relative to the smallest population."""
    first = {row["algorithm"]: row for row in reversed(rows) if "error" not in row}
    lines = [
        "| algorithm | parties | ms per round | quartiles | relative | RSS MB | PSS MB | relative "
        "| PSS without files MB | relative |",
        "|---|" + "---:|" * 9,
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['algorithm']} | {row['parties']:,} | {row['error']} ||||||||")
            continue
        base = first[row["algorithm"]]
        low, high = row["quartiles_ms"]
        lines.append(
            f"| {row['algorithm']} | {row['parties']:,} | {row['ms']:.3g} "
            f"| {low:.3g} to {high:.3g} | {row['ms'] / base['ms']:.2f} "
            f"| {row['rss_mb']:.0f} | {row['pss_mb']:.0f} | {row['pss_mb'] / base['pss_mb']:.2f} "
            f"| {_own(row):.0f} | {_own(row) / _own(base):.2f} |"
        )
    return "\n".join(lines)


def _own(row: dict[str, Any]) -> float:
    """Return the memory that is not pages of mapped files, which the kernel can take back."""
    return float(row["pss_mb"] - row["pss_file_mb"])


def _in_process(parties: int, name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", f"{parties}:{name}"]
    command += ["--rounds", str(options.rounds), "--warm", str(options.warm)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        return {"parties": parties, "algorithm": name, "error": last[0][:300]}
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--populations", default=",".join(map(str, POPULATIONS)))
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--rounds", type=int, default=200, help="timed")
    parser.add_argument("--warm", type=int, default=20, help="rounds before the clock starts")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for scale.json, .md")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        parties, _, name = options.one.partition(":")
        print(json.dumps(run(int(parties), name, options.rounds, options.warm)))
        return
    rows = []
    for parties in (int(p) for p in options.populations.split(",")):
        data(parties)
        rows += [_in_process(parties, name, options) for name in options.algorithms.split(",")]
    rows.sort(key=lambda row: (row["algorithm"], row["parties"]))
    host = {**describe(), "torch": torch.__version__}
    text = f"""# Cost of a round against the number of parties

{SAMPLED} parties sampled per round, linear model {FEATURES}-{CLASSES}, {LOW} to {HIGH} examples
each, memory-mapped, B=10, E=1, on {host["cpu"]}, {host["cores"]} cores. Medians of
{options.rounds} rounds after {options.warm}; memory of the engine's process and its workers.

{table(rows)}
"""
    options.output.mkdir(parents=True, exist_ok=True)
    report = {"machine": host, "rounds": options.rounds, "rows": rows}
    (options.output / "scale.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.output / "scale.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
