# SPDX-License-Identifier: Apache-2.0
"""Accuracy against megabytes and against time on a slow line, for every way to code an upload.

Konecny et al. 2016, https://arxiv.org/abs/1610.05492, its figures moved to MNIST and FEMNIST. As
there, each curve has a learning rate of its own: the best of one grid, by validation points.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import archipel as ar
from archipel.algorithms.pefll import PeFLL
from archipel.wire import Entropy, Quantise, Rotate, TopK

sys.path.insert(0, str(Path(__file__).parents[1]))
import coders
import rotation
from bytes_tables import figures, tables
from reporting import save
from wires import MAIN, SKETCH, WAYS, TopKAlone, Watched, Way

FOLDER = Path(__file__).parent
RATES = (0.1, 0.3, 1.0)  # for every way the same
FINER = (0.1, 0.2, 0.3, 0.5, 0.7)  # where a rate is chosen for the last round


@dataclass(frozen=True)
class Setting:
    """Data, model and budget of one comparison."""

    data: str
    partition: str | None
    model: str
    sampled: int  # parties a round
    rounds: int
    trial: int  # rounds before a learning rate is chosen; 0: those of `tuned`
    every: int  # rounds between evaluations
    ways: Sequence[str]
    rates: Sequence[float] = RATES

    def federation(self, seed: int) -> ar.Federation:
        if self.partition is None:
            return ar.load(self.data)
        return ar.load(self.data, partition=self.partition, parties=100, seed=seed)

    def work(self, lr: float) -> ar.FedAvg:
        return ar.FedAvg(lr=lr, local_epochs=2, batch_size=10)


SETTINGS = {
    "mnist": Setting("mnist", "iid", "mlp", 20, 25, 10, 1, tuple(WAYS)),
    "shards": Setting("mnist", "shards:2", "mlp", 20, 40, 10, 2, tuple(WAYS)),
    "femnist": Setting("femnist", None, "mlp", 30, 80, 20, 4, MAIN),
    "longer": Setting("femnist", None, "mlp", 30, 200, 20, 10, ("none", "sketch", "dither")),
    "mnist-tuned": Setting(
        "mnist", "iid", "mlp", 20, 25, 25, 1, ("none", "sketch", "dither"), FINER
    ),
    "tuned": Setting("femnist", None, "mlp", 30, 80, 80, 4, ("none", "sketch", "dither"), FINER),
    "wider": Setting("femnist", None, "mlp", 100, 80, 0, 4, ("none", "sketch", "dither")),
}


def watched(way: Way) -> tuple[Way, Watched | None]:
    """The same way, with its longest uploads noted where lengths differ."""
    if not way.up or not isinstance(way.up[-1], Entropy):
        return way, None
    last = Watched()
    return replace(way, up=(*way.up[:-1], last)), last


def best_rate(way: Way, setting: Setting) -> tuple[float, dict[str, float]]:
    """The learning rate with the best accuracy on validation points, and all of them."""
    fed = setting.federation(0).validation(0.1)
    runs = ar.sweep(
        setting.work(0.1), fed, setting.model, {"lr": setting.rates}, rounds=setting.trial,
        sample=setting.sampled, wire=way.wire, evaluate_every=max(1, setting.trial // 5),
        workers=1,
    )  # fmt: skip
    found = {run.algorithm.lr: float(np.mean(run.curve()[1][-2:])) for run in runs}
    return max(found, key=lambda lr: found[lr]), {f"{lr:g}": a for lr, a in found.items()}


def measured(way: Way, setting: Setting, lr: float, seed: int) -> dict[str, Any]:
    """The test curve of a run, and the bytes of a round."""
    way, last = watched(way)
    run = ar.simulate(
        setting.work(lr), setting.federation(seed), setting.model, rounds=setting.rounds,
        sample=setting.sampled, wire=way.wire, evaluate_every=setting.every, seed=seed, workers=1,
    )  # fmt: skip
    rounds, accuracy = run.curve()
    uploads = run.done * setting.sampled
    longest = run.spent.up / uploads if last is None else np.mean([*last.longest.values()])
    return {
        "rounds": rounds, "accuracy": accuracy, "up": run.spent.up / uploads,
        "down": run.spent.down / uploads, "longest": float(longest),
    }  # fmt: skip


class Stopwatch:
    """Notes the processor time before the first round and after each."""

    def __init__(self) -> None:
        self.times = list[float]()

    def __call__(self, run: ar.Run) -> None:
        self.times.append(time.process_time())

    def say(self, text: str) -> None:
        pass


def work(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Seconds of a party's work in a round, at one core: training, coding and its undoing."""
    found = dict[str, dict[str, float]]()
    for name in ("mnist", "femnist"):
        setting, rounds = SETTINGS[name], 4
        fed = setting.federation(0)
        found[name] = {}
        for key in setting.ways if name == "mnist" else ["none"]:
            watch = Stopwatch()
            ar.simulate(
                setting.work(0.1), fed, setting.model, rounds=rounds + 1, sample=setting.sampled,
                wire=WAYS[key].wire, evaluate_every=rounds + 1, workers=1, watch=watch,
            )  # fmt: skip
            took = watch.times[rounds] - watch.times[0]  # the last round is evaluated
            found[name][key] = took / rounds / setting.sampled
    return found


