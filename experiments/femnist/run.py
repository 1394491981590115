# SPDX-License-Identifier: Apache-2.0
"""FEMNIST: what 293 writers gain by learning together, and what it gives to writers never seen.

FedAvg with the CNN, against every writer alone with the same budget and the same model, against
alone with what suits it best (longer training on a sample of writers, or a small model), and
against all images in one place. Accuracies are means over writers, each on its own test images.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import archipel as ar
from archipel.runs import baselines
from archipel.runs.parts import build_model

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, gates, save, table

FOLDER = Path(__file__).parent
LONGER = {
    "cnn": (10, 20, 40, 60),
    "logistic": (20, 40, 80, 160),
}  # epochs at which alone is looked at
RATES = {"cnn": (0.05, 0.1), "logistic": (0.03, 0.1, 0.3)}


def split(fed: ar.Federation, accuracy: torch.Tensor) -> dict[str, list[float]]:
    """Return the accuracies of seen and of new writers that have test images."""
    parts = {"seen": accuracy[: fed.training], "new": accuracy[fed.training :]}
    return {name: part[~part.isnan()].tolist() for name, part in parts.items()}


def sampled(fed: ar.Federation, writers: int) -> ar.Federation:
    """Return so many seen and as many new writers, drawn at random."""
    rng = np.random.default_rng(0)
    groups = (np.arange(fed.training), np.arange(fed.training, fed.parties))
    chosen = [rng.choice(group, min(writers, len(group)), replace=False) for group in groups]
    return fed.select(np.sort(np.concatenate(chosen)))


def alone_longer(fed: ar.Federation, model: str) -> dict[str, dict[str, Any]]:
    """Return the best that writers alone reach, over rates and epochs, seen and new apart.

    The best is picked by the test images themselves, which favours alone.
    """
    everyone = replace(fed, training=fed.parties, scan=False)
    best: dict[str, dict[str, Any]] = {}
    for lr in RATES[model]:
        algorithm, task_model = ar.Alone(lr=lr, batch_size=10), build_model(model, fed)
        with ar.LocalEngine(algorithm, everyone, task_model) as engine:
            for t in range(max(LONGER[model])):
                engine.round(t, np.flatnonzero(everyone.n.numpy() > 0))
                if t + 1 not in LONGER[model]:
                    continue
                scores = split(fed, engine.evaluate(own=True).parties["accuracy"])
                for group, values in scores.items():
                    mean = float(np.mean(values))
                    print(model, lr, t + 1, group, f"{mean:.4f}", file=sys.stderr, flush=True)
                    if group not in best or mean > best[group]["mean"]:
                        best[group] = {"mean": mean, "lr": lr, "epochs": t + 1, "values": values}
    return best


def together(
    fed: ar.Federation, work: ar.FedAvg, rounds: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Return accuracies by writer after the last round, and their means on the way."""

    def show(run: ar.Run) -> None:
        last = run.history[-1]
        print(last["round"], last["seen_parties"]["mean"], last["new_parties"]["mean"],
              f"{last['seconds']:.0f} s", file=sys.stderr, flush=True)  # fmt: skip

    run = ar.simulate(
        work, fed, "cnn", rounds=rounds, sample=args.sample, evaluate_every=args.every,
        on_round=show,
    )  # fmt: skip
    return {
        **split(fed, run.parties["accuracy"]),
        "curve": [
            {
                "round": e["round"],
                "seen": e["seen_parties"]["mean"],
                "new": e["new_parties"]["mean"],
            }
            for e in run.history
        ],
    }


def percent(values: list[float]) -> str:
    error = np.std(values) / np.sqrt(len(values))
    return f"{100 * np.mean(values):.1f} ± {100 * error:.1f}"


