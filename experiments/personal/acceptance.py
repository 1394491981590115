# SPDX-License-Identifier: Apache-2.0
"""Small runs that every method of personalisation must pass: what its paper claims, measured.

One function per method, in `SECTIONS`; `--only` runs some of them and keeps what is known of the
others. Real data is the test set of MNIST, a fifth of it to test on, with two labels a party.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import archipel as ar
from archipel.algorithms.apgd import APGD1, APGD2
from archipel.algorithms.fedper import FedPer
from archipel.algorithms.fedrep import FedRep
from archipel.algorithms.knnper import KNNPer
from archipel.algorithms.l2gd import L2GD
from archipel.algorithms.pefll import PeFLL
from archipel.algorithms.perfedavg import PerFedAvg
from archipel.algorithms.pfedhn import PFedHN
from archipel.algorithms.pfedme import PFedMe
from archipel.data import optimum
from archipel.models import build
from archipel.runs.baselines import alone

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import gates, table

FOLDER = Path(__file__).parent
PLAN = ar.Plan("stacked", 20, 1)


class Result(NamedTuple):
    """What a section found."""

    about: str  # the setting, in a sentence
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    checks: Sequence[tuple[str, str, bool]]  # what must hold, what was measured, whether it holds
    figures: Mapping[str, Any]  # the numbers behind them


# -- data --------------------------------------------------------------------------------------


def two_labels(parties: int, seed: int, validate: bool = False) -> ar.Federation:
    """MNIST-10k with two labels a party, all labels and parties with equal shares.

    A fifth of every party's images is for tests; with `validate`, those are left out and a fifth
    of the rest takes their place, to choose settings by.
    """
    central = ar.load("mnist", parties=1)
    _, _, x, y = central.party(0)
    random = np.random.default_rng([seed, 10])
    circles = [random.permutation(10) for _ in range(parties // 10)]
    labels = [(c[k], c[(k + 1) % 10]) for c in circles for k in range(10)]
    owners = [[k for k, pair in enumerate(labels) if label in pair] for label in range(10)]
    party, fold = np.zeros(len(y), np.int64), np.zeros(len(y), np.int64)
    for label in range(10):
        rows = random.permutation(np.flatnonzero(y.numpy() == label))
        party[rows] = np.resize(owners[label], len(rows))
        fold[rows] = np.arange(len(rows)) // len(owners[label]) % 5
    kept = fold > 0 if validate else fold >= 0
    return ar.Federation.from_rows(
        x[kept], y[kept], party[kept], test=fold[kept] == int(validate), classes=10,
        about=central.about,
    )  # fmt: skip


def softmax_regression(fed: ar.Federation) -> nn.Module:
    """The model at zero, where all methods start alike."""
    module = build("logistic", fed.shape, fed.classes)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


def least_squares(hessians: Tensor, sides: Tensor) -> ar.Federation:
    """Parties with f_i(x) = x' H_i x / 2 - b_i' x (and a constant), as points and targets."""
    d = sides.shape[1]
    roots = torch.linalg.cholesky(hessians).mT * d**0.5
    targets = torch.linalg.solve(roots.mT, sides[..., None])[..., 0] * d
    return ar.Federation.from_arrays(list(roots), list(targets), test=0.0, task="regression")


def ridge(parties: int, dims: int, seed: int, L: float) -> tuple[Tensor, Tensor]:
    """Hessians and right-hand sides of ridge regressions that differ, the largest curvature L."""
    random = np.random.default_rng([seed, 11])
    truth = random.normal(size=dims) + random.normal(size=(parties, dims))
    A = random.normal(size=(parties, 3 * dims, dims))
    noise = 0.1 * random.normal(size=(parties, 3 * dims))
    b = (A @ truth[..., None])[..., 0] + noise
    H = A.transpose(0, 2, 1) @ A / (3 * dims) + 0.1 * np.eye(dims)
    scale = L / np.linalg.eigvalsh(H).max()
    sides = (A.transpose(0, 2, 1) @ b[..., None])[..., 0] / (3 * dims)
    return torch.from_numpy(scale * H), torch.from_numpy(scale * sides)


def jointly(hessians: Tensor, sides: Tensor, lam: float) -> Tensor:
    """Minimisers `[n, d]` of sum_i f_i(x_i) + lam/2 ||x_i - xbar||^2: a block linear system."""
    n, d = sides.shape
    centring = torch.eye(n).double() - 1 / n
    system = torch.block_diag(*hessians) + lam * torch.kron(centring, torch.eye(d).double())
    return torch.linalg.solve(system, sides.flatten()).view(n, d)


# -- running -----------------------------------------------------------------------------------


def own_models(algorithm: Any, fed: ar.Federation) -> Iterator[Tensor]:
    """The parties' models `[n, d]` after each round of a linear model, from zero, for ever."""
    from archipel.engines.party import LocalParty

    module = nn.Linear(fed.shape[0], 1, bias=False).double()
    nn.init.zeros_(module.weight)
    model = ar.Model(module, "squared_error")
    ids = np.arange(fed.parties)
    with ar.LocalEngine(algorithm, fed, model, plan=PLAN) as engine:
        t = 0
        while True:
            engine.round(t, ids)
            t += 1
            me = LocalParty(fed, model, model.one, ids, 0, t, (len(ids),))
            own = engine.own_states(ids)
            if isinstance(algorithm, L2GD):  # the iterates; the own model is a solution around xbar
                yield algorithm.aggregated(me, engine.shared, own)
            else:
                yield algorithm.personal(me, engine.shared, own)


