# SPDX-License-Identifier: Apache-2.0
"""Metrics of each party, for all parties at once, and of all points together.

Party i's points are rows `offsets[i]` to `offsets[i + 1]` of the outputs `[N, ...]` and of the
targets `[N, ...]`. Sums run in double precision; a metric is NaN where it is undefined: no points,
one class only, no comparable pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.data.scaling import Scaling
from archipel.errors import unknown
from archipel.losses import Loss

PRIMARY = {
    "classification": "accuracy",
    "regression": "rmse",
    "survival": "c_index",
    "text": "accuracy",
}

METRICS = ("accuracy", "auc", "rmse", "mae", "r2", "c_index", "loss")

SHARES = ("accuracy", "auc", "c_index")  # metrics between 0 and 1

_FAR = 3.0  # standard deviations, or losses of a model that knows nothing: as far as a point counts
_BLOCK = 4_000_000  # entries of a padded block: some tens of megabytes


def larger_is_better(metric: str) -> bool:
    """Return whether a larger value of this metric is a better one."""
    return metric in ("accuracy", "auc", "r2", "c_index")


def score(
    task: str,
    outputs: Tensor,
    targets: Tensor,
    offsets: Tensor,
    loss: Loss,
    unit: Scaling | None = None,
) -> dict[str, Tensor]:
    """Return each party's metrics, float64 `[K]` by name, from offsets int64 `[K + 1]`.

    Outputs and targets of a regression may be scaled by `unit`: the loss, which training
    minimises, is of these numbers, and every other metric in the target's own unit.
    """
    if task not in PRIMARY:
        raise unknown("task", task, PRIMARY)
    outputs, targets = outputs.detach(), targets.detach()
    value = _loss(outputs, targets, offsets, loss)
    if unit is not None:
        outputs, targets = unit.undo(outputs), unit.undo(targets)
    return _TASKS[task](outputs, targets, offsets) | {"loss": value}


def pool(
    task: str, outputs: Tensor, targets: Tensor, loss: Loss, unit: Scaling | None = None
) -> dict[str, float]:
    """Return the metrics of all points together, as if one party held them.

    >>> from archipel.losses import LOSSES
    >>> outputs, labels = torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
    >>> pool("classification", outputs, labels, LOSSES["cross_entropy"])["accuracy"]
    0.5
    """
    offsets = torch.tensor([0, outputs.shape[0]], device=outputs.device)
    return {
        name: float(value)
        for name, value in score(task, outputs, targets, offsets, loss, unit).items()
    }


class Guarded(NamedTuple):
    """A metric in which no point counts without limit."""

    value: float
    moved: float  # by one point at most, whatever the model makes of it


def guarded(
    task: str, outputs: Tensor, targets: Tensor, loss: Loss, unit: Scaling | None = None
) -> dict[str, Guarded]:
    """Return the metrics of all points together, made so that one point moves none of them far.

    A point's loss or error counts up to a limit that follows from the targets alone, so that no
    model can be made by which the limit, or a metric that is undefined, tells of a single point.
    Left out: a loss that is no mean over points, errors where all targets are equal, and a share
    that one point moves by more than a quarter.

    >>> from archipel.losses import LOSSES
    >>> outputs, labels = torch.tensor([[9.0, 0.0]] * 9 + [[1e9, 0.0]]), torch.tensor([0] * 9 + [1])
    >>> guarded("classification", outputs, labels, LOSSES["cross_entropy"])["accuracy"]
    Guarded(value=0.9, moved=0.1)
    """
    n = len(outputs)
    each = torch.arange(n + 1, device=outputs.device)
    single = score(task, outputs, targets, each, loss, unit)
    shares = pool(task, outputs.nan_to_num(), targets, loss, unit)
    moves = {name: 1 / n if name == "accuracy" else _moves_pairs(task, targets) for name in SHARES}
    found = {
        name: Guarded(shares[name], moves[name])
        for name in SHARES
        if shares.get(name, torch.nan) == shares.get(name) and moves[name] <= 0.25
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
        return _FAR * log(max(2, outputs.shape[-1]))
    mean, spread = targets.double().mean(), targets.double().std(correction=0)
    return float(loss((mean + _FAR * spread).view(1, 1), mean.view(1), torch.ones(1).double()))


def _moves_pairs(task: str, targets: Tensor) -> float:
    """The share of comparable pairs that one point is in, at most."""
    if task == "survival":
        time, event = targets[:, 0].contiguous(), targets[:, 1] > 0
        times, ends = time.sort().values, time[event].sort().values
        pairs = int((len(time) - torch.searchsorted(times, ends, right=True)).sum())
        mine = torch.where(event, len(time) - torch.searchsorted(times, time), 0)
        most = int((mine + torch.searchsorted(ends, time, right=True)).max())  # with all ties
        return most / pairs if pairs else float("inf")
    up = int((targets > 0).sum())
    fewest = min(up, len(targets) - up)
    return 1 / fewest if fewest else float("inf")


def _classification(outputs: Tensor, targets: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    outputs = outputs.unsqueeze(-1) if outputs.dim() == 1 else outputs
    if outputs.shape[-1] > 2:
        return {"accuracy": _mean(outputs.argmax(dim=-1) == targets, offsets)}
    margin = outputs[:, -1] - outputs[:, 0] if outputs.shape[-1] == 2 else outputs[:, 0]
    return {
        "accuracy": _mean((margin > 0) == (targets > 0), offsets),
        "auc": _auc(margin, targets > 0, offsets),
    }


def _regression(outputs: Tensor, targets: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    targets = targets.double()
    error = outputs.double().reshape(targets.shape) - targets
    around = targets - _mean(targets, offsets)[_party(offsets)]
    squares, spread = _mean(error.square(), offsets), _mean(around.square(), offsets)
    return {
        "rmse": squares.sqrt(),
        "mae": _mean(error.abs(), offsets),
        "r2": 1 - squares / torch.where(spread > 0, spread, torch.nan),
    }


def _survival(outputs: Tensor, targets: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    return {"c_index": _c_index(outputs.reshape(-1), targets[:, 0], targets[:, 1] > 0, offsets)}


def _text(outputs: Tensor, targets: Tensor, offsets: Tensor) -> dict[str, Tensor]:
    right = (outputs.argmax(dim=-1) == targets).double()
    return {"accuracy": _mean(right.mean(dim=-1), offsets)}


_TASKS: dict[str, Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]] = {
    "classification": _classification,
    "regression": _regression,
    "survival": _survival,
    "text": _text,
}


def _party(offsets: Tensor) -> Tensor:
    """Return the party of each point, `[K + 1] -> [N]`."""
    parties = torch.arange(offsets.numel() - 1, device=offsets.device)
    return parties.repeat_interleave(offsets.diff())


def _sum(values: Tensor, offsets: Tensor) -> Tensor:
    """Return each party's sum, `[N] -> [K]`."""
    total = torch.zeros(offsets.numel() - 1, dtype=torch.float64, device=values.device)
    return total.index_add_(0, _party(offsets), values.double())


