# SPDX-License-Identifier: Apache-2.0
"""Attacks of a fifth of the parties against rules for the mean, on MNIST.

The attacks' and the rules' papers are named in their files. Twenty parties, dealt out alike or by
Dirichlet(0.3), a linear model, FedAvg; the seed draws who attacks. Besides, one party replaces the
model in a single round, with and without a bound on norms; where defences help little, and rules
over sums of groups, are in `limits.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import archipel as ar
from archipel import adversaries as attacks
from archipel import rules
from archipel.aggregation.rule import InTurn
from archipel.runs.parts import federation

sys.path.insert(0, str(Path(__file__).parents[1]))
import limits
from reporting import BLUE, ORANGE, gates, save, show, table

FOLDER = Path(__file__).parent
PARTIES, SHARE, ROUNDS, SEED = 20, 0.2, 10, 0
LIKE, UNLIKE = "iid", "dirichlet:0.3"
WORK: dict[str, Any] = {"lr": 0.1, "local_epochs": 1, "batch_size": 20}

NONE, MEAN, MIXED = "nobody", "mean", "nnm, trimmed mean"
ATTACKS: dict[str, Any] = {
    NONE: None,
    "label flip": attacks.LabelFlip(),
    "sign flip, 5": attacks.SignFlip(5.0),
    "alie": attacks.ALIE(),
    "alie, z = 20": attacks.ALIE(20.0),
    "ipm, 0.1": attacks.IPM(0.1),
    "ipm, 0.5": attacks.IPM(0.5),
    "ipm, 10": attacks.IPM(10.0),
    "min-max": attacks.MinMax(),
    "against krum": attacks.AgainstKrum(),
}
RULES: dict[str, Any] = {
    MEAN: None,
    "norm bound": rules.NormBound(),
    "median": rules.Median(),
    "trimmed mean": rules.TrimmedMean(SHARE),
    "geometric median": rules.GeometricMedian(),
    "krum": rules.Krum(SHARE),
    "multi-krum": rules.MultiKrum(SHARE),
    "centred clipping, 10": rules.CentredClipping(10.0),
    "centred clipping, 1": rules.CentredClipping(1.0),
    MIXED: InTurn((rules.NNM(SHARE), rules.TrimmedMean(SHARE))),
}
REPLACED = attacks.Replacement(target=7, share=0.3, epochs=4)
DEFENDED = {MEAN: None, "norm bound": rules.NormBound(), MIXED: RULES[MIXED]}


def learnt(
    data: ar.Federation, adversary: ar.Adversary | None, rule: Any, rounds: int, **options: Any
) -> ar.Run:
    """A run of FedAvg under an attack, with a rule."""
    given: dict[str, Any] = {"rounds": rounds, "seed": SEED, "evaluate_every": rounds, **options}
    if adversary is not None:
        given["adversary"] = adversary
    if rule is not None:
        given["wire"] = ar.Wire(rule=rule)
    return ar.simulate(ar.FedAvg(**WORK), data, "logistic", **given)


def crossed(
    data: ar.Federation, rounds: int, kept: dict[str, Any] | None = None, **options: Any
) -> dict[str, dict[str, float]]:
    """Accuracy after the last round of every attack against every rule; some may be kept."""
    found: dict[str, dict[str, float]] = {}
    for name, rule in RULES.items():
        found[name] = {}
        for attack, made in ATTACKS.items():
            if attack in (kept or {}).get(name, {}):
                found[name][attack] = kept[name][attack]  # type: ignore[index]
                continue
            adversary = None if made is None else ar.Adversary(made, SHARE)
            run = learnt(data, adversary, rule, rounds, **options)
            found[name][attack] = run.metrics["accuracy"]
        print(name, {k: round(v, 3) for k, v in found[name].items()}, file=sys.stderr)
    return found


def replaced(data: ar.Federation, rounds: int, **options: Any) -> dict[str, list[list[float]]]:
    """Round by round: accuracy, and the backdoor's, where one party attacks once, and none does."""
    found = {}
    at = rounds - 2  # the round of the attack; two are left
    for name, rule in DEFENDED.items():
        adversary = ar.Adversary(REPLACED, 1, first=at, last=at)
        run = learnt(data, adversary, rule, rounds, **{"evaluate_every": 1, **options})
        clean = learnt(data, None, rule, rounds, **{"evaluate_every": 1, **options})
        found[name] = [
            [entry["metrics"]["accuracy"] for entry in run.history],
            [entry["attack_success"] for entry in run.history],
            [entry["metrics"]["accuracy"] for entry in clean.history],
        ]
        print(name, found[name], file=sys.stderr)
    return found


