# SPDX-License-Identifier: Apache-2.0
"""The figure of what was spent of privacy, and what it bought."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archipel.report.style import BLUE, GREY, ORANGE
from archipel.scorecard.words import metric_name

if TYPE_CHECKING:
    from archipel.runs.run import Run


def privacy(run: Run) -> Figure | None:
    """ε over the rounds that count, and the metric that it bought; None where none is promised."""
    promise = run.scorecard.privacy.promise
    if promise is None or not promise.curve:
        return None
    rounds, spent = (np.array(part, float) for part in zip(*promise.curve, strict=True))
    figure = Figure(figsize=(9.0, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(rounds, spent, color=ORANGE, lw=2.4, marker="o", ms=4)
    if promise.planned is not None:
        left.axhline(promise.planned, color=GREY, lw=1.2, ls="--")
        left.annotate(
            "planned", (1, promise.planned), xycoords=("axes fraction", "data"), ha="right",
            xytext=(0, 3), textcoords="offset points", color=GREY,
        )  # fmt: skip
    left.set(xlabel="rounds that count", ylabel=f"ε at δ = {promise.delta:g}", ylim=(0, None))
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not run.metrics:  # nobody has test points
        right.set_axis_off()
        return figure
    evaluated, values = run.curve()
    at = np.interp(np.array(evaluated) * rounds[-1] / max(run.done, 1), [0, *rounds], [0, *spent])
    right.plot(at, np.array(values, float), color=BLUE, lw=2.4, marker="o", ms=4)
    right.set(xlabel="ε spent", ylabel=metric_name(run.metric), xlim=(0, None))
    return figure
