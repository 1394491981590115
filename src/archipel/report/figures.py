# SPDX-License-Identifier: Apache-2.0
"""The figures of a report: the curve, the parties, who took part, the data."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archipel.measures import larger_is_better
from archipel.report import attack, budget, clock, graph, grid, worth
from archipel.report.style import BLUE, GREEN, GREY, INK, ORANGE, bare, short, styled
from archipel.runs.history import Round, absent
from archipel.scorecard.words import metric_name, number
from archipel.store import files

if TYPE_CHECKING:
    from archipel.runs.run import Run

WIDTH = 9.0  # inches
NAMED = 30  # parties with a line each; more make a histogram
_MARKS, _NOTES = 80, 5  # evaluations with another set of sites: marked one by one, and named
Floats = npt.NDArray[np.float64]


def figures(run: Run, without: Collection[str] = ()) -> dict[str, Figure]:
    """Return the figures of a run by name, without those that it has no numbers for."""
    drawn: dict[str, Callable[[Run], Figure | None]] = {
        "curve": curve,
        "attack": attack.attack,
        "parties": parties,
        "graph": graph.graph,
        "participation": grid.participation,
        "clock": clock.clock,
        "worth": worth.worth,
        "privacy": budget.privacy,
        "data": data,
    }
    with styled():
        made = {name: function(run) for name, function in drawn.items() if name not in without}
    return {name: figure for name, figure in made.items() if figure is not None}


def save_figures(run: Run, folder: str | Path) -> list[Path]:
    """Write every figure to a folder, as PNG and as SVG."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures(run).items():
        for form in ("png", "svg"):
            path = folder / f"{name}.{form}"
            files.write(path, encode(figure, form, background="white"))
            written.append(path)
    return written


def encode(figure: Figure, form: str, background: str = "none") -> bytes:
    """Return a figure as a file of this form, the same bytes for the same figure."""
    content = io.BytesIO()
    stamp: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
    with styled():
        figure.savefig(content, format=form, dpi=160, facecolor=background, metadata=stamp)
    return content.getvalue()


# -- the curve -------------------------------------------------------------------------------------


class Lines(NamedTuple):
    """What a curve shows."""

    metric: str
    what: str  # it is taken over
    values: dict[str, Floats]  # over evaluated rounds, by name
    levels: dict[str, float]  # by name


def lines_of(run: Run, metric: str) -> Lines:
    """A metric over all test points, or sites; over parties where `Run.by_party` says so.

    Over parties there is the run's own metric alone. Levels are of the same points as the lines.
    """
    if not run.history or run.history[-1]["seen_parties"] is None:
        return Lines(metric, "", {}, {})
    labels = {"alone": "each alone", "pooled": "data pooled"}
    by_party = run.by_party and metric == run.metric
    compared = run.levels_of(metric) if by_party == run.by_party else {}
    levels = {labels[name]: level for name, level in compared.items()}
    if by_party:
        what = "mean over parties"
        found = {"together": "seen_parties", "new parties": "new_parties"}
        lines = {
            label: _finite([(entry[part] or {}).get("mean") for entry in run.history])
            for label, part in found.items()
        }
    else:
        what = "mean over sites" if run.between_sites else "all test points"
        curves = {"together": run.curve(metric), "new parties": run.curve(metric, new=True)}
        lines = {label: _finite(values) for label, (_, values) in curves.items()}
    if run.target is not None and metric == run.metric:
        levels["target"] = run.target
        if by_party:  # what the target is meant for
            lines["all test points"] = _finite(
                [entry["metrics"].get(metric) for entry in run.history]
            )
    known = {label: line for label, line in lines.items() if not np.isnan(line).all()}
    return Lines(metric, what, known, levels)


def _finite(values: Sequence[float | None]) -> Floats:
    line = np.array(values, float)
    return np.where(np.isfinite(line), line, np.nan)


