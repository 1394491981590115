# SPDX-License-Identifier: Apache-2.0
"""Milliseconds per round of FedAvg: Archipel, plain PyTorch, the limit, and other frameworks.

Every candidate lives in its own process, already warm, and waits; repetitions are interleaved, one
candidate runs at a time, all start a burst at the same cohort. Medians are over all timed rounds.
Only Flower is timed apart, after the others: Ray's daemons work even while it waits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from candidates import CANDIDATES, Candidate, Failed, Running
from networks import save_weights
from peers import install
from processes import describe, memory
from references import bound_ms, peak_gflops
from workloads import WORKLOADS, Workload, samples_per_round

RESULTS = Path(__file__).resolve().parent / "results"
REST = 0.3  # seconds between bursts, for the last candidate's threads to fall asleep
DISTURBED = 0.2  # cores that others may use during a burst before its figures are in doubt
FIRST = 100  # round number of the first burst, beyond every warm-up


@dataclass(frozen=True)
class Goal:
    """A ratio the benchmark reports: slower over faster, or ours over the limit."""

    workload: str
    above: str  # family
    below: str
    reach: float
    at_least: bool

    def text(self) -> str:
        return f"{self.above} / {self.below} {'≥' if self.at_least else '≤'} {self.reach:g}"


GOALS = (
    Goal("W1", "loop", "archipel", 12.0, True),
    Goal("W1", "fedjax", "archipel", 4.0, True),
    Goal("W2", "loop", "archipel", 3.5, True),
    Goal("W2", "pfl", "archipel", 4.5, True),
    Goal("W3", "archipel", "limit", 1.05, False),
    Goal("W4", "loop", "archipel", 1.3, True),
)


@dataclass
class Timing:
    """What was measured of one candidate on one workload."""

    family: str
    bursts: list[list[float]] = field(default_factory=list)  # seconds of each round
    others: list[float] = field(default_factory=list)  # cores busy elsewhere, of each burst
    warm_seconds: float | None = None
    loss: float | None = None
    pss_mb: float | None = None
    error: str | None = None

    @property
    def ms(self) -> float | None:
        rounds = [s for burst in self.bursts for s in burst]
        return statistics.median(rounds) * 1e3 if rounds else None

    @property
    def medians(self) -> list[float]:
        """Milliseconds, one median per burst."""
        return [statistics.median(burst) * 1e3 for burst in self.bursts]


Timings = dict[str, Timing]


def measure(
    workload: Workload,
    candidates: Sequence[Candidate],
    reps: int,
    seconds: float,
    peaks: list[float],
) -> Timings:
    """Warm every candidate up, then time them in turn, `reps` times; append matrix peaks."""
    save_weights(workload)
    timings = {c.name: Timing(c.family, error=c.missing()) for c in candidates}
    for restless in (False, True):
        group = [c for c in candidates if c.restless == restless]
        if group:
            _interleave(workload, group, timings, reps, seconds, peaks)
    return timings


def _interleave(
    workload: Workload,
    candidates: Sequence[Candidate],
    timings: Timings,
    reps: int,
    seconds: float,
    peaks: list[float],
) -> None:
    with _warm(workload, candidates, timings) as running:
        for rep in range(reps):
            peaks.append(peak_gflops(os.cpu_count() or 1))  # the best of all: others only lower it
            shift = rep % max(1, len(running))  # nobody is always the one after the slowest
            start = FIRST + rep * workload.rounds_per_burst
            for name in [*running][shift:] + [*running][:shift]:
                time.sleep(REST)
                timing = timings[name]
                if timing.error:
                    continue
                try:
                    times, others = running[name].burst(seconds, workload.rounds_per_burst, start)
                except Failed as error:
                    timing.error = str(error)
                    continue
                timing.bursts.append(times)
                timing.others.append(others)
                timing.pss_mb = max(timing.pss_mb or 0.0, memory(running[name].process.pid).pss)
            _say(f"  {workload.name} repetition {rep + 1} of {reps}")


@contextlib.contextmanager
def _warm(
    workload: Workload, candidates: Sequence[Candidate], timings: Timings
) -> Iterator[dict[str, Running]]:
    running: dict[str, Running] = {}
    with contextlib.ExitStack() as stack:
        for candidate in candidates:
            timing = timings[candidate.name]
            if timing.error is None:
                try:
                    process = Running(candidate, workload.name)
                except Failed as error:
                    timing.error = str(error)
                else:
                    stack.callback(process.close)
                    running[candidate.name] = process
                    timing.warm_seconds = process.ready["warm_seconds"]
                    timing.loss = process.ready["loss"]
            _say(f"  {workload.name} {candidate.name}: {timing.error or 'warm'}")
        yield running


def best(timings: Timings, family: str) -> Timing | None:
    """Return the family's timing at its better thread count."""
    measured = [t for t in timings.values() if t.family == family and t.ms is not None]
    return min(measured, key=lambda t: t.ms or 0.0, default=None)


