# SPDX-License-Identifier: Apache-2.0
"""Tables, gates and the figure of what run.py has measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from reporting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, gates, table

Check = tuple[str, str, bool]
TITLES = {
    "central": "MNIST, in one place, by record",
    "federated": "MNIST, 100 parties, by record",
    "femnist": "FEMNIST, by writer",
    "heart": "Heart disease, four hospitals, by record",
    "heart-faster": "Heart disease, a larger rate",
}
COLOURS = {"central": BLUE, "federated": ORANGE, "femnist": GREEN, "heart": PURPLE,
           "heart-faster": SKY}  # fmt: skip
TARGETS = ((0.5, 0.90), (2.0, 0.95), (8.0, 0.97))  # epsilon, accuracy: to reach
AIMS = ((1.2, 0.95), (3.0, 0.98))


def mean(one: dict[str, Any]) -> float:
    return float(np.mean(one["scores"]))


def part_table(name: str, found: dict[str, Any]) -> str:
    """A part: what each epsilon buys."""
    rows = []
    for budget, one in found["by epsilon"].items():
        private = "spent" in one
        low, high = one.get("noise", (0.0, 0.0))
        noise = f"{low:.2f}" if high < low * 1.01 else f"{low:.2f} to {high:.2f}"
        rows.append(
            [
                budget if private else "without", f"{one['lr']:g}", noise if private else "-",
                " ".join(f"{100 * score:.1f}" for score in one["scores"]),
                f"{100 * mean(one):.1f}", f"{one['spent']:.3f}" if private else "-",
                f"{one['with choice']:.2f}" if "with choice" in one else "-",
            ]
        )  # fmt: skip
    metric = "AUC" if found["metric"] == "auc" else found["metric"]
    header = ["ε", "rate", "noise z", f"{metric} of each seed (%)", "mean", "ε spent",
              "ε with the choice of the rate"]  # fmt: skip
    return f"### {TITLES[name]}, δ = {found['delta']:g}\n\n{table(header, rows)}"


def checks_of(done: dict[str, Any]) -> list[Check]:
    """The figures to reach, in one place and at 100 parties."""
    checks = list[Check]()
    for name, wanted in (("central", (*TARGETS, *AIMS)), ("federated", TARGETS)):
        for budget, target in wanted:
            one = done.get(name, {}).get("by epsilon", {}).get(f"{budget:g}")
            if one is not None:
                checks.append(
                    (f"{TITLES[name]}: {target:.0%} at ε = {budget:g}", f"{100 * mean(one):.1f} %",
                     mean(one) >= target)
                )  # fmt: skip
    for name, part in done.items():
        private = {b: one for b, one in part["by epsilon"].items() if "spent" in one}
        most = max((one["spent"] / float(b) for b, one in private.items()), default=0.0)
        checks.append((f"{TITLES[name]}: no run spends more than its ε", f"{most:.4f} of it at "
                       "most", most <= 1))  # fmt: skip
    return checks


def tables(done: dict[str, Any]) -> tuple[str, list[Check]]:
    """All tables of the parts that are there, and the gates."""
    checks = checks_of(done)
    return "\n\n".join([gates(checks), *(part_table(*each) for each in done.items())]), checks


def figures(done: dict[str, Any]) -> dict[str, Figure]:
    """Accuracy, or AUC, against epsilon; dotted without privacy."""
    if not done:
        return {}
    figure = Figure(figsize=(8.4, 5.2), layout="constrained")
    ax = figure.subplots()
    for name, part in done.items():
        points = {b: one for b, one in part["by epsilon"].items() if "spent" in one}
        epsilons = [float(b) for b in points]
        label = f"{TITLES[name]}{' (AUC)' * (part['metric'] == 'auc')}"
        ax.plot(
            epsilons, [100 * mean(one) for one in points.values()], "o-", color=COLOURS[name],
            label=label,
        )  # fmt: skip
        if "inf" in part["by epsilon"]:
            ax.axhline(
                100 * mean(part["by epsilon"]["inf"]), color=COLOURS[name], linestyle=":",
                linewidth=1.2,
            )  # fmt: skip
    ax.plot(
        *zip(*[(b, 100 * a) for b, a in TARGETS], strict=True), "x", color=GREY, markersize=9,
        markeredgewidth=2, linestyle="none", label="to reach, MNIST",
    )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xticks([0.25, 0.5, 1, 2, 4, 8, 16], ["0.25", "0.5", "1", "2", "4", "8", "16"])
    ax.set(xlabel="ε", ylabel="on test points (%); dotted: without privacy")
    ax.legend(loc="lower right")
    ax.set_title("What an ε buys", color=INK, fontweight="bold")
    return {"plot.png": figure}
