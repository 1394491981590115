# SPDX-License-Identifier: Apache-2.0
"""The rows of the table, and what is tried for each: as many settings for every method."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from archipel import fields
from archipel.algorithms import ALGORITHMS

TRIED = 8  # settings per method
BATCH = 20

Settings = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """One row: an algorithm with fields that are fixed, and values to try for others."""

    label: str
    algorithm: str
    space: dict[str, list[Any]]
    fixed: Settings = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.algorithm in ALGORITHMS

    def make(self, settings: Settings) -> Any:
        """The algorithm with these settings, given as a study file would give them."""
        kind = ALGORITHMS[self.algorithm]
        common = {"batch_size": BATCH} if "batch_size" in fields.hints(kind) else {}
        return fields.build(self.algorithm, kind, {**common, **self.fixed, **settings})

    def settings(self, count: int) -> list[Settings]:
        """So many points of the space, drawn without looking; all of it in a fixed order if few."""
        grid = [
            dict(zip(self.space, v, strict=True)) for v in itertools.product(*self.space.values())
        ]
        order = np.random.default_rng(0).permutation(len(grid))[:count]
        return [grid[i] for i in sorted(order)]


METHODS: dict[str, Method] = {
    # every party alone: passes over its data instead of rounds
    "local": Method("local", "alone", {"lr": [0.03, 0.1], "epochs": [10, 20, 40, 80]}),
    # all data in one place, over as many examples as the rounds of the others
    "pooled": Method("pooled", "fedavg", {"lr": [0.01, 0.03, 0.1, 0.2], "batch_size": [20, 50]}),
    "fedavg": Method("FedAvg", "fedavg", {"lr": [0.03, 0.1, 0.2, 0.3], "local_epochs": [1, 2]}),
    "finetuned": Method(
        "FedAvg + fine-tuning",
        "finetuned",
        {"lr": [0.1, 0.2], "tune_epochs": [1, 2, 5, 10]},
    ),
    "ditto": Method("Ditto", "ditto", {"lr": [0.1, 0.2], "lam": [0.01, 0.1, 0.3, 1.0]}),
    "l2gd": Method("L2GD", "l2gd", {"lr": [0.03, 0.1], "lam": [0.03, 0.3], "p": [0.05, 0.15]}),
    "perfedavg-fo": Method(
        "Per-FedAvg, first order",
        "perfedavg",
        {"lr": [0.05, 0.1], "inner_lr": [0.01, 0.05], "tune_steps": [1, 10]},
        {"variant": "first-order"},
    ),
    "perfedavg-hf": Method(
        "Per-FedAvg, Hessian-free",
        "perfedavg",
        {"lr": [0.05, 0.1], "inner_lr": [0.01, 0.05], "tune_steps": [1, 10]},
        {"variant": "hessian-free"},
    ),
    "pfedme": Method(
        "pFedMe",
        "pfedme",
        {"lr": [0.01, 0.05], "lam": [5.0, 15.0], "server_lr": [1.0, 2.0]},
    ),
    "fedper": Method("FedPer", "fedper", {"lr": [0.03, 0.1], "tune_epochs": [2, 5, 10, 20]}),
    "fedrep": Method("FedRep", "fedrep", {"lr": [0.03, 0.05, 0.1, 0.2], "head_epochs": [2, 5]}),
    "knnper": Method(
        "kNN-Per",
        "knnper",
        {"lr": [0.1, 0.2], "lam": [0.3, 0.5], "scale": [0.3, 1.0]},
    ),
    "pfedhn": Method(
        "pFedHN",
        "pfedhn",
        {"lr": [0.005, 0.02], "server_lr": [0.01, 0.05], "local_steps": [10, 20]},
        {"batch_size": 32},
    ),
    "pefll": Method(
        "PeFLL",
        "pefll",
        {"lr": [0.005, 0.02], "server_lr": [5e-4, 2e-3], "local_steps": [10, 20]},
        {"batch_size": 32},
    ),
}