def ratios(results: dict[str, Timings]) -> list[dict[str, Any]]:
    """Return the goals with their measured ratio and its range over repetitions."""
    rows = []
    for goal in GOALS:
        if goal.workload not in results:
            continue
        above, below = (best(results[goal.workload], f) for f in (goal.above, goal.below))
        row: dict[str, Any] = {"workload": goal.workload, "goal": goal.text(), "ratio": None}
        if above and below and above.ms and below.ms:
            pairs = zip(above.medians, below.medians, strict=False)
            single = [a / b for a, b in pairs]
            ratio = above.ms / below.ms
            reached = ratio >= goal.reach if goal.at_least else ratio <= goal.reach
            row |= {"ratio": ratio, "low": min(single), "high": max(single), "reached": reached}
            row["disturbed"] = max(above.others + below.others) > DISTURBED
        rows.append(row)
    return rows


def table(results: dict[str, Timings], bounds: dict[str, float]) -> str:
    """Return milliseconds per round as a Markdown table."""
    names = [n for n in CANDIDATES if any(n in timings for timings in results.values())]
    lines = [
        "| ms per round | " + " | ".join(results) + " |",
        "|---|" + "---:|" * len(results),
    ]
    for name in names:
        cells = [_cell(timings.get(name)) for timings in results.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("| arithmetic bound | " + " | ".join(f"{bounds[w]:.3g}" for w in results) + " |")
    factors = []
    for w, timings in results.items():
        ours = best(timings, "archipel")
        factors.append(f"{ours.ms / bounds[w]:.1f}x" if ours and ours.ms else "-")
    lines.append("| archipel / bound | " + " | ".join(factors) + " |")
    return "\n".join(lines)


def _cell(timing: Timing | None) -> str:
    if timing is None or timing.ms is None:
        return "-"
    return f"{timing.ms:.4g} ({min(timing.medians):.4g} to {max(timing.medians):.4g})"


def ratio_table(rows: list[dict[str, Any]]) -> str:
    lines = ["| | goal | measured | over repetitions | |", "|---|---|---:|---:|---|"]
    for row in rows:
        if row["ratio"] is None:
            lines.append(f"| {row['workload']} | {row['goal']} | not measured | | |")
        else:
            reached = "reached" if row["reached"] else "not reached"
            if row["disturbed"]:  # it slows candidates unequally, so the ratio proves nothing
                reached = "disturbed, measure again"
            spread = f"{row['low']:.3g} to {row['high']:.3g}"
            cells = (row["workload"], row["goal"], f"{row['ratio']:.3g}", spread, reached)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def problems(results: dict[str, Timings], bounds: dict[str, float]) -> list[str]:
    """Return what did not run, and what a busy machine spoilt."""
    found = []
    for w, timings in results.items():
        found += [f"{w} {name}: {t.error}" for name, t in timings.items() if t.error]
        if any(t.ms is not None and t.ms < bounds[w] for t in timings.values()):
            found.append(
                f"{w}: a candidate beat the bound: the peak was measured on a busy machine."
            )
        busy = [(v, name) for name, t in timings.items() for v in t.others]
        if busy and max(busy)[0] > DISTURBED:
            value, name = max(busy)
            found.append(f"{w}: other processes used up to {value:.1f} cores (during {name}).")
    return found


def machine(families: set[str]) -> dict[str, Any]:
    """Return the machine and the versions."""
    packages = {}
    for name in ("archipel", "torch", "numpy"):
        with contextlib.suppress(ModuleNotFoundError):
            packages[name] = version(name)
    peers = {p: install.versions(p) for p in install.PEERS if p in families}
    return {**describe(), "python": platform.python_version(), "packages": packages, "peers": peers}


def markdown(report: dict[str, Any], results: dict[str, Timings], command: str) -> str:
    host = report["machine"]
    peers = "; ".join(
        ", ".join(f"{k} {v}" for k, v in found.items()) for found in host["peers"].values()
    )
    titles = "\n".join(
        f"- {w}: {WORKLOADS[w].title}; {WORKLOADS[w].parties} parties, {WORKLOADS[w].cohort} per "
        f"round, {samples_per_round(WORKLOADS[w]):.0f} examples per round, "
        f"B={WORKLOADS[w].batch_size}, E=1"
        for w in results
    )
    trouble = "\n".join(f"- {line}" for line in report["problems"]) or "- none"
    return f"""# Speed of one round of FedAvg

`{command}` on {host["cpu"]}, {host["cores"]} cores, {host["memory_gb"]} GB; Python
{host["python"]}, torch {host["packages"]["torch"]}, float32. Peers: {peers or "none"}.
Matrix product peak {report["peak_gflops"]:.0f} GFLOP/s on all cores.

{titles}

Medians of all timed rounds of {report["reps"]} interleaved repetitions (flwr apart, because Ray
works even while it waits), in brackets the range of the repetitions' medians. `@n` is the number
of threads; ratios use the better one. `limit` is centralised training on as many examples at
B=256 with all cores; the arithmetic bound is the round's floating point operations at the peak.

{table(results, report["bounds_ms"])}

{ratio_table(report["ratios"])}

Not measured, or disturbed:

{trouble}
"""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="for example W1,W2")
    parser.add_argument("--reps", type=int, default=7, help="interleaved repetitions")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one burst; W3, W4: 1 round")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--only", default=None, help="candidates by name, for example archipel")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for speed.json, .md")
    return parser.parse_args()


def main() -> None:
    options = _options()
    chosen = options.only.split(",") if options.only else [*CANDIDATES]
    candidates = [
        CANDIDATES[name]
        for name in chosen
        if options.peers or CANDIDATES[name].family not in install.PEERS
    ]
    names = options.workloads.split(",")
    peaks: list[float] = []
    results = {
        w: measure(WORKLOADS[w], candidates, options.reps, options.seconds, peaks) for w in names
    }
    peak = max(peaks)
    bounds = {w: bound_ms(WORKLOADS[w], peak) for w in names}
    report = {
        "machine": machine({c.family for c in candidates if c.missing() is None}),
        "peak_gflops": peak,
        "peaks_gflops": peaks,
        "reps": options.reps,
        "seconds": options.seconds,
        "bounds_ms": bounds,
        "ratios": ratios(results),
        "problems": problems(results, bounds),
        "timings": {
            w: {name: {"ms": t.ms, **vars(t)} for name, t in timings.items()}
            for w, timings in results.items()
        },
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "speed.json").write_text(json.dumps(report, indent=1) + "\n")
    command = " ".join(["python benchmarks/speed.py", *sys.argv[1:]])
    text = markdown(report, results, command)
    (options.output / "speed.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