def after(algorithm: Any, fed: ar.Federation, rounds: int) -> Tensor:
    """The parties' models after so many rounds."""
    return next(islice(own_models(algorithm, fed), rounds - 1, None))


def accuracy(algorithm: Any, fed: ar.Federation, rounds: int, seed: int = 0) -> tuple[float, float]:
    """Test accuracy after the last round: of the shared model, and of the parties' own."""
    run = ar.simulate(
        algorithm, fed, softmax_regression(fed), rounds=rounds, evaluate_every=rounds, seed=seed,
        workers=1,
    )  # fmt: skip
    entry = run.history[-1]
    own = entry["own"]
    return entry["metrics"]["accuracy"], (own or entry["metrics"])["accuracy"]


def stepped(w: Tensor, fed: ar.Federation, alpha: float) -> float:
    """Test accuracy of a model after Per-FedAvg's one step at every party."""
    model = ar.Model(softmax_regression(fed))
    model.w = w
    with ar.LocalEngine(PerFedAvg(inner_lr=alpha), fed, model, plan=PLAN) as engine:
        return float(engine.evaluate(own=True).pooled["accuracy"])


# -- 4a: mean-regularised models ---------------------------------------------------------------


def mean_regularised(quick: bool) -> Result:
    """L2GD and APGD on ridge regression, where the solution is known."""
    iterations, lam, L = (4_000 if quick else 40_000), 0.5, 2.45
    p = lam / (lam + L)
    H, b = ridge(parties=10, dims=5, seed=0, L=L)
    fed, exact = least_squares(H, b), jointly(H, b, lam)
    alpha = 1 / (2 * (L + lam))  # alpha / n = 1 / (2 max{L / (1 - p), lambda / p})
    rows, distances, talks = [], [], 0
    for part in (1, 10, 100):
        algorithm, done, count, errors = L2GD(lr=alpha / part, p=p, lam=lam), 0, 0, []
        for own in own_models(algorithm, fed):
            done += int(sum(algorithm.coins(count)))
            count += 1
            if done > 0.9 * iterations:
                errors.append(float((own - exact).norm() / exact.norm()))
            if done >= iterations:
                break
        talks = count / done
        distances.append(mean(errors))
        rows.append(
            (f"L2GD, alpha / {part}", count, f"{done} iterations, distance {mean(errors):.3f}")
        )
    sd = (p / (1 - p) ** 2 + (1 - p) / p**2) ** 0.5  # of a round's iterations
    error = p * (1 - p) * sd * p * (1 - p) / count**0.5
    checks = [
        (
            "L2GD: communications per iteration = p (1 - p), within 3 standard errors",
            f"{talks:.4f} against {p * (1 - p):.4f} ± {error:.4f}",
            abs(talks - p * (1 - p)) < 3 * error,
        ),
        (
            "L2GD: the ball round the exact solution shrinks with alpha",
            ", ".join(f"{d:.3f}" for d in distances),
            distances[0] > distances[1] > distances[2],
        ),
    ]
    limits = {}
    for name, algorithm, rounds, target in (
        ("lambda = 0", L2GD(lr=alpha, p=p, lam=0.0), 400, torch.linalg.solve(H, b)),
        (
            "lambda = 2000",
            L2GD(lr=0.8 * 0.995 / 2000, p=0.995, lam=2000.0),
            2000,
            optimum(fed, uniform=True).expand_as(b),
        ),
    ):
        own = after(algorithm, fed, rounds)
        limits[name] = float((own - target).norm() / target.norm())
        rows.append((f"L2GD, {name}", rounds, f"distance {limits[name]:.1e}"))
    checks.append(
        (
            "L2GD: lambda -> 0 every party alone, lambda -> infinity FedAvg's optimum (1e-3)",
            " and ".join(f"{value:.1e}" for value in limits.values()),
            max(limits.values()) < 1e-3,
        )
    )
    scaling: dict[str, list[int]] = {"APGD1": [], "APGD2": []}
    ends: dict[str, float] = {}
    for kappa in (100, 400, 1600):
        mu = 1 / kappa
        spectrum = torch.linspace(mu, 1, 8).double()
        H_k, pull = torch.diag(spectrum).expand(10, 8, 8), 1.0
        b_k = (H_k @ torch.from_numpy(np.random.default_rng(12).normal(size=(10, 8, 1))))[..., 0]
        fed_k, best = least_squares(H_k, b_k), jointly(H_k, b_k, pull)
        for name, algorithm in (
            ("APGD1", APGD1(lr=1.0, lam=pull, strong_convexity=mu)),
            (
                "APGD2",
                APGD2(lr=0.5, lam=pull, strong_convexity=mu, local_steps=20, batch_size=None),
            ),
        ):
            for t, own in enumerate(own_models(algorithm, fed_k), start=1):
                distance = float((own - best).norm() / best.norm())
                if distance < 1e-6 and len(scaling[name]) < (100, 400, 1600).index(kappa) + 1:
                    scaling[name].append(t)
                if distance < 1e-9:
                    break
            ends[name] = distance
    for name, counts in scaling.items():
        rows.append((f"{name}, kappa 100 / 400 / 1600", " / ".join(map(str, counts)), "to 1e-6"))
        ratios = [counts[i + 1] / counts[i] for i in (0, 1)]
        checks.append(
            (
                f"{name}: rounds x 2 when kappa x 4 (within 15 %), and the exact solution (1e-9)",
                f"x {ratios[0]:.2f}, x {ratios[1]:.2f}; {ends[name]:.0e}",
                all(abs(ratio / 2 - 1) < 0.15 for ratio in ratios) and ends[name] < 1e-9,
            )
        )
    return Result(
        f"Ridge regression, 10 parties, 5 parameters, lambda = {lam}, L = {L}, p = lambda / "
        f"(lambda + L) = {p:.4f}; APGD on quadratics with curvatures from mu to 1, lambda = 1.",
        ["method", "rounds", "measured"],
        rows,
        checks,
        {"communications": talks, "p(1-p)": p * (1 - p), "distances": distances, "limits": limits,
         "rounds by kappa": scaling},
    )  # fmt: skip


