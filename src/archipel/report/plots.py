# SPDX-License-Identifier: Apache-2.0
"""Single figures: a run at a glance, and what each party gains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from archipel.errors import ArchipelError
from archipel.picture import Picture
from archipel.report.figures import Floats, draw_lines, histogram, lines_of
from archipel.report.style import BLUE, GREEN, GREY, ORANGE, bare, short, styled
from archipel.scorecard.words import metric_name

if TYPE_CHECKING:
    from archipel.runs.run import Run

_NAMED = 12  # parties with a line each, at most


def alone_and_together(
    names: list[str],
    alone: list[float],
    together: list[float],
    levels: dict[str, float],
    metric: str,
    path: str | Path | None = None,
) -> Picture:
    """What each party gains: its own model against the common one, with levels as lines."""
    with styled():
        figure = Picture(figsize=(8, 3.6), layout="constrained", facecolor="white")
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


def curve_and_spread(run: Run, metric: str, path: str | Path | None = None) -> Picture:
    """A metric against rounds with its baselines, and its spread over parties after the last."""
    if not run.history:
        raise ArchipelError("no round was evaluated yet: there is nothing to draw.")
    run.curve(metric)  # says so where there are no test points
    name, lines = metric_name(metric), lines_of(run, metric)
    with styled():
        figure = Picture(figsize=(10, 3.6), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        if lines.values:  # none is finite in a run that diverged from the start
            draw_lines(left, run, lines)
        left.set_xlabel("round")
        left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        per_party = run.parties.get(metric)
        if per_party is not None:
            _spread(right, run, per_party.double().numpy())
            right.set_xlabel(f"{name} at a party, last round")
        title = f"{type(run.algorithm).__name__} on {short(run.data.about.name, 60)}"
        figure.suptitle(title, x=0.02, ha="left")
        if path is not None:
            figure.savefig(path, dpi=150)
    return figure


def _spread(axes: Axes, run: Run, values: Floats) -> None:
    """Each of a few parties by name, or how many parties have which value."""
    training, count = run.data.training, run.data.parties
    seen = np.arange(count) < training
    groups = [("seen", seen, BLUE), ("new", ~seen, GREEN)]
    if count <= _NAMED:
        for label, group, colour in groups:
            axes.scatter(values[group], np.flatnonzero(group), color=colour, s=60, label=label)
        axes.set_yticks(range(count), [short(run.data.name(k), 18) for k in range(count)])
        axes.set_ylim(count - 0.4, -0.6)
        axes.grid()
        bare(axes)
    else:
        look = {label: {"color": colour, "alpha": 0.75} for label, _, colour in groups}
        histogram(axes, {label: (values[group], look[label]) for label, group, _ in groups})
    if count > training:
        axes.legend()
