# SPDX-License-Identifier: Apache-2.0
"""Results as pandas frames: a run round by round, a comparison seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archipel.errors import ArchipelError
from archipel.runs.history import Round

if TYPE_CHECKING:
    from pandas import DataFrame

    from archipel.comparison import Comparison, Result
    from archipel.runs.run import Run

_PARTS = {  # of an evaluation, and how its columns begin
    "metrics": "",
    "own": "own_",
    "new": "new_",
    "own_new": "own_new_",
    "seen_parties": "parties_",
    "new_parties": "new_parties_",
    "bytes": "bytes_",
}


def of_run(run: Run) -> DataFrame:
    """A row per evaluated round: its metrics, their spread over parties, and what it cost so far.

    `own_` is of each party's own model, `new_` of parties that were never seen in training.
    """
    return _frame([_flat(entry) for entry in run.history], ["round"])


def _flat(entry: Round) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in entry.items():
        if name == "simulated":
            joules = {f"joules_{end}": number for end, number in value["energy"].items()}
            row |= {"simulated_seconds": value["seconds"], **joules}
        elif name in _PARTS:
            row |= {_named(name, each): number for each, number in (value or {}).items()}
        else:
            row[name] = ", ".join(value) if isinstance(value, list) else value
    return row


def _named(part: str, name: str) -> str:
    """The column of a number; "parties" in a spread is how many there are."""
    begins = _PARTS[part]
    return begins.removesuffix("_") if begins.endswith(f"{name}_") else begins + name


def of_comparison(comparison: Comparison) -> DataFrame:
    """A row per algorithm, or baseline, and seed: the last metrics, and the table's figures."""
    rows = []
    for baseline, group in enumerate((comparison.rows, comparison.baselines)):
        for row in group:
            for number, result in enumerate(row.results):
                figures = {name: _float(stat.values[number]) for name, stat in row.figures.items()}
                rows.append(_line(result, bool(baseline), figures))
    return _frame(rows, ["algorithm", "seed"])


def _line(result: Result, baseline: bool, figures: Mapping[str, float]) -> dict[str, Any]:
    return {
        "algorithm": result.label,
        "baseline": baseline,
        "seed": result.seed,
        **{f"chosen_{name}": value for name, value in result.chosen.items()},
        **(result.last.get("metrics") or {}),
        **figures,
        "failed": result.failed,
    }


def _float(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _frame(rows: Sequence[Mapping[str, Any]], columns: list[str]) -> DataFrame:
    try:
        import pandas as pd
    except ImportError:
        raise ArchipelError(
            "to_frame() needs pandas: install it with pip install 'archipel[frames]'."
        ) from None
    return pd.DataFrame(rows, columns=None if rows else columns)