def draw(done: dict[str, Any]) -> Figure:
    """Draw how accuracies spread over writers, seen and new, and FedAvg by round."""
    figure = Figure(figsize=(14, 4.8), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
    best = done.get("further", done["together"])
    bins = np.linspace(0, 1, 21)
    for ax, group in zip(axes, ("seen", "new"), strict=False):
        ax.hist(done["alone"][group], bins, histtype="step", color=GREY, linewidth=1.6,
                label="alone, CNN, same budget")  # fmt: skip
        shown = [("together, FedAvg", best[group], BLUE)]
        if "small" in done:
            shown.append(("alone, logistic, tuned", done["small"][group]["values"], ORANGE))
        for name, values, colour in shown:
            ax.hist(values, bins, color=colour, alpha=0.6, label=name)
            mean = float(np.mean(values))
            ax.axvline(mean, color=colour, linewidth=2)
            ax.annotate(f" {mean:.0%} ", (mean, 0.99), xycoords=("data", "axes fraction"),
                        color=colour, va="top", ha="left" if colour == BLUE else "right",
                        fontweight="bold")  # fmt: skip
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_title(f"{len(best[group])} {group} writers")
        ax.set(xlabel="accuracy on the writer's test images", ylabel="writers", xlim=(0, 1))
        ax.margins(y=0.12)
    axes[1].legend(
        loc="upper right", bbox_to_anchor=(1.0, 0.92), frameon=True, framealpha=1, edgecolor="white"
    )
    last = axes[2]
    rounds = [point["round"] for point in best["curve"]]
    for group, style in (("seen", "-"), ("new", "--")):
        lines = {"alone, CNN, same budget": (done["alone"][group], GREY)}
        if "small" in done:
            lines["alone, logistic, tuned"] = (done["small"][group]["values"], ORANGE)
        if "longer" in done:
            lines["alone, CNN, tuned (sample)"] = (done["longer"][group]["values"], PURPLE)
        if "pooled" in done:
            lines["pooled, CNN"] = (done["pooled"][group], GREEN)
        last.plot(rounds, [point[group] for point in best["curve"]], color=BLUE, linestyle=style,
                  label=f"together, {group}")  # fmt: skip
        for name, (values, colour) in lines.items():
            last.axhline(float(np.mean(values)), color=colour, linestyle=style, linewidth=1.5,
                         label=f"{name}, {group}")  # fmt: skip
    last.yaxis.set_major_formatter(PercentFormatter(1.0))
    last.set(xlabel="round", ylabel="mean accuracy over writers", ylim=(0, 1))
    last.set_title("by round")
    last.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    figure.suptitle("Every writer alone, and all writers together", x=0.01, ha="left", color=INK,
                    fontweight="bold")  # fmt: skip
    return figure


PARTS = ("together", "alone", "small", "longer", "further", "pooled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--further", type=int, default=200, help="rounds of a longer FedAvg")
    parser.add_argument("--sample", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=5, help="rounds between evaluations")
    parser.add_argument("--writers", type=int, default=30, help="sample for alone with more epochs")
    parser.add_argument(
        "--parts",
        nargs="*",
        choices=PARTS,
        default=list(PARTS),
        help="the others are kept; none: draw anew",
    )
    parser.add_argument("--quick", action="store_true", help="20 writers of each kind, 10 rounds")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write")
    args = parser.parse_args()
    fed = ar.load("femnist")
    if args.quick:
        fed, args.rounds, args.parts = sampled(fed, 20), 10, ["together", "alone"]
    work = ar.FedAvg(lr=args.lr, local_epochs=1, batch_size=20)
    options: dict[str, Any] = {"rounds": args.rounds, "sample": args.sample}
    jobs = {
        "together": lambda: together(fed, work, args.rounds, args),
        "further": lambda: together(fed, work, args.further, args),
        "alone": lambda: split(
            fed, baselines.alone(work, fed, "cnn", **options).local.parties["accuracy"]
        ),
        "longer": lambda: alone_longer(sampled(fed, args.writers), "cnn"),
        "small": lambda: alone_longer(fed, "logistic"),
        "pooled": lambda: split(
            fed, baselines.pooled(work, fed, "cnn", **options).scores.parties["accuracy"]
        ),
    }
    stored = args.out / "results.json"
    old = json.loads(stored.read_text()) if stored.exists() and not args.quick else {}
    done, seconds = old.get("accuracy", {}), old.get("seconds", {})
    if not args.parts:
        report(fed, done, seconds, args)
    for part in args.parts:
        began = time.perf_counter()
        done[part] = jobs[part]()
        seconds[part] = round(time.perf_counter() - began)
        print(part, seconds[part], "s", file=sys.stderr, flush=True)
        if "together" in done and "alone" in done:
            report(fed, done, seconds, args)


def report(
    fed: ar.Federation, done: dict[str, Any], seconds: dict[str, int], args: argparse.Namespace
) -> None:
    epochs = baselines.budget(fed, args.rounds, args.sample)
    titles = {
        "together": f"FedAvg, CNN, {args.rounds} rounds",
        "further": f"FedAvg, CNN, {args.further} rounds",
        "pooled": f"pooled, CNN, {epochs} epochs",
        "alone": f"alone, CNN, {epochs} epochs (same budget)",
    }
    rows = [
        [title, percent(done[name]["seen"]), percent(done[name]["new"]), seconds[name]]
        for name, title in titles.items()
        if name in done
    ]
    best = {group: [float(np.mean(done["alone"][group]))] for group in ("seen", "new")}
    kinds = {
        "longer": f"alone, CNN, its best rate and epochs, {args.writers} + {args.writers} writers",
        "small": "alone, logistic regression, its best rate and epochs",
    }
    for name, title in kinds.items():
        if name not in done:
            continue
        cells = []
        for group in ("seen", "new"):
            one = done[name][group]
            cells.append(f"{percent(one['values'])} (lr {one['lr']:g}, {one['epochs']} epochs)")
            best[group].append(one["mean"])
        rows.append([title, *cells, seconds[name]])
    checks = []
    for group in ("seen", "new"):
        mean = float(np.mean(done["together"][group]))
        gain = 100 * (mean - best[group][0])
        checks.append(
            (
                f"{group} writers: FedAvg at least 15 points above alone, same budget",
                f"{gain:.1f}",
                gain >= 15,
            )
        )
        for name, rounds in (("together", args.rounds), ("further", args.further)):
            if name in done and len(best[group]) > 1:
                gain = 100 * (float(np.mean(done[name][group])) - max(best[group]))
                checks.append(
                    (
                        f"{group} writers: {rounds} rounds, 15 points above the best alone",
                        f"{gain:.1f}",
                        gain >= 15,
                    )
                )
    header = ["", "seen writers (%)", "new writers (%)", "seconds"]
    tables = (
        f"Mean accuracy over writers ± standard error; {fed.training} seen, "
        f"{fed.parties - fed.training} new.\n\n{table(header, rows)}\n\n{gates(checks)}"
    )
    results = {"accuracy": done, "seconds": seconds, "checks": checks}
    save(args.out, results, tables, {"plot.png": draw(done)})


if __name__ == "__main__":
    main()
