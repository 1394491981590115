# SPDX-License-Identifier: Apache-2.0
"""Pictures of a comparison: curves with bands over seeds against rounds, each row's spread over
parties; the same curves against what was sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter

from archipel.picture import Picture
from archipel.report.style import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PINK, bare, short, styled
from archipel.scorecard.words import metric_name

if TYPE_CHECKING:
    from archipel.comparison import Comparison, Row

_COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, "#56b4e9", "#6a3d9a", INK)
_STYLES = ("-", "--", "-.", ":")
_DOTS = 20  # parties shown one by one, at most
_DECADE = 10  # times as many bytes at one row's end as at another's: a logarithmic axis


def curves_and_spread(comparison: Comparison, path: str | Path | None = None) -> Picture:
    """The metric over all test points against rounds, and over parties after the last one."""
    rows, levels = comparison.rows, comparison.baselines
    height = max(3.4, 1.3 + 0.42 * (len(rows) + len(levels)))
    with styled():
        figure = Picture(figsize=(10, height), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=(5, 4))
        colours = _curves(left, comparison)
        name = metric_name(comparison.metric)
        left.set_xlabel("round")
        left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if left.get_legend_handles_labels()[0]:
            left.legend(fontsize=8.5)
        everyone = [*zip(rows, colours, strict=True), *((row, GREY) for row in levels)]
        for place, (row, colour) in enumerate(everyone):
            _spread(right, row, place, colour)
        right.set_yticks(range(len(everyone)), [short(row.label, 48) for row, _ in everyone])
        right.set_ylim(len(everyone) - 0.5, -0.5)
        many = any(len(each.spread) > _DOTS for row, _ in everyone for each in row.results)
        key = "box: middle half, bar: median, line: tenths" if many else "dots: parties"
        right.set_xlabel(f"{name} at a party, last round\n({key}, diamond: mean)", fontsize=8.5)
        right.grid(axis="x")
        bare(right)
        _finish(figure, comparison, path)
    return figure


def against_bytes(comparison: Comparison, path: str | Path | None = None) -> Picture:
    """The metric over all test points against megabytes up; down where only these differ."""
    ran = [row for row in comparison.rows if row.figures["bytes_up"].mean]
    ups = [row.figures["bytes_up"].mean or 0.0 for row in ran]
    way = "down" if len(set(ups)) == 1 else "up"
    ends = [row.figures[f"bytes_{way}"].mean or 0.0 for row in ran]
    with styled():
        height = 4.2 + 0.11 * (len(comparison.rows) + len(comparison.baselines))
        figure = Picture(figsize=(10, height), layout="constrained", facecolor="white")
        axes = figure.subplots()
        _curves(axes, comparison, way)
        axes.set_xlabel(f"megabytes {way}, all parties together")
        if ends and min(ends) * _DECADE < max(ends):
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(lambda megabytes, _: f"{megabytes:g}")
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)
        _finish(figure, comparison, path)
    return figure


def against_privacy(comparison: Comparison, path: str | Path | None = None) -> Picture:
    """The metric over all test points against the ε that was spent, and the rows without."""
    with styled():
        figure = Picture(figsize=(10, 4.6), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for i, row in enumerate(comparison.rows):
            score, spent = row.figures["points"], row.figures["epsilon"]
            if score.mean is None:
                continue
            colour, label = _COLOURS[i % 8], short(row.label, 40)
            if spent.mean is None:
                axes.axhline(score.mean, color=colour, lw=1.6, label=label)
            else:
                axes.errorbar(
                    spent.mean, score.mean, yerr=score.sd, color=colour, marker="o", capsize=4,
                    ls="none", label=label,
                )  # fmt: skip
        for row, style in zip(comparison.baselines, (":", "--"), strict=False):
            if (mean := row.figures["points"].mean) is not None:
                axes.axhline(mean, color=GREY, lw=1.2, ls=style, label=short(row.label, 32))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda epsilon, _: f"{epsilon:g}")
        axes.set(xlabel="ε spent", ylabel=f"{metric_name(comparison.metric)}, all test points")
        axes.grid()
        figure.legend(loc="outside lower left", ncols=2, fontsize=8.5)
        _finish(figure, comparison, path)
    return figure


def _finish(figure: Picture, comparison: Comparison, path: str | Path | None) -> None:
    """Say what was compared on, and save it."""
    seeds = len(comparison.seeds)
    over = f"mean and sd of {seeds} seeds" if seeds > 1 else "one seed"
    figure.suptitle(f"{short(comparison.facts['data'], 60)}, {over}", x=0.02, ha="left")
    if path is not None:
        figure.savefig(path, dpi=150)


def _curves(axes: Axes, comparison: Comparison, way: str | None = None) -> list[str]:
    """All rows against rounds, or bytes one way, and the baselines; return the rows' colours."""
    rows = comparison.rows
    looks = [(_COLOURS[i % 8], _STYLES[i // 8 % 4]) for i in range(len(rows))]
    for row, (colour, style) in zip(rows, looks, strict=True):
        _curve(axes, row, colour, style, way)
    for row, style in zip(comparison.baselines, (":", "--"), strict=False):
        mean = row.figures["points"].mean
        if mean is not None:
            axes.axhline(mean, color=GREY, lw=1.2, ls=style, label=short(row.label, 32))
    axes.set_ylabel(f"{metric_name(comparison.metric)}, all test points")
    axes.grid()
    return [colour for colour, _ in looks]


def _curve(axes: Axes, row: Row, colour: str, style: str, way: str | None) -> None:
    """Mean over seeds, with a band of one standard deviation; a dot is where bytes end."""
    runs = [each for each in row.results if each.curve]
    length = min((len(each.curve) for each in runs), default=0)
    if length == 0:
        return
    at = [t for t, _ in runs[0].curve[:length]]
    values = np.array([[value for _, value in run.curve[:length]] for run in runs], np.float64)
    mean, label = values.mean(axis=0), short(row.label, 48 if way is None else 60)
    if way is not None:
        at = list(np.mean([run.sent(way, at) for run in runs], axis=0) / 1e6)
        axes.plot(at[-1:], mean[-1:], color=colour, marker="o", ms=5)
    axes.plot(at, mean, color=colour, ls=style, lw=1.8, label=label)
    if len(runs) > 1:
        sd = values.std(axis=0, ddof=1)
        axes.fill_between(at, mean - sd, mean + sd, color=colour, alpha=0.18, lw=0)


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
