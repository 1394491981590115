# SPDX-License-Identifier: Apache-2.0
"""A forecast in words and numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from archipel.errors import clean
from archipel.forecast.checking import Check, Line
from archipel.forecast.figure import Figure
from archipel.forecast.forecast import Forecast
from archipel.scorecard.words import amount, duration, plural, size, watt_hours

NAMES = {
    "time.total": "time, all of it",
    "time.start": "  start",
    "time.baselines": "  baselines",
    "time.rounds": "  rounds",
    "time.evaluations": "  evaluations",
    "time.checkpoints": "  checkpoints",
    "time.end": "  end",
    "time.loop": "time of rounds, evaluations, checkpoints",
    "time.round": "one round",
    "memory.peak": "memory, at most",
    "memory.driver": "  main process, now",
    "memory.workers": "  workers, now",
    "memory.node": "memory of a node, at most",
    "bytes.up": "sent by parties",
    "bytes.down": "received by parties",
    "bytes.up.site": "  by each site",
    "bytes.down.site": "  by each site, in",
    "network.bytes": "between driver and nodes",
    "disk.total": "disk",
    "gradients": "gradients of one example",
    "flops": "computing",
    "energy": "energy",
    "simulated.time": "simulated time",
    "simulated.energy": "simulated energy of devices",
    "rounds.counted": "rounds that count",
    "parties.touched": "parties that ever train",
    "privacy.epsilon": "privacy spent, ε",
}


def number(value: float, unit: str) -> str:
    """A figure's value with its unit.

    >>> number(187, "s"), number(31_400_000, "B"), number(1.234, "epsilon")
    ('3 min 7 s', '31.4 MB', '1.23')
    """
    if unit == "s":
        return duration(value)
    if unit == "B":
        return size(value)
    if unit == "FLOP":
        return amount(value, "FLOP")
    if unit == "Wh":
        return watt_hours(value, value)
    return f"{value:.3g}" if unit == "epsilon" else amount(round(value))


def interval(figure: Figure) -> str:
    """Between what and what."""
    if figure.exact:
        return "exact"
    return f"{number(figure.low, figure.unit)} to {number(figure.high, figure.unit)}"


def table(forecast: Forecast) -> Table:
    """The forecast for the terminal."""
    measured = forecast.measured
    title = f"Forecast of {clean(forecast.study) or 'the study'}: " + plural(
        forecast.rounds, "round"
    )
    if measured:
        all_of_it = "all of them" if measured["whole"] else plural(measured["rounds"], "round")
        title += f", from {all_of_it} measured"
    shown = Table(title=Text(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    shown.add_column("", no_wrap=True)
    shown.add_column("", justify="right")
    shown.add_column("", style="dim")
    _rows(shown, forecast.figures)
    if forecast.graph is not None:
        shown.add_row("Graph", plural(forecast.graph["edges"], "edge"), _mixing(forecast.graph))
    if forecast.on_cluster:
        told = forecast.cluster or {}
        words = f"On {plural(told['nodes'], 'node')} of {plural(told['cores'], 'core')}"
        shown.add_row(Text(words, "bold"))
        _rows(shown, forecast.on_cluster)
    return shown


def _mixing(graph: Mapping[str, Any]) -> str:
    """How fast parties agree, and who is joined."""
    gap, within = graph["spectral_gap"], graph["within_clusters"]
    told = []
    if within is not None:
        told.append(f"{100 * within:.0f} % of their weight within clusters")
    if gap is not None:
        told.append(f"spectral gap {gap:.3g}")
    if graph["rounds_to_tenth"] is not None:
        after = plural(graph["rounds_to_tenth"], "round")
        told.append(f"a tenth of what parties differ by after {after}")
    return "; ".join(told)


def _rows(shown: Table, figures: Mapping[str, Figure]) -> None:
    for name, title in NAMES.items():
        if name not in figures:
            continue
        figure = figures[name]
        if figure.unit == "Wh":
            shown.add_row(title, watt_hours(figure.low, figure.high), "estimated")
            continue
        cells = (title, number(figure.value, figure.unit), interval(figure))
        shown.add_row(*(Text(clean(cell)) for cell in cells))


def checked(check: Check) -> Table:
    """What was forecast beside what happened."""
    shown = Table(
        title="Forecast against what happened", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    shown.add_column("")
    for heading in ("forecast", "interval", "happened"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for line in check.lines:
        style = "green" if line.holds else "yellow"
        shown.add_row(*cells(line)[:-1], Text(cells(line)[-1], style))
    return shown


def in_a_line(check: Check) -> str:
    """Whether a forecast held, and where it did not."""
    right = sum(line.holds for line in check.lines)
    wrong = [f"{told[0]} {told[3]} ({told[2]})" for line in check.lines
             if not line.holds and (told := cells(line))]  # fmt: skip
    said = f"Forecast: {right} of {len(check.lines)} figures as they turned out"
    return f"{said}; not {', '.join(wrong)}." if wrong else f"{said}."


def cells(line: Line) -> tuple[str, str, str, str, str]:
    """A figure, what it was to be, and what it was."""
    figure, unit = line.figure, line.figure.unit
    return (
        NAMES.get(line.name, line.name).strip(),
        number(figure.value, unit),
        interval(figure),
        number(line.actual, unit),
        _verdict(line),
    )


def _verdict(line: Line) -> str:
    if line.holds:
        return "as forecast"
    if line.figure.value <= 0:
        return "otherwise"
    return f"{line.actual / line.figure.value:.2f} times the forecast"
