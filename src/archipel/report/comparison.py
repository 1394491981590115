# SPDX-License-Identifier: Apache-2.0
"""The picture of a comparison: curves with bands over seeds, and each row's spread over parties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from archipel.picture import Picture
from archipel.report.style import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PINK, bare, short, styled
from archipel.scorecard.words import metric_name

if TYPE_CHECKING:
    from archipel.comparison import Comparison, Row

_COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, "#56b4e9", "#6a3d9a", INK)
_STYLES = ("-", "--", "-.", ":")
_DOTS = 20  # parties shown one by one, at most


def curves_and_spread(comparison: Comparison, path: str | Path | None = None) -> Picture:
    """The metric over all test points against rounds, and over parties after the last one."""
    rows, levels = comparison.rows, comparison.baselines
    height = max(3.4, 1.3 + 0.42 * (len(rows) + len(levels)))
    with styled():
        figure = Picture(figsize=(10, height), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        looks = [(_COLOURS[i % 8], _STYLES[i // 8 % 4]) for i in range(len(rows))]
        for row, (colour, style) in zip(rows, looks, strict=True):
            _curve(left, row, colour, style)
        for row, style in zip(levels, (":", "--"), strict=False):
            mean = row.figures["points"].mean
            if mean is not None:
                left.axhline(mean, color=GREY, lw=1.2, ls=style, label=short(row.label, 32))
        name = metric_name(comparison.metric)
        left.set(xlabel="round", ylabel=f"{name}, all test points")
        left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        left.grid()
        if left.get_legend_handles_labels()[0]:
            left.legend(fontsize=8.5)
        everyone = [*zip(rows, (c for c, _ in looks), strict=True), *((r, GREY) for r in levels)]
        for place, (row, colour) in enumerate(everyone):
            _spread(right, row, place, colour)
        right.set_yticks(range(len(everyone)), [short(row.label, 28) for row, _ in everyone])
        right.set_ylim(len(everyone) - 0.5, -0.5)
        many = any(len(each.spread) > _DOTS for row, _ in everyone for each in row.results)
        key = "box: middle half, bar: median, line: tenths" if many else "dots: parties"
        right.set_xlabel(f"{name} at a party, last round\n({key}, diamond: mean)", fontsize=8.5)
        right.grid(axis="x")
        bare(right)
        facts, seeds = comparison.facts, len(comparison.seeds)
        over = f"mean and sd of {seeds} seeds" if seeds > 1 else "one seed"
        figure.suptitle(f"{short(facts['data'], 60)}, {over}", x=0.02, ha="left")
        if path is not None:
            figure.savefig(path, dpi=150)
    return figure


def _curve(axes: Axes, row: Row, colour: str, style: str) -> None:
    """Mean over seeds, with a band of one standard deviation."""
    runs = [each.curve for each in row.results if each.curve]
    length = min(map(len, runs), default=0)
    if length == 0:
        return
    rounds = [t for t, _ in runs[0][:length]]
    values = np.array([[value for _, value in curve[:length]] for curve in runs], np.float64)
    mean = values.mean(axis=0)
    axes.plot(rounds, mean, color=colour, ls=style, lw=1.8, label=short(row.label, 32))
    if len(runs) > 1:
        sd = values.std(axis=0, ddof=1)
        axes.fill_between(rounds, mean - sd, mean + sd, color=colour, alpha=0.18, lw=0)


def _spread(axes: Axes, row: Row, place: int, colour: str) -> None:
    """Parties of all seeds: the middle half as a box to the tenths, or every one as a dot."""
    groups = [np.array(each.spread) for each in row.results if each.spread and not each.failed]
    if not groups:
        return
    values = np.concatenate(groups)
    mean = row.figures["parties"].mean
    if max(map(len, groups)) <= _DOTS:
        shift = np.random.default_rng(0).uniform(-0.18, 0.18, len(values))
        axes.scatter(values, place + shift, color=colour, s=16, alpha=0.55, lw=0)
    else:
        low, first, middle, third, high = np.quantile(values, [0.1, 0.25, 0.5, 0.75, 0.9])
        axes.plot([low, high], [place, place], color=colour, lw=1.4)
        axes.barh(place, third - first, left=first, height=0.5, color=colour, alpha=0.35, lw=0)
        axes.plot([middle, middle], [place - 0.25, place + 0.25], color=colour, lw=1.8)
    if mean is not None:
        axes.plot([mean], [place], marker="D", ms=5, color="white", mec=INK, mew=1.1, zorder=5)