# -- 4b: Per-FedAvg ----------------------------------------------------------------------------

WORK = {"local_steps": 10, "batch_size": 20}


def best_setting(
    score: Callable[..., float], grid: Mapping[str, Sequence[float]]
) -> tuple[dict[str, float], dict[str, float]]:
    """The setting of a grid with the highest score, and all scores."""
    settings = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    scores = [score(**setting) for setting in settings]
    names = [", ".join(f"{k} {v:g}" for k, v in setting.items()) for setting in settings]
    best = settings[int(np.argmax(scores))]
    return best, dict(zip(names, scores, strict=True))


def per_fedavg(quick: bool) -> Result:
    """FedAvg, Per-FedAvg first-order and Hessian-free, before and after one step."""
    rounds, seeds = (10, 1) if quick else (60, 3)
    grid = {"lr": [0.1], "inner_lr": [0.1, 0.3]} if quick else {
        "lr": [0.03, 0.1, 0.3, 1.0], "inner_lr": [0.1, 0.3, 1.0, 3.0]
    }  # fmt: skip
    validation = two_labels(20, 0, validate=True)
    feds = [two_labels(20, seed) for seed in range(seeds)]
    methods = {"FedAvg": None, "first-order": "first-order", "Hessian-free": "hessian-free"}
    trained: dict[
        Any, tuple[Tensor, float]
    ] = {}  # FedAvg's models: its last step is no part of the training

    def score(method: str, fed: ar.Federation, seed: int, setting: Mapping[str, float]) -> Any:
        variant = methods[method]
        if variant is not None:
            algorithm = PerFedAvg(variant=variant, **setting, **WORK)  # type: ignore[arg-type]
            return accuracy(algorithm, fed, rounds, seed)
        key = (id(fed), setting["lr"])
        if key not in trained:
            run = ar.simulate(
                ar.FedAvg(lr=setting["lr"], **WORK), fed, softmax_regression(fed), rounds=rounds,
                evaluate_every=rounds, seed=seed, workers=1,
            )  # fmt: skip
            trained[key] = run.vector, run.history[-1]["metrics"]["accuracy"]
        w, before = trained[key]
        return before, stepped(w, fed, setting["inner_lr"])

    rows, figures = [], {}
    found: dict[tuple[str, str], list[float]] = {}
    for method in methods:
        setting, tried = best_setting(
            lambda method=method, **s: score(method, validation, 0, s)[1], grid
        )
        alike = {name: value for name, value in tried.items() if name.endswith("inner_lr 0.1")}
        lr = grid["lr"][int(np.argmax(list(alike.values())))]
        figures[method] = {"validation": tried}
        for which, chosen in (("same", {"lr": lr, "inner_lr": 0.1}), ("best", setting)):
            pairs = [score(method, fed, seed, chosen) for seed, fed in enumerate(feds)]
            before, after = ([pair[i] for pair in pairs] for i in (0, 1))
            found[method, which] = after
            figures[method][which] = {"setting": chosen, "before": before, "after": after}
            name = method if method == "FedAvg" else f"Per-FedAvg {method}"
            shown = ", ".join(f"{k} {v:g}" for k, v in chosen.items())
            rows.append((name, f"{which} step: {shown}", spread(before), spread(after)))
            print(rows[-1], file=sys.stderr, flush=True)
    rows.sort(key=lambda row: row[1].startswith("best"))
    checks = []
    for which, what in (("same", "the same step of 0.1 for all"), ("best", "each with its best")):
        fedavg, first, free = (mean(found[method, which]) for method in methods)
        ahead = zip(found["Hessian-free", which], found["first-order", which], strict=True)
        checks.append(
            (
                f"after one step, {what}: Hessian-free >= first-order > FedAvg",
                f"{free:.1%}, {first:.1%}, {fedavg:.1%}; the first two by seed "
                + ", ".join(f"{100 * (a - b):+.1f}" for a, b in ahead),
                free >= first > fedavg,
            )
        )
    hv = curvature_error()
    checks.append(
        (
            "Hv by finite differences in single precision, on a quadratic (1e-4)",
            f"{hv:.0e}",
            hv < 1e-4,
        )
    )
    return Result(
        f"MNIST-10k, 20 parties of two labels, softmax regression, {rounds} rounds of 10 steps on "
        "batches of 20, everybody in each; lr, and for the best step inner_lr (of FedAvg's one "
        "step, too), chosen on validation images, the same grid for all; mean of "
        f"{seeds} seed(s) ± sd.",
        ["method", "chosen", "shared model", "after one step"],
        rows,
        checks,
        {**figures, "Hv error": hv},
    )


