# SPDX-License-Identifier: Apache-2.0
"""Likelihood ratios of a record against runs with it and without it, as Gaussians.

What several attacks share: for each record, a number is compared with what it is in runs that the
adversary made itself, where the record was used and where it was not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ENOUGH = 32  # runs on each side from which a record has a deviation of its own (Carlini: 64 in all)


class Fits(NamedTuple):
    """Gaussians of each record's number, without it and with it: each `[N]`."""

    mean_out: Tensor
    sd_out: Tensor
    mean_in: Tensor
    sd_in: Tensor

    def ratio(self, value: Tensor) -> Tensor:
        """log p(value | used) - log p(value | not used), `[N]`."""
        return _log_normal(value, self.mean_in, self.sd_in) - _log_normal(
            value, self.mean_out, self.sd_out
        )

    def over(self, value: Tensor) -> Tensor:
        """Deviations above what it is without the record."""
        return (value - self.mean_out) / self.sd_out


def stable(loss: Tensor) -> Tensor:
    """log(p / (1 - p)) for p = exp(-loss), which is nearly normal over runs (Carlini, eq. 2)."""
    return -torch.log(torch.expm1(loss.double().clamp(1e-9, 50.0)))


def fits(values: Tensor, used: Tensor) -> Fits:
    """Fit Gaussians to numbers of S runs, `[S, N]`, with `used` bool `[S, N]`; NaN is left out.

    With few runs the deviation is common to all records. A record that was used in all runs, or in
    none, gets the other side by the mean difference.
    """
    known = ~values.isnan()
    mean_out, sd_out = _moments(values, known & ~used)
    mean_in, sd_in = _moments(values, known & used)
    gap = (mean_in - mean_out).nanmean().nan_to_num(0.0)
    mean_out = torch.where(mean_out.isnan(), mean_in - gap, mean_out)
    mean_in = torch.where(mean_in.isnan(), mean_out + gap, mean_in)
    return Fits(mean_out, sd_out, mean_in, sd_in)


def _moments(values: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    n = counted.sum(dim=0)
    mean = torch.where(counted, values, 0.0).sum(dim=0) / n  # NaN without any
    squares = torch.where(counted, (values - mean.nan_to_num(0.0)) ** 2, 0.0).sum(dim=0)
    common = (squares.sum() / (n - 1).clamp(min=0).sum().clamp(min=1)).sqrt()
    own = (squares / (n - 1).clamp(min=1)).sqrt()
    sd = torch.where(n >= ENOUGH, own, common).clamp(min=1e-6)
    return mean, sd


def _log_normal(value: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    return -0.5 * ((value - mean) / sd) ** 2 - sd.log()
