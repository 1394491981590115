# SPDX-License-Identifier: Apache-2.0
"""How an attack went, round by round: the metric, and how often adversaries have their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from archipel.report.style import BLUE, ORANGE
from archipel.scorecard.words import metric_name

if TYPE_CHECKING:
    from archipel.runs.run import Run


def attack(run: Run) -> Figure | None:
    """The metric and the attack's success by round; None where it wants nothing in particular."""
    entries = [entry for entry in run.history if "attack_success" in entry]
    if not entries:
        return None
    figure = Figure(figsize=(9.0, 3.0), layout="constrained")
    axes = figure.subplots()
    rounds, mark = [entry["round"] for entry in entries], "o" if len(entries) == 1 else None
    metric = [entry["metrics"].get(run.metric) for entry in entries]
    success = [entry["attack_success"] for entry in entries]
    axes.plot(rounds, metric, color=BLUE, lw=2.2, marker=mark, label=metric_name(run.metric))
    axes.plot(rounds, success, color=ORANGE, lw=2.2, marker=mark, label="attack's success")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("round")
    axes.legend(loc="center right")
    axes.grid(axis="y")
    return figure
