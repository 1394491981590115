# SPDX-License-Identifier: Apache-2.0
"""Who contributed to a run's model, where that was measured: the figure, the table, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from archipel.errors import clean
from archipel.report.style import BLUE, GREY, INK, ORANGE, bare, short
from archipel.scorecard.words import duration, plural

if TYPE_CHECKING:
    from archipel.runs.run import Run

NAMED = 30  # parties with a bar; of more, those of most and of least worth


class WorthRow(NamedTuple):
    """A party's line in the table."""

    name: str
    examples: str
    rounds: str
    shapley: str
    error: str
    left_out: str
    suspicion: str


def rows(found: dict[str, Any]) -> list[WorthRow]:
    """A line for each party that took part, most worth first."""
    return [
        WorthRow(
            clean(row["party"]),
            f"{row['examples']:,}",
            f"{row['rounds']:,}",
            f"{row['shapley']:.4f}",
            "exact" if found["exact"] else f"{row['error']:.4f}",
            f"{row['leave_one_out']:.4f}",
            row["suspicion"],
        )
        for row in found["parties"]
    ]


def worth(run: Run) -> Figure | None:
    """Shapley values with their standard errors, and what is missing without each party."""
    found = run.worth
    if found is None or not found["parties"]:
        return None
    parties = found["parties"]
    if len(parties) > NAMED:
        parties = parties[: NAMED // 2] + parties[-(NAMED // 2) :]
    at = np.arange(len(parties))
    value, error, alone = (
        np.array([row[name] for row in parties], float)
        for name in ("shapley", "error", "leave_one_out")
    )
    figure = Figure(figsize=(9.0, 1.25 + 0.36 * len(parties)), layout="constrained")
    axes = figure.subplots()
    idle = np.array([bool(row["suspicion"]) for row in parties])
    for group, colour, label in (
        (~idle, BLUE, "Shapley value"),
        (idle, ORANGE, "of one that looks like a free rider"),
    ):
        if group.any():
            axes.barh(at[group], value[group], 0.62, color=colour, label=label)
    if error.any():
        axes.errorbar(value, at, xerr=error, fmt="none", ecolor=INK, elinewidth=1.2, capsize=3)
    axes.scatter(
        alone, at, s=42, marker="D", facecolor="white", edgecolor=INK, lw=1.2, zorder=3,
        label="missing without it",
    )  # fmt: skip
    axes.axvline(0, color=GREY, lw=0.8)
    axes.set_yticks(at, [short(row["party"]) for row in parties])
    axes.set_ylim(len(parties) - 0.4, -0.6)
    axes.set_xlabel(f"gain in {found['of']}")
    axes.grid(axis="x")
    bare(axes)
    figure.legend(loc="outside upper left", ncols=3)
    return figure


def caption(found: dict[str, Any], done: int) -> str:
    """What was measured of so many rounds, how sure it is, and what it cost."""
    some = "" if found["rounds"] == done else f" of {done:,}"
    sure = "exact" if found["exact"] else "by drawn orders, each with its standard error"
    text = (
        f"What each party added in {plural(found['rounds'], 'round')}{some} to {found['models']}: "
        f"{found['of']} on test points, {found['total']:.4f} in all, {sure}. It took "
        f"{found['evaluated']:,} models that were scored, {duration(found['seconds'])}, and the "
        "rounds again; no upload was kept."
    )
    if len(found["parties"]) > NAMED:
        text += f" Drawn are the {NAMED // 2} of most and the {NAMED // 2} of least worth."
    return " ".join([text, *(f"Mind: {note}" for note in found["notes"])])
