# SPDX-License-Identifier: Apache-2.0
"""Metrics of predicted chances, for all parties at once: are they what happens?"""

from __future__ import annotations

import torch
from torch import Tensor

from archipel.metrics.groups import mean, party_of, total

BINS = 10  # of the expected calibration error: equal parts of [0, 1]
_STEPS = 50  # of Newton's method; a fit that takes more has no finite end


def brier(chances: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
    """Return the mean squared error of the chances `[N, k]`; of two classes, that of one of them.

    So it is between 0 and 1 for two classes, and up to 2 for more.
    """
    wrong = chances - torch.nn.functional.one_hot(labels, chances.shape[-1])
    squares = wrong.square().sum(dim=-1)
    return mean(squares / 2 if chances.shape[-1] == 2 else squares, offsets)


def ece(chances: Tensor, labels: Tensor, offsets: Tensor) -> Tensor:
    """Return the expected calibration error (Guo et al., 2017) over ten bins of equal width.

    A point falls into the bin of its largest chance; a bin's error is the distance of the share
    that is right from the mean of those chances, and bins weigh as many points as they have.
    """
    sure, predicted = chances.max(dim=-1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=sure.dtype, device=sure.device)[1:-1]
    bins = torch.bucketize(sure, edges)  # (0, 0.1], (0.1, 0.2], ...
    cell = party_of(offsets) * BINS + bins
    gap = torch.zeros((offsets.numel() - 1) * BINS, dtype=torch.float64, device=sure.device)
    gap.index_add_(0, cell, (predicted == labels).double() - sure.double())
    found = gap.view(-1, BINS).abs().sum(dim=1) / offsets.diff()
    return torch.where(total(sure.isnan(), offsets) > 0, torch.nan, found)


def slope(margin: Tensor, positive: Tensor, offsets: Tensor) -> Tensor:
    """Return b of the logistic regression a + b margin of the outcome: 1 where spread is right."""
    return _recalibrated(margin, positive, offsets, free=True)[1]


def intercept(margin: Tensor, positive: Tensor, offsets: Tensor) -> Tensor:
    """Return a of the logistic regression a + margin: above 0 where too little is predicted."""
    return _recalibrated(margin, positive, offsets, free=False)[0]


def _recalibrated(
    margin: Tensor, positive: Tensor, offsets: Tensor, free: bool
) -> tuple[Tensor, Tensor]:
    """Fit a and, where it is free, b of each party by Newton's method; NaN where none is best."""
    x, y, party = margin.double(), positive.double(), party_of(offsets)
    a = torch.zeros(offsets.numel() - 1, dtype=torch.float64)
    b = torch.ones_like(a)
    step = torch.full_like(a, torch.inf)
    for _ in range(_STEPS):
        p = torch.sigmoid(a[party] + b[party] * x)
        w = p * (1 - p)
        ga, gb = total(y - p, offsets), total((y - p) * x, offsets)
        aa, ab, bb = total(w, offsets), total(w * x, offsets), total(w * x * x, offsets)
        if free:
            det = aa * bb - ab * ab
            da, db = (bb * ga - ab * gb) / det, (aa * gb - ab * ga) / det
        else:
            da, db = ga / aa, torch.zeros_like(a)
        a, b, step = a + da, b + db, da.abs() + db.abs()
        if not bool((step > 1e-10 * (1 + a.abs() + b.abs())).any()):
            break
    both = (total(y, offsets) > 0) & (total(y, offsets) < offsets.diff())
    done = both & (step <= 1e-8 * (1 + a.abs() + b.abs()))
    return torch.where(done, a, torch.nan), torch.where(done, b, torch.nan)
