# SPDX-License-Identifier: Apache-2.0
"""Opacus 1.6: DP-SGD at every party of a cohort, as its PrivacyEngine sets it up.

`--mode hooks` holds the gradients of single examples, `--mode ghost` computes their norms and runs
backward twice. Batches are ordinary ones here, as for the other candidates.
"""

from __future__ import annotations

import warnings

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from networks import build, loss, tensors
from privacy import CLIP, NOISE, Team, options
from workloads import Workload, load

warnings.simplefilter("ignore")


class Parties:
    """One module and one optimiser, which every party starts anew."""

    def __init__(self, workload: Workload, mode: str, noise: float = NOISE) -> None:
        self.x, self.y = tensors(workload)
        self.offsets, self.size = load(workload).offsets, workload.batch_size
        module = build(workload)
        self.start = [p.detach().clone() for p in module.parameters()]
        optimiser = torch.optim.SGD(module.parameters(), lr=workload.lr)
        some = TensorDataset(self.x[: self.size], self.y[: self.size])
        self.module, self.optimiser, *rest = PrivacyEngine().make_private(
            module=module,
            optimizer=optimiser,
            criterion=torch.nn.CrossEntropyLoss(),
            data_loader=DataLoader(some, batch_size=self.size),
            noise_multiplier=noise,
            max_grad_norm=CLIP,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        self.loss = rest[0] if mode == "ghost" else loss

    def round(self, ids: list[int]) -> None:
        for k in ids:
            low, high = int(self.offsets[k]), int(self.offsets[k + 1])
            self.train(torch.randperm(high - low) + low)

    def train(self, order: torch.Tensor) -> None:
        """One party's epoch from the initial weights."""
        with torch.no_grad():
            for p, value in zip(self.module.parameters(), self.start, strict=True):
                p.copy_(value)
        for batch in order.split(self.size):
            self.optimiser.zero_grad()
            self.loss(self.module(self.x[batch]), self.y[batch]).backward()
            self.optimiser.step()

    def check(self) -> float:
        """Length of the way of the first party's epoch."""
        self.train(torch.arange(int(self.offsets[1])))
        moved = zip(self.module.parameters(), self.start, strict=True)
        return float(torch.cat([(p.detach() - v).flatten() for p, v in moved]).norm())


def main() -> None:
    pace, mode, threads, processes = options()
    workload = pace.workload

    def check() -> float:
        return Parties(workload, mode, noise=0.0).check()

    with Team(processes, threads, lambda: Parties(workload, mode).round) as team:
        for t in pace.rounds(check):
            team.round(workload, t)


if __name__ == "__main__":
    main()
