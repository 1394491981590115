# SPDX-License-Identifier: Apache-2.0
"""The rows of the table, and what is tried for each: as many settings for every method."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from archipel import fields
from archipel.algorithms import ALGORITHMS

TRIED = 4  # settings per method
BATCH = 20

Settings = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """One row: an algorithm with fields that are fixed, and values to try for others."""

    label: str
    algorithm: str
    space: dict[str, list[Any]] | list[Settings]  # a grid, or a list
    fixed: Settings = field(default_factory=dict)
    everybody: bool = False  # takes part in every round
    rounds: float = 1.0  # of the others': as many as make the same local work

    @property
    def exists(self) -> bool:
        return self.algorithm in ALGORITHMS

    @property
    def frame(self) -> dict[str, Any]:
        """What besides the settings a result depends on."""
        return {"fixed": {"batch_size": BATCH, **self.fixed}, "everybody": self.everybody,
                "more_rounds": self.rounds}  # fmt: skip

    def make(self, settings: Settings) -> Any:
        """The algorithm with these settings, given as a study file would give them."""
        kind = ALGORITHMS[self.algorithm]
        common = {"batch_size": BATCH} if "batch_size" in fields.hints(kind) else {}
        return fields.build(self.algorithm, kind, {**common, **self.fixed, **settings})

    def settings(self, count: int) -> list[Settings]:
        """So many points of the space, drawn without looking; all of it in a fixed order if few."""
        if isinstance(self.space, list):
            return self.space[:count]
        grid = [
            dict(zip(self.space, v, strict=True)) for v in itertools.product(*self.space.values())
        ]
        order = np.random.default_rng(0).permutation(len(grid))[:count]
        return [grid[i] for i in sorted(order)]


def falling(start: float) -> dict[str, Any]:
    """A rate that falls to a seventh of its start over 400 rounds."""
    return {"name": "decay", "start": start, "factor": 0.995}


LOCAL = {"local_epochs": 5}  # passes over a party's points in a round
METHODS: dict[str, Method] = {
    # every party alone: passes over its data instead of rounds
    "local": Method("local", "alone", {"lr": [0.03, 0.1], "epochs": [30, 80]}),
    # all data in one place, over as many examples as the rounds of the others
    "pooled": Method("pooled", "fedavg", {"lr": [0.03, 0.1], "batch_size": [20, 50]}, LOCAL),
    "fedavg": Method("FedAvg", "fedavg", {"lr": [0.05, 0.1, falling(0.1), falling(0.2)]}, LOCAL),
    "finetuned": Method(
        "FedAvg + fine-tuning",
        "finetuned",
        {"lr": [0.1, falling(0.2)], "tune_epochs": [5, 15]},
        LOCAL,
    ),
    "ditto": Method("Ditto", "ditto", {"lr": [0.1, falling(0.2)], "lam": [0.1, 1.0]}, LOCAL),
    "l2gd": Method(  # a round has 1 / p = 10 local steps, a third of the others'
        "L2GD", "l2gd", {"lr": [0.05, 0.1], "lam": [0.3, 1.0]}, {"p": 0.1}, True, 3.3
    ),
    "perfedavg-fo": Method(
        "Per-FedAvg, first order",
        "perfedavg",
        {"lr": [0.1, 0.2], "inner_lr": [0.01, 0.05]},
        {"variant": "first-order", "tune_steps": 10, "local_epochs": 2},
    ),
    "perfedavg-hf": Method(
        "Per-FedAvg, Hessian-free",
        "perfedavg",
        {"lr": [0.1, 0.2], "inner_lr": [0.01, 0.05]},
        {"variant": "hessian-free", "tune_steps": 10, "local_epochs": 2},
    ),
    "pfedme": Method(  # lr = 1 / lam: the shared model goes where the own one went
        "pFedMe",
        "pfedme",
        [{"lam": lam, "lr": 1 / lam, "inner_lr": lr} for lam in (2.0, 8.0) for lr in (0.05, 0.1)],
    ),
    "fedper": Method(
        "FedPer", "fedper", {"lr": [0.1, falling(0.2)], "tune_epochs": [5, 15]}, LOCAL
    ),
    "fedrep": Method(
        "FedRep", "fedrep", {"lr": [0.1, falling(0.2)], "head_epochs": [2, 5]}, {"local_epochs": 3}
    ),
    "knnper": Method(
        "kNN-Per", "knnper", {"lr": [0.1, falling(0.2)], "lam": [0.2, 0.4]}, LOCAL
    ),
    "pfedhn": Method(
        "pFedHN",
        "pfedhn",
        {"server_lr": [falling(1e-3), falling(2e-3)], "descriptor_lr": [1.0, 10.0]},
        {"lr": 0.1, "local_steps": 20, "batch_size": 32, "size": 64,
         "optimiser": {"name": "sgd", "weight_decay": 5e-5}, "server_optimiser": "adam"},
    ),
    "pefll": Method(
        "PeFLL",
        "pefll",
        {"lr": [0.05, 0.1], "server_lr": [falling(1e-3), falling(2e-3)]},
        {"local_steps": 20, "batch_size": 32},
    ),
}  # fmt: skip
