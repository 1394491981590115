# SPDX-License-Identifier: Apache-2.0
"""What is in the columns of one's own table, and what looks wrong: for those who answer for it.

Nothing of this leaves the machine that has the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from archipel.data.column import Column

Numbers = npt.NDArray[np.float64]
_NOTHING = (-9.0, -99.0, -999.0, -9999.0, 999.0, 9999.0, 99999.0)  # often written for no value
_UNITS: Mapping[str, Mapping[str, float]] = {  # the unit that was agreed, and others times what
    "kg": {"pounds": 0.45359, "grams": 0.001},
    "g": {"kg": 1000, "ounces": 28.35},
    "cm": {"inches": 2.54, "metres": 100, "mm": 0.1, "feet": 30.48},
    "m": {"cm": 0.01, "feet": 0.3048, "inches": 0.0254},
    "mmhg": {"kPa": 7.5006},
    "kpa": {"mmHg": 0.13332},
    "mg/dl": {
        "µmol/l of creatinine": 1 / 88.42,
        "mmol/l of glucose": 18.016,
        "mmol/l of cholesterol": 38.67,
        "mmol/l of triglycerides": 88.57,
        "g/l": 100,
    },
    "mmol/l": {
        "mg/dl of glucose": 1 / 18.016,
        "mg/dl of cholesterol": 1 / 38.67,
        "mg/dl of triglycerides": 1 / 88.57,
    },
    "µmol/l": {"mg/dl of creatinine": 88.42, "mmol/l": 1000},
    "g/dl": {"g/l": 0.1, "mmol/l of haemoglobin": 1.611},
    "g/l": {"g/dl": 10, "mg/dl": 0.01},
    "years": {"months": 1 / 12, "days": 1 / 365.25},
    "months": {"days": 1 / 30.44, "years": 12},
    "days": {"months": 30.44, "years": 365.25, "hours": 1 / 24},
}
_SPELT = {
    "μmol/l": "µmol/l", "umol/l": "µmol/l", "year": "years", "a": "years", "month": "months",
    "day": "days", "d": "days",
}  # fmt: skip
_TENS = (0.001, 0.01, 0.1, 10.0, 100.0, 1000.0)


class Summary(NamedTuple):
    """One column of a party's own table, over the rows that are used."""

    name: str
    kind: str  # number, or values
    unit: str
    quartiles: list[float]  # minimum, quartiles, maximum; none where no cell has a number
    counts: dict[str, int]  # cells of each value
    missing: int  # empty cells, over all rows
    share: float  # of them in all rows
    notes: list[str]  # what looks wrong


def summary(column: Column, numbers: Numbers, missing: int, rows: int) -> Summary:
    """Sum a column up: its numbers, or the places of its values in their list, NaN where empty."""
    known = numbers[~np.isnan(numbers)]
    quartiles, counts = [], {}
    if column.values:
        counts = {str(v): int((known == code).sum()) for code, v in enumerate(column.values)}
    elif len(known):
        quartiles = [float(q) for q in np.quantile(known, [0, 0.25, 0.5, 0.75, 1])]
    kind = "values" if column.values else "number"
    share = missing / rows if rows else 0.0
    notes = list(_notes(column, known))
    return Summary(column.name, kind, column.unit, quartiles, counts, missing, share, notes)


def outside(column: Column, numbers: Numbers) -> npt.NDArray[np.bool_]:
    """Which numbers are out of the range that was agreed."""
    low = -np.inf if column.min is None else column.min
    high = np.inf if column.max is None else column.max
    return (numbers < low) | (numbers > high)


def reason(column: Column, value: float, numbers: Numbers) -> str:
    """Why a number may be out of range, as the remedy to name; empty where nothing is known."""
    if value in _NOTHING:
        return f"if {value:g} stands for nothing, leave the cell empty"
    units = _other_units(column, numbers[~np.isnan(numbers)])
    return f"{units}?" if units else ""


def _notes(column: Column, known: Numbers) -> Iterator[str]:
    if len(known) == 0:
        yield "no cell has a value"
        return
    if (known == known[0]).all():
        only = column.values[int(known[0])] if column.values else f"{known[0]:g}"
        yield f"constant: every value is {only}"
    if column.values:
        return
    if count := int(outside(column, known).sum()):
        yield f"OUT OF RANGE: {_cells(count)} not within {column.range}"
    if units := _other_units(column, known):
        yield f"{units}?"
    for value in stand_ins(known):
        count = int((known == value).sum())
        yield (
            f"STANDS FOR NOTHING? {value:g} in {_cells(count)}, far from all others; it would "
            "count as a number: leave such cells empty"
        )


def _cells(count: int) -> str:
    return f"{count} cell" + "s" * (count != 1)


def stand_ins(known: Numbers) -> list[float]:
    """Numbers that often stand for nothing and lie far outside all others of a column."""
    others = known[~np.isin(known, _NOTHING)]
    if len(others) == 0:
        return []
    low, high = float(others.min()), float(others.max())
    below = 0.0 if low >= 0 else low - (high - low)
    above = high + max(high - low, abs(high))
    return [v for v in _NOTHING if (v < below or v > above) and (known == v).any()]


def _other_units(column: Column, known: Numbers) -> str:
    """Units in which the numbers would be within the range that they are not in now."""
    known = known[~np.isin(known, _NOTHING)]
    if len(known) == 0 or column.min is None or column.max is None:
        return ""
    middle = np.quantile(known, [0.25, 0.5, 0.75])
    if not outside(column, middle)[1]:
        return ""
    unit = column.unit.lower()
    named = _UNITS.get(_SPELT.get(unit, unit), {})
    found = [
        f"looks like {other} (x {factor:.4g})"
        for other, factor in named.items()
        if not outside(column, middle * factor).any()
    ]
    if unit in ("°c", "c", "celsius") and not outside(column, (middle - 32) / 1.8).any():
        found.append("looks like degrees Fahrenheit")
    tens = [f"{f:g}" for f in _TENS if not outside(column, middle * f).any()]
    if not found and tens:
        found = [f"would be in range times {' or '.join(tens)}"]
    return ", or ".join(found[:3])