def compared(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Every way of a setting, at its best rate, with several seeds."""
    setting = SETTINGS[name]
    setting = replace(setting, rounds=args.rounds or setting.rounds)
    done: dict[str, Any] = args.kept.get(name, {}).get("ways", {}) if args.ways else {}
    for key in args.ways or setting.ways:
        way, began = WAYS[key], time.perf_counter()
        if way.rate_of in done:
            lr, tried = done[way.rate_of]["lr"], None
        elif setting.trial == 0:
            lr, tried = args.kept["tuned"]["ways"][key]["lr"], None
        else:
            lr, tried = best_rate(way, setting)
        count = 1 if way.dear else args.seeds
        done[key] = {
            "lr": lr, "tried": tried,
            "runs": [measured(way, setting, lr, seed) for seed in range(count)],
        }  # fmt: skip
        last = [run["accuracy"][-1] for run in done[key]["runs"]]
        took = time.perf_counter() - began
        print(name, key, lr, tried, last, done[key]["runs"][0]["up"], f"{took:.0f} s",
              file=sys.stderr, flush=True)  # fmt: skip
    return {
        "sampled": setting.sampled, "rounds": setting.rounds, "model": setting.model,
        "seeds": args.seeds, "ways": {key: done[key] for key in WAYS if key in done},
    }  # fmt: skip


def sizes(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Mean bytes of an upload of three models, biases and all, after a few rounds."""
    found = dict[str, dict[str, float]]()
    for data, model in (("mnist", "mlp"), ("femnist", "2nn"), ("femnist", "cnn")):
        fed = ar.load("mnist", partition="iid", parties=100) if data == "mnist" else ar.load(data)
        found[f"{data}, {model}"] = rows = {}
        for key in ("none", "sketch", "sketch+", "sketch16"):
            run = ar.simulate(
                ar.FedAvg(lr=0.1, local_steps=5, batch_size=10), fed, model, rounds=3, sample=4,
                evaluate_every=3, wire=WAYS[key].wire, workers=1,
            )  # fmt: skip
            rows[key] = run.spent.up / 12
        print(data, model, rows, file=sys.stderr, flush=True)
    return found


FEEDBACK = {"uncompressed": (), "top 1 %": (TopK(0.01),), "no feedback": (TopKAlone(0.01),)}


def feedback(
    rounds: int, seeds: int, partitions: Sequence[str], ways: Sequence[str]
) -> dict[str, Any]:
    """The largest 1 % with and without error feedback, where every party is in every round."""
    found = dict[str, Any]()
    for partition in partitions:
        for name in ways:
            runs = [
                ar.simulate(
                    ar.FedAvg(lr=0.3, local_steps=20, batch_size=20), "mnist", "mlp",
                    partition=partition, parties=20, rounds=rounds, evaluate_every=10, seed=seed,
                    wire=ar.Wire(up=FEEDBACK[name]), workers=1,
                )
                for seed in range(seeds)
            ]  # fmt: skip
            found[f"{partition}, {name}"] = {
                "rounds": runs[0].curve()[0], "accuracy": [run.curve()[1] for run in runs],
                "up": runs[0].spent.up / rounds / 20,
            }  # fmt: skip
            print(partition, name, [r.curve()[1][-1] for r in runs], file=sys.stderr, flush=True)
    return found


def algorithms(args: argparse.Namespace) -> dict[str, Any]:
    """SCAFFOLD, with two vectors in an upload, and PeFLL, with three messages in a round."""
    wires = {
        "uncompressed": (),
        "rotation, 4 bits": (Rotate(), Quantise(4)),
        "rotation, 1/16, 2 bits, entropy": (*SKETCH, Entropy()),
        "top 1 %": (TopK(0.01),),
        "top 10 %": (TopK(0.1),),
    }
    work = {"local_epochs": 1, "batch_size": 10}
    pefll = PeFLL(
        lr=0.002, optimiser=ar.SGD(momentum=0.9, weight_decay=5e-5), server_lr=2e-4,
        embedding="labels", size=13, embedding_lr=1.0, averaging=1.0, local_steps=50, batch_size=32,
    )  # fmt: skip
    jobs: dict[str, tuple[Any, str, int, int]] = {
        "FedAvg": (ar.FedAvg(lr=0.1, **work), "mlp", args.rounds or 30, 20),
        "SCAFFOLD": (ar.Scaffold(lr=0.1, **work), "mlp", args.rounds or 30, 20),
        "PeFLL": (pefll, "logistic", args.rounds or 150, 5),
    }
    found: dict[str, Any] = {}
    for name, (algorithm, model, rounds, sampled) in jobs.items():
        fed = ar.load("mnist", partition="shards:2", parties=100)
        for title, steps in wires.items():
            run = ar.simulate(
                algorithm, fed.with_new(10) if name == "PeFLL" else fed, model, rounds=rounds,
                sample=sampled, wire=ar.Wire(up=steps), workers=1,
                evaluate_every=rounds if name == "PeFLL" else max(1, rounds // 15),
            )  # fmt: skip
            new = run.history[-1]["own_new"]
            found[f"{name}, {title}"] = {
                "accuracy": float(np.mean(run.curve()[1][-5:])), "rounds": rounds,
                "new": None if new is None else new["accuracy"],
                "up": run.spent.up / rounds / sampled,
            }  # fmt: skip
            print(name, title, found[f"{name}, {title}"], file=sys.stderr, flush=True)
    return found


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "errors": lambda args: rotation.errors(),
    "mnist": lambda args: compared("mnist", args),
    "shards": lambda args: compared("shards", args),
    "feedback": lambda args: feedback(
        args.rounds or 150, args.seeds, ("iid", "shards:2"), tuple(FEEDBACK)
    ),
    "patience": lambda args: feedback(args.rounds or 500, 1, ("iid",), ("uncompressed", "top 1 %")),
    "femnist": lambda args: compared("femnist", args),
    "longer": lambda args: compared("longer", args),
    "mnist-tuned": lambda args: compared("mnist-tuned", args),
    "tuned": lambda args: compared("tuned", args),
    "wider": lambda args: compared("wider", args),
    "work": work,
    "sizes": sizes,
    "coders": lambda args: coders.measure(),
    "algorithms": algorithms,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, "all", []], help="others are kept; none: draw anew"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="of every run, instead of the part's own")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, help="of the comparisons; others are kept"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stored = args.out / "results.json"

    def kept() -> dict[str, Any]:
        found = json.loads(stored.read_text())["parts"] if stored.exists() else {}
        return {part: found[part] for part in [*PARTS, *found] if part in found}

    for part in PARTS if "all" in args.parts else args.parts:
        args.kept = {name: one["found"] for name, one in kept().items()}
        found = PARTS[part](args)
        done = kept() | {part: {"found": found}}  # others may run meanwhile
        args.out.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps({"parts": done}) + "\n")
    done = kept()
    text, checks = tables(done)
    save(args.out, {"parts": done, "checks": checks}, text, figures(done))


if __name__ == "__main__":
    main()
