# SPDX-License-Identifier: Apache-2.0
"""Curves in a terminal: braille dots, two by four to a character, with axes and labels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Line = list[tuple[str, str]]  # pieces of text and their styles

AXIS = "bright_black"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a character, [row][column]
_FINITE = 1e30  # beyond it a value has diverged


class Curve(NamedTuple):
    """Values over rounds, NaN where there is none; its last value is its label's place."""

    label: str
    style: str
    rounds: Sequence[float]
    values: Sequence[float]


class Level(NamedTuple):
    """A value to compare curves with."""

    label: str
    style: str
    value: float


class _Scale(NamedTuple):
    low: float
    high: float
    dots: int

    def dot(self, value: float) -> float:
        """How far down a value is, in dots."""
        return (self.high - value) / (self.high - self.low) * (self.dots - 1)


def chart(
    curves: Sequence[Curve],
    levels: Sequence[Level],
    rounds: int,
    width: int,
    height: int,
    larger_is_better: bool = True,
) -> list[Line]:
    """Draw curves over rounds 0 to `rounds` into so many columns and lines, the axis included.

    The worst tenth of the values may lie outside, so that a bad start does not flatten the rest.
    """
    height -= 1  # the axis of rounds
    series = [(np.asarray(c.rounds, float), _finite(c.values)) for c in curves]
    levels = [level for level in levels if abs(level.value) < _FINITE]
    scale = _scale(
        [y for _, y in series], [level.value for level in levels], larger_is_better, height * 4
    )
    labels = [(level.value, level.label, level.style) for level in levels]
    for curve, (_, y) in zip(curves, series, strict=True):
        known = y[~np.isnan(y)]
        labels += [(float(known[-1]), curve.label, f"bold {curve.style}")] if len(known) else []
    marks = _marks(scale, height) if labels else {}
    left = max((len(mark) for mark in marks.values()), default=0) + 1
    right = max((len(text) for _, text, _ in labels), default=-1) + 1
    if width - left - right < 16:
        right = 0
    columns = width - left - right - 1
    if height < 1 or columns < 2:
        return []

    canvas = _Canvas(columns, height)
    for level in levels:
        canvas.level(scale, level)
    for curve, (x, y) in zip(reversed(curves), reversed(series), strict=True):
        canvas.curve(scale, x / max(rounds, 1) * (2 * columns - 1), y, curve.style)
    beside = _places(scale, labels, height) if right else {}
    lines: list[Line] = []
    for row in range(height):
        mark = marks.get(row, "")
        line = [(f"{mark:>{left}}" + ("┤" if mark else "│"), AXIS), *canvas.line(row)]
        if row in beside:
            text, style = beside[row]
            line.append((" " + text, style))
        lines.append(line)
    axis = " " * left + _axis(rounds, columns) + (" rounds" if right > 7 else "")
    return [*lines, [(axis, AXIS)]]


class _Canvas:
    """Dots with a colour to each character."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.bits = [[0] * columns for _ in range(rows)]
        self.styles = [[""] * columns for _ in range(rows)]

    def dot(self, x: int, y: int, style: str) -> None:
        self.bits[y >> 2][x >> 1] |= _DOTS[y & 3][x & 1]
        self.styles[y >> 2][x >> 1] = style

    def level(self, scale: _Scale, level: Level) -> None:
        y = round(scale.dot(level.value))
        if 0 <= y < self.rows * 4:
            for x in range(0, self.columns * 2, 2):
                self.dot(x, y, level.style)

    def curve(
        self, scale: _Scale, x: NDArray[np.float64], y: NDArray[np.float64], style: str
    ) -> None:
        """Join the points; a NaN is a gap."""
        if len(x) == 0:
            return
        first, last = max(round(float(x[0])), 0), min(round(float(x[-1])), self.columns * 2 - 1)
        at = np.arange(first, last + 1)
        before = float("nan")
        for column, value in zip(at.tolist(), np.interp(at, x, y).tolist(), strict=True):
            here = scale.dot(value)
            if here == here:
                start = here if before != before else before
                low, high = sorted((round(start), round(here)))
                if low < high:  # the column of the step belongs to where it leads
                    low, high = (low + 1, high) if start < here else (low, high - 1)
                for row in range(max(low, 0), min(high, self.rows * 4 - 1) + 1):
                    self.dot(column, row, style)
            before = here

    def line(self, row: int) -> Line:
        cells = zip(self.bits[row], self.styles[row], strict=True)
        return [
            ("".join(chr(0x2800 + bits) if bits else " " for bits, _ in run), style)
            for style, run in groupby(cells, key=lambda cell: cell[1])
        ]


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    y = np.array(values, float)
    y[~(np.abs(y) < _FINITE)] = np.nan
    return y


def _scale(
    series: list[NDArray[np.float64]], levels: list[float], larger_is_better: bool, dots: int
) -> _Scale:
    """What must be seen: levels, last values, all but the worst tenth; more if it costs little."""
    y = np.concatenate([*series, np.array(levels, float)])
    y = y[~np.isnan(y)]
    if len(y) == 0:
        return _Scale(0.0, 1.0, dots)
    last = [float(one[-1]) for one in series if len(one) and not np.isnan(one[-1])]
    most = np.percentile(y, [10, 100] if larger_is_better else [0, 90]).tolist()
    low, high = min(most + levels + last), max(most + levels + last)
    if y.max() - y.min() <= 5 * (high - low):
        low, high = float(y.min()), float(y.max())
    pad = max(0.04 * (high - low), 0.005 * abs(high), 1e-6)
    return _Scale(low - pad, high + pad, dots)


def _ticks(low: float, high: float, count: int) -> tuple[list[float], float]:
    """Round numbers in a range, at most about so many, and their step."""
    raw = (high - low) / max(count, 1)
    power = 10.0 ** floor(log10(raw))
    step = power * next((m for m in (1, 2, 5) if m * power >= raw * (1 - 1e-9)), 10)
    return [i * step for i in range(ceil(low / step), floor(high / step) + 1)], step


def _marks(scale: _Scale, height: int) -> dict[int, str]:
    """Numbers on the axis of values, by line."""
    values, step = _ticks(scale.low, scale.high, ceil(height / 2))
    decimals = max(0, -floor(log10(step) + 1e-9))
    plain = decimals <= 4 and max(map(abs, values), default=0.0) < 1e5
    form = f".{decimals}f" if plain else ".3g"
    return {round(scale.dot(v)) >> 2: format(v, form) for v in values}


def _places(
    scale: _Scale, labels: list[tuple[float, str, str]], height: int
) -> dict[int, tuple[str, str]]:
    """A line for each label, near its value, in order of value and none twice."""
    labels = sorted(labels, key=lambda label: -label[0])[:height]
    rows: list[int] = []
    for i, (value, _, _) in enumerate(labels):
        wanted = min(max(round(scale.dot(value)) >> 2, 0), height - len(labels) + i)
        rows.append(max(wanted, rows[-1] + 1 if rows else 0))
    return {row: (text, style) for row, (_, text, style) in zip(rows, labels, strict=True)}


def _axis(rounds: int, columns: int) -> str:
    """The axis of rounds with its numbers in it."""
    line = ["─"] * columns
    values, _ = _ticks(0, max(rounds, 1), max(1, columns // 12))
    for value in values:
        text = str(round(value))
        at = round(value / max(rounds, 1) * (columns - 1)) - len(text) // 2
        at = min(max(at, 0), columns - len(text))
        if value == round(value) and at >= 0:
            line[at : at + len(text)] = text
    return "└" + "".join(line)