_LOOK: dict[str, dict[str, Any]] = {
    "together": {"color": BLUE, "lw": 2.4},
    "all test points": {"color": BLUE, "lw": 1.0, "alpha": 0.7},
    "new parties": {"color": GREEN, "lw": 2.0},
    "each alone": {"color": ORANGE, "lw": 1.6, "ls": (0, (6, 3))},
    "data pooled": {"color": GREY, "lw": 1.6, "ls": (0, (6, 2, 1, 2))},
    "target": {"color": INK, "lw": 1.0, "ls": (0, (1, 2))},
}


def curve(run: Run) -> Figure | None:
    """The metric by round, against its levels; under it, how many parties were missing."""
    lines = lines_of(run, run.metric)
    if not lines.values:
        return None
    missing = np.array([len(cohort.missing) for cohort in run.participation])
    figure = Figure(figsize=(WIDTH, 4.4 if missing.any() else 3.7), layout="constrained")
    if missing.any():
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 1))
        _missing(below, missing)
    else:
        axes = below = figure.subplots()
    draw_lines(axes, run, lines)
    below.set_xlabel("round")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure


def draw_lines(axes: Axes, run: Run, lines: Lines) -> None:
    """The lines, their levels, and at the right end what each is and where it stands."""
    rounds = np.array([entry["round"] for entry in run.history])
    ends: list[tuple[float, str, str]] = []
    for name, line in lines.values.items():
        axes.plot(rounds, line, **_LOOK[name], marker="o" if len(rounds) == 1 else None, zorder=3)
        ends.append((float(line[~np.isnan(line)][-1]), name, _LOOK[name]["color"]))
    _mark_absent(axes, run, rounds, lines.values.get("together"))
    _band(axes, run, rounds, lines)
    drawn = np.concatenate(list(lines.values.values()))
    low, high = scale(drawn)
    for name, level in lines.levels.items():
        if low <= level <= high:
            axes.axhline(level, **_LOOK[name], zorder=2)
        ends.append((level, name, _LOOK[name]["color"]))
    if np.nanmax(drawn) > high or np.nanmin(drawn) < low:
        axes.set_ylim(max(low, np.nanmin(drawn)), min(high, np.nanmax(drawn)))
    axes.grid(axis="y")
    axes.set_ylabel(f"{metric_name(lines.metric)}, {lines.what}")
    axes.set_xlim(min(1, rounds[0]) - 0.5, max(run.done, rounds[-1]) + 0.5)
    _label_ends(axes, ends)


def _band(axes: Axes, run: Run, rounds: npt.NDArray[np.int64], lines: Lines) -> None:
    """How sure each value is, where it is of a sample of the parties: 95 % intervals."""
    if "together" not in lines.values:
        return
    sure = [interval_of(entry, lines.metric, run.by_party) for entry in run.history]
    if any(each is not None for each in sure):
        low, high = np.array([each or (np.nan, np.nan) for each in sure], np.float64).T
        look = {"color": _LOOK["together"]["color"], "alpha": 0.18, "lw": 0, "zorder": 1}
        axes.fill_between(rounds, low, high, **look)


def interval_of(entry: Round, metric: str, by_party: bool) -> list[float] | None:
    """The 95 % interval of what a curve shows of an evaluation, where there is one."""
    if by_party:
        return (entry.get("seen_parties") or {}).get("interval")
    found = (entry.get("intervals") or {}).get(metric)
    return None if found is None else list(found)


