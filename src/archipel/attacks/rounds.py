# SPDX-License-Identifier: Apache-2.0
"""Membership from what is seen over rounds.  After Nasr, Shokri, Houmansadr, IEEE S&P 2019,
https://arxiv.org/abs/1812.00910, the passive global and local attackers.

Of every round that it has, the adversary computes the record's loss at the model that was sent, and
at the one that the upload makes of it: how far a step lowers a record's loss is its gradient along
the step. Each is compared with the runs it made itself, with the record and without, and a
classifier trained on those runs weighs the rounds.

Departures: losses before and after a step stand for the paper's gradients and activations, and a
likelihood ratio per round with a logistic regression for its network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from archipel.attacks.case import Family, Has, Shadow, Signals
from archipel.attacks.classifier import fit
from archipel.attacks.ratio import fits, stable

_HELD = 6  # runs that the classifier is trained on, each held out of the Gaussians in turn


@dataclass(frozen=True)
class OverRounds:
    """Losses before and after every step that is seen, against runs of the adversary's own."""

    family: ClassVar[Family] = "membership"
    needs: ClassVar[frozenset[Has]] = frozenset({"models", "mean", "single"})

    def scores(self, seen: Signals, shadows: Sequence[Shadow]) -> Tensor:
        values = torch.stack([features(shadow.signals) for shadow in shadows])  # [S, N, f]
        used = torch.stack([shadow.used for shadow in shadows])
        held = range(min(_HELD, len(shadows)))
        rest = [torch.arange(len(shadows)) != s for s in held]
        trained = [ratios(values[s], values[rest[s]], used[rest[s]]) for s in held]
        truth = used[: len(held)].flatten()
        found = fit(torch.cat(trained), truth)
        return found.scores(ratios(features(seen), values, used))


def features(signals: Signals) -> Tensor:
    """Losses at the end and over rounds, and what each step changed: `[N, f]`."""
    rounds = stable(signals.rounds)
    half = rounds.shape[1] // 2
    steps = rounds[:, half:] - rounds[:, :half] if rounds.shape[1] % 2 == 0 else rounds[:, :0]
    return torch.cat([stable(signals.loss).unsqueeze(-1), rounds, steps], dim=1)


def ratios(value: Tensor, others: Tensor, used: Tensor) -> Tensor:
    """The likelihood ratio of each feature: `[N, f], [S, N, f], [S, N] -> [N, f]`."""
    columns = [
        fits(others[:, :, i], used).ratio(value[:, i]).clamp(-20, 20) for i in range(value.shape[1])
    ]
    return torch.stack(columns, dim=1)
