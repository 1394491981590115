# SPDX-License-Identifier: Apache-2.0
"""Noise in shares under a secure sum: the error of a private mean, and what integers cost FedAvg.

Kairouz, Liu, Steinke, ICML 2021, https://arxiv.org/abs/2102.06387, and Agarwal, Kairouz, Liu,
NeurIPS 2021, https://arxiv.org/abs/2110.04995. A mean of 1000 numbers in [0, 1] many times over,
beside a trusted curator's and that of everybody alone; and MNIST at 500 parties, DP by party, with
a server that is trusted and one that sees sums alone, at the same epsilon.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import chi2
from torch import nn

import archipel as ar
from archipel.aggregation.secure import SecureSum
from archipel.exchange.sender import Sender
from archipel.privacy.accounting import Release, noise_for
from archipel.privacy.analytic import mu_of
from archipel.privacy.encoding import Share, counted, secure_sum_error
from archipel.privacy.noise import discrete_gaussian, skellam
from archipel.privacy.promise import Privacy
from archipel.privacy.release import Kind
from archipel.privacy.sources import Simulated
from archipel.runs.simulation import Options
from archipel.wire.integers import decode, encode, wrapped
from archipel.wire.wire import Wire

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, PURPLE, gates, save, table

FOLDER = Path(__file__).parent
N, EPSILON, DELTA = 1000, 1.0, 1e-5
SIZES = (10, 30, 100, 300, 1000)
CURATOR, ALONE = "a trusted curator", "everybody alone"
SUMS: dict[str, tuple[Kind, float, str]] = {
    "secure sum": ("gaussian", 1.0, BLUE),
    "secure sum, Skellam": ("skellam", 1.0, GREEN),
    "secure sum, a fifth colludes or is lost": ("gaussian", 0.8, PURPLE),
}
COLOURS = {CURATOR: INK, **{kind: each[2] for kind, each in SUMS.items()}, ALONE: ORANGE}
BITS = (15, 16, 17, 18, 20, 24, 32)
WIDE = 100_000  # numbers of a vector

# MNIST: parties, rounds, epsilon, clip, bits of the integers
PARTIES, ROUNDS, BUDGET, CLIP = 500, 12, 2.0, 0.5
FEW = (32, 18, 16)


def promised(kind: str, n: int) -> float:
    """The deviation that formulas give."""
    if kind in (CURATOR, ALONE):
        return 1 / (mu_of(EPSILON, DELTA) * (n if kind == CURATOR else sqrt(n)))
    noise, honest, _ = SUMS[kind]
    return secure_sum_error(EPSILON, DELTA, n, honest=honest, kind=noise)


def errors(kind: str, x: np.ndarray[Any, Any], times: int) -> np.ndarray[Any, Any]:
    """What estimates of the mean are off by, `[times]`; integers and noise as parties make them."""
    n, mu = len(x), mu_of(EPSILON, DELTA)
    if kind in (CURATOR, ALONE):
        who = Simulated(0, 0, range(1 if kind == CURATOR else n), f"{kind} {n}")
        alone = discrete_gaussian(who, 2.0**32 / mu, times).astype(np.float64) / 2.0**32
        return np.asarray(alone.sum(axis=0) / n)
    noise, honest, _ = SUMS[kind]
    share = Share(noise, 0.5, 1, n, counted(n, n - round(honest * n)), 32)
    z = noise_for(EPSILON, DELTA, lambda z: [Release(share.mechanism(z))], neighbours="replace")
    code, variance = share.encoding(z), share.variance(z)
    source = Simulated(0, 0, range(n), f"{kind} {n}")
    drawn = (discrete_gaussian(source, sqrt(variance), times) if noise == "gaussian"
             else skellam(source, variance, times))  # fmt: skip
    values = torch.from_numpy(x - 0.5)[:, None]
    found = []
    for t in range(times):
        sent = encode(code, Sender(0, t, 0, np.arange(n), (n,)), values)
        sent += torch.from_numpy(drawn[:, [t]])
        total = wrapped(code, wrapped(code, sent).sum(dim=0))
        found.append(float(decode(code, Sender(0, t, 0, np.array([-1])), total)[0]) / n + 0.5)
    return np.asarray(np.array(found) - x.mean())


def by_bits() -> dict[int, float | None]:
    """A mean of long vectors over the curator's, by bits of the integers; None where too few."""
    found: dict[int, float | None] = {}
    for bits in BITS:
        try:
            found[bits] = secure_sum_error(EPSILON, DELTA, N, size=WIDE, bits=bits)
        except ar.ArchipelError:
            found[bits] = None
    return found