def _mean(values: Tensor, offsets: Tensor) -> Tensor:
    return _sum(values, offsets) / offsets.diff()


def _loss(outputs: Tensor, targets: Tensor, offsets: Tensor, loss: Loss) -> Tensor:
    if loss.separable:  # every point a party of its own
        one = torch.ones(outputs.shape[0], 1, dtype=outputs.dtype, device=outputs.device)
        return _mean(loss(outputs.unsqueeze(1), targets.unsqueeze(1), one), offsets)
    values = offsets.diff().double() * torch.nan  # of the parties without points
    for parties, rows, valid in _blocks(offsets):
        weights = valid / valid.sum(dim=-1, keepdim=True)
        values[parties] = loss(outputs[rows], targets[rows], weights.to(outputs.dtype)).to(
            values.dtype
        )
    return values


def _auc(scores: Tensor, positive: Tensor, offsets: Tensor) -> Tensor:
    """Return the share of (positive, negative) pairs in the right order; equal scores count half.

    With ranks in each party's order of scores, equal ones sharing their mean rank, it is Mann and
    Whitney's U over the number of pairs.
    """
    party = _party(offsets)
    order = scores.argsort()
    order = order[party[order].argsort(stable=True)]
    first, end = _runs(party, scores[order])
    rank = (first + 1 + end) / 2 - offsets[party]
    up = _sum(positive, offsets)
    down = offsets.diff() - up
    u = _sum(torch.where(positive[order], rank, 0.0), offsets) - up * (up + 1) / 2
    return _unless_nan(scores, offsets, u / (up * down))


