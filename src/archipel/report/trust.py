# SPDX-License-Identifier: Apache-2.0
"""The picture of the models of trust: error against ε, formulas as lines, what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from archipel.report.style import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PINK, styled
from archipel.scorecard.trust import Line

_LOOKS: dict[str, dict[str, Any]] = {
    "trusted curator": {"color": INK, "marker": "o", "lw": 1.4},
    "secure sum, noise in shares": {"color": BLUE, "marker": "s", "lw": 4.5, "alpha": 0.45},
    "GOPA": {"color": GREEN, "marker": "D", "lw": 1.8, "ls": (0, (3, 3)), "zorder": 2.6},
    "network DP, on a ring": {"color": PINK, "marker": "^"},
    "shuffled": {"color": AMBER, "marker": "v"},
    "local, randomised response": {"color": GREY, "marker": "<"},
    "local, Gaussian noise": {"color": ORANGE, "marker": ">"},
}
_GAP = 0.058  # between two names, in the axes' height


def trust(lines: Sequence[Line], parties: int, delta: float, repetitions: int) -> Figure:
    """Errors, and how many times the trusted curator's they are."""
    with styled():
        figure = Figure(figsize=(12.0, 5.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1))
        curator = next(line for line in lines if line.model.name == "trusted curator")
        for line in lines:
            look = _LOOKS[line.model.name]
            _draw(left, line, look, np.ones(len(line.epsilons)), np.ones(len(line.points)))
            shared = np.array(curator.errors)
            at = [shared[curator.epsilons.index(point.epsilon)] for point in line.points]
            _draw(right, line, look, shared, np.array(at))
        left.set_ylabel(f"error of the mean of {parties:,} numbers in [0, 1]")
        right.set_ylabel("times the trusted curator's")
        for axes in (left, right):
            _scaled(axes, [point.epsilon for point in curator.points])
        ratios = [(_middle(np.array(line.errors) / curator.errors), line) for line in lines]
        _name_ends(right, ratios)
        left.set_title(
            f"ε for every party, δ = {delta:g}; lines are formulas, points "
            f"{repetitions:,} repetitions each",
            loc="left", fontsize=9.5, color=GREY,
        )  # fmt: skip
    return figure


def _draw(axes: Axes, line: Line, look: dict[str, Any], over: Any, over_points: Any) -> None:
    drawn = {key: value for key, value in look.items() if key != "marker"}
    first = {"zorder": 2.5 - 0.1 * look.get("lw", 1.7), "lw": 1.7}
    axes.plot(line.epsilons, np.array(line.errors) / over, **{**first, **drawn})
    found = np.array([point[1:] for point in line.points]) / over_points[:, None]
    error, low, high = found.T
    beside = 1.05 ** (_rank(line) - 1) if _rank(line) < 3 else 1.0  # three that are the same
    axes.errorbar(
        np.array([point.epsilon for point in line.points]) * beside, error,
        np.stack([error - low, high - error]), fmt=look["marker"], color=look["color"], ms=6.5,
        mec="white", mew=0.8, elinewidth=1.2, zorder=3,
    )  # fmt: skip


def _scaled(axes: Axes, epsilons: Sequence[float]) -> None:
    axes.set(xscale="log", yscale="log", xlabel="ε")
    axes.xaxis.set_major_locator(FixedLocator([*epsilons]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axes.grid(axis="y")


def _name_ends(axes: Axes, ends: list[tuple[float, Line]]) -> None:
    """Each line's name at about its height, moved apart, and whom it trusts under it."""
    low, high = np.log(axes.get_ylim())
    ends = sorted(ends, key=lambda each: (each[0], _rank(each[1])))
    places = [float((np.log(value) - low) / (high - low)) for value, _ in ends]
    gap = 2 * _GAP
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    over = max(0.0, places[-1] - 1.0)
    for i in range(len(places) - 1, -1, -1):
        most = places[i + 1] - gap if i + 1 < len(places) else places[i] - over
        places[i] = min(places[i], most)
    for (_, line), place in zip(ends, places, strict=True):
        colour = _LOOKS[line.model.name]["color"]
        at: dict[str, Any] = {"xycoords": "axes fraction", "annotation_clip": False}
        axes.annotate(
            line.model.name, (1.03, place), va="bottom", color=colour, weight="bold", **at
        )
        axes.annotate(
            f"trusts: {line.model.trusts}", (1.03, place), va="top", color=GREY, fontsize=8, **at
        )


def _middle(ratios: Any) -> float:
    return float(np.exp(np.log(ratios).mean()))


def _rank(line: Line) -> int:
    return list(_LOOKS).index(line.model.name)
