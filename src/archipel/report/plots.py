# SPDX-License-Identifier: Apache-2.0
"""Figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from archipel.simulate import Run

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8a8a"  # told apart by everybody


def alone_and_together(
    names: list[str],
    alone: list[float],
    together: list[float],
    levels: dict[str, float],
    metric: str,
    path: str | Path | None = None,
) -> Figure:
    """What each party gains: its own model against the common one, with levels as lines."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for k, (a, b) in enumerate(zip(alone, together, strict=True)):
        axes.plot([a, b], [k, k], color=GREY, lw=2.5, zorder=1)
    places = range(len(names))
    axes.scatter(alone, places, color=ORANGE, s=90, zorder=2, label="alone")
    axes.scatter(together, places, color=BLUE, s=90, zorder=3, label="together")
    for (label, value), style in zip(levels.items(), ("--", "-", ":"), strict=False):
        axes.axvline(value, color="black", lw=1, ls=style, label=f"{label}: {value:.3f}")
    axes.set_yticks(list(places), names)
    axes.invert_yaxis()
    axes.margins(y=0.2)
    axes.set_xlabel(metric)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    axes.grid(axis="x", alpha=0.25)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def curve_and_spread(run: Run, metric: str, path: str | Path | None = None) -> Figure:
    """A metric against rounds, and how it falls across parties after the last one."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rounds, values = run.curve(metric)  # says so where there are no test points
    left.plot(rounds, values, color=BLUE, lw=2, label="all test points")
    if run.history and run.history[-1]["new"]:
        new = [entry["new"][metric] for entry in run.history]
        left.plot(rounds, new, color=ORANGE, lw=2, label="parties never seen")
        left.legend(frameon=False)
    left.set(xlabel="round", ylabel=metric)
    per_party = run.parties.get(metric)
    if per_party is not None:
        seen = per_party[: run.data.training]
        groups = [(seen, BLUE, "seen"), (per_party[run.data.training :], ORANGE, "new")]
        for group, colour, label in groups:
            group = group[~group.isnan()]
            if len(group):
                right.hist(group.numpy(), bins=20, color=colour, alpha=0.7, label=label)
        right.set(xlabel=f"{metric} at a party, last round", ylabel="parties")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.suptitle(f"{type(run.algorithm).__name__} on {run.data.about.name}", x=0.02, ha="left")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
