# SPDX-License-Identifier: Apache-2.0
"""Time to a target with heavy-tailed speeds: rounds, over-selection, a buffer, no buffer at all.

FedBuff: Nguyen et al., AISTATS 2022, https://arxiv.org/abs/2106.06639. FedAsync: Xie, Koyejo,
Gupta, OPT 2020, https://arxiv.org/abs/1903.03934. MNIST at 100 unlike parties, a linear model, and
devices whose speed is log-normal: the slowest of ten takes many times as long as the median.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import accumulate
from pathlib import Path
from statistics import mean, median
from typing import Any

from matplotlib.figure import Figure

import archipel as ar
from archipel.algorithms import FedAsync, FedAvg, FedBuff, FedOpt
from archipel.runs.history import rounds_to

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, gates, save, table

FOLDER = Path(__file__).parent
PARTIES, TARGET, SEEDS = 100, 0.87, (0, 1, 2)
# one example takes 20 ms at the median device; model and update half a second each
DEVICES = {"device": {"share": 1.0, "seconds": 0.02, "spread": 1.0, "down": 0.5, "up": 0.5}}
WORK: dict[str, Any] = {"lr": 0.03, "local_epochs": 1, "batch_size": 10}
COHORT, AT_ONCE = 10, 30  # parties of a round; parties at work where nobody waits

SYNC, MORE, LARGER, BUFFERED, PLAIN, FLAT, SINGLE = (
    "rounds, 10 of 10", "rounds, 10 of 13", "rounds, 10 of 13, server_lr 1.4",
    "FedBuff, server_lr 1.4", "FedBuff, server_lr 1", "FedBuff, server_lr 1, s = 1", "FedAsync",
)  # fmt: skip
COLOURS = {
    SYNC: ORANGE, MORE: PURPLE, LARGER: INK, BUFFERED: BLUE, PLAIN: SKY, FLAT: GREY, SINGLE: GREEN,
}  # fmt: skip
DRAWN = (SYNC, MORE, BUFFERED, SINGLE)
# a discount shortens steps, by 0.7 for uploads of the version before: 1.4 makes up for it
STEP = 1.4
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    SYNC: (FedAvg(**WORK), {"sample": COHORT}),
    MORE: (FedAvg(**WORK), {"sample": COHORT, "over_select": 0.3}),
    LARGER: (
        FedOpt(**WORK, server_optimiser="sgd", server_lr=STEP),
        {"sample": COHORT, "over_select": 0.3},
    ),
    BUFFERED: (FedBuff(**WORK, buffer=COHORT, server_lr=STEP), {"sample": AT_ONCE}),
    PLAIN: (FedBuff(**WORK, buffer=COHORT), {"sample": AT_ONCE}),
    FLAT: (FedBuff(**WORK, buffer=COHORT, discount=0.0), {"sample": AT_ONCE}),
    SINGLE: (FedAsync(**WORK), {"sample": AT_ONCE, "rounds": 1000, "evaluate_every": 5}),
}


def learnt(kind: str, seed: int, **options: Any) -> ar.Run:
    """A run of this kind on the simulated clock, until the target is well behind."""
    algorithm, usual = KINDS[kind]
    plan = {"plan": ar.Plan("stacked", COHORT, 1), "devices": DEVICES, "seed": seed}
    data = {"partition": "dirichlet:0.3", "parties": PARTIES}

    def done(run: ar.Run) -> bool:
        return sum(value >= TARGET + 0.005 for value in run.curve()[1]) >= 3

    both = {"rounds": 100, **data, **plan, **usual, **options}
    return ar.simulate(algorithm, "mnist", "linear", on_round=done, **both)


def told(run: ar.Run) -> dict[str, Any]:
    """What the tables say of a run: at the target, by both clocks."""
    better = (TARGET, True)
    curve = run.curve()[1]
    seconds = [entry["simulated"]["seconds"] for entry in run.history]
    uploads = [_uploads(run, entry["round"]) for entry in run.history]
    sent = [(entry["bytes"]["up"] + entry["bytes"]["down"]) / 1e6 for entry in run.history]
    timings = [cohort.timing for cohort in run.participation if cohort.timing is not None]
    late = [tau for timing in timings for tau in timing.staleness]
    return {
        "seconds": seconds,
        "uploads": uploads,
        "accuracy": curve,
        "seconds to target": rounds_to(seconds, curve, *better),  # type: ignore[arg-type]
        "uploads to target": rounds_to(uploads, curve, *better),
        "megabytes to target": rounds_to(sent, curve, *better),  # type: ignore[arg-type]
        "slowest fifth": sum(timing.slow or 0 for timing in timings) / uploads[-1],
        "staleness": [mean(late), max(late)] if late else [0.0, 0],
    }


def _uploads(run: ar.Run, rounds: int) -> int:
    return sum(len(cohort.present) for cohort in run.participation[:rounds])


def measure(seeds: tuple[int, ...], **options: Any) -> dict[str, list[dict[str, Any]]]:
    """All kinds with all seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for kind in KINDS:
        found[kind] = [told(learnt(kind, seed, **options)) for seed in seeds]
        shown = [each["seconds to target"] for each in found[kind]]
        print(kind, ["never" if s is None else round(s) for s in shown], file=sys.stderr)
    return found


