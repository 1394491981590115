# SPDX-License-Identifier: Apache-2.0
"""The demo: heart disease in four real hospitals, each alone, together, and with data pooled."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel.runs.run import Run
from archipel.runs.simulation import Watch
from archipel.study.file import Study

STUDY = """\
[study]
name = "demo"
purpose = "Tell heart disease from 13 measurements; every hospital keeps its records."
rounds = 40
metric = "auc"

[data]
name = "heart_disease"

[model]
name = "logistic"

[algorithm]
name = "fedavg"
lr = 0.03
local_epochs = 1
batch_size = 16

[round]
quorum = 3

[simulate]
away = {hungarian = "11-20"}  # this hospital drops out and comes back
"""


class Gain(NamedTuple):
    """AUC over random splits into training and test patients."""

    names: list[str]
    patients: list[int]
    alone: Tensor  # [splits, hospitals] each hospital's model, tested on the patients of all four
    alone_own: Tensor  # [splits, hospitals] and on its own
    together_own: Tensor  # [splits, hospitals]
    together: Tensor  # [splits]
    pooled: Tensor  # [splits]

    def to_json(self) -> dict[str, Any]:
        return {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in self._asdict().items()
        }


def study(seed: int = 0) -> Study:
    """The demo's study; the seed also splits the patients."""
    return Study.parse(STUDY).with_set({"study.seed": seed})


def measure(first: Run, splits: int) -> Gain:
    """Put the recorded run, on the first split, together with those on further ones."""
    further = (study(seed).run(None, workers=1) for seed in range(1, splits))
    rows = [_row(run) for run in (first, *further)]
    data = first.data
    return Gain(
        [data.name(k) for k in range(data.parties)],
        (data.n + data.n_test).tolist(),
        **{key: torch.stack([row[key] for row in rows]) for key in rows[0]},
    )


def _row(run: Run) -> dict[str, Tensor]:
    return {
        "alone": run.elsewhere["auc"],
        "alone_own": run.baselines["local"].parties["auc"],
        "together_own": run.parties["auc"],
        "together": torch.tensor(run.metrics["auc"]),
        "pooled": torch.tensor(run.baselines["central"].pooled["auc"]),
    }


class Dying:
    """Looks on, and kills its own process with SIGKILL after a round."""

    def __init__(self, after: int) -> None:
        self._after = after

    def __call__(self, run: Run) -> None:
        if run.done == self._after:
            os.kill(os.getpid(), signal.SIGKILL)

    def say(self, text: str) -> None:
        pass


def run_and_die(path: str, after: str) -> None:
    """Run the demo in this folder until it kills itself; `archipel demo --kill` starts this."""
    study().run_in(Path(path), watch=Dying(int(after)), checkpoint_seconds=0)


def command_to_die(path: Path, after: int) -> list[str]:
    """The command of a process that runs the demo and kills itself."""
    code = "import sys; from archipel.demo import run_and_die; run_and_die(*sys.argv[1:])"
    return [sys.executable, "-c", code, str(path), str(after)]


class Paced:
    """Looks on through a view, no faster than a person can follow."""

    def __init__(self, view: Watch, seconds: float, sleep: Callable[[float], None]) -> None:
        self._view, self._seconds, self._sleep = view, seconds, sleep

    def __call__(self, run: Run) -> bool | None:
        self._sleep(self._seconds)
        return self._view(run)

    def say(self, text: str) -> None:
        self._view.say(text)
