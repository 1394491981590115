# SPDX-License-Identifier: Apache-2.0
"""GOPA: the error of a private mean beside a trusted curator's and that of everybody alone.

Sabater, Bellet, Ramon, Machine Learning 111, 2022, https://arxiv.org/abs/2006.07218. A mean of 1000
numbers in [0, 1], (epsilon, delta)-private for every party, many times over.
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

from archipel.aggregation.averaging import Question, simulated
from archipel.aggregation.gopa import NoiseTerms
from archipel.privacy import gopa, gopa_theorem
from archipel.privacy.analytic import mu_of
from archipel.privacy.noise import discrete_gaussian
from archipel.privacy.sources import Keystream, Simulated

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, INK, ORANGE, PURPLE, gates, save, table

FOLDER = Path(__file__).parent
DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SIZES = (10, 30, 100, 300, 1000, 3000)
KINDS = {
    "a trusted curator": INK,
    "GOPA, modular": BLUE,
    "GOPA, Gaussian": GREEN,
    "GOPA, half collude": PURPLE,
    "everybody alone": ORANGE,
}


def promised(kind: str, epsilon: float, n: int) -> float:
    """The deviation that formulas give."""
    if kind == "a trusted curator":
        return gopa.curator_error(epsilon, DELTA, n)
    if kind == "everybody alone":
        return gopa.local_error(epsilon, DELTA, n)
    return plan(kind, epsilon, n).error


def plan(kind: str, epsilon: float, n: int) -> gopa.Plan:
    form: gopa.Form = "gaussian" if kind == "GOPA, Gaussian" else "modular"
    honest = 0.5 if kind == "GOPA, half collude" else 1.0
    return gopa.planned(epsilon, DELTA, n, honest=honest, form=form, excess=0.04)


def errors(kind: str, epsilon: float, x: np.ndarray[Any, Any], times: int) -> np.ndarray[Any, Any]:
    """What estimates of the mean are off by, `[times]`."""
    n, mu = len(x), mu_of(epsilon, DELTA)
    if kind in ("a trusted curator", "everybody alone"):
        who = range(1 if kind == "a trusted curator" else n)
        source, steps = Simulated(0, 0, who, f"{kind} {epsilon} {n}"), 2.0**32
        drawn = discrete_gaussian(source, steps / mu, times).astype(np.float64) / steps
        return np.asarray(drawn.sum(axis=0) / n)
    made = plan(kind, epsilon, n)
    question = Question(("x",), (0.0,), (1.0,), epsilon, DELTA)
    source = Simulated(0, 0, range(n), f"{kind} {epsilon} {n}")
    found = simulated(question, made, x[:, None], source, times)
    return np.asarray(found[:, 0] - x.mean())


def published(x: np.ndarray[Any, Any], made: gopa.Plan, times: int) -> np.ndarray[Any, Any]:
    """What 1000 parties publish with every pairwise term in it, added up: errors `[times]`."""
    n, terms = len(x), NoiseTerms(made.form, made.independent, made.pairwise)
    graph = gopa.k_out(n, made.neighbours, np.random.default_rng(0))
    words = np.stack([terms.steps(torch.full((times,), value), n) for value in x])
    for j, row in enumerate(words):
        row += terms.noise(Simulated(1, 0, [j], "own"), times)
    keys = Keystream(bytes(32)).words(np.array([4 * n * n])).reshape(n, n, 4)
    for i, j in np.argwhere(np.triu(graph) > 0).tolist():
        terms.join(words[i], plus=[keys[i, j].tobytes()])
        terms.join(words[j], minus=[keys[i, j].tobytes()])
    return np.asarray(terms.numbers(words.sum(axis=0, dtype=np.uint64)) / n - x.mean())


def pairwise() -> list[list[str]]:
    """Pairwise noise for 5 % above the curator, on graphs of 1000 parties; the theorem's beside."""
    mu, rows = mu_of(1.0, DELTA), []
    for share in (1.0, 0.5):
        h = int(1000 * share)
        for k in (10, 20, 40, 100):
            graph = gopa.k_out(1000, k, np.random.default_rng(1))[:h, :h]
            exact = gopa.pairwise_on(graph, 1.05 / (mu * sqrt(h)), mu)
            bound = "-"
            if gopa.gap(1000, h, k, 0.1 * DELTA) > 0:
                made = gopa.planned(
                    1.0, DELTA, 1000, honest=share, form="gaussian", neighbours=k, excess=0.05
                )
                bound = f"{made.pairwise:.2f}"
            theorem = "-"
            if gopa_theorem.conditions(1000, share, k, DELTA / 3.75):
                small = DELTA / 10
                found = gopa_theorem.corollary(
                    "k-out", h, 1.0 / 1.05, small, DELTA, neighbours=k, share=share
                )
                theorem = f"{found.pairwise:.1f}"
            rows.append([f"{share:g}", str(k), f"{exact:.2f}", bound, theorem])
    return rows


