# SPDX-License-Identifier: Apache-2.0
"""What an epsilon buys: MNIST in one place and at 100 parties, FEMNIST by writer, four hospitals.

DP-SGD, Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133, on features that cost no privacy,
Tramer and Boneh, ICLR 2021, https://arxiv.org/abs/2011.11660. Learning rates are chosen on
validation points, with noise, and what the choice costs is counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scattering import FEATURES, features
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import archipel as ar
from archipel.privacy.accounting import Pure, Release, epsilon
from archipel.privacy.mechanisms import Exponential
from archipel.privacy.promise import Privacy
from archipel.privacy.sources import Simulated

sys.path.insert(0, str(Path(__file__).parents[1]))
from dpsgd_tables import figures, tables
from reporting import save

FOLDER = Path(__file__).parent
KEPT = Path(tempfile.gettempdir()) / "archipel-scattering"
DELTA = 1e-5
CHOICE = 0.1  # epsilon of the choice among learning rates, by validation points
COMPONENTS = 128  # of FEMNIST's features


def zeros(inputs: int, outputs: int) -> ar.Model:
    """A linear model, from zero."""
    module = nn.Linear(inputs, outputs)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    return ar.Model(module)


def on(fed: ar.Federation, x: Tensor) -> ar.Federation:
    """The same parties with other features."""
    return ar.Federation(
        x, fed.y, fed.offsets, fed.test_from, fed.training, fed.task, fed.classes, scan=False
    )


def mnist(parties: int) -> ar.Federation:
    """MNIST's features, all in one place or dealt out."""
    whole = ar.load("mnist", partition="iid", parties=1)
    fed = on(whole, features(whole.x, KEPT / "mnist.npy"))
    return fed if parties == 1 else fed.repartition("iid", parties, seed=0)