def curvature_error() -> float:
    """Largest relative error of Hv over gradients of very different sizes, in single precision."""
    from archipel.engines.party import LocalParty

    H, b = ridge(parties=10, dims=5, seed=1, L=2.0)
    fed = least_squares(H, b)
    fed = replace(fed, x=fed.x.float(), y=fed.y.float())
    torch.manual_seed(0)
    model = ar.Model(nn.Linear(5, 1, bias=False), "squared_error")
    me = LocalParty(fed, model, model.one, np.arange(10), 0, 0, (10,))
    errors = []
    for size in (1e-6, 1.0, 1e3):
        v = size * torch.randn(10, 5)
        got = PerFedAvg(delta=1e-2).curvature(me, model.w, v, me.batch(None))
        exact = (H @ v.double()[..., None])[..., 0]
        errors.append(((got - exact).norm(dim=1) / exact.norm(dim=1)).max())
    return float(max(errors))


# -- 4c: pFedMe --------------------------------------------------------------------------------


def pfedme(quick: bool) -> Result:
    """The shared and the personal models of pFedMe, beside FedAvg and every party alone."""
    rounds, seeds = (10, 1) if quick else (60, 3)
    work = {"local_steps": 10, "batch_size": 20}
    fixed = {"lam": 15.0, "inner_lr": 0.05, "inner_steps": 5, **work}
    grid = {"lr": [0.01], "server_lr": [1.0]} if quick else {
        "lr": [0.005, 0.01, 0.03], "server_lr": [1.0, 2.0]
    }  # fmt: skip
    validation = two_labels(20, 0, validate=True)
    setting, by_setting = best_setting(
        lambda **s: accuracy(PFedMe(**fixed, **s), validation, rounds)[1], grid
    )
    plain, by_lr = best_setting(
        lambda lr: accuracy(ar.FedAvg(lr=lr, **work), validation, rounds)[1],
        {"lr": [0.03, 0.1, 0.3]},
    )
    found: dict[str, list[float]] = {
        "pFedMe, personal": [], "pFedMe, shared": [], "FedAvg": [], "every party alone": [],
    }  # fmt: skip
    for seed in range(seeds):
        fed = two_labels(20, seed)
        shared, own = accuracy(PFedMe(**fixed, **setting), fed, rounds, seed)
        found["pFedMe, personal"].append(own)
        found["pFedMe, shared"].append(shared)
        fedavg = ar.FedAvg(**plain, **work)
        found["FedAvg"].append(accuracy(fedavg, fed, rounds, seed)[0])
        apart = alone(fedavg, fed, softmax_regression(fed), rounds=rounds, seed=seed, workers=1)
        found["every party alone"].append(apart.local.pooled["accuracy"])
    personal, shared, fedavg_, _ = (mean(values) for values in found.values())
    chosen = ", ".join(f"{k} {v:g}" for k, v in setting.items())
    settings = [chosen, chosen, f"lr {plain['lr']:g}", f"lr {plain['lr']:g}"]
    checks = [
        (
            "personal models at least 8 points above the shared one",
            f"{personal:.1%} - {shared:.1%} = {100 * (personal - shared):.1f} points",
            personal - shared >= 0.08,
        ),
        ("personal models above FedAvg", f"{personal:.1%}, {fedavg_:.1%}", personal > fedavg_),
    ]
    return Result(
        f"The same data and model, {rounds} rounds, R = 10, K = 5, lambda = 15, inner_lr 0.05, "
        "batches of 20; lr and server_lr (FedAvg: lr) chosen on validation images; mean of "
        f"{seeds} seeds ± sd.",
        ["model", "chosen", "test accuracy"],
        [(name, how, spread(found[name])) for name, how in zip(found, settings, strict=True)],
        checks,
        {"accuracy": found, "validation": {"pFedMe": by_setting, "FedAvg": by_lr}},
    )


