# SPDX-License-Identifier: Apache-2.0
"""bundle.json: what a bundle says of its model, checked before anything is made of it."""

from __future__ import annotations

import json
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from archipel.data.features import Features
from archipel.errors import ArchipelError

FORMAT = 2  # 1 had no scale of the target
_MOST_VALUES, _MOST_CLASSES = 1 << 24, 1 << 20

Text = Annotated[str, Field(max_length=10_000)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Numbers = list[float] | None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ColumnPart(_Part):
    """A column of the table: its values in order, none for numbers and dates."""

    name: Text
    values: list[int] | list[str]
    unit: Text
    min: float | None
    max: float | None
    date: bool = False  # fed as days since 1970


class FeaturesPart(_Part):
    """How a row becomes a point: `archipel.data.features.Features` as plain values."""

    columns: list[ColumnPart] | None
    targets: list[ColumnPart] | None
    missing: Literal["error", "drop", "mean"]
    empty: list[Text] = []  # words that mean an empty cell, beside the usual ones
    fill: Numbers
    precision: Literal["float32", "float64"]
    mean: Numbers
    scale: Numbers
    target_mean: float | None = None
    target_scale: Annotated[float, Field(gt=0)] | None = None


class NetworkPart(_Part):
    """The architecture: a name, and what it is built with."""

    name: Text
    options: dict[str, Any]
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=8)]
    outputs: Annotated[int, Field(ge=1, le=_MOST_CLASSES)]
    loss: Text | None  # None for one of the user's own
    class_weights: Annotated[list[float], Field(max_length=_MOST_CLASSES)] | None = None


class StudyPart(_Part):
    """What was asked for."""

    name: Text
    purpose: str
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    algorithm: Text
    rounds: Count


class Manifest(_Part):
    """All of bundle.json."""

    format: int
    archipel: Text
    made: Text
    task: Literal["classification", "regression", "survival", "text"]
    classes: Annotated[int, Field(ge=0, le=_MOST_CLASSES)]
    network: NetworkPart
    features: FeaturesPart
    study: StudyPart
    model: Text  # whose it is
    party: Text | None
    statistics: Text  # of BatchNorm; empty where the model has none
    metrics: dict[str, float | None]  # of this bundle
    measured: Text  # on what
    reported: dict[str, float | None]  # by the run

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Check a file's content."""
        try:
            told = json.loads(content, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise ArchipelError("bundle.json is not JSON; get the bundle again.") from None
        number = told.get("format") if isinstance(told, dict) else None
        if type(number) is int and number > FORMAT:
            raise ArchipelError(
                f"bundle.json has format {number}, and this version reads up to {FORMAT}: update "
                "Archipel."
            )
        try:
            return cls.model_validate(told)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "it"
            raise ArchipelError(f"bundle.json, {place}: {first['msg']}; get it again.") from None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Numbers that have to agree with one another."""
        features, points = self.features, prod(self.network.shape)
        if not 1 <= self.format <= FORMAT:
            raise ValueError(f"format {self.format} is none")
        if points > _MOST_VALUES:
            raise ValueError("a point has too many numbers")
        for name in ("fill", "mean", "scale"):
            numbers = getattr(features, name)
            if numbers is not None and len(numbers) != points:
                raise ValueError(f"features.{name} has not {points} numbers")
        if (features.mean is None) != (features.scale is None) or min(features.scale or [1]) <= 0:
            raise ValueError("features.scale does not fit features.mean")
        if (features.target_mean is None) != (features.target_scale is None):
            raise ValueError("features.target_scale does not fit features.target_mean")
        if features.target_scale is not None and self.task != "regression":
            raise ValueError("features.target_scale does not fit the task")
        if features.missing == "mean" and features.fill is None and features.mean is None:
            raise ValueError("features.fill is missing")
        if features.columns is not None:
            self._fit_columns(features.columns, features.targets or [])
        return self

    def _fit_columns(self, columns: list[ColumnPart], targets: list[ColumnPart]) -> None:
        encoded = sum(max(1, len(column.values) - 1) for column in columns)
        names = [column.name for column in (*columns, *targets)]
        if [encoded] != self.network.shape or any(len(c.values) == 1 for c in columns):
            raise ValueError("features.columns do not fit network.shape")
        if len(set(names)) < len(names):
            raise ValueError("features.columns has a name twice")
        if len(targets) > 2 or (targets and (len(targets) == 2) != (self.task == "survival")):
            raise ValueError("features.targets do not fit the task")
        if targets and self.task == "classification" and len(targets[0].values) != self.classes:
            raise ValueError("features.targets do not fit the classes")

    def to_features(self) -> Features:
        return Features.of_json(self.features.model_dump(), tuple(self.network.shape))

    @property
    def labels(self) -> list[Any]:
        """The classes by name, or by number where they have none."""
        targets = self.features.targets
        return list(targets[0].values) if targets and self.classes else list(range(self.classes))


def _refuse(constant: str) -> None:
    raise ValueError(constant)
