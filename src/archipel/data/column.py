# SPDX-License-Identifier: Apache-2.0
"""What a study says of one column: numbers in a unit and a range, dates, or values in an order."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from archipel.errors import ArchipelError, unknown

_KEYS = {
    "number": ("kind", "unit", "min", "max", "missing"),
    "date": ("kind", "missing"),
    "values": ("values", "missing"),
}


class Column(NamedTuple):
    """A column of a table: numbers, dates as numbers of days, or some values in an order."""

    name: str
    values: tuple[int, ...] | tuple[str, ...] = ()  # none for numbers
    unit: str = ""
    min: float | None = None
    max: float | None = None
    missing: float | None = None  # the largest share of empty cells
    date: bool = False  # read as days since 1970

    @classmethod
    def of(cls, name: str, kind: Any, section: str = "data.schema") -> Column:
        """Check what a study says of a column."""
        field = f"{section}.{name} = {json.dumps(kind, default=str, ensure_ascii=False)}"
        if not isinstance(kind, Mapping):
            return cls(name, _values(field, kind), date=kind == "date")
        if ("kind" in kind) == ("values" in kind):
            raise ArchipelError(f'{field}: give kind = "number", or values, one of the two.')
        values = _values(field, kind.get("kind", kind.get("values")))
        if bool(values) != ("values" in kind):
            raise ArchipelError(f'{field}: give kind = "number", or a list of values.')
        date = kind.get("kind") == "date"
        known = _KEYS["values" if values else "date" if date else "number"]
        for key in kind:
            if key not in known:
                raise unknown(f"key of {section}.{name}", key, known)
        return cls(name, values, date=date, **_limits(field, kind))

    @property
    def kind(self) -> str:
        """In a word."""
        return "category" if self.values else "date" if self.date else "number"

    @property
    def read_as(self) -> tuple[int, ...] | tuple[str, ...]:
        """Its values, none for numbers; a date is read as text."""
        return ("",) if self.date else self.values

    @property
    def encoded(self) -> list[str]:
        """Names of the features it becomes: a 0/1 one for each value but the first."""
        return [f"{self.name}={value}" for value in self.values[1:]] or [self.name]

    @property
    def identity(self) -> list[Any]:
        """What tables that are read alike agree on: name and values, and what else is said.

        The unit belongs to it: a table that was checked in kilograms is not one in pounds.
        """
        said = {key: value for key, value in self._asdict().items() if value not in ("", None)}
        more: dict[str, Any] = {
            key: said[key] for key in ("unit", "min", "max", "missing") if key in said
        }
        more |= {"date": True} if self.date else {}
        return [self.name, self.values, *([more] if more else [])]

    @property
    def range(self) -> str:
        """The range in words, with the unit."""
        low, high = (None if each is None else f"{each:g}" for each in (self.min, self.max))
        said = f"{low} to {high}" if low and high else f"{low} and more" if low else f"up to {high}"
        return f"{said} {self.unit}".rstrip() if low or high else self.unit


def _values(field: str, kind: Any) -> tuple[int, ...] | tuple[str, ...]:
    """The values of a column, none for numbers."""
    if kind in ("number", "date"):
        return ()
    if not isinstance(kind, list | tuple):
        raise ArchipelError(
            f'{field}: give "number", or a list of its values, or "date", or such as {{ kind = '
            '"number", unit = "years", min = 0, max = 120 }.'
        )
    if not (all(type(v) is int for v in kind) or all(type(v) is str for v in kind)):
        raise ArchipelError(f"{field}: give whole numbers, or texts in quotes, not both.")
    if len(kind) < 2:
        raise ArchipelError(f"{field}: give two values or more.")
    if len(set(kind)) < len(kind):
        twice = next(v for i, v in enumerate(kind) if v in kind[:i])
        raise ArchipelError(f"{field}: {json.dumps(twice)} is there twice; give it once.")
    if any(isinstance(v, str) and v.strip() != (v or " ") for v in kind):
        raise ArchipelError(f"{field}: give texts without blanks around them, none empty.")
    return tuple(kind)


def _limits(field: str, kind: Mapping[str, Any]) -> dict[str, Any]:
    """Unit, range and share of empty cells."""
    unit = kind.get("unit", "")
    if (
        not isinstance(unit, str)
        or not unit.isprintable()
        or unit.strip() != unit
        or len(unit) > 20
    ):
        raise ArchipelError(f'{field}: give the unit as a short text, unit = "kg".')
    numbers = {key: kind[key] for key in ("min", "max", "missing") if key in kind}
    for key, value in numbers.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ArchipelError(f"{field}: give {key} as a number.")
    if not 0 <= numbers.get("missing", 0) <= 1:
        raise ArchipelError(f"{field}: give missing as a share from 0 to 1, missing = 0.1.")
    if numbers.get("min", -math.inf) >= numbers.get("max", math.inf):
        raise ArchipelError(f"{field}: give a min below max.")
    return {"unit": unit, **{key: float(value) for key, value in numbers.items()}}
