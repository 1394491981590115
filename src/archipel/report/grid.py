# SPDX-License-Identifier: Apache-2.0
"""Who took part in which round: a cell for each party and round, or for some of both."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from archipel.report.style import AMBER, GREY, INK, ORANGE, PINK, RULE, SKY, bare, short

if TYPE_CHECKING:
    from archipel.runs.run import Run

PARTIES, ROUNDS = 60, 300  # cells of their own up to here
APART = 80  # rounds with a gap between
FULL = 8  # uploads a cell of several parties and rounds should stand for
WIDTH = 9.0
Ints = npt.NDArray[np.int64]

_CAUSES = {
    "dropped out": ORANGE,
    "away": AMBER,
    "too slow": PINK,
    "diverged": INK,
    "not needed": RULE,
    "not visited yet": RULE,
}
_STEPS = (  # share missing: over, up to
    ("nobody missing", -1.0, 0.0, SKY, 1.0),
    ("up to 25 % missing", 0.0, 0.25, ORANGE, 0.3),
    ("up to 50 %", 0.25, 0.5, ORANGE, 0.55),
    ("up to 75 %", 0.5, 0.75, ORANGE, 0.8),
    ("more", 0.75, 1.0, ORANGE, 1.0),
)


def participation(run: Run) -> Figure | None:
    """Draw parties by rounds."""
    if not run.participation:
        return None
    if run.data.training <= PARTIES and run.done <= ROUNDS:
        return _cells(run)
    return _bins(run)


def _cells(run: Run) -> Figure:
    """One cell per party and round, coloured by what happened."""
    count, rounds = run.data.training, run.done
    seen = Counter(cause.why for cohort in run.participation for cause in cohort.missing.values())
    known = [cause for cause in _CAUSES if cause in seen]
    others = sorted(set(seen) - set(known))
    kinds = ["present", *known, *others]
    code = np.full((count, rounds), -1)
    for t, cohort in enumerate(run.participation):
        code[cohort.sampled, t] = 0
        for k, cause in cohort.missing.items():
            code[k, t] = kinds.index(cause.why)
    figure, axes = _canvas(count, rounds)
    axes.hlines(np.arange(count), 0.5, rounds + 0.5, color=RULE, lw=0.8, zorder=0)
    colours = {"present": SKY, **_CAUSES}
    for number, name in enumerate(kinds):
        _fill(axes, code == number, colours.get(name, GREY))
    labels = {"present": "took part"} | {cause: cause for cause in (*known, *others)}
    legend = [Patch(color=colours.get(name, GREY), label=labels[name]) for name in kinds]
    if (code == -1).any():
        legend.append(Patch(facecolor="none", edgecolor=RULE, label="not sampled"))
    unused = [t + 1 for t, cohort in enumerate(run.participation) if not cohort.counted]
    if unused:
        (mark,) = axes.plot(
            unused, [-0.85] * len(unused), "x", color=INK, ms=4, clip_on=False, lw=0,
            label="round below quorum",
        )  # fmt: skip
        legend.append(mark)  # type: ignore[arg-type]
    every = 1 if count <= 40 else 2
    names = [short(run.data.name(k)) for k in range(0, count, every)]
    axes.set_yticks(range(0, count, every), names, fontsize=9.5 if count <= 30 else 7)
    asked = (code >= 0).sum(axis=1)
    if count <= 30:
        for k in range(count):
            text = f"{(code[k] == 0).sum()} of {asked[k]}"
            axes.text(rounds + 0.5 + rounds * 0.008, k, text, va="center", color=INK, fontsize=8.5)
    figure.legend(handles=legend, loc="outside upper left", ncols=6)
    return figure


def _bins(run: Run) -> Figure:
    """A cell for several parties and rounds, coloured by how many of them were missing."""
    count, rounds = run.data.training, run.done
    tall, wide = bin_sizes(count, rounds, sum(len(cohort.sampled) for cohort in run.participation))
    shape = (-(-count // tall), -(-rounds // wide))
    sampled, missing = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for t, cohort in enumerate(run.participation):
        sampled[:, t // wide] += _count(cohort.sampled, tall, shape[0])
        missing[:, t // wide] += _count(np.fromiter(cohort.missing, np.int64), tall, shape[0])
    share = np.where(sampled > 0, missing / np.maximum(sampled, 1), np.nan)
    figure, axes = _canvas(*shape, wide)
    legend = []
    for label, least, most, colour, alpha in _STEPS:
        cells = (share > least) & (share <= most)
        if cells.any():
            _fill(axes, cells, colour, wide, alpha)
            legend.append(Patch(color=colour, alpha=alpha, label=label))
    if (sampled == 0).any():
        legend.append(Patch(facecolor="none", edgecolor=RULE, label="nobody sampled"))
    every = max(1, shape[0] // 12)
    firsts = [tall * row for row in range(0, shape[0], every)]
    axes.set_yticks(range(0, shape[0], every), [_span(k, tall, count) for k in firsts], fontsize=8)
    cell = f"{tall} {'party' if tall == 1 else 'parties'}"
    axes.set_xlabel(f"round (a cell: {cell}, {wide} {'round' if wide == 1 else 'rounds'})")
    axes.set_ylabel("party, by number")
    figure.legend(handles=legend, loc="outside upper left", ncols=6)
    return figure


def bin_sizes(parties: int, rounds: int, sampled: int) -> tuple[int, int]:
    """Return how many parties and rounds share a cell, so that a share over it means something.

    >>> bin_sizes(parties=1000, rounds=100, sampled=100_000)
    (17, 1)
    >>> bin_sizes(parties=1000, rounds=100, sampled=1_000)
    (67, 7)
    """
    rows, columns = min(PARTIES, parties), min(ROUNDS, rounds)
    while sampled < FULL * rows * columns and (rows > 15 or columns > 15):
        if columns > rows:
            columns = max(15, columns // 2)
        else:
            rows = max(15, rows // 2)
    return -(-parties // rows), -(-rounds // columns)


def _count(parties: Ints, tall: int, rows: int) -> Ints:
    return np.bincount(parties // tall, minlength=rows)


def _span(first: int, tall: int, count: int) -> str:
    last = min(first + tall, count) - 1
    return f"{first}" if first == last else f"{first}\N{EN DASH}{last}"


def _canvas(rows: int, columns: int, wide: int = 1) -> tuple[Figure, Axes]:
    pitch = float(np.interp(rows, [6, 30, 60], [0.34, 0.2, 0.11]))
    figure = Figure(figsize=(WIDTH, 1.2 + pitch * rows), layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(0.5, columns * wide + 0.5)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    bare(axes)
    axes.spines["bottom"].set_visible(False)
    return figure, axes


def _fill(
    axes: Axes, cells: npt.NDArray[np.bool_], colour: str, wide: int = 1, alpha: float = 1.0
) -> None:
    """Draw the cells that are true as one path; where there are many rounds, neighbours as one."""
    apart = cells.shape[1] <= APART
    if apart:
        row, start = np.nonzero(cells)
        stop = start + 1
    else:
        edges = np.diff(np.pad(cells, ((0, 0), (1, 1))).astype(np.int8), axis=1)
        row, start = np.nonzero(edges == 1)
        _, stop = np.nonzero(edges == -1)
    if len(row) == 0:
        return
    gap = 0.04 * wide if apart else 0.0
    left, right = start * wide + 0.5 + gap, stop * wide + 0.5 - gap
    low, high = row - 0.38, row + 0.38
    corners = [(left, low), (right, low), (right, high), (left, high), (left, low)]
    points = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1).reshape(-1, 2)
    codes = np.tile([Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY], len(row))
    axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, alpha=alpha, lw=0, zorder=1))
