# SPDX-License-Identifier: Apache-2.0
"""The rows of the table, and what is tried for each: as many settings for every method."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from archipel import fields
from archipel.algorithms import ALGORITHMS

BATCH = 20

Settings = dict[str, Any]
Grid = dict[str, list[Any]]  # four settings; fields that go together are "a, b"


@dataclass(frozen=True)
class Method:
    """One row: an algorithm with fields that are fixed, and values to try for others."""

    label: str
    algorithm: str
    grids: tuple[Grid, Grid]  # the second one around the best of the first
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

    @property
    def settings(self) -> list[Settings]:
        """What is tried: eight settings for every method."""
        return [
            dict(
                pair for key, value in zip(grid, values, strict=True) for pair in _named(key, value)
            )
            for grid in self.grids
            for values in itertools.product(*grid.values())
        ]


def _named(key: str, value: Any) -> list[tuple[str, Any]]:
    names = key.split(", ")
    return list(zip(names, value if len(names) > 1 else [value], strict=True))


def falling(start: float) -> dict[str, Any]:
    """A rate that falls to a fifth of its start over 300 rounds."""
    return {"name": "decay", "start": start, "factor": 0.995}


# of pFedMe, lr = 1 / lam: the shared model goes where the own one went
_SPRINGS = [(lam, 1 / lam) for lam in (2.0, 8.0, 0.5, 1.0)]
LOCAL = {"local_epochs": 5}  # passes over a party's points in a round
METHODS: dict[str, Method] = {
    "local": Method(  # every party alone: passes over its data instead of rounds
        "local",
        "alone",
        ({"lr": [0.03, 0.1], "epochs": [30, 80]}, {"lr": [0.1, 0.2], "epochs": [120, 200]}),
    ),
    "pooled": Method(  # all data in one place, over as many examples as the rounds of the others
        "pooled",
        "fedavg",
        ({"lr": [0.03, 0.1], "batch_size": [20, 50]},
         {"lr": [0.02, 0.05], "batch_size": [50, 100]}),
        LOCAL,
    ),
    "fedavg": Method(
        "FedAvg",
        "fedavg",
        ({"lr": [0.05, 0.1, falling(0.1), falling(0.2)]},
         {"lr": [0.2, 0.3, falling(0.3), falling(0.5)]}),
        LOCAL,
    ),
    "finetuned": Method(
        "FedAvg + fine-tuning",
        "finetuned",
        ({"lr": [0.1, falling(0.2)], "tune_epochs": [5, 15]},
         {"lr": [falling(0.3), falling(0.5)], "tune_epochs": [2, 5]}),
        LOCAL,
    ),
    "ditto": Method(
        "Ditto",
        "ditto",
        ({"lr": [0.1, falling(0.2)], "lam": [0.1, 1.0]},
         {"lr": [falling(0.2), falling(0.4)], "lam": [0.5, 2.0]}),
        LOCAL,
    ),
    "l2gd": Method(  # a round has 1 / p = 10 local steps, a third of the others'
        "L2GD",
        "l2gd",
        ({"lr": [0.05, 0.1], "lam": [0.3, 1.0]}, {"lr": [0.2, 0.3], "lam": [0.1, 0.3]}),
        {"p": 0.1},
        True,
        3.3,
    ),
    "perfedavg-fo": Method(
        "Per-FedAvg, first order",
        "perfedavg",
        ({"lr": [0.1, 0.2], "inner_lr": [0.01, 0.05]},
         {"lr": [falling(0.3), falling(0.5)], "inner_lr": [0.05, 0.1]}),
        {"variant": "first-order", "tune_steps": 10, "local_epochs": 2},
    ),
    "perfedavg-hf": Method(
        "Per-FedAvg, Hessian-free",
        "perfedavg",
        ({"lr": [0.1, 0.2], "inner_lr": [0.01, 0.05]},
         {"lr": [falling(0.3), falling(0.5)], "inner_lr": [0.05, 0.1]}),
        {"variant": "hessian-free", "tune_steps": 10, "local_epochs": 2},
    ),
    "pfedme": Method(
        "pFedMe",
        "pfedme",
        ({"lam, lr": _SPRINGS[:2], "inner_lr": [0.05, 0.1]},
         {"lam, lr": _SPRINGS[2:], "inner_lr": [0.1, 0.2]}),
    ),
    "fedper": Method(
        "FedPer",
        "fedper",
        ({"lr": [0.1, falling(0.2)], "tune_epochs": [5, 15]},
         {"lr": [falling(0.2), falling(0.4)], "tune_epochs": [30, 60]}),
        LOCAL,
    ),
    "fedrep": Method(
        "FedRep",
        "fedrep",
        ({"lr": [0.1, falling(0.2)], "head_epochs": [2, 5]},
         {"lr": [falling(0.2), falling(0.4)], "head_epochs": [10, 20]}),
        {"local_epochs": 3},
    ),
    "knnper": Method(
        "kNN-Per",
        "knnper",
        ({"lr": [0.1, falling(0.2)], "lam": [0.2, 0.4]},
         {"lr": [falling(0.3), falling(0.5)], "lam": [0.4, 0.6]}),
        LOCAL,
    ),
    "pfedhn": Method(
        "pFedHN",
        "pfedhn",
        ({"server_lr": [falling(1e-3), falling(2e-3)], "descriptor_lr": [1.0, 10.0]},
         {"server_lr": [falling(5e-4), falling(1e-3)], "descriptor_lr": [5.0, 30.0]}),
        {"lr": 0.1, "local_steps": 20, "batch_size": 32, "size": 64,
         "optimiser": {"name": "sgd", "weight_decay": 5e-5}, "server_optimiser": "adam"},
    ),
    "pefll": Method(
        "PeFLL",
        "pefll",
        ({"lr": [0.05, 0.1], "server_lr": [falling(1e-3), falling(2e-3)]},
         {"lr": [0.1, 0.2], "server_lr": [falling(1.5e-3), falling(3e-3)]}),
        {"local_steps": 20, "batch_size": 32},
    ),
}  # fmt: skip
