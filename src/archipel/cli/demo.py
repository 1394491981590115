# SPDX-License-Identifier: Apache-2.0
"""`archipel demo`: four real hospitals learn together, and what each gained."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from archipel import baselines
from archipel.algorithms import FedAvg
from archipel.data import Federation, load
from archipel.engines.local import LocalEngine
from archipel.engines.plan import Plan
from archipel.model import Model
from archipel.parts import build_model
from archipel.report.plots import alone_and_together
from archipel.simulate import simulate

ALGORITHM = FedAvg(lr=0.03, local_epochs=1, batch_size=16)
ROUNDS = 40
_PLAN = Plan("stacked", 4, 1)  # four small logistic regressions: nothing to time


class Gain(NamedTuple):
    """AUC over random splits into training and test patients."""

    names: list[str]
    patients: list[int]
    alone: Tensor  # [splits, hospitals] each hospital's model, tested on the patients of all four
    alone_own: Tensor  # [splits, hospitals] and on its own
    together_own: Tensor  # [splits, hospitals]
    together: Tensor  # [splits]
    pooled: Tensor  # [splits]


def demo(
    splits: Annotated[int, typer.Option(min=1, help="Random splits to average over.")] = 5,
    plot: Annotated[Path | None, typer.Option(help="Write the picture to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Train on the heart-disease data of four hospitals: each alone, together, and pooled.

    Example: archipel demo --splits 10 --plot hospitals.png
    """
    gain = measure(splits, quiet=as_json)
    if plot is not None:
        draw(gain, plot)
    if as_json:
        json.dump(
            {key: v.tolist() if isinstance(v, Tensor) else v for key, v in gain._asdict().items()},
            sys.stdout,
        )
        print()
    else:
        show(gain)


def measure(splits: int, quiet: bool) -> Gain:
    """Train all models for each split."""
    rows: list[dict[str, Tensor]] = []
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        for seed in progress.track(range(splits), description="Training"):
            data = load("heart_disease", seed=seed)
            model = build_model(None, data)
            run = simulate(
                ALGORITHM, data, model, rounds=ROUNDS, evaluate_every=ROUNDS, seed=seed, plan=_PLAN
            )
            pooled = baselines.pooled(ALGORITHM, data, model, rounds=ROUNDS, seed=seed)
            everywhere, own = _alone(data, model, seed)
            rows.append(
                {
                    "alone": everywhere,
                    "alone_own": own,
                    "together_own": run.parties["auc"],
                    "together": torch.tensor(run.metrics["auc"]),
                    "pooled": torch.tensor(pooled.pooled["auc"]),
                }
            )
    return Gain(
        [data.name(k) for k in range(data.parties)],
        (data.n + data.n_test).tolist(),
        **{key: torch.stack([row[key] for row in rows]) for key in rows[0]},
    )


def _alone(data: Federation, model: Model, seed: int) -> tuple[Tensor, Tensor]:
    """AUC of each hospital's own model: on the patients of all hospitals, and on its own."""
    everywhere, own = [], []
    with LocalEngine(ALGORITHM, data, model, plan=_PLAN) as engine:
        for k in range(data.parties):
            run = simulate(
                ALGORITHM,
                data.select([k]),
                model,
                rounds=ROUNDS,
                evaluate_every=ROUNDS,
                seed=seed,
                plan=_PLAN,
            )
            scores = engine.evaluate(run.vector)
            everywhere.append(scores.pooled["auc"])
            own.append(float(scores.parties["auc"][k]))
    return torch.tensor(everywhere), torch.tensor(own)


def draw(gain: Gain, path: Path) -> None:
    """Draw what each hospital gains on its own patients, and the levels on everybody's."""
    alone_and_together(
        [f"{name} ({n})" for name, n in zip(gain.names, gain.patients, strict=True)],
        gain.alone_own.nanmean(dim=0).tolist(),
        gain.together_own.nanmean(dim=0).tolist(),
        {
            "all patients, a hospital alone": float(gain.alone.mean()),
            "all patients, together": float(gain.together.mean()),
            "all patients, data pooled": float(gain.pooled.mean()),
        },
        "AUC on the hospital's own test patients",
        path,
    )


def show(gain: Gain) -> None:
    """Print the table and what was gained."""
    console = Console()
    table = Table(title="Heart disease, four hospitals: area under the ROC curve (AUC)")
    table.add_column("Hospital")
    table.add_column("Patients", justify="right")
    table.add_column("Alone,\nown patients", justify="right")
    table.add_column("Together,\nown patients", justify="right")
    table.add_column("Alone,\nall patients", justify="right")
    alone, own = gain.alone.mean(dim=0), gain.alone_own.nanmean(dim=0)
    together_own = gain.together_own.nanmean(dim=0)
    for k, name in enumerate(gain.names):
        better = "[green]" if together_own[k] > own[k] else ""
        table.add_row(
            name,
            str(gain.patients[k]),
            f"{own[k]:.3f}",
            f"{better}{together_own[k]:.3f}",
            f"{alone[k]:.3f}",
        )
    console.print(table)
    mean, together, pooled = (float(v.mean()) for v in (gain.alone, gain.together, gain.pooled))
    console.print(
        f"Tested on the patients of all four hospitals, mean of {len(gain.together)} splits:\n"
        f"  a hospital alone  {mean:.3f}\n"
        f"  [bold]together          {together:.3f}[/bold]  "
        f"{100 * (together - mean):+.1f} points; no record left its hospital\n"
        f"  data pooled       {pooled:.3f}  {100 * (pooled - together):+.1f} points more, "
        "had all records been copied to one place",
        soft_wrap=True,
    )
