# SPDX-License-Identifier: Apache-2.0
"""A day of phones, and what first-to-finish costs the slow ones.

Phones come and go by day and night in three time zones, some 8 % of those asked drop out, most of
them since they are no longer there, and 130 % are asked [Bonawitz et al., MLSys 2019]. Does the run
need more rounds than one whose parties are always there? And with heavy-tailed speeds, what do
130 % save, and whose uploads count?
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import archipel as ar
from archipel.devices.classes import Device
from archipel.report.clock import by_hour

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, GREY, ORANGE, gates, save, table

FOLDER = Path(__file__).parent
PHONES, PARTIES = 1000, 100
TARGET = {"coming": 0.88, "finishing": 0.87, "paced": 0.87}
WORK = ar.FedAvg(lr=0.1, local_epochs=1, batch_size=32)
ZONES = {"-5": (BLUE, "UTC-5"), "1": (ORANGE, "UTC+1"), "8": (GREEN, "UTC+8")}
COMING: dict[str, Any] = {
    "always there": {"sample": 10},
    "phones": {
        "sample": 10,
        "over_select": 0.3,
        "deadline": 600.0,
        "devices": "phones",
        "dropouts": 0.02,
    },
}
TAILED = {"party": Device(1.0, seconds=1 / 50, spread=1.0, setup=1.0)}  # 1 + n / 50 seconds
FINISHING: dict[str, Any] = {
    "10 of 10": {"sample": 10, "devices": TAILED},
    "130 %": {"sample": 10, "over_select": 0.3, "devices": TAILED},
}
PACED: dict[str, Any] = {
    "10 asked": {"sample": 10, "devices": "phones", "dropouts": 0.02},
    "13 asked": {"sample": 10, "over_select": 0.3, "devices": "phones", "dropouts": 0.02},
    "pace": {"sample": 10, "devices": "phones", "dropouts": 0.02, "pace": True},
}


def simulate(
    kind: str, parties: int, rounds: int, seed: int, every: int, options: dict[str, Any]
) -> ar.Run:
    return ar.simulate(
        WORK, "mnist", "linear", partition="dirichlet:0.3", parties=parties, rounds=rounds,
        seed=seed, evaluate_every=every, target=TARGET[kind], workers=1, **options,
    )  # fmt: skip


def cell(kind: str, name: str, seed: int, run: ar.Run) -> dict[str, Any]:
    """What the tables need of a run."""
    card = run.scorecard
    simulated, cohorts = card.efficiency.simulated, run.participation
    arrived = sum(len(cohort.present) for cohort in cohorts)
    causes = [cause.why for cohort in cohorts for cause in cohort.missing.values()]
    asked = sum(len(cohort.sampled) for cohort in cohorts)
    to_target = card.efficiency.rounds_to_target
    found: dict[str, Any] = {
        "kind": kind,
        "name": name,
        "seed": seed,
        "rounds_to_target": to_target,
        "asked": asked / len(cohorts),
        "arrived": arrived / len(cohorts),
        "full": float(np.mean([len(cohort.present) == 10 for cohort in cohorts])),
        "dropped": causes.count("dropped out") / asked,
        "uploads_to_target": None if to_target is None else to_target * arrived / len(cohorts),
        "accuracy": run.metrics["accuracy"],
        "curve": [[entry["round"], entry["metrics"]["accuracy"]] for entry in run.history],
    }
    if simulated is not None:
        found |= {
            "hours": simulated.seconds / 3600,
            "seconds_to_target": simulated.seconds_to_target,
            "joules_to_target": [simulated.low_to_target, simulated.high_to_target],
            "slow_share": simulated.slow_share,
            "by_hour": {zone: line.tolist() for zone, line in by_hour(run).items()},
            "times": [entry["simulated"]["seconds"] for entry in run.history],
        }
    return found


def measure(seeds: int, day: int, rounds: int) -> list[dict[str, Any]]:
    cells = []
    for seed in range(seeds):
        for name, options in COMING.items():
            run = simulate("coming", PHONES, day if "devices" in options else 200, seed, 4, options)
            cells.append(cell("coming", name, seed, run))
        for name, options in FINISHING.items():
            run = simulate("finishing", PARTIES, rounds, seed, 1, options)
            cells.append(cell("finishing", name, seed, run))
        for name, options in PACED.items():
            run = simulate("paced", PHONES, 100, seed, 100, options)
            cells.append(cell("paced", name, seed, run))
        print(f"seed {seed} done", flush=True)
    return cells


def mean(cells: list[dict[str, Any]], kind: str, name: str, field: str) -> float:
    """Over seeds; endless where a seed never got there."""
    values = [c[field] for c in cells if (c["kind"], c["name"]) == (kind, name)]
    return float("inf") if None in values else float(np.mean(values))


def written(cells: list[dict[str, Any]], seeds: int) -> str:
    """The tables and gates in Markdown."""
    coming = [
        (
            name,
            f"{mean(cells, 'coming', name, 'rounds_to_target'):.1f}",
            f"{mean(cells, 'coming', name, 'arrived'):.2f} of "
            f"{mean(cells, 'coming', name, 'asked'):.1f}",
            f"{100 * mean(cells, 'coming', name, 'dropped'):.1f} %",
            f"{100 * mean(cells, 'coming', name, 'accuracy'):.1f} %",
        )
        for name in COMING
    ]
    finishing = [
        (
            name,
            " / ".join(
                f"{c['seconds_to_target']:.0f}"
                for c in cells
                if (c["kind"], c["name"]) == ("finishing", name) and c["seconds_to_target"]
            ),
            f"{mean(cells, 'finishing', name, 'rounds_to_target'):.1f}",
            f"{mean(cells, 'finishing', name, 'uploads_to_target'):.0f}",
            f"{100 * mean(cells, 'finishing', name, 'slow_share'):.1f} %",
        )
        for name in FINISHING
    ]
    paced = [
        (
            name,
            f"{mean(cells, 'paced', name, 'asked'):.1f}",
            f"{mean(cells, 'paced', name, 'arrived'):.2f}",
            f"{100 * mean(cells, 'paced', name, 'full'):.0f} %",
        )
        for name in PACED
    ]
    ratio = mean(cells, "coming", "phones", "rounds_to_target") / mean(
        cells, "coming", "always there", "rounds_to_target"
    )
    faster = mean(cells, "finishing", "10 of 10", "seconds_to_target") / mean(
        cells, "finishing", "130 %", "seconds_to_target"
    )
    slow = [mean(cells, "finishing", name, "slow_share") for name in FINISHING]
    hours = mean(cells, "coming", "phones", "hours")
    checks = [
        (
            "phones reach the target in at most 1.3 times the rounds",
            f"{ratio:.2f} times",
            ratio <= 1.3,
        ),
        ("the phones' run lasts a day", f"{hours:.1f} h", hours >= 24),
        ("130 % are at least twice as fast as 10 of 10", f"{faster:.1f} times", faster >= 2),
        (
            "10 of 10 leave the slowest fifth its share, 130 % do not",
            f"{100 * slow[0]:.1f} %, {100 * slow[1]:.1f} %",
            slow[0] > 0.17 and slow[1] < 0.1,
        ),
    ]
    low, high = (
        np.mean([c["joules_to_target"][i] or np.inf for c in cells if c["name"] == "phones"])
        for i in (0, 1)
    )
    targets = " and ".join(f"{100 * TARGET[kind]:.0f} %" for kind in ("coming", "finishing"))
    head = f"MNIST, logistic regression, targets {targets}, {seeds} seed(s)."
    return "\n\n".join(
        [
            head,
            table(
                [
                    f"{PHONES} parties",
                    "rounds to target",
                    "arrived a round",
                    "dropped out",
                    "at the end",
                ],
                coming,
            ),
            f"The phones' simulated time to the target is "
            f"{mean(cells, 'coming', 'phones', 'seconds_to_target') / 3600:.1f} hours; their "
            f"energy {low:.2g} to {high:.2g} J, of training and radio alone.",
            table(
                [
                    f"{PARTIES} parties, heavy-tailed",
                    "seconds to target",
                    "rounds",
                    "uploads",
                    "slowest fifth's share",
                ],
                finishing,
            ),
            table(["100 rounds of phones", "asked", "arrived", "rounds with all ten"], paced),
            gates(checks),
        ]
    )


def plot(cells: list[dict[str, Any]]) -> Figure:
    """Rounds, hours, and whose hours they are; of the first seed."""
    first = {c["name"]: c for c in cells if c["kind"] == "coming" and c["seed"] == 0}
    tailed = {c["name"]: c for c in cells if c["kind"] == "finishing" and c["seed"] == 0}
    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for (name, one), colour in zip(first.items(), (GREY, BLUE), strict=True):
        rounds, values = zip(*one["curve"], strict=True)
        left.plot(rounds, 100 * np.array(values), color=colour, label=name)
    left.axhline(100 * TARGET["coming"], color=GREY, lw=1, ls=":")
    left.set(title="a day of phones", xlabel="round", ylabel="test accuracy (%)", ylim=(80, 92))
    left.legend(loc="lower right")
    for zone, line in first["phones"]["by_hour"].items():
        colour, name = ZONES[zone]
        seen = np.clip(first["phones"]["hours"] - np.arange(24), 0, 1)  # of the first day
        again = np.clip(first["phones"]["hours"] - 24 - np.arange(24), 0, 1)
        rate = np.array(line) / np.maximum(seen + again, 1e-9)
        middle.stairs(rate, np.arange(25), color=colour, label=name, lw=2, baseline=None)
    middle.set(title="participation over the day", xlabel="hour, UTC", ylabel="uploads per hour")
    middle.set_xticks(range(0, 25, 6))
    middle.legend()
    for (name, one), colour in zip(tailed.items(), (GREY, BLUE), strict=True):
        values = 100 * np.array([value for _, value in one["curve"]])
        right.plot(one["times"], values, color=colour, label=name)
    right.axhline(100 * TARGET["finishing"], color=GREY, lw=1, ls=":")
    right.set(title="heavy-tailed speeds", xlabel="simulated seconds", ylim=(70, 91))
    right.legend(loc="lower right")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, a tenth of a day")
    quick = parser.parse_args().quick
    began, seeds = time.perf_counter(), 1 if quick else 3
    cells = measure(seeds, 100 if quick else 600, 40)
    seconds = time.perf_counter() - began
    text = f"{written(cells, seeds)}\n\n{seconds:.0f} seconds."
    folder = FOLDER / "quick" if quick else FOLDER
    save(folder, {"seconds": seconds, "cells": cells}, text, {"plot.png": plot(cells)})


if __name__ == "__main__":
    main()