def tables(found: dict[str, list[dict[str, Any]]]) -> str:
    """What was measured, and whether it is what was promised."""
    rows = []
    for kind, runs in found.items():
        cells = [" / ".join(_number(run[name]) for run in runs) for name in
                 ("seconds to target", "uploads to target", "megabytes to target")]  # fmt: skip
        share = mean(run["slowest fifth"] for run in runs)
        late = mean(run["staleness"][0] for run in runs), max(run["staleness"][1] for run in runs)
        rows.append([kind, *cells, f"{100 * share:.1f} %", f"{late[0]:.1f}, {late[1]}"])
    header = [f"to {100 * TARGET:.0f} %", "simulated seconds", "uploads", "MB up and down",
              "of the slowest fifth", "staleness: mean, max"]  # fmt: skip
    return "\n\n".join([table(header, rows), gates(checks(found))])


def checks(found: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str, bool]]:
    """What must hold: medians over seeds, all of which get there."""
    at = {
        kind: {name: _median(run[f"{name} to target"] for run in runs)
               for name in ("seconds", "uploads", "megabytes")}
        for kind, runs in found.items()
    }  # fmt: skip
    sync, more, larger, buffered = (at[kind] for kind in (SYNC, MORE, LARGER, BUFFERED))
    slow = {kind: mean(run["slowest fifth"] for run in runs) for kind, runs in found.items()}
    halves = sync["seconds"] / buffered["seconds"]
    over = more["seconds"] / buffered["seconds"]
    extra = buffered["uploads"] / more["uploads"]
    alike = larger["seconds"] / buffered["seconds"]
    price = buffered["megabytes"] / sync["megabytes"]
    fair = slow[BUFFERED] / slow[MORE]
    return [
        ("a buffer takes half the time of rounds, at most", f"{halves:.1f} times less",
         halves >= 2),
        ("half the time of rounds that ask 13 for 10, at most", f"{over:.1f} times less",
         over >= 2),
        ("with 1.3 times their uploads, at most", f"{extra:.2f} times", extra <= 1.3),
        ("half the time of such rounds with the same server_lr, at most",
         f"{alike:.1f} times less", alike >= 2),
        ("with 1.3 times the bytes of rounds of 10, at most", f"{price:.2f} times", price <= 1.3),
        ("it hears more of the slowest fifth than rounds that ask 13 for 10",
         f"{fair:.1f} times", fair > 1),
    ]  # fmt: skip


def _median(values: Any) -> float:
    return median(float("inf") if value is None else value for value in values)


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def picture(found: dict[str, list[dict[str, Any]]]) -> Figure:
    """The best accuracy so far by both clocks: uploads, and simulated seconds; a line per seed."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name in zip(axes, ("uploads", "seconds"), strict=True):
        for kind in DRAWN:
            for i, run in enumerate(found[kind]):
                best = [100 * value for value in accumulate(run["accuracy"], max)]
                line = {"color": COLOURS[kind], "linewidth": 1.6, "drawstyle": "steps-post"}
                axis.plot(run[name], best, **line, label=kind if i == 0 else None)
        axis.axhline(100 * TARGET, color=GREY, linewidth=1, linestyle=":")
        axis.set_ylim(60, 90)
    axes[0].set_xlabel("uploads")
    axes[0].set_xlim(0, 400)
    axes[0].set_ylabel("best accuracy so far, %")
    axes[0].set_title("by work: uploads that were averaged")
    axes[0].legend(loc="lower right")
    axes[1].set_xscale("log")
    axes[1].set_xlim(10, 3000)
    axes[1].set_xlabel("simulated seconds")
    axes[1].set_title("by time: seconds of the simulated clock")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    seeds = tuple(range(parser.parse_args().seeds))
    began = time.perf_counter()
    found = measure(seeds)
    results = {"seeds": list(seeds), "seconds": time.perf_counter() - began, "found": found}
    save(FOLDER, results, tables(found), {"plot.png": picture(found)})


if __name__ == "__main__":
    main()