def draw(by_epsilon: dict[str, list[float]], by_size: dict[str, list[float]]) -> Figure:
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    fine_epsilon, fine_size = np.geomspace(0.1, 10, 25), np.geomspace(10, 3000, 25).astype(int)
    for kind, colour in KINDS.items():
        line = [promised(kind, float(e), 1000) for e in fine_epsilon]
        style = {"color": colour, "linewidth": 1.5, "label": kind}
        if kind == "a trusted curator":  # GOPA's lies upon it
            style |= {"linewidth": 1.2, "linestyle": (0, (4, 4)), "zorder": 5}
        left.plot(fine_epsilon, line, **style)
        left.plot(EPSILONS, by_epsilon[kind], "o", color=colour, markersize=5)
        line = [promised(kind, 1.0, int(n)) for n in fine_size]
        right.plot(fine_size, line, **style)
        right.plot(SIZES, by_size[kind], "o", color=colour, markersize=5)
    left.set(xlabel="ε, of 1000 parties", xscale="log", yscale="log")
    left.set_ylabel("deviation of the mean of numbers in [0, 1]")
    right.set(xlabel="parties, at ε = 1", xscale="log", yscale="log")
    right.legend(loc="lower left", title="lines: formulas; points: measured")
    figure.suptitle(
        "GOPA: nobody sees a number, and the mean is as good as a trusted curator's",
        x=0.01, ha="left", color=INK, fontweight="bold",
    )  # fmt: skip
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    began, times = time.perf_counter(), args.times
    x = np.random.default_rng(0).random(max(SIZES))
    measured = {
        kind: [float(errors(kind, e, x[:1000], times).std()) for e in EPSILONS] for kind in KINDS
    }
    by_size = {
        kind: [float(errors(kind, 1.0, x[:n], times).std()) for n in SIZES] for kind in KINDS
    }
    made = plan("GOPA, Gaussian", 1.0, 1000)
    whole = float(published(x[:1000], made, times).std())
    at = EPSILONS.index(1.0)
    curator = promised("a trusted curator", 1.0, 1000)
    rows = [
        [kind, f"{promised(kind, 1.0, 1000):.6f}", f"{measured[kind][at]:.6f}",
         f"{promised(kind, 1.0, 1000) / curator:.3f}", f"{measured[kind][at] / curator:.3f}"]
        for kind in KINDS
    ]  # fmt: skip
    rows.append(["GOPA, Gaussian, every term drawn", f"{made.error:.6f}", f"{whole:.6f}",
                 f"{made.error / curator:.3f}", f"{whole / curator:.3f}"])  # fmt: skip
    ends = [sqrt(chi2.ppf(q, times) / times) for q in (5e-5, 1 - 5e-5)]
    found = [(kind, measured[kind][i] / promised(kind, e, 1000))
             for kind in KINDS for i, e in enumerate(EPSILONS)]  # fmt: skip
    found += [(kind, by_size[kind][i] / promised(kind, 1.0, n))
              for kind in KINDS for i, n in enumerate(SIZES)]  # fmt: skip
    found.append(("whole", whole / made.error))
    ratio = {kind: promised(kind, 1.0, 1000) / curator for kind in KINDS}
    apart = [min(r for _, r in found), max(r for _, r in found)]
    checks = [
        ("GOPA, modular: within 5 % of the trusted curator", f"{ratio['GOPA, modular'] - 1:.2%}",
         ratio["GOPA, modular"] < 1.05),
        ("GOPA, Gaussian: within 5 % of the trusted curator",
         f"{ratio['GOPA, Gaussian'] - 1:.2%}", ratio["GOPA, Gaussian"] < 1.05),
        ("everybody alone: √1000 = 31.6 times the curator's error",
         f"{ratio['everybody alone']:.1f}", abs(ratio["everybody alone"] / sqrt(1000) - 1) < 0.01),
        (f"every measured error is the formula's, but for chance (χ², {times} times)",
         f"{apart[0]:.3f} to {apart[1]:.3f}", ends[0] < apart[0] and apart[1] < ends[1]),
    ]  # fmt: skip
    seconds = time.perf_counter() - began
    tables = (
        f"Mean of 1000 numbers in [0, 1], ε = 1, δ = 1e-5, {times} times.\n\n"
        + table(["who adds it up", "formula", "measured", "formula / curator",
                 "measured / curator"], rows)
        + "\n\nPairwise noise s_D for 5 % more noise than the curator's, ε = 1, δ = 1e-5, 1000 "
        "parties that pick k others:\n\n"
        + table(["honest", "k", "exact, on one graph", "bound, before it is drawn",
                 "theorem, with its larger s_e"],
                pairwise())
        + f"\n\n{gates(checks)}\n\n{seconds:.0f} seconds."
    )  # fmt: skip
    document = {"epsilons": EPSILONS, "by epsilon": measured, "sizes": SIZES, "by size": by_size,
                "every term drawn": whole, "checks": checks, "seconds": round(seconds)}  # fmt: skip
    save(args.out, document, tables, {"plot.png": draw(measured, by_size)})


if __name__ == "__main__":
    main()
