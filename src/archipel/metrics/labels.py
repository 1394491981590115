# SPDX-License-Identifier: Apache-2.0
"""Metrics of outputs for classes, for all parties at once; each equals scikit-learn's.

Of two classes the second is the positive one. NaN where a metric is undefined: a ranking, where a
class has no point or all of them; F1 of two classes, where none is positive nor predicted to be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from archipel.metrics import calibration
from archipel.metrics.groups import mean, party_of
from archipel.metrics.ranking import auc, average_precision


class Classified:
    """What a model says of labelled points, of two classes or more."""

    def __init__(self, outputs: Tensor, targets: Tensor, offsets: Tensor) -> None:
        """Outputs `[N, k]`, or `[N]` and `[N, 1]` for the odds of the second of two classes."""
        outputs = outputs.unsqueeze(-1) if outputs.dim() == 1 else outputs
        self.offsets, self.classes = offsets, max(2, outputs.shape[-1])
        if self.classes == 2:
            self.margin = (
                outputs[:, -1] - outputs[:, 0] if outputs.shape[-1] == 2 else outputs[:, 0]
            )
            self.labels = (targets > 0).long()
            self.predicted = (self.margin > 0).long()
        else:
            self.outputs, self.labels = outputs, targets
            self.predicted = outputs.argmax(dim=-1)

    @property
    def usual(self) -> tuple[str, ...]:
        return ("accuracy", "auc") if self.classes == 2 else ("accuracy",)

    def measure(self, name: str) -> Tensor:
        """A metric of each party, `[K]`; KeyError where there is none of that name."""
        return _FORMULAS[name](self)

    @property
    def known(self) -> list[str]:
        return [name for name in _FORMULAS if self.classes == 2 or name not in _OF_TWO]

    @cached_property
    def chances(self) -> Tensor:
        """Predicted chances of the classes, `[N, k]`."""
        if self.classes > 2:
            return self.outputs.double().softmax(dim=-1)
        chance = torch.sigmoid(self.margin.double())
        return torch.stack([1 - chance, chance], dim=-1)

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of each party and class, `[K, k]`: points, points predicted as such, and rightly so."""
        cell, size = party_of(self.offsets) * self.classes, self.offsets.numel() - 1

        def of(labels: Tensor) -> Tensor:
            counted = labels.bincount(minlength=size * self.classes)
            return counted.view(size, self.classes).double()

        right = (cell + self.labels)[self.predicted == self.labels]
        return of(cell + self.labels), of(cell + self.predicted), of(right)

    def over_classes(self, metric: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        """A ranking of two classes, or the mean over classes, each against the others."""
        if self.classes == 2:
            return metric(self.margin, self.labels > 0, self.offsets)
        found = [
            metric(self.chances[:, k], self.labels == k, self.offsets) for k in range(self.classes)
        ]
        return torch.stack(found).mean(dim=0)

    def f1(self, macro: bool) -> Tensor:
        """2 right / (points + predicted): of the positive class, or the mean over those met."""
        points, predicted, right = self.counts
        each = 2 * right / (points + predicted)  # NaN where a class is neither there nor predicted
        return each.nanmean(dim=1) if macro else each[:, 1]

    def balanced_accuracy(self) -> Tensor:
        """The mean over classes that have points of the share of them that is found."""
        points, _, right = self.counts
        return (right / points).nanmean(dim=1)


_FORMULAS: dict[str, Callable[[Classified], Tensor]] = {
    "accuracy": lambda c: mean(c.predicted == c.labels, c.offsets),
    "auc": lambda c: c.over_classes(auc),
    "average_precision": lambda c: c.over_classes(average_precision),
    "balanced_accuracy": Classified.balanced_accuracy,
    "brier": lambda c: calibration.brier(c.chances, c.labels, c.offsets),
    "ece": lambda c: calibration.ece(c.chances, c.labels, c.offsets),
    "f1": lambda c: c.f1(macro=c.classes > 2),
    "f1_macro": lambda c: c.f1(macro=True),
    "calibration_intercept": lambda c: calibration.intercept(c.margin, c.labels > 0, c.offsets),
    "calibration_slope": lambda c: calibration.slope(c.margin, c.labels > 0, c.offsets),
}
_OF_TWO = ("calibration_intercept", "calibration_slope")