def femnist() -> ar.Federation:
    """FEMNIST's features on the principal components of MNIST's, which stand for public data."""
    whole = ar.load("femnist")
    public = mnist(1).x[:20_000]
    mean = public.mean(dim=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, _, axes = torch.pca_lowrank(public[:4000] - mean, COMPONENTS, center=False, niter=2)
    scale = ((public - mean) @ axes).std(dim=0)
    x = (features(whole.x, KEPT / "femnist.npy") - mean) @ axes / scale
    return on(whole, x)


def coarse() -> ar.Federation:
    """FEMNIST at 7 x 7 points, each picture by itself: 3,100 parameters."""
    whole = ar.load("femnist")
    return on(whole, avg_pool2d(whole.x.view(-1, 1, 28, 28), 4).flatten(1))


@dataclass(frozen=True)
class Part:
    """One curve."""

    data: Callable[[], ar.Federation]
    model: Callable[[], Any]
    work: Callable[[float], Any]  # of a learning rate
    rounds: int
    epsilons: Sequence[float]  # inf: without privacy
    rates: Sequence[float]
    promise: Callable[[float], Privacy]
    sample: float | int = 1.0
    fraction: float = 0.1  # of the training points, to choose by
    metric: str = "accuracy"
    trials: int = 0  # seeds by which rates are compared, and the choice is not private; 0: it is


def record(
    clip: float, delta: float = DELTA, correlated: str | None = None
) -> Callable[[float], Privacy]:
    return lambda budget: Privacy(
        "record", epsilon=budget, delta=delta, clip=clip, correlated=correlated
    )


def writer(clip: float | Literal["adaptive"], start: float = 1.0) -> Callable[[float], Privacy]:
    return lambda budget: Privacy("party", epsilon=budget, delta=1e-3, clip=clip, clip_start=start)


def dealt(correlated: str | None) -> Part:
    """Four hospitals with an epoch of ten batches in a round."""
    return Part(
        lambda: ar.load("heart_disease"), lambda: None,
        lambda lr: ar.FedAvg(lr, local_epochs=1, batch_size=0.1), 20,
        (0.25, 1.0, 4.0, 16.0), (0.01, 0.03, 0.1, 0.3), record(1.0, 1e-3, correlated),
        fraction=0.25, metric="auc", trials=3,
    )  # fmt: skip


MOMENTUM = ar.SGD(momentum=0.9)
HOSPITALS = Part(
    lambda: ar.load("heart_disease"), lambda: None,
    lambda lr: ar.FedAvg(lr, local_steps=1, batch_size=None), 20,
    (0.25, 1.0, 4.0, 16.0, inf), (0.3,), record(1.0, 1e-3), metric="auc",
)  # fmt: skip
WRITERS = Part(
    femnist, lambda: zeros(COMPONENTS, 62),
    lambda lr: ar.FedAvg(lr, local_epochs=1, batch_size=20), 20,
    (0.5, 1.0, 2.0, 4.0, 8.0, inf), (0.3,), writer(1.0),
)  # fmt: skip


def clipped(clip: float | Literal["adaptive"], start: float = 1.0) -> Part:
    """The same at 7 x 7 points, with a larger rate."""
    return replace(
        WRITERS, data=coarse, model=lambda: zeros(49, 62), epsilons=(2.0, 8.0), rates=(1.0,),
        promise=writer(clip, start),
    )  # fmt: skip


PARTS = {
    "central": Part(
        lambda: mnist(1), lambda: zeros(FEATURES, 10),
        lambda lr: ar.FedAvg(lr, local_steps=100, batch_size=0.02, optimiser=MOMENTUM),
        4, (0.5, 1.2, 2.0, 3.0, 8.0, inf), (2.0, 4.0, 8.0), record(0.1),
    ),
    "federated": Part(
        lambda: mnist(100), lambda: zeros(FEATURES, 10),
        lambda lr: ar.FedOpt(
            lr, local_steps=1, batch_size=0.1, server_optimiser="momentum", server_lr=1.0
        ),
        80, (0.5, 2.0, 8.0, inf), (1.0, 4.0), record(0.1),
    ),
    "femnist": WRITERS,
    "heart": HOSPITALS,
    "heart-faster": replace(HOSPITALS, rates=(1.0,)),
    "noise-none": replace(dealt(None), epsilons=(inf,)),
    "noise-independent": dealt("banded:1"),
    "noise-poisson": dealt(None),
    "noise-banded": dealt("banded"),
    "noise-tree": dealt("tree"),
    "clip-0.1": clipped(0.1),
    "clip-1": clipped(1.0),
    "clip-10": clipped(10.0),
    "clip-adaptive": clipped("adaptive"),
    "clip-adaptive-0.1": clipped("adaptive", 0.1),
    "clip-adaptive-10": clipped("adaptive", 10.0),
}  # fmt: skip


def learnt(part: Part, fed: ar.Federation, budget: float, lr: float, seed: int) -> ar.Run:
    """A run."""
    options: dict[str, Any] = {} if budget == inf else {"privacy": part.promise(budget)}
    return ar.simulate(
        part.work(lr), fed, part.model(), rounds=part.rounds, evaluate_every=part.rounds,
        sample=part.sample, seed=seed, workers=1, **options,
    )  # fmt: skip


def chosen(part: Part, fed: ar.Federation, budget: float) -> tuple[float, dict[str, float]]:
    """A learning rate, likelier the more validation points it gets right; and all of them.

    Without privacy for the choice, the one with the best mean score of some seeds.
    """
    if len(part.rates) == 1:
        return part.rates[0], {}
    tried = fed.validation(part.fraction)
    if part.trials:
        scores = {
            lr: float(np.mean([learnt(part, tried, budget, lr, 90 + i).metrics[part.metric]
                               for i in range(part.trials)]))
            for lr in part.rates
        }  # fmt: skip
        return max(scores, key=scores.__getitem__), {f"{lr:g}": s for lr, s in scores.items()}
    found = {lr: learnt(part, tried, budget, lr, 99).metrics[part.metric] for lr in part.rates}
    points = int(tried.n_test.sum())
    right = [points * found[lr] for lr in part.rates]
    source = Simulated(0, 0, [0], f"choice at {budget}")
    at = Exponential(CHOICE, 1.0).choose(right, source)
    return part.rates[at], {f"{lr:g}": value for lr, value in found.items()}


def cost(run: ar.Run, times: int, more: Sequence[Release] = ()) -> float:
    """The epsilon of the party that spent most, had all been done so many times."""
    kept = run.kept
    assert kept is not None
    alike = {(kept.uses[k], kept.noise[k]): k for k in kept.uses}
    return max(
        epsilon(
            [*kept.releases(k, times * kept.rounds), *more],
            kept.promise.delta,
            neighbours=kept.neighbours,
        )
        for k in alike.values()
    )


def measured(part: Part, seeds: int) -> dict[str, Any]:
    """Every epsilon of a part: the rate, what each seed scores on test points, what it cost."""
    fed, done = part.data(), dict[str, Any]()
    for budget in part.epsilons:
        began = time.perf_counter()
        lr, tried = chosen(part, fed, budget)
        runs = [learnt(part, fed, budget, lr, seed) for seed in range(seeds)]
        one: dict[str, Any] = {
            "lr": lr, "tried": tried, "scores": [run.metrics[part.metric] for run in runs],
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        if budget < inf:
            kept = runs[0].kept
            assert kept is not None
            one["noise"] = [min(kept.noise.values()), max(kept.noise.values())]
            one["spent"] = cost(runs[0], 1)
            if tried and not part.trials:  # a point trains in every trial, or helps to choose
                one["with choice"] = max(
                    cost(runs[0], len(tried) + 1), cost(runs[0], 1, [Release(Pure(CHOICE))])
                )
        done[f"{budget:g}"] = one
        print(budget, one, file=sys.stderr, flush=True)
    return {"metric": part.metric, "rounds": part.rounds, "delta": part.promise(1).delta,
            "by epsilon": done}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, "all", []], help="others are kept; none: draw anew"
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stored = args.out / "results.json"

    def kept() -> dict[str, Any]:
        found = json.loads(stored.read_text())["parts"] if stored.exists() else {}
        return {part: found[part] for part in PARTS if part in found}

    for name in PARTS if "all" in args.parts else args.parts:
        found = measured(PARTS[name], args.seeds)
        args.out.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps({"parts": kept() | {name: found}}) + "\n")
    done = kept()
    text, checks = tables(done)
    save(args.out, {"parts": done, "checks": checks}, text, figures(done))


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    main()