def trained(seeds: int) -> dict[str, dict[str, Any]]:
    """MNIST's softmax regression at 500 parties that are all in every round."""
    settings: dict[str, Privacy | None] = {
        "without privacy": None,
        "the server is trusted": Privacy("party", epsilon=BUDGET, clip=CLIP),
        **{
            f"secure sum, {bits} bits": Privacy(
                "party", epsilon=BUDGET, clip=CLIP, trust="sum", honest=PARTIES - 1, bits=bits
            )
            for bits in FEW
        },
        "secure sum, Skellam, 18 bits": Privacy(
            "party", epsilon=BUDGET, clip=CLIP, trust="sum", honest=PARTIES - 1, bits=18,
            shares="skellam",
        ),
        "everybody alone": Privacy("party", epsilon=BUDGET, clip=CLIP, trust="nobody"),
    }  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for name, promise in settings.items():
        scores, spent, noise = [], 0.0, 0.0
        for seed in range(seeds):
            module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            for each in module.parameters():
                nn.init.zeros_(each)
            how: Options = {"rounds": ROUNDS, "seed": seed, "evaluate_every": ROUNDS}
            if promise is not None:
                how["privacy"] = promise
                if promise.trust == "sum":
                    how["wire"] = Wire(sum=SecureSum(colluding=0.0))
            fed = ar.load("mnist", partition="iid", parties=PARTIES, seed=seed)
            fedavg = ar.FedAvg(0.1, local_steps=5, batch_size=20)
            run = ar.simulate(fedavg, fed, ar.Model(module), **how)
            scores.append(float(run.curve()[1][-1]))
            if run.kept is not None:
                spent = run.kept.spent({0: ROUNDS})[0]
                noise = run.kept.noise[0]
        found[name] = {"accuracy": scores, "epsilon": spent, "noise": noise}
        print(name, scores, spent, noise, flush=True)
    return found


