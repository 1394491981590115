# SPDX-License-Identifier: Apache-2.0
"""Metrics of the order that scores put each party's points in, for all parties at once."""

from __future__ import annotations

import torch
from torch import Tensor

from archipel.metrics.groups import party_of, runs, total, unless_nan


def auc(scores: Tensor, positive: Tensor, offsets: Tensor) -> Tensor:
    """Return the share of (positive, negative) pairs in the right order; equal scores count half.

    With ranks in each party's order of scores, equal ones sharing their mean rank, it is Mann and
    Whitney's U over the number of pairs.
    """
    party = party_of(offsets)
    order = scores.argsort()
    order = order[party[order].argsort(stable=True)]
    first, end = runs(party, scores[order])
    rank = (first + 1 + end) / 2 - offsets[party]
    up = total(positive, offsets)
    down = offsets.diff() - up
    u = total(torch.where(positive[order], rank, 0.0), offsets) - up * (up + 1) / 2
    return unless_nan(scores, offsets, u / (up * down))


def average_precision(scores: Tensor, positive: Tensor, offsets: Tensor) -> Tensor:
    """Return the mean over positives of the precision among all that score at least as much.

    This is scikit-learn's sum of precisions, each weighted by the recall that it adds.
    """
    party = party_of(offsets)
    order = scores.argsort(descending=True)
    order = order[party[order].argsort(stable=True)]
    _, end = runs(party, scores[order])
    hits = torch.nn.functional.pad(positive[order].long().cumsum(0), (1, 0))
    start = offsets[party]
    precision = (hits[end] - hits[start]).double() / (end - start)
    found = total(torch.where(positive[order], precision, 0.0), offsets) / total(positive, offsets)
    return unless_nan(scores, offsets, found)


def c_index(risk: Tensor, time: Tensor, event: Tensor, offsets: Tensor) -> Tensor:
    """Return Harrell's C: the share of comparable pairs whose higher risk fails first.

    A pair is comparable when one fails while the other is still followed, that is later, or
    censored at the same time. Equal risks count half. In each party's order of time, events
    before censorings and simultaneous events by risk, a comparable pair is an event and any later
    row but a simultaneous event; those have no smaller risk, so only their equal ones are taken
    off again. The later rows of smaller risk are counted as in a merge sort, blocks of 1, 2, 4 ...
    rows with their right neighbours, which takes n (log n)^2 rather than n^2.
    """
    party = party_of(offsets)
    risks, rank = torch.unique(risk, return_inverse=True)
    times, moment = torch.unique(time, return_inverse=True)
    order = (rank + risks.numel() * ~event).argsort()
    order = order[(party * times.numel() + moment)[order].argsort(stable=True)]
    rank, moment, event = rank[order], moment[order], event[order]
    row = torch.arange(order.numel(), device=order.device)
    place = row - offsets[party]

    _, end = runs(party, moment, event)
    pairs = total(event * (offsets[party + 1] - end), offsets)
    _, end = runs(party, moment, event, rank)
    right = -(end - 1 - row) / 2
    longest = int(offsets.diff().max()) if offsets.numel() > 1 else 0
    for level in range(max(longest - 1, 0).bit_length()):
        block = place >> level
        couple = offsets[party] + (block >> 1)  # a number no other couple of blocks has
        key, by = (couple * risks.numel() + rank).sort()
        rights = torch.nn.functional.pad((block & 1)[by].cumsum(0), (1, 0))
        first, end = runs(key)
        start, _ = runs(couple)
        lower = (rights[first] + rights[end]) / 2 - rights[start]
        right[by] += torch.where((block & 1)[by] == 0, lower, 0.0)
    return unless_nan(risk, offsets, total(torch.where(event, right, 0.0), offsets) / pairs)