# -- 4d: FedRep --------------------------------------------------------------------------------


def shared_subspace(
    points: int, d: int = 20, k: int = 2, parties: int = 100, seed: int = 0
) -> tuple[ar.Federation, ar.Model, np.ndarray, np.ndarray]:
    """y = x B w_i without noise: data, a two-layer linear model, B `[d, k]`, all B w_i `[n, d]`."""
    random = np.random.default_rng([seed, 12])
    B = np.linalg.qr(random.normal(size=(d, k)))[0]
    truths = random.normal(size=(parties, k)) @ B.T
    x = random.normal(size=(parties, points, d))
    y = (x @ truths[..., None])[..., 0]
    fed = ar.Federation.from_arrays(
        list(torch.from_numpy(x)), list(torch.from_numpy(y)), test=0.0, task="regression"
    )
    module = nn.Sequential(nn.Linear(d, k, bias=False), nn.Linear(k, 1, bias=False)).double()
    start = np.linalg.qr(random.normal(size=(d, k)))[0]
    first = np.concatenate([start.T.ravel(), random.normal(size=k)])
    nn.utils.vector_to_parameters(torch.from_numpy(first), module.parameters())
    return fed, ar.Model(module, "squared_error"), B, truths


def principal_angle(w: Tensor, B: np.ndarray) -> float:
    """Sine of the largest angle between the model's subspace and B's."""
    d, k = B.shape
    Q = np.linalg.qr(w[: d * k].view(k, d).numpy().T)[0]
    return float(np.linalg.norm(Q - B @ (B.T @ Q), 2))


