# SPDX-License-Identifier: Apache-2.0
"""A run while it happens, in a notebook: one figure, drawn anew in its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from archipel.errors import ArchipelError
from archipel.report import graph
from archipel.report.frame import (
    ALONE,
    CAUSES,
    NEW,
    OTHER,
    POOLED,
    TOGETHER,
    Clock,
    Series,
    Still,
    cost,
    levels,
    progress,
    standing,
    title,
)
from archipel.report.style import GREY, short, styled
from archipel.runs.graph import frames as frames_of
from archipel.scorecard.words import number

if TYPE_CHECKING:
    from types import TracebackType

    from archipel.runs.participation import Cohort
    from archipel.runs.run import Run

_PER_SECOND = 2  # drawings, at most
_SHARE = 0.1  # of the time, at most, goes into drawing
_NAMED = 20  # parties shown one by one, at most
_SIZE, _DPI = (9.0, 4.6), 144
_GRAPH = 4.2  # inches more, for who talks to whom
_STEPS = [1, 2, 5, 10]  # between numbers on an axis


class NotebookView:
    """Draws a run below the cell that runs it.

    with NotebookView() as view:
        ar.simulate(algorithm, data, watch=view)
    """

    def __init__(self, display: Callable[..., Any] | None = None) -> None:
        self._display = display or _display()
        self._place: Any = None  # what is on the page already
        self._clock: Clock | None = None
        self._still: Still | None = None
        self._next = 0.0  # no drawing before

    def __call__(self, run: Run) -> None:
        """Take note of a round, and draw it unless the last drawing was a moment ago."""
        now = time.perf_counter()
        if self._clock is None or self._clock.run is not run:
            self._clock, self._next = Clock(run, now), now
        self._still = Still.of(run, self._clock.tick(now))
        if now >= self._next or run.done >= run.rounds:
            self._draw(self._still)

    def say(self, text: str) -> None:
        """Show what goes on before the first round."""
        if self._still is None:
            self._show(_Shown(text))

    def __enter__(self) -> NotebookView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._still is not None:
            self._draw(Still.of(self._still.run, self._still.pace).ended(kind))

    def _draw(self, still: Still) -> None:
        began = time.perf_counter()
        data = BytesIO()
        with styled():
            figure(still).savefig(data, format="png", dpi=_DPI)
        self._show(_Shown(f"{title(still.run)}: {progress(still)}", data.getvalue()))
        now = time.perf_counter()
        self._next = now + max(1 / _PER_SECOND, (now - began) / _SHARE)

    def _show(self, shown: _Shown) -> None:
        if self._place is None:
            self._place = self._display(shown, display_id=True)
        else:
            self._place.update(shown)


class _Shown:
    """A picture for pages that show pictures, words for the others."""

    def __init__(self, words: str, png: bytes | None = None) -> None:
        self.words, self.png = words, png

    def __repr__(self) -> str:
        return self.words

    def _repr_png_(self) -> tuple[bytes, dict[str, int]] | None:
        if self.png is None:
            return None
        wide = int.from_bytes(self.png[16:20], "big")  # of the picture, in its own points
        return self.png, {"width": round(wide * 96 / _DPI)}


def _display() -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = import_module("IPython.display").display
    except ImportError:
        raise ArchipelError("a live figure needs IPython: pip install ipython.") from None
    return found


def figure(still: Still) -> Figure:
    """Draw the curve with its baselines, who took part, and the bytes sent."""
    series = Series.of(still.run, still.history[: still.evaluated])
    frames = frames_of(still.history[: still.evaluated])
    wide = _SIZE[0] + (_GRAPH if frames else 0)
    drawn, share = Figure(figsize=(wide, _SIZE[1]), facecolor="white"), _SIZE[0] / wide
    grid = drawn.add_gridspec(
        2, 2, width_ratios=(4, 1), height_ratios=(2, 1), left=0.15 * share, right=0.975 * share,
        top=0.83, bottom=0.15, wspace=0.28, hspace=0.12,
    )  # fmt: skip
    if frames:
        graph.draw(drawn.add_axes((share, 0.05, 1 - share, 0.85)), still.run, frames)
    curve, sent = drawn.add_subplot(grid[0, 0]), drawn.add_subplot(grid[0, 1])
    who = drawn.add_subplot(grid[1, 0], sharex=curve)
    _curve(curve, still, series)
    _who(who, still)
    _bytes(sent, still)
    for axes in (curve, who, sent):
        axes.tick_params(labelsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=_STEPS, min_n_ticks=1))
    head = f"{title(still.run)}: {progress(still)}"
    drawn.suptitle(head, x=0.02, y=0.98, ha="left", fontsize=11, fontweight="bold")
    words = " · ".join(text for text, _ in standing(still, series))
    drawn.text(0.02, 0.92, words, fontsize=9.5, va="top", color=TOGETHER)
    drawn.text(0.02, 0.03, " · ".join(text for text, _ in cost(still)), fontsize=8, color=GREY)
    return drawn


def _curve(axes: Axes, still: Still, series: Series) -> None:
    run = still.run
    axes.plot(series.rounds, series.values, color=TOGETHER, lw=2, label="together")
    fewer = [k for k, without in enumerate(series.absent) if without]
    if fewer:
        rounds, values = ([each[k] for k in fewer] for each in (series.rounds, series.values))
        axes.plot(rounds, values, "o", mfc="white", mec=TOGETHER, ms=5, label="fewer sites")
    if not np.isnan(series.new).all():
        axes.plot(series.rounds, series.new, color=NEW, lw=2, label="new parties")
    for level in levels(run):
        label = f"{level.label} {number(level.value)}"
        axes.axhline(level.value, color=_colour(level.style), lw=1.2, ls="--", label=label)
    axes.set(xlim=(0.5, max(run.rounds, 1) + 0.5), ylabel=run.metric)
    axes.tick_params(labelbottom=False)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
    axes.grid(alpha=0.6)
    axes.legend(fontsize=8, loc="best")


def _who(axes: Axes, still: Still) -> None:
    """Parties by rounds where they are few, else the share of the sample that was present."""
    data, cohorts = still.run.data, still.participation[: still.done]
    axes.set_xlabel("round", fontsize=8)
    if data.training > _NAMED:
        share = [1 - len(c.missing) / max(len(c.sampled), 1) for c in cohorts]
        axes.fill_between(range(1, still.done + 1), share, step="mid", color=TOGETHER)
        axes.set(ylim=(0, 1), yticks=(0, 0.5, 1), ylabel="present")
        return
    kinds = {"not sampled": "#e6e6e6", "present": TOGETHER}
    kinds |= {cause: _colour(style) for cause, (_, style) in CAUSES.items()}
    codes = _codes(cohorts, data.training, list(kinds))
    axes.imshow(
        codes,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap([*kinds.values(), _colour(OTHER[1])]),
        vmin=0,
        vmax=len(kinds),
        extent=(0.5, max(still.done, 1) + 0.5, data.training - 0.5, -0.5),
    )
    axes.hlines(np.arange(data.training - 1) + 0.5, 0.5, still.run.rounds + 0.5, color="white")
    axes.set_yticks(range(data.training), [short(data.name(k), 18) for k in range(data.training)])
    axes.tick_params(left=False)
    axes.set_xlim(0.5, max(still.run.rounds, 1) + 0.5)
    names = [*kinds, "missing"]
    seen = [
        Patch(color=[*kinds.values(), _colour(OTHER[1])][code], label=names[code])
        for code in np.unique(codes[:, : still.done])
    ]
    axes.legend(
        handles=seen, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.05), handlelength=1
    )


def _codes(cohorts: list[Cohort], parties: int, kinds: list[str]) -> NDArray[np.int64]:
    """What each party did in each round, `[parties, rounds]`: its place among the kinds."""
    codes = np.zeros((parties, max(len(cohorts), 1)), np.int64)
    for t, cohort in enumerate(cohorts):
        codes[cohort.sampled, t] = 1
        for k, cause in cohort.missing.items():
            codes[k, t] = kinds.index(cause.why) if cause.why in kinds else len(kinds)
    return codes


def _bytes(axes: Axes, still: Still) -> None:
    history = still.history[: still.evaluated]
    rounds = [0, *(entry["round"] for entry in history)]
    for way, colour, line in (("up", ALONE, "-"), ("down", POOLED, "--")):
        sent = [0, *(entry["bytes"][way] for entry in history)]
        axes.plot(rounds, sent, color=colour, ls=line, lw=2, label=way)
    axes.yaxis.set_major_formatter(EngFormatter("B", sep=" "))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=_STEPS))
    axes.set_title("sent", fontsize=9)
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(alpha=0.6)


def _colour(style: str) -> str:
    return style if style.startswith("#") else GREY
