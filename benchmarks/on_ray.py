# SPDX-License-Identifier: Apache-2.0
"""The Ray engine: what it costs against the local one, against Flower's simulation, and its memory.

The clock, the workloads and the way of measuring are those of speed.py: interleaved bursts of warm
processes on all cores of one machine. Candidates with Ray's daemons are timed apart from the local
engine, since daemons work while they wait. (No script here may be called ray.py: Ray's own
processes import from this folder.)
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from candidates import CANDIDATES, HERE, OURS, Candidate, Failed, Running
from networks import save_weights
from processes import PROC, describe, memory, tree
from speed import DISTURBED, RESULTS, Goal, Timings, best, machine, measure
from workloads import WORKLOADS

ON_RAY = Candidate(
    "archipel on Ray",
    "archipel on Ray",
    (sys.executable, str(HERE / "ours_on_ray.py")),
    restless=True,
)
GOALS = (
    Goal("W2", "archipel on Ray", "archipel", 1.5, False),
    Goal("W3", "archipel on Ray", "archipel", 1.15, False),
    Goal("W2", "flwr", "archipel on Ray", 20.0, True),
    Goal("W3", "flwr", "archipel on Ray", 1.5, True),
)
FLAT = 20.0  # megabytes that memory may grow by over the rounds


def ratios(results: dict[str, Timings]) -> list[dict[str, Any]]:
    """The goals, with what was measured; the range is over pairs of repetitions."""
    rows = []
    for goal in GOALS:
        timings = results.get(goal.workload, {})
        above, below = best(timings, goal.above), best(timings, goal.below)
        row: dict[str, Any] = {"workload": goal.workload, "goal": goal.text(), "ratio": None}
        if above and below and above.ms and below.ms:
            ratio = above.ms / below.ms
            pairs = [a / b for a, b in zip(above.medians, below.medians, strict=False)]
            reached = ratio >= goal.reach if goal.at_least else ratio <= goal.reach
            row |= {"ratio": ratio, "low": min(pairs), "high": max(pairs), "reached": reached}
            row["disturbed"] = max(above.others + below.others) > DISTURBED
        rows.append(row)
    return rows


def watched(workload: str, rounds: int, looks: int) -> dict[str, Any]:
    """Memory of the main process and of the workers, looked at over so many rounds."""
    save_weights(WORKLOADS[workload])
    running = Running(ON_RAY, workload)
    found: dict[str, list[float]] = {"rounds": [], "main": [], "workers": [], "all": []}
    try:
        each = rounds // looks
        for look in range(looks + 1):
            if look:
                running.burst(1e9, each, 100 + (look - 1) * each)
            everything = memory(running.process.pid).pss
            workers = [_pss(pid) for pid in tree(running.process.pid) if _is_worker(pid)]
            found["rounds"].append(look * each)
            found["main"].append(_pss(running.process.pid))
            found["workers"].append(sum(workers))
            found["all"].append(everything)
    except Failed as error:
        return {"error": str(error)}
    finally:
        running.close()
    growth = {name: values[-1] - values[1] for name, values in found.items() if name != "rounds"}
    return {"workload": workload, "megabytes": found, "growth": growth}


def _pss(pid: int) -> float:
    """Megabytes of one process; not the object store, whose pages it maps as parties come up."""
    total, counts = 0, True
    try:
        lines = (PROC / str(pid) / "smaps").read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        if line[:1] in "0123456789abcdef":  # a mapping begins
            counts = "plasma" not in line
        elif line.startswith("Pss:") and counts:
            total += int(line.split()[1])
    return total / 1024


def _is_worker(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().startswith(b"ray::Worker")
    except OSError:
        return False


def markdown(report: dict[str, Any], command: str) -> str:
    host, kept = report["machine"], report["memory"]
    lines = ["| ms per round | " + " | ".join(report["timings"]) + " |"]
    lines.append("|---|" + "---:|" * len(report["timings"]))
    for name in report["candidates"]:
        cells = []
        for timings in report["timings"].values():
            told = timings.get(name, {})
            cells.append(f"{told['ms']:.4g}" if told.get("ms") else told.get("error") or "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    goals = ["| | goal | measured | over repetitions | |", "|---|---|---:|---:|---|"]
    for row in report["ratios"]:
        if row["ratio"] is None:
            goals.append(f"| {row['workload']} | {row['goal']} | not measured | | |")
            continue
        said = "reached" if row["reached"] else "not reached"
        said = "disturbed, measure again" if row["disturbed"] else said
        spread = f"{row['low']:.3g} to {row['high']:.3g}"
        cells = (row["workload"], row["goal"], f"{row['ratio']:.3g}", spread, said)
        goals.append("| " + " | ".join(cells) + " |")
    if "error" in kept:
        memories = f"Not measured: {kept['error']}."
    else:
        found, growth = kept["megabytes"], kept["growth"]
        flat = max(growth["main"], growth["workers"]) <= FLAT
        memories = "\n".join(
            [
                "| MB (PSS) after | " + " | ".join(f"{n} rounds" for n in found["rounds"]) + " |",
                "|---|" + "---:|" * len(found["rounds"]),
                *(
                    f"| {name} | " + " | ".join(f"{v:.0f}" for v in found[name]) + " |"
                    for name in ("main", "workers", "all")
                ),
                "",
                f"From the first look after a round on, the main process grew by "
                f"{growth['main']:.1f} MB and the workers by {growth['workers']:.1f} MB: "
                f"{'flat' if flat else 'not flat'} (at most {FLAT:g}). "
                "`all` has Ray's daemons, and the object store.",
            ]
        )
    return f"""# The Ray engine on one machine

`{command}` on {host["cpu"]}, {host["cores"]} cores, {host["memory_gb"]} GB; Python
{host["python"]}, torch {host["packages"]["torch"]}, ray {report["ray"]}; Flower with
{host["peers"].get("flwr", "-")}. FedAvg, the workloads of [speed](speed.md): W2 an MLP of 100
parties per round, W3 a CNN of 50. Medians of all timed rounds of {report["reps"]} repetitions.
On one machine Ray can only cost: this is what it costs.

{chr(10).join(lines)}

{chr(10).join(goals)}

## Memory over {report["rounds"]} rounds of W2

{memories}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="W2,W3")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one burst")
    parser.add_argument("--rounds", type=int, default=200, help="over which memory is watched")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for ray.json, .md")
    options = parser.parse_args()
    chosen = [OURS, ON_RAY, *([CANDIDATES["flwr"]] if options.peers else [])]
    peaks: list[float] = []
    results = {
        name: measure(WORKLOADS[name], chosen, options.reps, options.seconds, peaks)
        for name in options.workloads.split(",")
    }
    from importlib.metadata import version

    report: dict[str, Any] = {
        "machine": {**machine({c.family for c in chosen if c.missing() is None}), **describe()},
        "ray": version("ray"),
        "reps": options.reps,
        "rounds": options.rounds,
        "candidates": [c.name for c in chosen],
        "ratios": ratios(results),
        "memory": watched("W2", options.rounds, 5),
        "timings": {
            name: {each: {"ms": t.ms, **asdict(t)} for each, t in timings.items()}
            for name, timings in results.items()
        },
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "ray.json").write_text(json.dumps(report, indent=1) + "\n")
    text = markdown(report, " ".join(["python benchmarks/on_ray.py", *sys.argv[1:]]))
    (options.output / "ray.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