def fedrep(quick: bool) -> Result:
    """FedRep and FedPer where the truth is a subspace that all parties share."""
    rows, checks, figures = [], [], {}
    plan = ar.Plan("stacked", 100, 1)
    for points, lr, rounds in ((20, 0.4, 80), (10, 0.4, 240), (5, 0.25, 400)):
        if quick and points == 5:
            continue
        fed, model, B, truths = shared_subspace(points)
        size = np.linalg.norm(truths, axis=1)
        alone_ = [np.linalg.lstsq(*map(np.asarray, fed.party(k)[:2]), rcond=None)[0]
                  for k in range(100)]  # fmt: skip
        apart = float(np.mean(np.linalg.norm(np.stack(alone_) - truths, axis=1) / size))
        work = {"lr": lr, "batch_size": None}
        for name, algorithm in (
            ("FedRep", FedRep(head_epochs=15, **work)),
            ("FedPer", FedPer(**work)),
        ):
            angles = []
            with ar.LocalEngine(algorithm, fed, model, plan=plan) as engine:
                for t in range(rounds):
                    engine.round(t, range(100))
                    angles.append(principal_angle(engine.vector(), B))
                own = engine.own_states(range(100))
                heads = (own if name == "FedRep" else own.h).numpy()
                body = engine.vector()[: B.size].view(*B.T.shape).numpy()
            error = float(np.mean(np.linalg.norm(heads @ body - truths, axis=1) / size))
            quarters = [angles[rounds * q // 4 - 1] for q in (1, 2, 3, 4)]
            rows.append(
                (name, points, rounds, ", ".join(f"{a:.0e}" for a in quarters), f"{error:.0e}",
                 f"{apart:.2f}")
            )  # fmt: skip
            figures[f"{name}, {points} points"] = {
                "angles": quarters, "error": error, "alone": apart,
            }  # fmt: skip
            if name == "FedRep":
                falls = -np.diff(np.log10(quarters))
                checks += [
                    (
                        f"FedRep, {points} points: the angle falls geometrically, to 1e-6",
                        f"by 10^{falls.min():.1f} to 10^{falls.max():.1f} a quarter; "
                        f"{quarters[-1]:.0e}",
                        quarters[-1] < 1e-6 and bool(falls.min() > 0.5 * falls.max()),
                    )
                ]
                if points < len(B):
                    checks.append(
                        (
                            f"FedRep, {points} points < {len(B)}: error below least squares alone",
                            f"{error:.0e}, {apart:.2f}",
                            error < apart,
                        )
                    )
    return Result(
        "y = x B w_i without noise, 20 features, a subspace of 2 dimensions, 100 parties, "
        "everybody in each round, whole batches, 15 steps of the head and one of the body; the "
        "angle (its sine) after each quarter of the rounds, and errors of the parties' models "
        "relative to the truth.",
        ["method", "points a party", "rounds", "angle", "error", "least squares alone"],
        rows,
        checks,
        figures,
    )


# -- 4e: kNN-Per -------------------------------------------------------------------------------


def trained_mlp(fed: ar.Federation, rounds: int, seed: int) -> tuple[ar.Model, float]:
    """A small network that FedAvg trained, as a model that starts there; its test accuracy."""
    run = ar.simulate(
        ar.FedAvg(lr=0.1, **WORK), fed, "mlp", rounds=rounds, evaluate_every=rounds, seed=seed,
        workers=1,
    )  # fmt: skip
    return ar.Model(run.model), run.metrics["accuracy"]


def with_neighbours(model: ar.Model, fed: ar.Federation, lam: float) -> float:
    """Test accuracy of the model mixed with every party's neighbours."""
    with ar.LocalEngine(KNNPer(lam=lam), fed, model, plan=PLAN) as engine:
        return float(engine.evaluate(own=True).pooled["accuracy"])


def neighbours_alone(model: ar.Model, fed: ar.Federation, k: int = 10) -> float:
    """The same with neighbours alone, counted with numpy."""
    body, right, total = nn.Sequential(*list(model.module)[:-1]).eval(), 0, 0
    for party in range(fed.parties):
        x, y, x_test, y_test = fed.party(party)
        with torch.no_grad():
            phi, stored = body(x_test).double().numpy(), body(x).double().numpy()
        d = ((phi[:, None] - stored) ** 2).sum(axis=-1)
        near = np.argsort(d, axis=1, kind="stable")[:, :k]
        kernel = np.exp(-np.take_along_axis(d, near, axis=1) / phi.shape[1])
        votes = np.zeros((len(phi), fed.classes))
        for i, row in enumerate(near):
            np.add.at(votes[i], y.numpy()[row], kernel[i])
        right += int((votes.argmax(axis=1) == y_test.numpy()).sum())
        total += len(y_test)
    return right / total


def knn_per(quick: bool) -> Result:
    """FedAvg, mixed with the neighbours among a party's own points."""
    rounds, seeds = (10, 1) if quick else (60, 3)
    grid = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    validation = two_labels(20, 0, validate=True)
    model, _ = trained_mlp(validation, rounds, 0)
    by_lam = {lam: with_neighbours(model, validation, lam) for lam in grid}
    best = max(grid, key=lambda lam: by_lam[lam])
    found: dict[str, list[float]] = {
        "FedAvg": [], "lambda 0": [], f"lambda {best:g}, chosen": [], "lambda 1": [],
        "neighbours alone, numpy": [],
    }  # fmt: skip
    for seed in range(seeds):
        fed = two_labels(20, seed)
        model, plain = trained_mlp(fed, rounds, seed)
        mixed = [with_neighbours(model, fed, lam) for lam in (0.0, best, 1.0)]
        values = (plain, *mixed, neighbours_alone(model, fed))
        for name, value in zip(found, values, strict=True):
            found[name].append(value)
    fedavg, zero, chosen, one, plain_knn = found.values()
    checks = [
        ("lambda 0 is FedAvg", f"{mean(zero):.4f}, {mean(fedavg):.4f}", zero == fedavg),
        (
            "lambda 1 is a plain count of neighbours (within 3 of 2000 images)",
            f"{mean(one):.4f}, {mean(plain_knn):.4f}",
            max(abs(a - b) for a, b in zip(one, plain_knn, strict=True)) < 0.0015,
        ),
        (
            "the lambda chosen on validation images is above 0 and gains over FedAvg",
            f"lambda {best:g}: {mean(chosen):.1%} against {mean(fedavg):.1%}",
            best > 0 and all(a > b for a, b in zip(chosen, fedavg, strict=True)),
        ),
    ]
    return Result(
        f"MNIST-10k, 20 parties of two labels, a network with two hidden layers, {rounds} rounds "
        f"of FedAvg, everybody in each; k = 10; mean of {seeds} seeds ± sd.",
        ["model", "test accuracy"],
        [(name, spread(values)) for name, values in found.items()],
        checks,
        {"accuracy": found, "validation": {f"{lam:g}": score for lam, score in by_lam.items()}},
    )


# -- 4f: pFedHN --------------------------------------------------------------------------------


def seen_and_new(
    algorithm: Any, fed: ar.Federation, rounds: int, seed: int, sample: float | int = 1.0
) -> tuple[float, float]:
    """Test accuracy at seen and at new parties after the last round, of the models they use."""
    run = ar.simulate(
        algorithm, fed, softmax_regression(fed), rounds=rounds, evaluate_every=rounds, seed=seed,
        sample=sample, workers=1,
    )  # fmt: skip
    entry = run.history[-1]
    seen, new = entry["own"] or entry["metrics"], entry["own_new"] or entry["new"]
    return seen["accuracy"], new["accuracy"]


def pfedhn(quick: bool) -> Result:
    """pFedHN beside FedAvg and every party alone, at seen and at new parties."""
    rounds, seeds = (20, 1) if quick else (100, 3)
    work = {"local_steps": 20, "batch_size": 20}
    fixed = {"lr": 0.05, "optimiser": ar.SGD(weight_decay=5e-5), "size": 6, **work}
    training = two_labels(20, 0, validate=True).with_new(2, 0).select(range(18))
    validation = training.with_new(2, 1)  # of those that train, two stand for new ones
    setting, by_setting = best_setting(
        lambda **s: mean(seen_and_new(PFedHN(**fixed, **s), validation, rounds, 0)),
        {"server_lr": [0.01, 0.1], "descriptor_lr": [0.01, 1.0, 10.0]},
    )
    plain, by_lr = best_setting(
        lambda lr: mean(seen_and_new(ar.FedAvg(lr=lr, **work), validation, rounds, 0)),
        {"lr": [0.01, 0.03, 0.1]},
    )
    found: dict[str, list[tuple[float, float]]] = {"pFedHN": [], "FedAvg": []}
    local = []
    for seed in range(seeds):
        fed = two_labels(20, seed).with_new(2, seed)
        fedavg = ar.FedAvg(**plain, **work)
        found["pFedHN"].append(seen_and_new(PFedHN(**fixed, **setting), fed, rounds, seed))
        found["FedAvg"].append(seen_and_new(fedavg, fed, rounds, seed))
        apart = alone(fedavg, fed, softmax_regression(fed), rounds=rounds, seed=seed, workers=1)
        local.append(apart.local.pooled["accuracy"])
    (seen, new), (fedavg_seen, fedavg_new) = (
        [mean(pair[i] for pair in found[name]) for i in (0, 1)] for name in found
    )
    rows = [
        (name, spread([a for a, _ in pairs]), spread([b for _, b in pairs]))
        for name, pairs in found.items()
    ]
    checks = [
        ("seen parties: above FedAvg", f"{seen:.1%}, {fedavg_seen:.1%}", seen > fedavg_seen),
        (
            "seen parties: within a point of every party alone",
            f"{seen:.1%}, {mean(local):.1%}",
            seen > mean(local) - 0.01,
        ),
        ("new parties: above FedAvg", f"{new:.1%}, {fedavg_new:.1%}", new > fedavg_new),
    ]
    chosen = ", ".join(f"{k} {v:g}" for k, v in setting.items())
    return Result(
        f"MNIST-10k, 20 parties of two labels of which 2 are new, softmax regression, {rounds} "
        f"rounds of 20 steps on batches of 20, everybody in each; {chosen} (FedAvg: lr "
        f"{plain['lr']:g}) chosen on validation images of training parties, two of them held out "
        f"as if new; mean of {seeds} seeds ± sd.",
        ["method", "seen parties", "new parties"],
        [*rows, ("every party alone", spread(local), "-")],
        checks,
        {"accuracy": found, "alone": local, "validation": {"pFedHN": by_setting, "FedAvg": by_lr}},
    )


# -- 4g: PeFLL ---------------------------------------------------------------------------------


def by_one_scale(fed: ar.Federation) -> ar.Federation:
    """All pixels with one mean and deviation, those of the training points of training parties."""
    x = torch.cat([fed.party(k)[0] for k in range(fed.training)])
    return replace(fed, x=(fed.x - x.mean()) / x.std())


def pefll(quick: bool) -> Result:
    """PeFLL beside FedAvg and every party alone, at seen and at new parties."""
    rounds, seeds = (50, 1) if quick else (300, 3)
    work = {"local_steps": 50, "batch_size": 32}
    algorithm = PeFLL(
        lr=0.002, optimiser=ar.SGD(momentum=0.9, weight_decay=5e-5), server_lr=2e-4,
        embedding="labels", size=13, embedding_lr=1.0, averaging=1.0, **work,
    )  # fmt: skip
    rows, checks, figures = [], [], {}
    scales = {"each pixel": ar.Federation.standardised, "all pixels alike": by_one_scale}
    for scale, standardise in scales.items():
        validation = standardise(two_labels(50, 0, validate=True).with_new(5, 0))

        def score(lr: float, validation: ar.Federation = validation) -> float:
            return seen_and_new(ar.FedAvg(lr=lr, **work), validation, rounds, 0, sample=5)[0]

        plain, by_lr = best_setting(score, {"lr": [0.001, 0.003, 0.01, 0.1]})
        found: dict[str, list[tuple[float, float]]] = {"PeFLL": [], "FedAvg": []}
        local = []
        for seed in range(seeds):
            fed = standardise(two_labels(50, seed).with_new(5, seed))
            fedavg = ar.FedAvg(**plain, **work)
            found["PeFLL"].append(seen_and_new(algorithm, fed, rounds, seed, sample=5))
            found["FedAvg"].append(seen_and_new(fedavg, fed, rounds, seed, sample=5))
            apart = alone(
                fedavg, fed, softmax_regression(fed), rounds=rounds, sample=5, seed=seed, workers=1
            )
            local.append(apart.local.pooled["accuracy"])
        (seen, new), (_, fedavg_new) = (
            [mean(pair[i] for pair in found[name]) for i in (0, 1)] for name in found
        )
        rows += [
            (f"{name}, {scale}", spread([a for a, _ in pairs]), spread([b for _, b in pairs]))
            for name, pairs in found.items()
        ]
        rows.append((f"every party alone, {scale}", spread(local), "-"))
        checks += [
            (f"{scale}: seen parties at least 95 %", f"{seen:.1%}", seen >= 0.95),
            (f"{scale}: new parties at least 92 %", f"{new:.1%}", new >= 0.92),
            (
                f"{scale}: new parties at least 4 points above FedAvg's",
                f"{new:.1%} - {fedavg_new:.1%} = {100 * (new - fedavg_new):.1f} points",
                new >= fedavg_new + 0.04,
            ),
        ]
        figures[scale] = {"accuracy": found, "alone": local, "FedAvg, validation": by_lr}
    return Result(
        f"MNIST-10k, 50 parties of two labels of which 5 are new, softmax regression, {rounds} "
        "rounds of 5 parties; the embedding is linear in the label, 13 numbers; 50 local steps "
        "with lr 0.002 and momentum 0.9, Adam with 2e-4 at the server; pixels standardised each "
        "by itself or all alike; FedAvg with as many steps and its best lr on validation images; "
        f"mean of {seeds} seeds ± sd.",
        ["method", "seen parties", "new parties"],
        rows,
        checks,
        figures,
    )


# -- all of them -------------------------------------------------------------------------------

SECTIONS: dict[str, tuple[str, Callable[[bool], Result]]] = {
    "4a": ("Mean-regularised models: L2GD, APGD1, APGD2", mean_regularised),
    "4b": ("Per-FedAvg", per_fedavg),
    "4c": ("pFedMe", pfedme),
    "4d": ("FedRep and FedPer", fedrep),
    "4e": ("kNN-Per", knn_per),
    "4f": ("pFedHN", pfedhn),
    "4g": ("PeFLL", pefll),
}


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation, in per cent."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{mean(values):.1%} ± {sd:.1%}" if sd else f"{mean(values):.1%}"


def page(found: Mapping[str, Any]) -> str:
    """The tables of all sections that were run."""
    parts = []
    for key in sorted(found):
        one = found[key]
        parts += [
            f"## {one['title']}",
            one["about"],
            table(one["header"], one["rows"]),
            gates([tuple(check) for check in one["checks"]]),
            f"{one['seconds']} seconds.",
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, one seed: a look")
    parser.add_argument("--out", type=Path, help="where to write: beside this file")
    args = parser.parse_args()
    out = args.out or (FOLDER / "quick" if args.quick else FOLDER)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "acceptance.json"
    found = json.loads(path.read_text())["sections"] if path.exists() else {}
    for key in args.only or SECTIONS:
        began = time.perf_counter()
        title, measure = SECTIONS[key]
        result = measure(args.quick)._asdict()
        seconds = round(time.perf_counter() - began)
        found[key] = {"title": title, "quick": args.quick, "seconds": seconds, **result}
        print(page({key: found[key]}), flush=True)
        document = {"versions": {"torch": torch.__version__}, "sections": found}
        path.write_text(json.dumps(document, indent=1) + "\n")
        (out / "acceptance.md").write_text(page(json.loads(path.read_text())["sections"]))
    missed = [
        check[0] for key in args.only or SECTIONS for check in found[key]["checks"] if not check[2]
    ]
    sys.exit(f"missed: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
