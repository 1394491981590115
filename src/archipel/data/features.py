# SPDX-License-Identifier: Apache-2.0
"""How a row becomes the point that a model sees, written down while data is read.

Whoever reads a table for training notes here what was done to it: the columns and their values,
what an empty cell becomes, mean and scale. Whoever applies the model later does the same again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from archipel.data.column import Column
from archipel.data.dialect import UNSAID, Written
from archipel.data.scaling import Scaling
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    import pandas as pd

    from archipel.data.schema import Schema


class Points(NamedTuple):
    """What a table gives a model."""

    x: Tensor  # [n, *shape] as the model sees them
    y: Tensor | None  # targets in their own units, where they were asked for
    ignored: list[str]  # columns that were not read


@dataclass(frozen=True, eq=False)
class Features:
    """The columns of a table, and what happens to their numbers in this order.

    >>> features = Features().scaled(Scaling(torch.tensor([5.0]), torch.tensor([2.0])))
    >>> features.apply(torch.tensor([[9.0]])).tolist()
    [[2.0]]
    """

    schema: Schema | None = None  # None where points come as arrays
    fill: Tensor | None = None  # what an empty cell becomes, float64 of the shape of a point
    precision: torch.dtype = torch.float64  # of the numbers that are scaled
    scaling: Scaling | None = None  # what they are moved and divided by
    target: Scaling | None = None  # and a number to predict, for training

    @classmethod
    def of(cls, schema: Schema, scaling: Scaling | None) -> Features:
        """Of a table that is read by a schema, on the scale of its columns (`Schema.summed`)."""
        features, d = cls(schema), len(schema.columns)
        if scaling is None:
            return features
        of_points = Scaling(scaling.mean[:d], scaling.scale[:d])
        if schema.missing == "mean":
            features = features.filled(of_points.mean)
        if not schema.standardise:
            return features
        target = Scaling(scaling.mean[d], scaling.scale[d]) if schema.scales_target else None
        return features.scaled(of_points.without(schema.marks)).aimed(target)

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of their numbers; none where they have none."""
        targets = () if self.schema is None else self.schema.targets
        return [str(value) for value in targets[0].values] if len(targets) == 1 else []

    def filled(self, fill: Tensor) -> Features:
        """The same, with these numbers in empty cells."""
        return replace(self, fill=fill)

    def scaled(self, scaling: Scaling, precision: torch.dtype = torch.float64) -> Features:
        """The same, then scaled; numbers of this precision were."""
        if self.scaling is not None:  # once more: as one step
            before, after = self.scaling, scaling
            mean = before.mean + before.scale * after.mean
            return replace(self, scaling=Scaling(mean, before.scale * after.scale))
        return replace(self, scaling=scaling, precision=precision)

    def aimed(self, target: Scaling | None) -> Features:
        """The same, with numbers to predict scaled for training."""
        return replace(self, target=target)

    def apply(self, x: Tensor) -> Tensor:
        """Turn numbers, float64 with NaN in empty cells, into what a model is given."""
        if self.fill is not None:
            x = torch.where(x.isnan(), self.fill, x)
        x = x.to(self.precision)
        return x if self.scaling is None else self.scaling.apply(x)

    # -- a table to predict ------------------------------------------------------------------------

    def read(
        self, table: Path | pd.DataFrame, outcomes: bool = False, written: Written = UNSAID
    ) -> Points:
        """Read a table as training did, or refuse it in a sentence; with `outcomes`, targets, too.

        Columns may have any order, and those that are not needed are not read.
        """
        if self.schema is None:
            raise ArchipelError("the model was not trained on a table: give an array.")
        schema = replace(self.schema, written=written)
        cells, ignored = schema.cells(table, outcomes)
        x = torch.from_numpy(schema.encode(cells))
        y = torch.from_numpy(schema.outcomes(cells)) if outcomes else None
        return Points(self.apply(x).float(), y, ignored)

    # -- in a file ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain values, with every digit of the numbers."""

        def flat(numbers: Tensor | None) -> list[float] | None:
            return None if numbers is None else numbers.double().flatten().tolist()

        schema, scaling, target = self.schema, self.scaling, self.target
        words = {"empty": list(schema.empty_words)} if schema and schema.empty_words else {}
        return {
            "columns": None if schema is None else [_plain(c) for c in schema.features],
            "targets": None if schema is None else [_plain(c) for c in schema.targets],
            "missing": "error" if schema is None else schema.missing,
            **words,
            "fill": flat(self.fill),
            "precision": str(self.precision).removeprefix("torch."),
            "mean": None if scaling is None else flat(scaling.mean),
            "scale": None if scaling is None else flat(scaling.scale),
            "target_mean": None if target is None else float(target.mean),
            "target_scale": None if target is None else float(target.scale),
        }

    @classmethod
    def of_json(cls, told: Mapping[str, Any], shape: tuple[int, ...]) -> Features:
        """Read back what `to_json` gave, for points of this shape."""
        from archipel.data.schema import Schema  # which reads tables by this file

        def point(name: str) -> Tensor | None:
            numbers = told[name]
            if numbers is None:
                return None
            return torch.tensor(numbers, dtype=torch.float64).reshape(shape)

        columns, targets = (
            tuple(_column(c) for c in told[name] or ()) for name in ("columns", "targets")
        )
        words = tuple(told.get("empty", ()))
        mean, scale = point("mean"), point("scale")
        aim = [told.get(name) for name in ("target_mean", "target_scale")]  # none before 0.4
        return cls(
            None
            if told["columns"] is None
            else Schema(columns, targets, told["missing"], empty_words=words),
            point("fill"),
            torch.float64 if told["precision"] == "float64" else torch.float32,
            None if mean is None or scale is None else Scaling(mean, scale),
            None if None in aim else Scaling(*torch.tensor(aim, dtype=torch.float64)),
        )


def _plain(column: Column) -> dict[str, Any]:
    limits = {"unit": column.unit, "min": column.min, "max": column.max}
    date = {"date": True} if column.date else {}
    return {"name": column.name, "values": list(column.values), **limits, **date}


def _column(told: Mapping[str, Any]) -> Column:
    return Column(
        told["name"], tuple(told["values"]), told["unit"], told["min"], told["max"],
        date=told.get("date", False),
    )  # fmt: skip
