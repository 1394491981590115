# SPDX-License-Identifier: Apache-2.0
"""A run by its simulated clock: the metric by time and energy, who took part at what hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from archipel.devices.device import DAY, HOUR
from archipel.report.style import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY
from archipel.scorecard.words import metric_name

if TYPE_CHECKING:
    from archipel.runs.run import Run

WIDTH = 9.0
_COLOURS = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, GREY)  # of time zones; more are one line
_DAYS = 0.25  # from which a run says something of the day
_UNITS = {"days": DAY, "hours": HOUR, "minutes": 60.0, "seconds": 1.0}
_ENERGY = {"kWh": 3.6e6, "Wh": 3600.0, "J": 1.0}
Floats = npt.NDArray[np.float64]


def clock(run: Run) -> Figure | None:
    """The metric against simulated time and energy; under it, uploads by the hour of the day."""
    if run.simulated is None:
        return None
    entries = [entry for entry in run.history if entry.get("simulated")]
    values = np.array([entry["metrics"].get(run.metric, np.nan) for entry in entries], float)
    curves = bool(np.isfinite(values).any())
    day = run.simulated["seconds"] >= _DAYS * DAY
    if not curves and not day:
        return None
    figure = Figure(figsize=(WIDTH, 2.9 * (curves + day) + 0.3), layout="constrained")
    parts = figure.subfigures(curves + day, 1, squeeze=False)[:, 0]
    if curves:
        spent = run.simulated["energy"]["high"] > 0
        left, *rest = parts[0].subplots(1, 2 if spent else 1, sharey=True, squeeze=False)[0]
        simulated = [entry["simulated"] for entry in entries]
        _by_time(left, np.array([each["seconds"] for each in simulated]), values)
        left.set_ylabel(metric_name(run.metric))
        for axes in rest:
            ends = [[each["energy"][end] for each in simulated] for end in ("low", "high")]
            _by_energy(axes, np.array(ends[0]), np.array(ends[1]), values)
        if run.target is not None:
            for axes in (left, *rest):
                axes.axhline(run.target, color=INK, lw=1.0, ls=(0, (1, 2)), zorder=2)
    if day:
        _by_hour(parts[-1].subplots(), run)
    return figure


def _by_time(axes: Axes, seconds: Floats, values: Floats) -> None:
    unit, size = _unit(_UNITS, float(seconds.max()))
    axes.plot(seconds / size, values, color=BLUE, lw=2.2, marker="o" if len(values) == 1 else None)
    axes.set_xlabel(f"simulated time, {unit}")
    axes.set_xlim(left=0)
    axes.grid(axis="y")


def _by_energy(axes: Axes, low: Floats, high: Floats, values: Floats) -> None:
    unit, size = _unit(_ENERGY, float(high.max()))
    for line, dashes, name in ((low, (0, (4, 2)), "low estimate"), (high, "-", "high estimate")):
        axes.plot(line / size, values, color=BLUE, lw=1.8, ls=dashes, label=name)
    axes.legend(loc="lower right")
    axes.set_xlabel(f"energy of all devices, {unit}")
    axes.set_xlim(left=0)
    axes.grid(axis="y")


def _by_hour(axes: Axes, run: Run) -> None:
    """Uploads that arrived in each hour of the day, by time zone, in the mean over days."""
    zones, days = by_hour(run), _hours_seen(run)
    hours = np.arange(25)
    known = sorted(zones, key=lambda zone: float(zone or 0))
    if len(known) > len(_COLOURS):
        zones = {"": np.sum([zones[zone] for zone in known], axis=0)}
        known = [""]
    for zone, colour in zip(known, _COLOURS, strict=False):
        line = zones[zone] / np.maximum(days, 1e-9)
        line = np.where(days > 0, line, np.nan)
        name = f"UTC{float(zone):+g}" if zone else "all"
        axes.stairs(line, hours, color=colour, lw=2.0, label=name, baseline=None)
    axes.set_xlim(0, 24)
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(0, 25, 3), [f"{hour}:00" for hour in range(0, 25, 3)])
    axes.set_xlabel("hour of the day, UTC")
    axes.set_ylabel("uploads per hour")
    axes.grid(axis="y")
    if len(known) > 1:
        axes.legend(ncols=len(known), loc="upper right")


def by_hour(run: Run) -> dict[str, Floats]:
    """How many uploads arrived in each hour of the day, `[24]`, by time zone ("" for all)."""
    found: dict[str, Floats] = {}
    for cohort in run.participation:
        if cohort.timing is None:
            continue
        hour = int(cohort.timing.end % DAY // HOUR)
        zones = {name: arrived for name, (_, arrived) in cohort.timing.zones.items()}
        for zone, arrived in (zones or {"": len(cohort.present)}).items():
            found.setdefault(zone, np.zeros(24))[hour] += arrived
    return found


def _hours_seen(run: Run) -> Floats:
    """How often each hour of the day was, within the run, `[24]`."""
    assert run.simulated is not None
    end = run.simulated["seconds"]
    whole, rest = divmod(end, DAY)
    hours = np.arange(24) * HOUR
    seen: Floats = whole + np.clip((rest - hours) / HOUR, 0, 1)
    return seen


def _unit(units: dict[str, float], most: float) -> tuple[str, float]:
    """The largest unit of which there are two or more."""
    large = [(name, size) for name, size in units.items() if most >= 2 * size]
    return (large or list(units.items())[-1:])[0]