def measure(
    rounds: int = ROUNDS, kept: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """All of it, or what is not kept."""
    kept = kept or {}
    like, unlike = (federation("mnist", each, PARTIES, SEED) for each in (LIKE, UNLIKE))
    found = {
        "like": crossed(like, rounds, kept.get("like"), **options),
        "unlike": crossed(unlike, rounds, kept.get("unlike"), **options),
        "replaced": kept.get("replaced") or replaced(like, rounds, **options),
    }
    return found | limits.measured(rounds, kept)


def tables(found: dict[str, Any]) -> str:
    """What was measured, and whether it is what was promised."""
    parts = []
    for name, words in (("like", "dealt out alike"), ("unlike", "Dirichlet(0.3)")):
        rows = [
            [rule, *(f"{100 * cells[attack]:.1f}" for attack in ATTACKS)]
            for rule, cells in found[name].items()
        ]
        parts.append(table([f"accuracy, %, {words}", *ATTACKS], rows))
    rows = []
    for rule, (main, backdoor, clean) in found["replaced"].items():
        at = len(main) - 3
        cells = (main[at], clean[at], backdoor[at - 1], backdoor[at], backdoor[-1])
        rows.append([rule, *(f"{100 * value:.1f}" for value in cells)])
    parts.append(
        table(
            ["one party replaces the model, %", "accuracy", "without it", "backdoor before",
             "after", "two rounds on"],
            rows,
        )
    )  # fmt: skip
    return "\n\n".join([*parts, *limits.tables(found), gates(checks(found))])


def checks(found: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """What must hold."""
    like, unlike = found["like"], found["unlike"]
    clean = like[MEAN][NONE]
    fall = clean - min(like[MEAN][each] for each in ("alie", "ipm, 10"))
    kept = clean - min(value for value in like[MIXED].values())
    main, backdoor, honest = found["replaced"][MEAN]
    at = len(main) - 3
    stopped = found["replaced"]["norm bound"][1][at]
    krum = unlike["krum"][NONE] - unlike["krum"]["against krum"]
    small = unlike["krum"][NONE] - min(unlike["krum"][each] for each in ("ipm, 0.1", "ipm, 0.5"))
    clipped = unlike["centred clipping, 10"]
    wide = clipped[NONE] - clipped["ipm, 10"]
    return [
        ("a fifth takes 10 points of the mean's accuracy, at least", f"{100 * fall:.1f} points",
         fall >= 0.1),
        ("mixing and a trimmed mean are within 3 points of clean, dealt out alike",
         f"{100 * kept:.1f} points", kept <= 0.03),
        ("one party's backdoor holds for 90 % in the round of the attack, at least",
         f"{100 * backdoor[at]:.1f} %", backdoor[at] >= 0.9),
        ("within 2 points of the accuracy without it",
         f"{100 * (honest[at] - main[at]):.1f} points", honest[at] - main[at] <= 0.02),
        ("a bound on norms leaves it 10 %, at most", f"{100 * stopped:.1f} %", stopped <= 0.1),
        ("shown to fail: Krum, under what is made for it", f"{100 * krum:.1f} points lost",
         krum > 0.03),
        ("shown to fail: Krum, under a small step back", f"{100 * small:.1f} points lost",
         small > 0.03),
        ("shown to fail: centred clipping with too wide a radius", f"{100 * wide:.1f} points lost",
         wide > 0.1),
        *limits.checks(found),
    ]  # fmt: skip


def plot(found: dict[str, Any]) -> Figure:
    """Accuracy by rule and attack; the backdoor by round."""
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.7))
    for axes, name, title in ((left, "like", "alike"), (middle, "unlike", "Dirichlet(0.3)")):
        cells = [[found[name][rule][attack] for attack in ATTACKS] for rule in RULES]
        axes.imshow(cells, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for i, row in enumerate(cells):
            for j, value in enumerate(row):
                colour = "white" if value < 0.6 else "black"
                axes.text(
                    j, i, f"{100 * value:.0f}", ha="center", va="center", color=colour, size=8
                )
        axes.set_xticks(range(len(ATTACKS)), list(ATTACKS), rotation=60, ha="right")
        axes.set_yticks(range(len(RULES)), list(RULES) if axes is left else [])
        axes.set_title(f"accuracy, %, {title}")
    for rule, dashes in ((MEAN, "-"), ("norm bound", "--")):
        main, backdoor, _ = found["replaced"][rule]
        rounds = range(1, len(main) + 1)
        right.plot(rounds, main, color=BLUE, ls=dashes, label=f"accuracy, {rule}")
        right.plot(rounds, backdoor, color=ORANGE, ls=dashes, label=f"backdoor, {rule}")
    right.set_title("one party replaces the model")
    right.set_xlabel("round")
    right.legend(fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="tables of results.json, no runs")
    parser.add_argument("--missing", action="store_true", help="runs that results.json lacks")
    given = parser.parse_args()
    if given.again:
        found = json.loads((FOLDER / "results.json").read_text())
        show(FOLDER, tables(found), {"plot.png": plot(found)})
        return
    kept = json.loads((FOLDER / "results.json").read_text()) if given.missing else None
    found = measure(given.rounds, kept, workers=given.workers)
    save(FOLDER, found, tables(found), {"plot.png": plot(found)})


if __name__ == "__main__":
    main()