def _c_index(risk: Tensor, time: Tensor, event: Tensor, offsets: Tensor) -> Tensor:
    """Return Harrell's C: the share of comparable pairs whose higher risk fails first.

    A pair is comparable when one fails while the other is still followed, that is later, or
    censored at the same time. Equal risks count half. In each party's order of time, events
    before censorings and simultaneous events by risk, a comparable pair is an event and any later
    row but a simultaneous event; those have no smaller risk, so only their equal ones are taken
    off again. The later rows of smaller risk are counted as in a merge sort, blocks of 1, 2, 4 ...
    rows with their right neighbours, which takes n (log n)^2 rather than n^2.
    """
    party = _party(offsets)
    risks, rank = torch.unique(risk, return_inverse=True)
    times, moment = torch.unique(time, return_inverse=True)
    order = (rank + risks.numel() * ~event).argsort()
    order = order[(party * times.numel() + moment)[order].argsort(stable=True)]
    rank, moment, event = rank[order], moment[order], event[order]
    row = torch.arange(order.numel(), device=order.device)
    place = row - offsets[party]

    _, end = _runs(party, moment, event)
    pairs = _sum(event * (offsets[party + 1] - end), offsets)
    _, end = _runs(party, moment, event, rank)
    right = -(end - 1 - row) / 2
    longest = int(offsets.diff().max()) if offsets.numel() > 1 else 0
    for level in range(max(longest - 1, 0).bit_length()):
        block = place >> level
        couple = offsets[party] + (block >> 1)  # a number no other couple of blocks has
        key, by = (couple * risks.numel() + rank).sort()
        rights = torch.nn.functional.pad((block & 1)[by].cumsum(0), (1, 0))
        first, end = _runs(key)
        start, _ = _runs(couple)
        lower = (rights[first] + rights[end]) / 2 - rights[start]
        right[by] += torch.where((block & 1)[by] == 0, lower, 0.0)
    return _unless_nan(risk, offsets, _sum(torch.where(event, right, 0.0), offsets) / pairs)


def _runs(*columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row, and the row after the last, of the run of equal rows each is in."""
    fresh = torch.ones_like(columns[0], dtype=torch.bool)
    fresh[1:] = torch.stack([column[1:] != column[:-1] for column in columns]).any(dim=0)
    run = fresh.cumsum(0) - 1
    size = run.bincount()
    end = size.cumsum(0)
    return (end - size)[run], end[run]


def _unless_nan(scores: Tensor, offsets: Tensor, values: Tensor) -> Tensor:
    """Return the values, NaN for a party whose model has diverged: order says nothing there."""
    return torch.where(_sum(scores.isnan(), offsets) > 0, torch.nan, values)


def _blocks(offsets: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (parties `[m]`, rows `[m, b]`, valid `[m, b]`), every party with points once.

    Parties of like size are padded together, as many as a block holds. A padding row repeats the
    party's first.
    """
    sizes, order = offsets.diff().sort(descending=True)
    order = order[: int((sizes > 0).sum())]
    first = 0
    while first < order.numel():
        b = int(sizes[first])
        parties = order[first : first + max(1, _BLOCK // b)]
        first += parties.numel()
        column = torch.arange(b, device=offsets.device)
        valid = column < offsets.diff()[parties, None]
        yield parties, offsets[parties, None] + column * valid, valid
