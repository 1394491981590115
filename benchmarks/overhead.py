# SPDX-License-Identifier: Apache-2.0
"""What journal, checkpoints, scorecard and live picture cost a run, as a ratio of its time.

Each repetition times the same rounds twice, in changing order: in memory with nobody looking on,
and recorded in a folder with the live view drawing to a terminal that nobody sees. Both are timed
from the first round to the end, with the last checkpoint, model and scorecard.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console

import archipel as ar
from archipel.report.live import LiveView
from networks import build
from ours import federation
from workloads import WORKLOADS, Workload

ROUNDS = {"W1": 600, "W2": 150, "W3": 6}
GOALS = {"W1": 1.20, "W2": 1.05, "W3": 1.05}
RESULTS = Path(__file__).parent / "results"


class Timed:
    """Notes when the first round begins, and passes on to a view."""

    def __init__(self, view: LiveView | None) -> None:
        self.began, self._view = 0.0, view

    def __call__(self, run: ar.Run) -> None:
        if run.done == 0:
            self.began = time.perf_counter()
        if self._view is not None:
            self._view(run)

    def say(self, text: str) -> None: ...


def seconds(workload: Workload, recorded: bool, plan: ar.Plan | None) -> tuple[float, ar.Plan]:
    """Return the time of a round, and how it was computed."""
    algorithm = ar.FedAvg(lr=workload.lr, local_epochs=1, batch_size=workload.batch_size)
    model = ar.Model(build(workload), loss="cross_entropy")
    rounds = ROUNDS[workload.name]
    options: dict = {"rounds": rounds, "sample": workload.cohort, "evaluate_every": rounds}
    if plan is not None:
        options["plan"] = plan
    data = federation(workload)
    if not recorded:
        watch = Timed(None)
        run = ar.simulate(algorithm, data, model, watch=watch, **options)
        return (time.perf_counter() - watch.began) / rounds, run.plan
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        nobody = Console(file=nowhere, force_terminal=True, width=100, height=30)
        with LiveView(nobody) as view:
            watch = Timed(view)
            run = ar.simulate(algorithm, data, model, watch=watch, out=f"{folder}/run", **options)
            return (time.perf_counter() - watch.began) / rounds, run.plan


def measure(workload: Workload, repetitions: int) -> dict:
    """Return the times of a round of every repetition, and their ratios."""
    _, plan = seconds(workload, False, None)  # calibrates, and warms up
    plain, recorded = [], []
    for repetition in range(repetitions):
        for which in ((False, True), (True, False))[repetition % 2]:
            taken, _ = seconds(workload, which, plan)
            (recorded if which else plain).append(taken)
    ratios = sorted(r / p for r, p in zip(recorded, plain, strict=True))
    return {
        "plain_ms": 1000 * statistics.median(plain),
        "recorded_ms": 1000 * statistics.median(recorded),
        "ratio": statistics.median(ratios),
        "ratio_of_least": min(recorded) / min(plain),
        "ratios": ratios,
        "goal": GOALS[workload.name],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("workloads", nargs="*", default=list(ROUNDS))
    options = parser.parse_args()
    results = {name: measure(WORKLOADS[name], options.reps) for name in options.workloads}
    lines = [
        "# What recording costs",
        "",
        f"`python benchmarks/overhead.py --reps {options.reps}`: the same rounds in memory with "
        "nobody looking on, and recorded",
        "(journal, checkpoints, model, scorecard) with the live picture. Median over repetitions, "
        "range in brackets.",
        "",
        "| workload | ms per round, plain | recorded | ratio | of the quickest | goal |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, r in results.items():
        lines.append(
            f"| {name}, {WORKLOADS[name].title} | {r['plain_ms']:.2f} | {r['recorded_ms']:.2f} | "
            f"{r['ratio']:.3f} ({r['ratios'][0]:.3f}-{r['ratios'][-1]:.3f}) | "
            f"{r['ratio_of_least']:.3f} | {r['goal']:.2f} |"
        )
    text = "\n".join(lines) + "\n"
    if set(options.workloads) == set(ROUNDS):
        (RESULTS / "overhead.md").write_text(text)
        (RESULTS / "overhead.json").write_text(json.dumps(results, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
