# SPDX-License-Identifier: Apache-2.0
"""Milliseconds of a step of DP-SGD: Archipel, Archipel without privacy, Opacus.

A round is one local epoch at every party of a cohort, from the same model, in batches of the
workload's size: per step, clip each example's gradient, add Gaussian noise, move. Ours are what the
engine does: `me.descend` with the plan's block, and through the private door, where batches are
Poisson samples of that size on average. Opacus has ordinary batches and torch's generator. Every
candidate lives in its own process, already warm, and waits; they are timed in turn. Two processes
of one thread share the parties out, or one process has two threads.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from candidates import CORES, HERE, Candidate, Failed, Running
from networks import save_weights
from pace import Pace, arguments
from peers import install
from processes import cpu_seconds
from speed import DISTURBED, FIRST, REST, Timing, best, machine
from workloads import WORKLOADS, Workload, cohort, load

RESULTS = Path(__file__).resolve().parent / "results"
CLIP, NOISE = 1.0, 1.0  # C, and the standard deviation of the noise over C
PARTIES = {"W1": 100, "W2": 100, "W3": 10}  # of a round
Share = Callable[[list[int]], None]  # takes the steps of some parties


class Team:
    """Processes that take equal shares of a round's parties."""

    def __init__(self, processes: int, threads: int, make: Callable[[], Share]) -> None:
        context = multiprocessing.get_context("fork")
        self._members = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            member = context.Process(target=_work, args=(theirs, threads, make), daemon=True)
            member.start()
            self._members.append((member, ours))

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        for member, pipe in self._members:
            pipe.send(None)
            member.join()

    def round(self, workload: Workload, t: int) -> None:
        """Let every member take its share, and wait for the last."""
        ids = parties(workload, t)
        for i, (_, pipe) in enumerate(self._members):
            pipe.send(ids[i :: len(self._members)])
        for _, pipe in self._members:
            if not pipe.recv():
                raise RuntimeError("a share failed; see standard error")


def _work(pipe: Any, threads: int, make: Callable[[], Share]) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    share = make()
    while (ids := pipe.recv()) is not None:
        share(ids)
        pipe.send(True)


def parties(workload: Workload, t: int) -> list[int]:
    """Those of round t, larger ones first, so that shares are alike."""
    ids = cohort(workload, t)[: PARTIES[workload.name]]
    sizes = load(workload).sizes[ids]
    return [int(k) for k in ids[np.argsort(-sizes, kind="stable")]]


