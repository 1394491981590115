# SPDX-License-Identifier: Apache-2.0
"""Single figures: a run at a glance, and what each party gains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from archipel.report.style import BLUE, GREEN, GREY, ORANGE, bare, short, styled
from archipel.scorecard.words import metric_name

if TYPE_CHECKING:
    from archipel.run import Run


def alone_and_together(
    names: list[str],
    alone: list[float],
    together: list[float],
    levels: dict[str, float],
    metric: str,
    path: str | Path | None = None,
) -> Figure:
    """What each party gains: its own model against the common one, with levels as lines."""
    with styled():
        figure = Figure(figsize=(8, 3.6), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for k, (a, b) in enumerate(zip(alone, together, strict=True)):
            axes.plot([a, b], [k, k], color=GREY, lw=2.5, zorder=1)
        places = range(len(names))
        axes.scatter(alone, places, color=ORANGE, s=90, zorder=2, label="alone")
        axes.scatter(together, places, color=BLUE, s=90, zorder=3, label="together")
        for (label, value), style in zip(levels.items(), ("--", "-", ":"), strict=False):
            axes.axvline(value, color="black", lw=1, ls=style, label=f"{label}: {value:.3f}")
        axes.set_yticks(list(places), [short(name) for name in names])
        axes.invert_yaxis()
        axes.margins(y=0.2)
        axes.set_xlabel(metric)
        bare(axes)
        axes.grid(axis="x")
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        if path is not None:
            figure.savefig(path, dpi=150)
    return figure


def curve_and_spread(run: Run, metric: str, path: str | Path | None = None) -> Figure:
    """A metric against rounds, and how it falls across parties after the last one."""
    rounds, values = run.curve(metric)  # says so where there are no test points
    name = metric_name(metric)
    with styled():
        figure = Figure(figsize=(9, 3.4), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        left.plot(rounds, values, color=BLUE, lw=2, label=run.over)
        if run.history and run.history[-1]["new"]:
            new = [entry["new"][metric] for entry in run.history]
            left.plot(rounds, new, color=GREEN, lw=2, label="parties never seen")
            left.legend()
        left.set(xlabel="round", ylabel=name)
        per_party = run.parties.get(metric)
        if per_party is not None:
            seen = per_party[: run.data.training]
            groups = [(seen, BLUE, "seen"), (per_party[run.data.training :], GREEN, "new")]
            for group, colour, label in groups:
                group = group[group.isfinite()]
                if len(group):
                    right.hist(group.numpy(), bins=20, color=colour, alpha=0.7, label=label)
            right.set(xlabel=f"{name} at a party, last round", ylabel="parties")
        left.grid()
        right.grid(axis="y")
        title = f"{type(run.algorithm).__name__} on {short(run.data.about.name, 60)}"
        figure.suptitle(title, x=0.02, ha="left")
        if path is not None:
            figure.savefig(path, dpi=150)
    return figure
