# SPDX-License-Identifier: Apache-2.0
"""Choose settings on validation points: a part of the training points, never a test point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from archipel.comparison.design import Settings, chosen
from archipel.comparison.results import RANKS
from archipel.data.federation import Federation
from archipel.errors import ArchipelError, RunFailed
from archipel.exchange.boxes import has_personal, is_peer
from archipel.metrics import larger_is_better
from archipel.models.model import Model
from archipel.runs.run import Run
from archipel.runs.simulation import Options, Where, simulate, sweep
from archipel.study.file import Study

FRACTION = 0.2  # of the training points are validation points


class Choice(NamedTuple):
    """The best of several settings, and how each did."""

    settings: Settings
    tried: list[Settings]
    values: list[float | None]  # None where the numbers were not finite


def choose(
    study: Study,
    settings: Sequence[Settings],
    data: Federation,
    workers: int | None = None,
    where: Where | None = None,
) -> Choice:
    """Train with each setting on four fifths of the training points; score on the last fifth.

    All settings run side by side where the algorithm and the model allow it.
    """
    validation, model = held_out(study, data)
    options: Options = {**study.options(), **(where or {})}
    options["evaluate_every"] = options["rounds"]
    if workers is not None:
        options["workers"] = workers
    runs: Sequence[Run | None] | None = None
    if _side_by_side(study, settings, model):
        runs = _sweep(study, settings, validation, model, options)
    if runs is None:
        runs = [_one(chosen(study, each), validation, model, options) for each in settings]
    values = [None if run is None else score(run) for run in runs]
    metric = next((run.metric for run in runs if run is not None), "")
    finite = [each for each in values if each is not None]
    if not finite:
        raise RunFailed(
            f"grid {', '.join(settings[0])}: no setting gave finite numbers on the validation "
            "points; try smaller values, or give parties more training points."
        )
    best = max(finite) if larger_is_better(metric) else min(finite)
    return Choice(settings[values.index(best)], list(settings), values)


def held_out(study: Study, data: Federation) -> tuple[Federation, Model]:
    """The data with validation points in place of test points, and the model for them."""
    validation = data.validation(FRACTION, study.study.seed)
    return validation, study.build_model(validation)


def at_edge(choice: Choice) -> dict[str, str]:
    """Fields whose chosen number is the largest or the smallest tried.

    >>> at_edge(Choice({"lr": 0.1}, [{"lr": 0.01}, {"lr": 0.1}], [0.5, 0.6]))
    {'lr': 'largest'}
    """
    edges: dict[str, str] = {}
    for name, value in choice.settings.items():
        numbers = {each[name] for each in choice.tried if isinstance(each[name], int | float)}
        if len(numbers) > 1 and value in (min(numbers), max(numbers)):
            edges[name] = "largest" if value == max(numbers) else "smallest"
    return edges


def _side_by_side(study: Study, settings: Sequence[Settings], model: Model) -> bool:
    """Whether a sweep can do it: decimal numbers, no buffers, and one model to score."""
    algorithm = study.algorithm_object
    decimal = all(
        isinstance(getattr(algorithm, name), float) and isinstance(value, int | float)
        for each in settings
        for name, value in each.items()
    )
    own = is_peer(algorithm) or has_personal(algorithm)  # a sweep scores shared vectors only
    return decimal and not model.buffer_spec.size and not own


def _sweep(
    study: Study, settings: Sequence[Settings], data: Federation, model: Model, options: Options
) -> Sequence[Run | None] | None:
    """All settings at once; None where the algorithm cannot."""
    lists = {name: [float(each[name]) for each in settings] for name in settings[0]}
    try:
        return sweep(study.algorithm_object, data, model, lists, **options)
    except RunFailed:  # of no setting the numbers are finite
        return [None] * len(settings)
    except Exception:  # an algorithm of the user's own that wants plain numbers
        return None


def _one(study: Study, data: Federation, model: Model, options: Options) -> Run | None:
    try:
        return simulate(study.algorithm_object, data, model, **options)
    except RunFailed:
        return None


def score(run: Run) -> float | None:
    """The metric over all validation points, of the models that training parties would use."""
    last: Mapping[str, Any] = run.history[-1]
    scores = last["own"] or last["metrics"]
    if not scores:
        raise ArchipelError("no party has a training point to spare for validation: give more.")
    value = float(scores[run.metric])
    if last["own"] and run.metric in RANKS:  # scores of different models have no common order
        value = float((last["seen_parties"] or {}).get("mean", math.nan))
    return value if math.isfinite(value) and bool(torch.isfinite(run.vector).all()) else None
