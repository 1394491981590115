# SPDX-License-Identifier: Apache-2.0
"""Metrics of each party, for all parties at once, and of all points together.

Party i's points are rows `offsets[i]` to `offsets[i + 1]` of the outputs `[N, ...]` and of the
targets `[N, ...]`. Sums run in double precision; a metric is NaN where it is undefined: no points,
one class only, no comparable pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import log
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from archipel.errors import ArchipelError, unknown
from archipel.measures import MEANS, METRICS, PRIMARY, SHARES, larger_is_better
from archipel.metrics.groups import blocks, mean, party_of
from archipel.metrics.labels import Classified
from archipel.metrics.ranking import c_index
from archipel.models.losses import Loss, Weighted

if TYPE_CHECKING:
    from archipel.data.scaling import Scaling

__all__ = [
    "MEANS",
    "METRICS",
    "PRIMARY",
    "SHARES",
    "larger_is_better",
]  # of archipel.measures

_NO_ORDER = ("calibration_intercept", "calibration_slope")  # best at 0, and at 1

_FAR = 3.0  # standard deviations, or losses of a model that knows nothing: as far as a point counts

Own = Callable[[Tensor, Tensor], float]  # outputs, targets of some points -> their score


class Chosen(NamedTuple):
    """What is measured besides the loss and the task's first metric."""

    names: tuple[str, ...]
    own: Mapping[str, Own]  # those of the names that are not Archipel's
    usual: bool  # the task's usual ones as well


def choose(given: Sequence[str | Own] | None = None, metric: str | Own | None = None) -> Chosen:
    """What to measure: metrics by name or functions, the task's usual ones where none are given.

    `metric` is the one that a run is judged by. A function `score(outputs, targets)` gives one
    number for some points, the larger the better; its name is that of the metric.
    """
    listed = [*(given or ()), *([] if metric is None else [metric])]
    own: dict[str, Own] = {}
    for each in listed:
        if isinstance(each, str):
            if each not in METRICS and each not in own:
                raise unknown("metric", each, METRICS)
            continue
        name = getattr(each, "__name__", type(each).__name__)
        if name in METRICS or own.get(name, each) is not each:
            raise ArchipelError(f"metric '{name}': there is another one of that name; rename it.")
        own[name] = each
    names = [name_of(each) for each in listed]
    if metric is not None and name_of(metric) in _NO_ORDER:
        raise ArchipelError(
            f"metric = '{name_of(metric)}': more of it is neither better nor worse; list it in "
            "metrics and judge the run by another, such as brier."
        )
    return Chosen(tuple(dict.fromkeys(names)), own, given is None)


