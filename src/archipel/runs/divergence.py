# SPDX-License-Identifier: Apache-2.0
"""Whether a run went wrong though it ended: it diverged, or learnt less than nothing.

Judged is the model that parties use, on their test points. Each sign is far from what noise or some
overfitting does: nothing is said of a loss that wavers, or of a model that is as good as a guess.
"""

from __future__ import annotations

from math import isfinite, log, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archipel.runs.run import Run
    from archipel.training.schedules import Rate

_ROSE = 1.25  # times the first loss
_FEW = 5  # evaluations, before one can say that a loss rose
_FAR = 3.0  # times the loss of a model that knows nothing; standard errors of an accuracy
_BELOW = -0.05  # R², of a model that is no better than the mean


def warnings(run: Run) -> list[str]:
    """What whoever reads the result must know first, a sentence each, with what to do."""
    if not run.history:
        return []
    last = run.history[-1]
    metrics = last.get("own") or last["metrics"]
    said = [*_not_finite(metrics), *_rose(run), *_exploded(run, metrics)]
    found = [f"{what}: the training diverged; {_remedy(run)}." for what in said[:1]]
    if not said:
        found += [
            f"{what}: it has learnt nothing that helps; give it more study.rounds, or "
            f"{_steps(run, 'change', 'change')}."
            for what in _useless(run, metrics)
        ]
    return found + _left_out(run)


def _not_finite(metrics: dict[str, float]) -> list[str]:
    wrong = [name for name in ("loss", "rmse") if not isfinite(metrics.get(name, 0.0))]
    return [f"the {wrong[0]} at the end is not a finite number"] if wrong else []


def _rose(run: Run) -> list[str]:
    """The last fifth of the losses against the first: the median, since a loss wavers."""
    losses = run.curve("loss")[1] if "loss" in run.metrics else []
    if len(losses) < _FEW or not losses[0] > 0:
        return []
    end = median(losses[-max(3, len(losses) // 5) :])
    if not end > _ROSE * losses[0]:
        return []
    return [f"the loss rose over the run, from {losses[0]:.4g} to {end:.4g}"]


def _exploded(run: Run, metrics: dict[str, float]) -> list[str]:
    loss, classes = metrics.get("loss"), run.data.classes
    known = run.task_model.loss_function.name in ("cross_entropy", "binary_cross_entropy")
    if loss is None or not classes or not known or loss <= _FAR * log(max(2, classes)):
        return []
    return [
        f"the loss is {loss:.4g}, where a model that knows nothing has {log(max(2, classes)):.2g}"
    ]


def _useless(run: Run, metrics: dict[str, float]) -> list[str]:
    if metrics.get("r2", 0.0) < _BELOW:
        return [
            f"the model is worse than predicting the mean of the targets (R² {metrics['r2']:.3g})"
        ]
    share, points = _commonest(run)
    accuracy = metrics.get("accuracy", share)
    if points and accuracy < share - _FAR * sqrt(share * (1 - share) / points):
        return [
            f"the model's accuracy, {accuracy:.3g}, is below that of always saying the commonest "
            f"class ({share:.3g})"
        ]
    return []


def _commonest(run: Run) -> tuple[float, int]:
    """What the class that most training points have gets right, and on how many test points."""
    data = run.data
    if run.between_sites or data.about.gone or data.lazy or not data.classes:  # no targets here
        return 0.0, 0
    import torch

    owner = torch.repeat_interleave(torch.arange(data.parties), data.offsets.diff())
    seen, rows = owner < data.training, torch.arange(len(data.x))
    test = data.y[seen & (rows >= data.test_from[owner])]
    if not len(test):
        return 0.0, 0
    counts = data.y[seen & (rows < data.test_from[owner])].flatten().bincount()
    return float((test == counts.argmax()).double().mean()), len(test)


def _left_out(run: Run) -> list[str]:
    rounds = [
        sum(cause.why in ("diverged", "diverged before") for cause in cohort.missing.values())
        for cohort in run.participation
    ]
    if not any(rounds):
        return []
    return [
        f"in {sum(map(bool, rounds))} of {len(rounds)} rounds a party's training diverged and its "
        f"work was left out ({sum(rounds)} times in all); {_remedy(run)}."
    ]


def _remedy(run: Run) -> str:
    scaled = run.data.features.scaling is not None or run.between_sites
    ways = "" if scaled else ", or say data.standardise = true (in Python, data.standardised())"
    return f"{_steps(run, 'lower', 'raise')}{ways}"


def _steps(run: Run, rate: str, smoothness: str) -> str:
    """What to do to the field that says how long steps are."""
    algorithm: Any = run.algorithm
    if not hasattr(algorithm, "lr") and hasattr(algorithm, "smoothness"):
        return f"{smoothness} algorithm.smoothness ({algorithm.smoothness:g} now)"
    lr: Rate | None = getattr(algorithm, "lr", None)
    return f"{rate} algorithm.lr" + (f" ({lr:g} now)" if isinstance(lr, int | float) else "")
