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
    "clip-0.1": "FEMNIST at 7 x 7, by writer, a clip of 0.1",
    "clip-1": "FEMNIST at 7 x 7, by writer, a clip of 1",
    "clip-10": "FEMNIST at 7 x 7, by writer, a clip of 10",
    "clip-adaptive": "FEMNIST at 7 x 7, by writer, an adaptive clip from 1",
    "clip-adaptive-0.1": "FEMNIST at 7 x 7, by writer, an adaptive clip from 0.1",
    "clip-adaptive-10": "FEMNIST at 7 x 7, by writer, an adaptive clip from 10",
}
NOISES = {
    "noise-poisson": "independent, Poisson samples",
    "noise-banded": "banded, no sampling",
    "noise-tree": "tree, no sampling",
    "noise-independent": "independent, no sampling",
}
COLOURS = {"central": BLUE, "federated": ORANGE, "femnist": GREEN, "heart": PURPLE,
           "heart-faster": SKY, "noise-poisson": BLUE, "noise-banded": ORANGE, "noise-tree": GREEN,
           "noise-independent": PURPLE}  # fmt: skip
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


def noise_table(done: dict[str, Any]) -> str:
    """Four hospitals: the AUC that each kind of noise buys, mean and deviation over seeds."""
    names = [name for name in NOISES if name in done]
    budgets = list(done[names[0]]["by epsilon"])
    rows = [
        [b, *(f"{spread(one)} (rate {one['lr']:g})"
              for one in (done[name]["by epsilon"][b] for name in names))]
        for b in budgets
    ]  # fmt: skip
    if plain := done.get("noise-none"):
        one = plain["by epsilon"]["inf"]
        rows.append(["without", f"{spread(one)} (rate {one['lr']:g})", *["" for _ in names[1:]]])
    header = ["ε", *(NOISES[name] for name in names)]
    return f"### Heart disease, kinds of noise: AUC (%)\n\n{table(header, rows)}"


def spread(one: dict[str, Any]) -> str:
    scores = 100 * np.array(one["scores"])
    return f"{scores.mean():.1f} ± {scores.std(ddof=1) if len(scores) > 1 else 0.0:.1f}"


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
        if name == "noise-none":
            continue
        private = {b: one for b, one in part["by epsilon"].items() if "spent" in one}
        most = max((one["spent"] / float(b) for b, one in private.items()), default=0.0)
        called = TITLES.get(name) or f"Heart disease, noise {NOISES[name]}"
        checks.append((f"{called}: no run spends more than its ε", f"{most:.4f} of it at "
                       "most", most <= 1))  # fmt: skip
    return checks


def tables(done: dict[str, Any]) -> tuple[str, list[Check]]:
    """All tables of the parts that are there, and the gates."""
    checks = checks_of(done)
    parts = [part_table(name, part) for name, part in done.items() if name in TITLES]
    noises = [noise_table(done)] if any(name in NOISES for name in done) else []
    return "\n\n".join([gates(checks), *parts, *noises]), checks


def figures(done: dict[str, Any]) -> dict[str, Figure]:
    """Accuracy, or AUC, against epsilon; dotted without privacy. Kinds of noise by themselves."""
    noises = {name: done[name] for name in NOISES if name in done}
    drawn = {"noise.png": noise_figure(noises, done.get("noise-none"))} if noises else {}
    done = {name: part for name, part in done.items() if name in COLOURS and name in TITLES}
    if not done:
        return drawn
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
    return {"plot.png": figure, **drawn}


def noise_figure(noises: dict[str, Any], plain: dict[str, Any] | None) -> Figure:
    """The AUC of four hospitals against epsilon, for every kind of noise."""
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    ax = figure.subplots()
    for at, (name, part) in enumerate(noises.items()):
        points = part["by epsilon"]
        shifted = [float(b) * 1.06 ** (at - 1.5) for b in points]  # so that bars do not overlap
        scores = [100 * np.array(one["scores"]) for one in points.values()]
        ax.errorbar(
            shifted, [each.mean() for each in scores], [each.std(ddof=1) for each in scores],
            fmt="o-", color=COLOURS[name], capsize=3, label=NOISES[name],
        )  # fmt: skip
    if plain is not None:
        without = 100 * mean(plain["by epsilon"]["inf"])
        ax.axhline(without, color=INK, linestyle=":", linewidth=1.2, label="without privacy")
    ax.set_xscale("log", base=2)
    ax.set_xticks([0.25, 1, 4, 16], ["0.25", "1", "4", "16"])
    ax.set(xlabel="ε, for every record", ylabel="AUC on test points (%); bars: sd of seeds")
    ax.legend(loc="lower right")
    ax.set_title("Four hospitals: which noise an ε is best spent on", color=INK, fontweight="bold")
    return figure