def name_of(metric: str | Own) -> str:
    """What a metric is called in tables: an own one as its function is."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)


def score(
    task: str,
    outputs: Tensor,
    targets: Tensor,
    offsets: Tensor,
    loss: Loss,
    chosen: Chosen | None = None,
    unit: Scaling | None = None,
) -> dict[str, Tensor]:
    """Return each party's metrics, float64 `[K]` by name, from offsets int64 `[K + 1]`.

    Outputs and targets of a regression may be scaled by `unit`: the loss, which training
    minimises, is of these numbers, and every other metric in the target's own unit.
    """
    if task not in PRIMARY:
        raise unknown("task", task, PRIMARY)
    outputs, targets = outputs.detach(), targets.detach()
    chosen = choose() if chosen is None else chosen
    value = _loss(outputs, targets, offsets, loss)
    if unit is not None:
        outputs, targets = unit.undo(outputs), unit.undo(targets)
    measure: Callable[[str], Tensor]
    if task == "classification":
        classified = Classified(outputs, targets, offsets)
        usual, known, measure = classified.usual, classified.known, classified.measure
    else:
        measured = _TASKS[task](outputs, targets, offsets)
        usual, known, measure = tuple(measured), [*measured], measured.__getitem__
    found = {}
    for name in dict.fromkeys((*(usual if chosen.usual else (PRIMARY[task],)), *chosen.names)):
        if name in chosen.own:
            found[name] = _own(name, chosen.own[name], outputs, targets, offsets)
        elif name != "loss":
            if name not in known:
                raise unknown(f"metric of {_described(task, outputs)}", name, [*known, "loss"])
            found[name] = measure(name)
    return found | {"loss": value}


def _described(task: str, outputs: Tensor) -> str:
    classes = max(2, outputs.shape[-1]) if outputs.dim() > 1 else 2
    return f"{task} with {classes} classes" if task == "classification" else task


def _own(name: str, metric: Own, outputs: Tensor, targets: Tensor, offsets: Tensor) -> Tensor:
    """An own metric of each party that has points."""
    ends = offsets.tolist()
    found = torch.full((len(ends) - 1,), torch.nan, dtype=torch.float64)
    for k, (start, end) in enumerate(pairwise(ends)):
        if end > start:
            try:
                value = metric(outputs[start:end].clone(), targets[start:end].clone())
            except Exception as error:  # of the user's own code
                raise ArchipelError(
                    f"metric '{name}' fails, {_reason(error)}; it gets outputs "
                    f"{[*outputs[start:end].shape]} and targets {[*targets[start:end].shape]}, in "
                    "this order."
                ) from error
            try:
                found[k] = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise ArchipelError(
                    f"metric '{name}': returns a {type(value).__name__}; return one number."
                ) from None
    return found


def _reason(error: Exception) -> str:
    """What went wrong in an own metric, and in which line of it, unless it was not even called."""
    said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".:")
    _, *own = extract_tb(error.__traceback__)
    return said + (f" ({Path(own[0].filename).name}, line {own[0].lineno})" if own else "")


def pool(
    task: str,
    outputs: Tensor,
    targets: Tensor,
    loss: Loss,
    chosen: Chosen | None = None,
    unit: Scaling | None = None,
) -> dict[str, float]:
    """Return the metrics of all points together, as if one party held them.

    >>> from archipel.models.losses import LOSSES
    >>> outputs, labels = torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> pool("classification", outputs, labels, LOSSES["cross_entropy"])["accuracy"]
    0.5
    """
    offsets = torch.tensor([0, outputs.shape[0]], device=outputs.device)
    found = score(task, outputs, targets, offsets, loss, chosen, unit)
    return {name: float(value) for name, value in found.items()}


class Guarded(NamedTuple):
    """A metric in which no point counts without limit."""

    value: float
    moved: float  # by one point at most, whatever the model makes of it


def may_leave(task: str, classes: int, metric: str) -> bool:
    """Whether it is known how far one point moves a metric, so that it may be told of a site."""
    known = ("auc", "balanced_accuracy", "brier", *(("f1",) if classes <= 2 else ()))
    return metric in ("loss", PRIMARY[task], *(known if task == "classification" else ())) or (
        task == "regression" and metric in ("mae", "r2")
    )


def guarded(
    task: str,
    outputs: Tensor,
    targets: Tensor,
    loss: Loss,
    chosen: Chosen | None = None,
    unit: Scaling | None = None,
) -> dict[str, Guarded]:
    """Return the metrics of all points together, made so that one point moves none of them far.

    A point's loss or error counts up to a limit that follows from the targets alone, so that no
    model can be made by which the limit, or a metric that is undefined, tells of a single point.
    Left out: a loss that is no mean over points, errors where all targets are equal, a share that
    one point moves by more than a quarter, and what is not known to be moved little.

    >>> from archipel.models.losses import LOSSES
    >>> outputs, labels = torch.tensor([[9.0, 0.0]] * 9 + [[1e9, 0.0]]), torch.tensor([0] * 9 + [1])
    >>> guarded("classification", outputs, labels, LOSSES["cross_entropy"])["accuracy"]
    Guarded(value=0.9, moved=0.1)
    """
    n = len(outputs)
    each = torch.arange(n + 1, device=outputs.device)
    chosen, classes = chosen or choose(), outputs.shape[-1]
    names = tuple(name for name in chosen.names if may_leave(task, classes, name))
    usual = task == "regression" or chosen.usual
    chosen = Chosen(names, {}, usual)
    single = score(task, outputs, targets, each, loss, Chosen((), {}, usual), unit)
    shares = pool(task, outputs.nan_to_num(), targets, loss, chosen, unit)
    moves = _moves(task, targets, n, classes)
    found = {
        name: Guarded(shares[name], moved)
        for name, moved in moves.items()
        if shares.get(name, torch.nan) == shares.get(name) and moved <= 0.25
    }
    most = _largest_loss(task, outputs, targets, loss)
    if loss.separable and most > 0:
        found["loss"] = Guarded(_limited(single["loss"], most), most / n)
    spread = float(targets.double().std(correction=0)) if task == "regression" else 0.0
    spread *= 1.0 if unit is None else float(unit.scale)
    if spread > 0:
        most = _FAR * spread
        squares = _limited(single["rmse"].square(), most**2)
        rmse = squares**0.5
        found["mae"] = Guarded(_limited(single["mae"], most), most / n)
        found["rmse"] = Guarded(rmse, rmse - max(squares - most**2 / n, 0.0) ** 0.5)
        found["r2"] = Guarded(1 - squares / spread**2, _FAR**2 / n)
    return found


def _limited(values: Tensor, most: float) -> float:
    """The mean of what each point counts; what is no number counts the most."""
    return float(values.nan_to_num(nan=most, posinf=most).clamp(max=most).mean())


def _largest_loss(task: str, outputs: Tensor, targets: Tensor, loss: Loss) -> float:
    """What the loss of a point counts at most: some times that of knowing nothing."""
    if task != "regression":
        heaviest = max(loss.classes) if isinstance(loss, Weighted) else 1.0
        return _FAR * heaviest * log(max(2, outputs.shape[-1]))
    mean, spread = targets.double().mean(), targets.double().std(correction=0)
    return float(loss((mean + _FAR * spread).view(1, 1), mean.view(1), torch.ones(1).double()))


def _moves(task: str, targets: Tensor, n: int, classes: int) -> dict[str, float]:
    """How far one point moves each metric that is bounded, whatever a model makes of it.

    Balanced accuracy: a share of its class, among all classes. F1 = 2 right / (positives +
    predicted): both counts change by one at most, so it does by 2 / positives. Brier: its square.
    """
    if task != "classification":
        return {"accuracy": 1 / n, "c_index": _moves_pairs(task, targets, 2)}
    counts = targets.long().bincount()
    there = counts[counts > 0]
    positives = int((targets > 0).sum())
    return {
        "accuracy": 1 / n,
        "auc": _moves_pairs(task, targets, classes),
        "balanced_accuracy": 1 / (len(there) * int(there.min())),
        "brier": (1 if classes <= 2 else 2) / n,
        "f1": 2 / positives if positives else float("inf"),
    }


def _moves_pairs(task: str, targets: Tensor, classes: int) -> float:
    """The share of comparable pairs that one point is in, at most; of classes, the mean share."""
    if task == "survival":
        time, event = targets[:, 0].contiguous(), targets[:, 1] > 0
        times, ends = time.sort().values, time[event].sort().values
        pairs = int((len(time) - torch.searchsorted(times, ends, right=True)).sum())
        mine = torch.where(event, len(time) - torch.searchsorted(times, time), 0)
        most = int((mine + torch.searchsorted(ends, time, right=True)).max())  # with all ties
        return most / pairs if pairs else float("inf")
    ups = [targets > 0] if classes <= 2 else [targets == k for k in range(classes)]
    fewest = [min(int(up.sum()), len(up) - int(up.sum())) for up in ups]
    return sum(1 / few if few else float("inf") for few in fewest) / len(fewest)


def _regression(outputs: Tensor, targets: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    targets = targets.double()
    error = outputs.double().reshape(targets.shape) - targets
    around = targets - mean(targets, offsets)[party_of(offsets)]
    squares, spread = mean(error.square(), offsets), mean(around.square(), offsets)
    return {
        "rmse": squares.sqrt(),
        "mae": mean(error.abs(), offsets),
        "r2": 1 - squares / torch.where(spread > 0, spread, torch.nan),
    }


def _survival(outputs: Tensor, targets: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    return {"c_index": c_index(outputs.reshape(-1), targets[:, 0], targets[:, 1] > 0, offsets)}


def _text(outputs: Tensor, targets: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    right = (outputs.argmax(dim=-1) == targets).double()
    return {"accuracy": mean(right.mean(dim=-1), offsets)}


_TASKS: dict[str, Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]] = {
    "regression": _regression,
    "survival": _survival,
    "text": _text,
}


def _loss(outputs: Tensor, targets: Tensor, offsets: Tensor, loss: Loss) -> Tensor:
    if loss.separable:  # every point a party of its own
        one = torch.ones(outputs.shape[0], 1, dtype=outputs.dtype, device=outputs.device)
        return mean(loss(outputs.unsqueeze(1), targets.unsqueeze(1), one), offsets)
    values = offsets.diff().double() * torch.nan  # of the parties without points
    for parties, rows, valid in blocks(offsets):
        weights = valid / valid.sum(dim=-1, keepdim=True)
        values[parties] = loss(outputs[rows], targets[rows], weights.to(outputs.dtype)).to(
            values.dtype
        )
    return values
