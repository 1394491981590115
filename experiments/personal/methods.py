# SPDX-License-Identifier: Apache-2.0
"""The rows of the table, and what is tried for each: as many settings for every method.

`virtual` among the settings is of the data, not of the algorithm: how many virtual copies of every
party train beside it. `further` are settings tried where parties may be copied.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from archipel.algorithms import ALGORITHMS
from archipel.study import fields

BATCH = 20

Settings = dict[str, Any]
Grid = dict[str, list[Any]]  # four settings; fields that go together are "a, b"


@dataclass(frozen=True)
class Method:
    """One row: an algorithm with fields that are fixed, and values to try for others."""

    label: str
    algorithm: str
    grids: tuple[Grid, Grid]  # the second one around the best of the first
    further: Grid | None  # around the best of these, with virtual parties and without
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
        own = {name: value for name, value in settings.items() if name != "virtual"}
        return fields.build(self.algorithm, kind, {**common, **self.fixed, **own})

    @property
    def settings(self) -> list[Settings]:
        """What is tried on the parties as they are: eight settings for every method."""
        return [each for grid in self.grids for each in _product(grid)]

    def with_copies(self, ranked: list[Settings]) -> list[Settings]:
        """What is tried where parties may be copied: four further settings, two of PeFLL's.

        Where none are given, the best two of `ranked`, best first, with copies and without.
        """
        if self.further is not None:
            return _product(self.further)
        return [{**each, "virtual": copies} for each in ranked[:2] for copies in PLAIN_OR_COPIES]


def edges(tried: list[Settings], chosen: Settings) -> list[str]:
    """Fields whose chosen number is the largest or smallest tried; of a rate that falls, its start.

    How many copies of a party there are is not a range: with them or without.
    """
    found = []
    for name, value in chosen.items():
        numbers = {_number(each[name]) for each in tried if name in each} - {None}
        if name == "virtual" or len(numbers) < 2:
            continue
        found += [name] if _number(value) in (min(numbers), max(numbers)) else []
    return found


def _number(value: Any) -> float | None:
    value = value["start"] if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) else None


def _product(grid: Grid) -> list[Settings]:
    return [
        dict(pair for key, value in zip(grid, values, strict=True) for pair in _named(key, value))
        for values in itertools.product(*grid.values())
    ]


def _named(key: str, value: Any) -> list[tuple[str, Any]]:
    names = key.split(", ")
    return list(zip(names, value if len(names) > 1 else [value], strict=True))


def falling(start: float) -> dict[str, Any]:
    """A rate that falls to a fifth of its start over 300 rounds."""
    return {"name": "decay", "start": start, "factor": 0.995}


def spring(lam: float, inner_lr: Any) -> tuple[float, float, Any]:
    """Of pFedMe, lr = 1 / lam: the shared model goes where the own one went."""
    return (lam, 1 / lam, inner_lr)


PLAIN_OR_COPIES = [0, 3]
PROXIMAL = {"tune_steps": 20, "tune_lr": 0.3}  # the own models of L2GD and pFedMe
LOCAL = {"local_epochs": 5}  # passes over a party's points in a round
METHODS: dict[str, Method] = {
    "local": Method(  # every party alone: passes over its data instead of rounds; no copies
        "local",
        "alone",
        ({"lr": [0.03, 0.1], "epochs": [30, 80]}, {"lr": [0.1, 0.2], "epochs": [120, 200]}),
        {"lr": [0.05, 0.1], "epochs": [60, 100]},
    ),
    "pooled": Method(  # all data in one place, over as many examples as the rounds of the others
        "pooled",
        "fedavg",
        ({"lr": [0.03, 0.1], "batch_size": [20, 50]},
         {"lr": [0.02, 0.05], "batch_size": [50, 100]}),
        {"lr": [0.03, 0.05], "batch_size": [50], "virtual": PLAIN_OR_COPIES},
        LOCAL,
    ),
    "fedavg": Method(
        "FedAvg",
        "fedavg",
        ({"lr": [0.05, 0.1, falling(0.1), falling(0.2)]},
         {"lr": [0.2, 0.3, falling(0.3), falling(0.5)]}),
        {"lr": [falling(0.5), falling(0.8)], "virtual": PLAIN_OR_COPIES},
        LOCAL,
    ),
    "finetuned": Method(
        "FedAvg + fine-tuning",
        "finetuned",
        ({"lr": [0.1, falling(0.2)], "tune_epochs": [5, 15]},
         {"lr": [falling(0.3), falling(0.5)], "tune_epochs": [2, 5]}),
        {"lr": [falling(0.5), falling(0.8)], "tune_epochs, tune_lr": [(5, 0.03)],
         "virtual": PLAIN_OR_COPIES},
        LOCAL,
    ),
    "ditto": Method(
        "Ditto",
        "ditto",
        ({"lr": [0.1, falling(0.2)], "lam": [0.1, 1.0]},
         {"lr": [falling(0.2), falling(0.4)], "lam": [0.5, 2.0]}),
        {"lr": [falling(0.4), falling(0.6)], "lam": [0.5], "virtual": PLAIN_OR_COPIES},
        LOCAL,
    ),
    "l2gd": Method(  # a round has 1 / p = 10 local steps, a third of the others'
        "L2GD",
        "l2gd",
        ({"lr, lam": [(0.3, 0.1), (0.3, 0.3), (0.6, 0.1), (0.9, 0.1)]},
         {"lr, lam": [(0.9, 0.03), (0.6, 0.15), (0.45, 0.2), (1.0, 0.1)]}),
        None,
        {"p": 0.1, **PROXIMAL},
        True,
        3.3,
    ),
    "perfedavg-fo": Method(
        "Per-FedAvg, first order",
        "perfedavg",
        ({"lr": [0.1, 0.2], "inner_lr": [0.01, 0.05]},
         {"lr": [falling(0.3), falling(0.5)], "inner_lr": [0.05, 0.1]}),
        {"lr": [falling(0.5), falling(0.8)], "inner_lr": [0.1], "virtual": PLAIN_OR_COPIES},
        {"variant": "first-order", "tune_steps": 10, "local_epochs": 2},
    ),
    "perfedavg-hf": Method(
        "Per-FedAvg, Hessian-free",
        "perfedavg",
        ({"lr": [0.1, 0.2], "inner_lr": [0.01, 0.05]},
         {"lr": [falling(0.3), falling(0.5)], "inner_lr": [0.05, 0.1]}),
        {"lr": [falling(0.5), falling(0.8)], "inner_lr": [0.05], "virtual": PLAIN_OR_COPIES},
        {"variant": "hessian-free", "tune_steps": 10, "local_epochs": 2},
    ),
    "pfedme": Method(
        "pFedMe",
        "pfedme",
        ({"lam, lr, inner_lr": [spring(lam, step) for lam in (0.1, 0.5)
                                for step in (0.2, falling(0.4))]},
         {"lam, lr, inner_lr": [spring(lam, falling(step)) for lam in (0.1, 0.2)
                                for step in (0.6, 0.9)]}),
        None,
        {"lam": 0.5, "lr": 2.0, **PROXIMAL},
    ),
    "fedper": Method(
        "FedPer",
        "fedper",
        ({"lr": [0.1, falling(0.2)], "tune_epochs": [5, 15]},
         {"lr": [falling(0.2), falling(0.4)], "tune_epochs": [30, 60]}),
        {"lr": [falling(0.4), falling(0.6)], "tune_epochs": [30], "virtual": PLAIN_OR_COPIES},
        LOCAL,
    ),
    "fedrep": Method(
        "FedRep",
        "fedrep",
        ({"lr": [0.1, falling(0.2)], "head_epochs": [2, 5]},
         {"lr": [falling(0.2), falling(0.4)], "head_epochs": [10, 20]}),
        {"lr": [falling(0.2)], "head_epochs": [5], "tune_epochs": [20, 40],
         "virtual": PLAIN_OR_COPIES},
        {"local_epochs": 3},
    ),
    "knnper": Method(
        "kNN-Per",
        "knnper",
        ({"lr": [0.1, falling(0.2)], "lam": [0.2, 0.4]},
         {"lr": [falling(0.3), falling(0.5)], "lam": [0.4, 0.6]}),
        {"lr": [falling(0.5), falling(0.8)], "lam": [0.4], "virtual": PLAIN_OR_COPIES},
        LOCAL,
    ),
    "pfedhn": Method(
        "pFedHN",
        "pfedhn",
        ({"server_lr": [falling(1e-3), falling(2e-3)], "descriptor_lr": [1.0, 10.0]},
         {"server_lr": [falling(5e-4), falling(1e-3)], "descriptor_lr": [5.0, 30.0]}),
        {"server_lr": [falling(1e-3)], "descriptor_lr": [10.0, 20.0], "virtual": PLAIN_OR_COPIES},
        {"lr": 0.1, "local_steps": 20, "batch_size": 32, "size": 64,
         "optimiser": {"name": "sgd", "weight_decay": 5e-5}, "server_optimiser": "adam"},
    ),
    "pefll": Method(
        "PeFLL",
        "pefll",
        ({"lr": [0.05, 0.1], "server_lr": [falling(1e-3), falling(2e-3)]},
         {"lr": [0.1, 0.2], "server_lr": [falling(1.5e-3), falling(3e-3)]}),
        {"lr": [0.2], "server_lr": [falling(1.5e-3)], "virtual": PLAIN_OR_COPIES},
        {"local_steps": 20, "batch_size": 32},
    ),
    "pefll-tuned": Method(
        "PeFLL + fine-tuning",
        "pefll",
        ({"lr": [0.05, 0.1], "server_lr": [falling(1e-3), falling(2e-3)]},
         {"lr": [0.1, 0.2], "server_lr": [falling(1.5e-3), falling(3e-3)]}),
        {"lr": [0.2], "server_lr": [falling(1.5e-3)], "tune_epochs, tune_lr": [(5, 0.03)],
         "virtual": PLAIN_OR_COPIES},
        {"local_steps": 20, "batch_size": 32},
    ),
}  # fmt: skip
