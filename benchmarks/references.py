# SPDX-License-Identifier: Apache-2.0
"""What the speed of a round is measured against.

`loop`: the loop over parties that people write in plain PyTorch. `limit`: ordinary centralised
training on as many examples with batches of 256 and all cores. `peak_gflops` and
`Workload.flops`: the arithmetic itself.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

from networks import build, loss, probe_loss, tensors
from pace import Pace, arguments
from workloads import Workload, cohort, load, samples_per_round


class PlainLoop:
    """FedAvg as one writes it by hand: load weights, SGD on mini-batches, average by examples."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.x, self.y = tensors(workload)
        self.offsets = load(workload).offsets
        self.module = build(workload)
        self.shared = [p.detach().clone() for p in self.module.parameters()]

    def round(self, t: int) -> None:
        total, examples = [torch.zeros_like(p) for p in self.shared], 0
        for k in cohort(self.workload, t):
            n = self._train(int(k))
            examples += n
            with torch.no_grad():
                for total_p, p in zip(total, self.module.parameters(), strict=True):
                    total_p.add_(p, alpha=n)
        self.shared = [total_p / examples for total_p in total]

    def _train(self, k: int) -> int:
        self._load()
        optimiser = torch.optim.SGD(self.module.parameters(), lr=self.workload.lr)
        low, high = int(self.offsets[k]), int(self.offsets[k + 1])
        order = torch.randperm(high - low) + low
        for batch in order.split(self.workload.batch_size):
            optimiser.zero_grad()
            loss(self.module(self.x[batch]), self.y[batch]).backward()
            optimiser.step()
        return high - low

    def _load(self) -> None:
        with torch.no_grad():
            for p, value in zip(self.module.parameters(), self.shared, strict=True):
                p.copy_(value)

    def loss(self) -> float:
        self._load()
        return probe_loss(self.workload, self.module)


class Limit:
    """One model, the same examples as the cohort's, shuffled together, in batches of 256.

    The step is leaner than `torch.optim.SGD` (no optimiser object, one fused update), so that the
    limit is not a slow one.
    """

    batch_size = 256
    lr = 1e-3

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.x, self.y = tensors(workload)
        self.offsets = load(workload).offsets
        self.module = build(workload)
        self.parameters = list(self.module.parameters())

    def round(self, t: int) -> None:
        rows = [np.arange(self.offsets[k], self.offsets[k + 1]) for k in cohort(self.workload, t)]
        pool = torch.from_numpy(np.concatenate(rows))
        for batch in pool[torch.randperm(len(pool))].split(self.batch_size):
            value = loss(self.module(self.x[batch]), self.y[batch])
            gradients = torch.autograd.grad(value, self.parameters)
            with torch.no_grad():
                torch._foreach_add_(self.parameters, gradients, alpha=-self.lr)

    def loss(self) -> float:
        return probe_loss(self.workload, self.module)


def peak_gflops(threads: int, size: int = 2048, seconds: float = 0.5) -> float:
    """Return the best GFLOP/s of a square float32 matrix product over the seconds."""
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


def bound_ms(workload: Workload, gflops: float) -> float:
    """Return the milliseconds that a round's arithmetic takes at the machine's peak."""
    return samples_per_round(workload) * workload.flops / gflops / 1e6


def main() -> None:
    """Run `loop` or `limit` as a candidate: references.py {loop,limit} W1 [options of pace]."""
    kind = sys.argv.pop(1)
    options = arguments()
    pace = Pace(options)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    reference = {"loop": PlainLoop, "limit": Limit}[kind](pace.workload)
    for t in pace.rounds(reference.loss):
        reference.round(t)


if __name__ == "__main__":
    main()
