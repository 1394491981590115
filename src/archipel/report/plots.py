# SPDX-License-Identifier: Apache-2.0
"""Figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from archipel.simulate import Run

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8a8a"  # told apart by everybody


def curve_and_spread(run: Run, metric: str, path: str | Path | None = None) -> Figure:
    """A metric against rounds, and how it falls across parties after the last one."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    rounds, values = run.curve(metric)
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
