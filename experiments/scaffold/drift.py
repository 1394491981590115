# SPDX-License-Identifier: Apache-2.0
"""Client drift made visible: where parties go between two rounds, and where rounds end.

Three parties with quadratics in the plane. The algorithms run in the engine as in any other run;
beside it each party's round is replayed with a `me` that keeps every point it is asked about.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from reporting import BLUE, GREEN, INK, ORANGE, PURPLE, SKY
from torch import Tensor, nn

import archipel as ar
from archipel.core import Batch, Descent
from archipel.data import optimum, quadratics
from archipel.engines.party import LocalParty
from archipel.training import descent

PARTIES, STEPS, RATE = 3, 12, 0.1
PARTY_COLOURS = (GREEN, PURPLE, SKY)


class Watched(LocalParty):
    """A party that writes down where its local steps lead it."""

    def descend(self, w: Tensor, work: Any, *args: Any, **options: Any) -> Descent:
        self.path: list[Tensor] = []
        end = descent.descend(self, w, work, *args, **options)
        self.path.append(end.w)
        return end

    def grad(self, w: Tensor, batch: Batch | None = None) -> Tensor:
        self.path.append(w)
        return super().grad(w, batch)


def problem(seed: int) -> tuple[ar.Federation, Tensor]:
    """Return three parties with as many points each, so that all methods have one objective."""
    fed, _ = quadratics(PARTIES, dims=2, points=20, heterogeneity=2.0, seed=seed)
    train = [fed.party(k) for k in range(PARTIES)]
    fed = ar.Federation.from_arrays(
        [x[:20] for x, *_ in train], [y[:20] for _, y, *_ in train], test=0.0, task="regression"
    )
    return fed, optimum(fed)


def follow(
    algorithm: Any, fed: ar.Federation, start: Tensor, rounds: int, watch: int
) -> tuple[Tensor, list[list[Tensor]]]:
    """Return the shared models `[rounds + 1, 2]` and the local paths of the first rounds."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        module[1].weight.copy_(start)
    model = ar.Model(module, "squared_error")
    plan = ar.Plan("one", PARTIES, 1)
    path, local = [], []
    with ar.LocalEngine(algorithm, fed, model, plan=plan) as engine:
        path.append(engine.vector().clone())
        for t in range(rounds):
            if t < watch:
                paths = []
                for k in range(PARTIES):
                    me = Watched(fed, model, model.one, np.array([k]), 0, t, ())
                    own = engine.own_states([k])
                    own = None if own is None else own[0]
                    algorithm.party(me, engine.shared, own)
                    paths.append(torch.stack(me.path))
                local.append(paths)
            engine.round(t, np.arange(PARTIES))
            path.append(engine.vector().clone())
    return torch.stack(path), local


def objective(fed: ar.Federation, points: Tensor) -> Tensor:
    """Return the mean squared error over all parties at points `[..., 2]`."""
    return (points @ fed.x.T - fed.y).square().mean(dim=-1)


def draw_drift(seed: int = 3) -> tuple[Figure, dict[str, float]]:
    """Return the picture, and how far from the optimum each method's last round is."""
    fed, best = problem(seed)
    own = torch.stack([optimum(fed.select([k])) for k in range(PARTIES)])
    spread = torch.cat([own, best[None]])
    middle, size = spread.mean(dim=0), (spread - spread.mean(dim=0)).abs().max() * 1.35
    start = middle + size * torch.tensor([-0.85, 0.85], dtype=best.dtype)
    methods = {
        "FedAvg": (ar.FedAvg(lr=RATE, local_steps=STEPS, batch_size=None), ORANGE),
        "SCAFFOLD": (ar.Scaffold(lr=RATE, local_steps=STEPS, batch_size=None), BLUE),
    }
    figure = Figure(figsize=(14, 4.9), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1, 1, 1.05])
    grid = torch.linspace(-1, 1, 160, dtype=best.dtype) * size
    xs, ys = middle[0] + grid, middle[1] + grid
    plane = torch.stack(torch.meshgrid(xs, ys, indexing="xy"), dim=-1)
    height = objective(fed, plane) - objective(fed, best)
    levels = np.geomspace(float(height.max()) / 600, float(height.max()), 11)
    distances = {}
    for ax, (name, (algorithm, colour)) in zip(axes, methods.items(), strict=False):
        path, local = follow(algorithm, fed, start, rounds=25, watch=25)
        ax.contour(xs, ys, height, levels=levels, colors="#C3C9D4", linewidths=0.8)
        for paths in local:
            for k, steps in enumerate(paths):
                ax.plot(*steps.T, color=PARTY_COLOURS[k], linewidth=0.9, alpha=0.8, zorder=2)
        for k in range(PARTIES):
            ax.plot(*own[k], marker="D", color=PARTY_COLOURS[k], markersize=9, zorder=3,
                    markeredgecolor="white")  # fmt: skip
        ax.plot(*path.T, color=colour, marker="o", markersize=4.5, linewidth=1.6, zorder=4)
        ax.plot(*best, marker="*", color=INK, markersize=17, zorder=5, markeredgecolor="white")
        gap = float((path[-1] - best).norm())
        ending = "stalls" if gap > 1e-2 else "arrives"
        ax.set_title(f"{name} {ending} ({gap:.1g} off after 25 rounds)", color=INK)
        ax.set(xlim=(xs[0], xs[-1]), ylim=(ys[0], ys[-1]), xlabel="$w_1$", ylabel="$w_2$")
        ax.grid(visible=False)
        ax.set_aspect("equal")
    handles = [
        Line2D([], [], color=INK, marker="*", linestyle="", markersize=13, label="optimum of all"),
        Line2D([], [], color=PARTY_COLOURS[0], marker="D", linestyle="", label="a party's own"),
        Line2D([], [], color=PARTY_COLOURS[0], linewidth=1, label="its local steps"),
        Line2D([], [], color=ORANGE, marker="o", markersize=5, label="shared model"),
    ]
    axes[0].legend(handles=handles, loc="lower right", frameon=True, framealpha=0.9, fontsize=9)
    last = axes[2]
    for steps, style in ((1, ":"), (STEPS // 3, "--"), (STEPS, "-")):
        for name, (algorithm, colour) in methods.items():
            algorithm = type(algorithm)(lr=RATE, local_steps=steps, batch_size=None)
            path, _ = follow(algorithm, fed, start, rounds=100, watch=0)
            far = (path - best).norm(dim=-1)
            label = f"{name}, {steps} step{'s' if steps > 1 else ''}"
            last.semilogy(far, color=colour, linestyle=style, label=label)
            if steps == STEPS:
                distances[name] = float(far[-1])
    last.set(xlabel="round", ylabel="distance to the optimum", xlim=(0, 100), ylim=(1e-15, 20))
    last.set_title("More local steps, more drift", color=INK)
    last.legend(loc="lower right", fontsize=9, frameon=True, framealpha=0.9)
    return figure, distances
