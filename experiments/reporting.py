# SPDX-License-Identifier: Apache-2.0
"""What every experiment leaves beside itself: results.json, table.md, and plots in one style."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

import archipel as ar

# Okabe and Ito's colours, told apart with any kind of colour vision
BLUE, ORANGE, GREEN, PURPLE, SKY, GREY, INK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8A8F98", "#2B2F38",
)  # fmt: skip

mpl.rcParams |= {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 11,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "font.size": 11,
    "grid.color": "#E4E7EC",
    "grid.linewidth": 0.7,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "xtick.color": INK,
    "ytick.color": INK,
}


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table, its columns aligned."""
    cells = [list(header), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def gates(checks: Sequence[tuple[str, str, bool]]) -> str:
    """Return a Markdown table of (what must hold, what was measured, whether it holds)."""
    rows = [(what, measured, "yes" if holds else "NO") for what, measured, holds in checks]
    return table(["must hold", "measured", "holds"], rows)


def save(folder: Path, results: dict[str, Any], tables: str, figures: dict[str, Figure]) -> None:
    """Write results.json, table.md and the figures, and print the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"archipel": "0.1.0", "torch": torch.__version__}
    document = {"versions": versions, **results}
    (folder / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    show(folder, tables, figures)


def show(folder: Path, tables: str, figures: dict[str, Figure]) -> None:
    """Write table.md and the figures of results that are kept elsewhere, and print the tables."""
    (folder / "table.md").write_text(tables.rstrip() + "\n")
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=150)
    print(tables)


def has_reached(run: ar.Run, target: float) -> bool:
    """Say whether a run has got to the target accuracy."""
    return run.rounds_to(target) is not None


def first_round(run: ar.Run, target: float) -> int | None:
    """Return the first round at the target accuracy."""
    return next((t for t, a in zip(*run.curve(), strict=True) if a >= target), None)
