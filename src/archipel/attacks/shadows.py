# SPDX-License-Identifier: Apache-2.0
"""Shadow models.  Shokri, Stronati, Song, Shmatikov, IEEE S&P 2017,
https://arxiv.org/abs/1610.05820, section V.

A classifier is trained on how sure models of the adversary's own are of records that they were
trained on, and of others; then it is asked of the model that is attacked.

Departures: one classifier for all classes, a logistic regression on the three largest
log-probabilities, the loss, and their squares, where the paper has a network for each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.attacks.case import Family, Has, Shadow, Signals
from archipel.attacks.classifier import fit

_MOST = 20_000  # examples that the classifier is trained on


@dataclass(frozen=True)
class Shadows:
    """A classifier trained on models of the adversary's own."""

    family: ClassVar[Family] = "membership"
    needs: ClassVar[frozenset[Has]] = frozenset({"final"})

    def scores(self, seen: Signals, shadows: Sequence[Shadow]) -> Tensor:
        features = torch.cat([_features(shadow.signals) for shadow in shadows])
        used = torch.cat([shadow.used for shadow in shadows])
        step = -(-len(features) // _MOST)
        return fit(features[::step], used[::step]).scores(_features(seen))


def _features(signals: Signals) -> Tensor:
    loss = signals.loss.double().clamp(max=50.0).unsqueeze(-1)
    features = torch.cat([signals.sure.double().clamp(min=-50.0), loss], dim=1)
    return torch.cat([features, features.square()], dim=1)