def draw(by_size: dict[str, list[float]], bits: dict[int, float | None]) -> Figure:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    fine = np.unique(np.geomspace(10, N, 15).astype(int))
    for kind, colour in COLOURS.items():
        style: dict[str, Any] = {"color": colour, "linewidth": 1.5, "label": kind}
        if kind == CURATOR:  # the secure sum's lies upon it
            style |= {"linewidth": 1.2, "linestyle": (0, (4, 4)), "zorder": 5}
        left.plot(fine, [promised(kind, int(n)) for n in fine], **style)
        left.plot(SIZES, by_size[kind], "o", color=colour, markersize=5)
    left.set(xlabel="parties, at ε = 1", xscale="log", yscale="log")
    left.set_ylabel("deviation of the mean of numbers in [0, 1]")
    left.legend(loc="lower left", title="lines: formulas; points: measured")
    curator = promised(CURATOR, N)
    known = {b: error / curator for b, error in bits.items() if error is not None}
    right.plot(list(known), list(known.values()), "o-", color=BLUE)
    right.axhline(1.0, color=INK, lw=1.2, ls=(0, (4, 4)))
    right.set(xlabel="bits of the integers", ylabel="error over the curator's")
    right.set_title(f"1000 parties, vectors of {WIDE:,} numbers")
    figure.suptitle(
        "Secure sum with noise in shares: nobody is trusted with an upload, or with the noise",
        x=0.01, ha="left", color=INK, fontweight="bold",
    )  # fmt: skip
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3, help="of MNIST; 0 leaves it out")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    began, times = time.perf_counter(), args.times
    x = np.random.default_rng(0).random(N)
    by_size = {kind: [float(errors(kind, x[:n], times).std()) for n in SIZES] for kind in COLOURS}
    bits, mnist = by_bits(), trained(args.seeds) if args.seeds else {}
    curator, ends = promised(CURATOR, N), [sqrt(chi2.ppf(q, times) / times) for q in
                                           (5e-5, 1 - 5e-5)]  # fmt: skip
    rows = [
        [kind, f"{promised(kind, N):.6f}", f"{by_size[kind][-1]:.6f}",
         f"{promised(kind, N) / curator:.4f}", f"{by_size[kind][-1] / curator:.3f}"]
        for kind in COLOURS
    ]  # fmt: skip
    ratio = {kind: promised(kind, N) / curator for kind in COLOURS}
    found = [by_size[kind][i] / promised(kind, n) for kind in COLOURS for i, n in enumerate(SIZES)]
    checks = [
        ("secure sum: within 5 % of the trusted curator", f"{ratio['secure sum'] - 1:.2%}",
         ratio["secure sum"] < 1.05),
        ("everybody alone: √1000 = 31.6 times the curator's error", f"{ratio[ALONE]:.1f}",
         abs(ratio[ALONE] / sqrt(N) - 1) < 0.01),
        (f"every measured error is the formula's, but for chance (χ², {times} times)",
         f"{min(found):.3f} to {max(found):.3f}", ends[0] < min(found) and max(found) < ends[1]),
    ]  # fmt: skip
    told = (
        f"Mean of {N} numbers in [0, 1], ε = 1, δ = 1e-5, {times} times.\n\n"
        + table(["who adds it up", "formula", "measured", "formula / curator",
                 "measured / curator"], rows)
        + f"\n\nVectors of {WIDE:,} numbers, the formula over the curator's, by bits:\n\n"
        + table(["bits", *map(str, bits)], [
            ["error / curator",
             *("too few" if e is None else f"{e / curator:.4f}" for e in bits.values())]])
    )  # fmt: skip
    if mnist:
        trusted = np.array(mnist["the server is trusted"]["accuracy"])
        lost = [trusted - np.array(mnist[f"secure sum, {b} bits"]["accuracy"]) for b in FEW]
        worst = max(float(np.mean(each)) for each in lost)
        checks.append(("MNIST: integers of 16 bits or more cost less than 1 point",
                       f"{worst:.2%}", worst < 0.01))  # fmt: skip
        told += (
            f"\n\nMNIST, softmax regression, {PARTIES} parties, all in each of {ROUNDS} rounds, "
            f"DP by party at ε = {BUDGET:g}, δ = 1e-5, clip {CLIP}, {args.seeds} seeds:\n\n"
            + table(["who is trusted", "accuracy", "ε spent", "noise z"], [
                [name, f"{np.mean(each['accuracy']):.2%} ± {np.std(each['accuracy']):.2%}",
                 f"{each['epsilon']:.3f}" if each["epsilon"] else "-",
                 f"{each['noise']:.3f}" if each["noise"] else "-"]
                for name, each in mnist.items()])
        )  # fmt: skip
    seconds = time.perf_counter() - began
    told += f"\n\n{gates(checks)}\n\n{seconds:.0f} seconds."
    document = {"sizes": SIZES, "by size": by_size, "by bits": {str(b): e for b, e in bits.items()},
                "mnist": mnist, "checks": checks, "seconds": round(seconds)}  # fmt: skip
    save(args.out, document, told, {"plot.png": draw(by_size, bits)})


if __name__ == "__main__":
    main()
