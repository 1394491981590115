# SPDX-License-Identifier: Apache-2.0
"""What a party measures of a model on its own test points, and what of it may leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from archipel import metrics
from archipel.core import Vector
from archipel.data.federation import Federation
from archipel.metrics import Guarded
from archipel.models.model import Model


class Rules(Protocol):
    """What the party's owner allows to leave; checks raise where it must not."""

    @property
    def scores(self) -> int:
        """Models that are scored at most."""

    @property
    def least(self) -> int:
        """Parties in a sum, at the fewest."""

    def check_upload(self, records: int, rows: int) -> None:
        """An upload was computed from so many of the party's training points."""

    def check_model(self, model: Model, w: Vector) -> None:
        """The party was sent parameters to train on."""

    def rounded(
        self, scores: Mapping[str, float], guarded: Mapping[str, Guarded], points: int
    ) -> dict[str, float]:
        """Scores as they may leave, made of the exact ones or of those that no point moves far."""


Answer = tuple[dict[str, float], dict[str, float] | None]  # scores of the shared model, of the own


class Learnt(NamedTuple):
    """A model, and the buffers that go with it; None where it has none."""

    w: Tensor
    buffers: Tensor | None


class Test(NamedTuple):
    """A party's test points, and how a model is measured on them."""

    x: Tensor
    y: Tensor
    task: str
    how: tuple[Any, ...]  # the loss, metrics of the model's own, and the unit of the target

    @classmethod
    def of(cls, data: Federation, party: int, model: Model) -> Test:
        rows = slice(int(data.test_from[party]), int(data.offsets[party + 1]))
        how = (model.loss_function, model.metrics, data.features.target)
        return cls(data.x[rows], data.y[rows], data.task, how)

    def score(self, outputs: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Metrics of a model that gives these outputs; empty where there are no points."""
        return metrics.pool(self.task, outputs(self.x), self.y, *self.how) if len(self.x) else {}

    def told(self, outputs: Callable[[Tensor], Tensor], rules: Rules | None) -> dict[str, float]:
        """The same as it may leave by these rules."""
        if len(self.x) == 0:
            return {}
        made = outputs(self.x)
        found = metrics.pool(self.task, made, self.y, *self.how)
        if rules is None:
            return found
        guarded = metrics.guarded(self.task, made, self.y, *self.how)
        return rules.rounded(found, guarded, len(self.x))
