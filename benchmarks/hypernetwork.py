# SPDX-License-Identifier: Apache-2.0
"""Models that a hyper-network makes: all parties of a round at once, against one after another.

Both sides do what PeFLL's round does for m parties: make m models from m embeddings, take k local
steps on each party's own points from its own model, and carry the differences back through the
hyper-network. The naive side is the plain loop: for each party a pass through an `nn.Module`, a
`torch.nn` target with the weights loaded, `torch.optim.SGD`, and one backward pass. One core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import archipel as ar
from archipel.engines import plan as planning
from archipel.engines.party import LocalParty
from archipel.models import build
from archipel.models.networks import Perceptron, first_weights, pull_back

RESULTS = Path(__file__).parent / "results"
SIZE, HIDDEN = 32, 100
TARGETS = ("mlp", "lenet")


class Setting:
    """A round's inputs, the same for both sides."""

    def __init__(self, target: str, parties: int, steps: int, batch: int) -> None:
        self.data = ar.load("femnist")
        self.module = build(target, (1, 28, 28), 62)
        self.model = ar.Model(self.module)
        self.h = Perceptron((SIZE, HIDDEN, HIDDEN, HIDDEN, self.model.p))
        drawn = first_weights(self.h.spec, 0, self.model.w)
        self.eta = self.h.starting_at(drawn, self.model.w)
        self.v = torch.from_numpy(
            np.random.default_rng(0).standard_normal((parties, SIZE)).astype(np.float32)
        )
        self.ids, self.steps, self.batch = np.arange(parties), steps, batch
        self.work = ar.FedAvg(lr=0.05, local_steps=steps, batch_size=batch)
        single = torch.get_num_threads()
        self.plan = planning.choose(self.model, self.data, batch, 1)
        torch.set_num_threads(single)
        self.way = planning.ways(self.model, self.data, self.plan.way)[self.plan.way]


def stacked(s: Setting) -> tuple[Tensor, Tensor]:
    """One batched pass for all parties."""
    eta, v = s.eta.detach().requires_grad_(), s.v.detach().requires_grad_()
    theta = s.h(eta, v)
    moved = []
    for at in range(0, len(s.ids), s.plan.block):
        ids = s.ids[at : at + s.plan.block]
        me = LocalParty(s.data, s.model, s.way, ids, 0, 0, (len(ids),), block=s.plan.block)
        moved.append(me.descend(theta.detach()[at : at + s.plan.block], s.work).w)
    d_eta, d_v = pull_back(theta, (eta, v), theta.detach() - torch.cat(moved))
    return d_eta, d_v


def naive(s: Setting) -> tuple[Tensor, Tensor]:
    """One party after another, with modules and an optimiser."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(s.h.widths, s.h.widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    hyper = nn.Sequential(*layers[:-1])
    nn.utils.vector_to_parameters(s.eta.clone(), hyper.parameters())
    loss = nn.CrossEntropyLoss()
    d_v = []
    for i, k in enumerate(s.ids.tolist()):
        v = s.v[i].clone().requires_grad_()
        theta = hyper(v)
        nn.utils.vector_to_parameters(theta.detach().clone(), s.module.parameters())
        optimiser = torch.optim.SGD(s.module.parameters(), lr=s.work.lr)
        me = LocalParty(s.data, s.model, s.model.one, np.array([k]), 0, 0, (1,))
        for _ in range(s.steps):
            batch = me.batch(s.batch)
            rows = batch.rows[0][batch.weights[0] > 0]
            optimiser.zero_grad()
            loss(s.module(s.data.x[rows]), s.data.y[rows]).backward()
            optimiser.step()
        moved = nn.utils.parameters_to_vector(s.module.parameters()).detach()
        theta.backward(theta.detach() - moved)
        d_v.append(v.grad)
    d_eta = torch.cat([p.grad.reshape(-1) for p in hyper.parameters()])
    return d_eta, torch.stack(d_v)


def measure(target: str, parties: int, steps: int, batch: int, repetitions: int) -> dict:
    """Return seconds of both sides by repetition, in changing order, after a check of equality."""
    setting = Setting(target, parties, steps, batch)
    one, other = stacked(setting), naive(setting)
    apart = max(float((a - b).norm() / b.norm()) for a, b in zip(one, other, strict=True))
    if apart > 1e-3:
        raise SystemExit(f"{target}: the two sides differ by {apart:.1e}: not a comparison.")
    times: dict[str, list[float]] = {"stacked": [], "naive": []}
    sides = [("stacked", stacked), ("naive", naive)]
    for repetition in range(repetitions):
        for name, side in sides if repetition % 2 else sides[::-1]:
            began = time.perf_counter()
            side(setting)
            times[name].append(time.perf_counter() - began)
    ratios = sorted(n / s for n, s in zip(times["naive"], times["stacked"], strict=True))
    return {
        "target": target,
        "p": setting.model.p,
        "way": setting.plan.way,
        "parties": parties,
        "steps": steps,
        "batch": batch,
        "apart": apart,
        "stacked_ms": 1000 * statistics.median(times["stacked"]),
        "naive_ms": 1000 * statistics.median(times["naive"]),
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=6)
    parser.add_argument("--parties", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        measure(target, options.parties, options.steps, options.batch, options.reps)
        for target in TARGETS
    ]
    lines = [
        "# Models made by a hyper-network",
        "",
        f"`python benchmarks/hypernetwork.py --reps {options.reps}`: a round of {options.parties} "
        f"parties, {options.steps} local steps of {options.batch} points",
        "each, on one core; all parties at once against one after another, the same numbers.",
        "",
        "| target | parameters | way | at once, ms | one by one, ms | ratio |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for r in found:
        low, high = r["ratios"][0], r["ratios"][-1]
        lines.append(
            f"| {r['target']} | {r['p']} | {r['way']} | {r['stacked_ms']:.0f} | "
            f"{r['naive_ms']:.0f} | {statistics.median(r['ratios']):.2f} ({low:.2f}-{high:.2f}) |"
        )
    text = "\n".join(lines) + "\n"
    (RESULTS / "hypernetwork.md").write_text(text)
    (RESULTS / "hypernetwork.json").write_text(json.dumps(found, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
