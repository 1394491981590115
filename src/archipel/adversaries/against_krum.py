# SPDX-License-Identifier: Apache-2.0
"""Directed deviation against Krum.  Fang, Cao, Jia, Gong, USENIX Security 2020,
https://arxiv.org/abs/1911.11815, section 3.2 and its appendix: full knowledge.

Departures: uploads are changes of the model, so that the deviation is from no change; lambda is
halved until Krum chooses an adversary's upload, as in the paper, then bisected. All adversaries
send the same, where the paper's differ by a hair so that nobody sees it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.rules.krum import scores
from archipel.rules.rows import distances


@dataclass(frozen=True)
class AgainstKrum:
    """The longest step against the honest mean's signs that Krum still takes for the best."""

    f: int | None = None  # liars that Krum allows for; the adversaries

    def colluding(self, honest: Tensor, f: int) -> Tensor:
        p = honest.shape[1]
        apart = distances(honest)
        against: Tensor = -honest.mean(dim=0).sign()
        start = float(apart[apart.isfinite()].max().sqrt()) / p**0.5
        start += (
            float(honest.norm(dim=1).max()) / p**0.5
        )  # lambda's upper bound, of the paper's form
        step = max(start, 1e-12)
        allowed = f if self.f is None else self.f
        for _ in range(60):
            if _chosen(honest, step * against, f, allowed):
                break
            step /= 2
        low, high = step, 2 * step
        for _ in range(8):
            step = (low + high) / 2
            chosen = _chosen(honest, step * against, f, allowed)
            low, high = (step, high) if chosen else (low, step)
        found: Tensor = low * against
        return found


def _chosen(honest: Tensor, bad: Tensor, f: int, allowed: int) -> bool:
    """Whether Krum takes one of f copies of a vector for the best of all."""
    rows = torch.cat([bad.expand(f, -1), honest])
    if len(rows) < allowed + 3:
        return False
    return int(scores(distances(rows), allowed).argmin()) < f