def _mark_absent(axes: Axes, run: Run, rounds: npt.NDArray[np.int64], line: Floats | None) -> None:
    """Hollow marks on evaluations that lack a site which others have in their mean; few are named.

    Where there are many in a row, the first and the last are marked.
    """
    without = absent(run.history)
    if line is None or not any(without):
        return
    stretches = [list(group) for _, group in groupby(range(len(without)), key=without.__getitem__)]
    stretches = [group for group in stretches if without[group[0]]]
    few = sum(map(len, stretches)) <= _MARKS
    marked = [k for group in stretches for k in (group if few else (group[0], group[-1]))]
    axes.plot(
        rounds[marked], line[marked], "o", ms=6.5, mfc="#ffffff", mec=BLUE, mew=1.6, lw=0, zorder=4
    )
    for group in stretches if len(stretches) <= _NOTES else []:
        k = group[len(group) // 2]
        axes.annotate(
            f"without {short(', '.join(without[k]), 24)}", (rounds[k], line[k]), (0, -11),
            textcoords="offset points", ha="center", va="top", fontsize=8, color=GREY,
        )  # fmt: skip


def _missing(axes: Axes, missing: npt.NDArray[np.int64]) -> None:
    rounds = np.arange(1, len(missing) + 1)
    if len(missing) <= 150:
        axes.bar(rounds, missing, width=0.8, color=ORANGE)
    else:
        axes.fill_between(rounds, missing, step="mid", color=ORANGE, lw=0)
    axes.set_ylim(0, max(int(missing.max()), 1) * 1.05)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=2))
    axes.set_ylabel("missing")
    axes.spines["left"].set_visible(False)


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Name the lines at their right end, moved apart where they would touch."""
    low, high = axes.get_ylim()
    ends = sorted(ends)
    gap = 0.062
    places = [min(1.0, max(0.0, (value - low) / (high - low))) for value, _, _ in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    over = max(0.0, places[-1] - 1.0)
    for i in range(len(places) - 1, -1, -1):
        ceiling = places[i + 1] - gap if i + 1 < len(places) else places[i] - over
        places[i] = min(places[i], ceiling)
    for (value, name, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            f"{name} {number(value)}",
            (1.01, place),
            xycoords="axes fraction",
            va="center",
            color=colour,
            fontweight="bold" if name == "together" else None,
        )


# -- the parties -----------------------------------------------------------------------------------


def parties(run: Run) -> Figure | None:
    """The metric at each party: a line each for a few, a histogram for many."""
    values = run.parties.get(run.metric)
    if values is None:
        return None
    together = np.asarray(values, np.float64)
    if not np.isfinite(together).any():
        return None
    local = run.baselines.get("local")
    alone = None
    if local is not None and run.metric in local.parties:
        alone = np.asarray(local.parties[run.metric], np.float64)
    if len(together) <= NAMED:
        return _dots(run, together, alone)
    return _histograms(run, together, alone)


def _dots(run: Run, together: Floats, alone: Floats | None) -> Figure:
    """A line per party: an arrow from its own model's value to the common one's."""
    count = len(together)
    figure = Figure(figsize=(WIDTH, 1.25 + 0.36 * count), layout="constrained")
    axes = figure.subplots()
    places = np.arange(count)
    new = places >= run.data.training
    low, high = scale(together if alone is None else np.concatenate([together, alone]))
    axes.hlines(places, 0, 1, transform=axes.get_yaxis_transform(), color=GREY, alpha=0.25, lw=0.8)
    if alone is not None:
        start, end = np.clip(alone, low, high), np.clip(together, low, high)
        for k in np.flatnonzero(np.isfinite(start + end)).tolist():
            axes.annotate(
                "",
                (end[k], k),
                (start[k], k),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": GREY,
                    "lw": 2,
                    "shrinkA": 5,
                    "shrinkB": 5,
                },
            )
        axes.scatter(
            _within(alone, low, high), places, s=52, marker="D", facecolor="none",
            edgecolor=ORANGE, lw=1.8, zorder=3, label="alone",
        )  # fmt: skip
    shown = _within(together, low, high)
    for group, colour, label in ((~new, BLUE, "together"), (new, GREEN, "together, new party")):
        if group.any():
            axes.scatter(
                shown[group], places[group], s=80, color=colour, zorder=4, linewidth=0, label=label
            )
    for k in range(count):
        text = "" if np.isfinite(together[k]) else "no value"
        if np.isfinite(together[k]) and np.isnan(shown[k]):
            text = f"{number(together[k])}, off the scale"
        axes.text(0.01, k, text, transform=axes.get_yaxis_transform(), va="center", color=GREY)
    axes.set_yticks(places, [short(run.data.name(k)) for k in range(count)])
    axes.set_ylim(count - 0.4, -0.6)
    axes.margins(x=0.06)
    axes.set_xlabel(_on_own_points(run))
    axes.grid(axis="x")
    bare(axes)
    figure.legend(loc="outside upper left", ncols=4)
    return figure


def _histograms(run: Run, together: Floats, alone: Floats | None) -> Figure:
    """How the metric falls across parties and, with local baselines, how the gain does."""
    training = run.data.training
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    left, *rest = figure.subplots(1, 1 if alone is None else 2, squeeze=False)[0]
    groups = {"together": (together[:training], {"color": BLUE, "alpha": 0.75})}
    groups["new parties"] = (together[training:], {"color": GREEN, "alpha": 0.75})
    if alone is not None:
        look = {"color": ORANGE, "histtype": "step", "lw": 1.8}
        groups["alone"] = (alone[:training], look)
    histogram(left, groups)
    left.legend()
    left.set_xlabel(_on_own_points(run))
    for axes in rest:
        assert alone is not None
        sign = 1 if larger_is_better(run.metric) else -1
        gain = sign * (together - alone)[:training]
        known = int(np.isfinite(gain).sum())
        histogram(axes, {"": (gain, {"color": BLUE, "alpha": 0.75})})
        axes.axvline(0, color=INK, lw=1)
        axes.set_title(f"{(gain > 0).sum():,} of {known:,} parties gain", loc="left", fontsize=9.5)
        axes.set_xlabel("gain over training alone")
    return figure


def histogram(axes: Axes, groups: dict[str, tuple[Floats, dict[str, Any]]]) -> None:
    """Histograms with the same bins; what is off the scale counts in the last bar."""
    known = {name: values[np.isfinite(values)] for name, (values, _) in groups.items()}
    values = np.concatenate(list(known.values()))
    if len(values):
        low, high = scale(values)
        edges = np.histogram_bin_edges(np.clip(values, low, high), bins=24).tolist()
        for name, group in known.items():
            if len(group):
                axes.hist(np.clip(group, low, high), edges, label=name, **groups[name][1])
        if values.min() < low or values.max() > high:
            axes.set_title("beyond the axis: in the last bar", loc="right", fontsize=8, color=GREY)
    axes.set_ylabel("parties")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="y")


def scale(values: Floats) -> tuple[float, float]:
    """Return how far an axis may reach before a diverged value would flatten all others.

    >>> scale(np.array([9.0, 10.0, 10.0, 3e13]))
    (-991.0, 1011.0)
    """
    middle = float(np.median(values[np.isfinite(values)]))
    reach = 100 * abs(middle) + 1
    return middle - reach, middle + reach


def _within(values: Floats, low: float, high: float) -> Floats:
    return np.where((values >= low) & (values <= high), values, np.nan)


def _on_own_points(run: Run) -> str:
    better = "" if larger_is_better(run.metric) else " (smaller is better)"
    whose = "a site's" if run.between_sites else "a party's"
    return f"{metric_name(run.metric)} on {whose} own test points{better}"


# -- the data --------------------------------------------------------------------------------------


def data(run: Run) -> Figure | None:
    """Who has which targets, and how many."""
    fed = run.data
    if fed.about.elsewhere or fed.about.gone or fed.lazy:
        return None
    from archipel.data.plot import draw as draw_data

    if fed.names is not None:
        names = np.asarray([short(str(name), 16) for name in fed.names])
        fed = replace(fed, names=cast("Any", names), scan=False)
    figure = draw_data(fed, None, 40)
    figure.suptitle("")
    return figure