def steps(workload: Workload) -> float:
    """Mean number of steps of a round."""
    sizes = load(workload).sizes
    counts = -(-sizes // workload.batch_size)
    return float(np.mean([counts[parties(workload, t)].sum() for t in range(100, 120)]))


def options() -> tuple[Pace, str, int, int]:
    """The pace, the candidate's mode, its threads and its processes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--processes", type=int, default=1)
    own, sys.argv[1:] = parser.parse_known_args()
    rest = arguments()
    return Pace(rest), own.mode, rest.threads, own.processes


class Ours:
    """The engine's local steps: `plain`, or `private`, through the door.

    `clipped` is private without noise, to tell what drawing it costs.
    """

    def __init__(self, workload: Workload, mode: str) -> None:
        import archipel as ar
        from archipel.engines.plan import choose, ways
        from archipel.models.clipped import clipping
        from networks import build
        from ours import federation

        self.workload, self.mode, self.data = workload, mode, federation(workload)
        self.model = ar.Model(build(workload), loss="cross_entropy")
        self.work = ar.FedAvg(lr=workload.lr, local_epochs=1, batch_size=workload.batch_size)
        self.plan = choose(self.model, self.data, workload.batch_size, 1)
        self.way = ways(self.model, self.data, self.plan.way)[self.plan.way]
        self.clipping = clipping(self.model, self.data.x[:8], self.data.y[:8])

    def round(self, ids: list[int]) -> None:
        from archipel.engines.party import LocalParty
        from archipel.privacy.door import Door, Noised

        block = self.plan.block
        for at in range(0, len(ids), block):
            some = ids[at : at + block]
            me = LocalParty(
                self.data, self.model, self.way, np.array(some), 0, 0, (len(some),), block,
                clipping=self.clipping,
            )  # fmt: skip
            if self.mode == "plain":
                me.descend(self.model.w, self.work)
                continue
            noise = NOISE if self.mode == "private" else 0.0
            door = Door(me, Noised(CLIP, dict.fromkeys(some, noise)), "FedAvg")
            door.descend(self.model.w, self.work)

    def check(self) -> float:
        """Length of the way of the first party's epoch, in ordinary batches and without noise."""
        from archipel.models.model import Steps
        from archipel.models.normals import Normals
        from archipel.models.private import Rule, Samples, descend, window
        from archipel.training.optimisers import SGD

        b, n, lr = self.workload.batch_size, int(self.data.offsets[1]), self.workload.lr
        rows = torch.arange(-(-n // b) * b).view(1, -1, b)
        inside = rows < n
        lengths = inside.sum(-1).numpy()
        if self.mode == "plain":
            order = Steps(
                self.data.x, self.data.y, rows.clamp_max(n - 1), inside.float() / b, lengths,
                lr, SGD(), None, 0.0, None,
            )  # fmt: skip
            end = self.way.descend(self.model.w[None], order)
        else:
            taken = Samples(
                self.data.x, self.data.y, np.arange(n), lengths, np.array([rows.shape[1]])
            )
            rule = Rule(CLIP, lr, torch.tensor([[lr / b]]), None)
            end = descend(
                self.clipping, self.model.w[None].clone(), taken, rule,
                Normals(0, np.zeros(1, np.int64)), window(self.clipping, b),
            )  # fmt: skip
        return float((end - self.model.w).norm())


def candidate() -> None:
    """Run one of our own candidates: privacy.py W1 --mode private [options of pace]."""
    pace, mode, threads, processes = options()
    workload = pace.workload

    def check() -> float:
        return Ours(workload, mode).check()

    with Team(processes, threads, lambda: Ours(workload, mode).round) as team:
        for t in pace.rounds(check):
            team.round(workload, t)


def _candidate(family: str, python: str, script: str, mode: str, processes: int) -> Candidate:
    threads = CORES // processes
    extra = ("--mode", mode, "--processes", str(processes), "--threads", str(threads))
    name = f"{family} {mode}, {processes} x {threads}"
    return Candidate(name, f"{family} {mode}", (python, script, *extra))


OURS = [
    _candidate("archipel", sys.executable, str(HERE / "privacy.py"), mode, CORES)
    for mode in ("plain", "clipped", "private")
]
OPACUS = [
    _candidate(
        "opacus", str(install.python("opacus")), str(HERE / "peers" / "peer_opacus.py"), mode, n
    )
    for mode in ("hooks", "ghost")
    for n in sorted({1, CORES})
]
GOALS = {"W1": 2.0, "W2": 2.0, "W3": 3.0}  # private over plain, at most


@dataclass
class Taken(Timing):
    """With the processor time of a round, which others on the machine change less."""

    processor: list[float] = field(default_factory=list)  # seconds, of each burst

    @property
    def processor_ms(self) -> float:
        return statistics.median(self.processor) * 1e3


Timings = dict[str, Taken]


def measure(
    workload: Workload, candidates: Sequence[Candidate], reps: int, seconds: float
) -> Timings:
    """Warm every candidate up, then time them in turn, `reps` times."""
    save_weights(workload)
    taken = {c.name: Taken(c.family) for c in candidates}
    running: dict[str, Running] = {}
    with ExitStack() as stack:
        for c in candidates:
            try:
                running[c.name] = Running(c, workload.name)
            except Failed as error:
                taken[c.name].error = str(error)
                continue
            stack.callback(running[c.name].close)
            taken[c.name].loss = running[c.name].ready["loss"]
        for rep in range(reps):
            start = FIRST + rep * workload.rounds_per_burst
            for name, process in running.items():
                time.sleep(REST)
                before = cpu_seconds(process.process.pid)
                times, others = process.burst(seconds, workload.rounds_per_burst, start)
                used = cpu_seconds(process.process.pid) - before
                taken[name].bursts.append(times)
                taken[name].others.append(others)
                taken[name].processor.append(used / len(times))
            print(f"  {workload.name} repetition {rep + 1} of {reps}", file=sys.stderr, flush=True)
    return taken


def ratios(results: dict[str, Timings]) -> list[dict[str, Any]]:
    """What was to be shown, with the measured ratio and its range over repetitions."""
    rows = []
    for w, timings in results.items():
        private, plain = (best(timings, f"archipel {mode}") for mode in ("private", "plain"))
        rivals = [t for mode in ("hooks", "ghost") if (t := best(timings, f"opacus {mode}"))]
        rival = min(rivals, key=lambda t: t.ms or 0.0, default=None)
        for goal, above, below, reach, at_least in (
            ("Opacus, its best mode / ours > 1", rival, private, 1.0, True),
            (f"private / not private ≤ {GOALS[w]:g}", private, plain, GOALS[w], False),
        ):
            row: dict[str, Any] = {"workload": w, "goal": goal, "ratio": None}
            if above and below and above.ms and below.ms:
                single = [a / b for a, b in zip(above.medians, below.medians, strict=False)]
                ratio = above.ms / below.ms
                row |= {"ratio": ratio, "low": min(single), "high": max(single)}
                row["reached"] = ratio > reach if at_least else ratio <= reach
                row["processor"] = above.processor_ms / below.processor_ms
                row["disturbed"] = max(above.others + below.others) > DISTURBED
            rows.append(row)
    return rows


def table(results: dict[str, Timings], counts: dict[str, float]) -> str:
    """Milliseconds of a step, with the range of the repetitions' medians; then of processor."""
    names = dict.fromkeys(name for timings in results.values() for name in timings)
    head = [w for w in results for _ in range(2)]
    lines = ["| ms per step | " + " | ".join(head) + " |", "|---|" + "---:|" * len(head)]
    lines.append("| | " + " | ".join(["time", "processor"] * len(results)) + " |")
    for name in names:
        cells = []
        for w, timings in results.items():
            timing = timings.get(name)
            if timing is None or timing.ms is None:
                cells += ["-", "-"]
                continue
            values = [timing.ms, min(timing.medians), max(timing.medians)]
            middle, low, high = (f"{v / counts[w]:.3g}" for v in values)
            cells += [f"{middle} ({low} to {high})", f"{timing.processor_ms / counts[w]:.3g}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | goal | measured | over repetitions | by processor | |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in rows:
        if row["ratio"] is None:
            lines.append(f"| {row['workload']} | {row['goal']} | not measured | | | |")
            continue
        verdict = "reached" if row["reached"] else "not reached"
        verdict += "; others used the machine" if row["disturbed"] else ""
        numbers = (row["ratio"], row["processor"])
        whole, processor = (f"{number:.3g}" for number in numbers)
        spread = f"{row['low']:.3g} to {row['high']:.3g}"
        cells = (row["workload"], row["goal"], whole, spread, processor, verdict)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def problems(results: dict[str, Timings]) -> list[str]:
    """What did not run, what does other work, and what a busy machine spoilt."""
    found = []
    for w, timings in results.items():
        found += [f"{w} {name}: {t.error}" for name, t in timings.items() if t.error]
        lengths = [t.loss for name, t in timings.items() if t.loss and "plain" not in name]
        if lengths and max(lengths) > 1.001 * min(lengths):
            found.append(f"{w}: without noise, candidates move by {min(lengths)} to {max(lengths)}")
        busy = [(v, name) for name, t in timings.items() for v in t.others]
        if busy and max(busy)[0] > DISTURBED:
            value, name = max(busy)
            found.append(f"{w}: other processes used up to {value:.1f} cores (during {name}).")
    return found


def markdown(report: dict[str, Any], results: dict[str, Timings], command: str) -> str:
    host = report["machine"]
    opacus = ", ".join(f"{k} {v}" for k, v in host["opacus"].items()) or "not installed"
    counts = report["steps"]
    titles = "\n".join(
        f"- {w}: {WORKLOADS[w].title}; {PARTIES[w]} parties, {counts[w]:.0f} steps per round, "
        f"B={WORKLOADS[w].batch_size}"
        for w in results
    )
    trouble = "\n".join(f"- {line}" for line in report["problems"]) or "- none"
    return f"""# Speed of one step of DP-SGD

`{command}` on {host["cpu"]}, {host["cores"]} cores, {host["memory_gb"]} GB; Python
{host["python"]}, torch {host["packages"]["torch"]}, float32. Peer: {opacus}.

{titles}

Medians of all timed rounds of {report["reps"]} interleaved repetitions, divided by the steps of a
round; in brackets the range of the repetitions' medians. `n x m` is n processes of m threads.
`plain` is the engine's usual local step, without privacy; `private` is the engine's step through
the private door: a Poisson sample of B on average, clipped gradients, Gaussian noise of the seed,
move. `clipped` is the same without noise: what is between the two is drawing it. Opacus runs
through its PrivacyEngine, on ordinary batches, with torch's noise. Processor time is that of
all processes of a candidate.

{table(results, counts)}

{ratio_table(report["ratios"])}

Not measured, or disturbed:

{trouble}
"""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(PARTIES), help="for example W1,W2")
    parser.add_argument("--reps", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one burst; W3: 1 round")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--only", default=None, help="such as 'archipel private; opacus ghost'")
    parser.add_argument("--output", type=Path, default=RESULTS, help="for privacy.json, .md")
    return parser.parse_args()


def main() -> None:
    chosen = _options()
    missing = install.failure("opacus") if chosen.peers else "left out"
    candidates: Sequence[Candidate] = OURS + ([] if missing else OPACUS)
    if chosen.only:
        wanted = {name.strip() for name in chosen.only.split(";")}
        candidates = [c for c in candidates if {c.name, c.family} & wanted]
    names = chosen.workloads.split(",")
    results = {w: measure(WORKLOADS[w], candidates, chosen.reps, chosen.seconds) for w in names}
    host = machine(set())
    host["opacus"] = {} if missing else install.versions("opacus")
    report = {
        "machine": host,
        "reps": chosen.reps,
        "seconds": chosen.seconds,
        "clip": CLIP,
        "noise": NOISE,
        "steps": {w: steps(WORKLOADS[w]) for w in names},
        "ratios": ratios(results),
        "problems": problems(results) + ([f"opacus: {missing}"] if missing else []),
        "timings": {
            w: {name: {"ms": t.ms, **vars(t)} for name, t in timings.items()}
            for w, timings in results.items()
        },
    }
    chosen.output.mkdir(parents=True, exist_ok=True)
    (chosen.output / "privacy.json").write_text(json.dumps(report, indent=1) + "\n")
    command = " ".join(["python benchmarks/privacy.py", *sys.argv[1:]])
    text = markdown(report, results, command)
    (chosen.output / "privacy.md").write_text(text)
    print(text)


if __name__ == "__main__":
    if "--mode" in sys.argv:
        candidate()
    else:
        main()
