# SPDX-License-Identifier: Apache-2.0
"""A model of one's own: every method at parties seen in training and at parties never seen.

python experiments/personal/run.py tune femnist          # choose settings, on validation points
python experiments/personal/run.py tune femnist --copies # and whether with virtual writers
python experiments/personal/run.py femnist               # all methods, three seeds
python experiments/personal/run.py femnist ditto pefll   # these methods
python experiments/personal/run.py femnist --writers 60  # fewer writers train
python experiments/personal/run.py cifar10 --data FOLDER
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import archipel as ar
from archipel import baselines
from archipel.errors import ArchipelError, RunFailed, unknown
from archipel.parts import build_model

sys.path.insert(0, str(Path(__file__).parents[1]))
from drawing import report
from methods import METHODS, Method, Settings, edges
from parties import Parties, two_classes, writers

FOLDER = Path(__file__).parent
Record = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """What all methods have in common on a dataset."""

    model: str
    rounds: int
    sample: float
    parties: int | None = None  # None: the data has its own
    folds: int | None = None  # of the new parties' points


SETUPS = {
    "femnist": Setup("mlp", rounds=300, sample=0.1, folds=5),
    "cifar10": Setup("mlp", rounds=100, sample=0.1, parties=100),
    "mnist": Setup("mlp", rounds=150, sample=0.1, parties=100),
}


def load(args: argparse.Namespace, seed: int) -> Parties:
    if args.dataset == "femnist":
        return writers(seed, args.writers, most=4 if args.quick else None)
    return two_classes(args.dataset, seed, args.parties, args.data, args.writers)


# -- one run --------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What became of a method: the accuracy of each party, and what a new one needed."""

    accuracy: torch.Tensor  # [K]
    seconds: float  # of one core
    joining: dict[str, float] | None = None
    curve: list[list[float]] | None = None  # round, seen, new


class Progress:
    """One line on standard error."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, 0.0

    def __call__(self, run: ar.Run) -> None:
        self.show(f"round {run.done} of {run.rounds}, {run.seconds:.0f} s")

    def show(self, text: str, end: bool = False) -> None:
        live = sys.stderr.isatty()
        if end or (live and time.perf_counter() - self._shown > 0.2):
            self._shown = time.perf_counter()
            line = f"{self._what}: {text}"
            print(f"\r\x1b[K{line}" if live else line, end="\n" if end else "", file=sys.stderr,
                  flush=True)  # fmt: skip

    def say(self, text: str) -> None:
        self.show(text)


def train(
    method: Method,
    settings: Settings,
    parties: Parties,
    args: argparse.Namespace,
    seed: int,
    line: Progress,
) -> Outcome:
    """Run one method with one seed."""
    if method is METHODS["local"]:
        return local(method, settings, parties, args, seed, line)
    fed, began = parties.fed, processor()
    cohort = max(1, round(args.sample * parties.groups["seen"].stop))  # whoever is copied
    common = {"rounds": args.rounds, "sample": cohort, "seed": seed}
    if method is METHODS["pooled"]:
        scores = baselines.pooled(method.make(settings), fed, args.model, **common).scores
        p = build_model(args.model, fed).w
        joining = {"messages": 1, "up": 0, "down": p.numel() * p.element_size(), "gradients": 0,
                   "seconds": 0.0}  # fmt: skip
        return Outcome(scores.parties["accuracy"], processor() - began, joining)
    if method.everybody:
        rounds = max(1, round(args.rounds * method.rounds * cohort / fed.training))
        common.update(rounds=rounds, sample=1.0)
    every = args.every or common["rounds"]
    run = ar.simulate(
        method.make(settings), fed, args.model, evaluate_every=every, watch=line,
        workers=args.workers, **common,
    )  # fmt: skip
    curve = [
        [entry["round"], *((entry[own] or entry[one] or {}).get("accuracy")
         for own, one in (("own", "metrics"), ("own_new", "new")))]
        for entry in run.history
    ]  # fmt: skip
    return Outcome(run.parties["accuracy"], processor() - began, joining_of(run, parties), curve)


def processor() -> float:
    """Seconds that this process and its workers have computed so far."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def local(
    method: Method,
    settings: Settings,
    parties: Parties,
    args: argparse.Namespace,
    seed: int,
    line: Progress,
) -> Outcome:
    """Train every party alone, group by group, so that the time of new ones is known."""
    fed, began = parties.fed, processor()
    everyone = ar.Federation(
        fed.x, fed.y, fed.offsets, fed.test_from, fed.parties, fed.task, fed.classes,
        origin=fed.origin, scan=False,
    )  # fmt: skip
    settings = dict(settings)
    epochs = settings.pop("epochs", 20)
    joining = None
    model = build_model(args.model, fed, seed=seed)
    with ar.LocalEngine(method.make(settings), everyone, model, seed=seed, workers=1) as engine:
        for name in parties.groups:
            ids = parties.members(name)
            ids = ids[fed.n.numpy()[ids] > 0]
            gradients, start, count = 0, processor(), len(ids)
            for t in range(min(epochs, args.epochs or epochs)):
                outcome = engine.round(t, ids)
                ids, gradients = outcome.arrived, gradients + outcome.gradients
                line.show(f"{name} parties, epoch {t + 1} of {epochs}")
            if name == "new":
                took = (processor() - start) / count
                joining = {"messages": 0, "up": 0, "down": 0, "gradients": gradients / count,
                           "seconds": took}  # fmt: skip
        scores = engine.evaluate(own=True)
    return Outcome(scores.parties["accuracy"], processor() - began, joining)


def joining_of(run: ar.Run, parties: Parties) -> dict[str, float] | None:
    """What a party of the group of new ones needed, in the mean."""
    if run.joining is None:
        return None
    group = parties.group("new" if "new" in parties.groups else "seen")
    spent = {name: float(values[group].nanmean()) for name, values in run.making.items()}
    names = ("messages", "up", "down", "gradients", "seconds")
    return {name: spent.get(name, getattr(run.joining, name)) for name in names}


def score(accuracy: torch.Tensor, parties: Parties) -> dict[str, dict[str, Any]]:
    """Accuracy over all test points of a group, mean over its parties, and each party's points."""
    found = {}
    for name in parties.groups:
        group = parties.group(name)
        points, values = parties.fed.tested[group].double(), accuracy[group].double()
        group, values, points = group[(points > 0).numpy()], values[points > 0], points[points > 0]
        if not len(points):
            continue
        found[name] = {
            "accuracy": float((values * points).sum() / points.sum()),
            "mean": float(values.mean()),
            "parties": len(points),
            "points": int(points.sum()),
            "by_party": {
                parties.fed.name(k): [round(float(right)), int(n)]
                for k, right, n in zip(group.tolist(), values * points, points, strict=True)
            },
        }
    return found


# -- settings -------------------------------------------------------------------------------------


def tune(args: argparse.Namespace) -> None:
    """Try as many settings of every method, and write down all of them and the best.

    The best has the largest mean of two accuracies: at parties that train, and at held-out ones.
    With --copies, settings around the best of the first, with and without virtual parties, and all
    points of held-out parties tested: the best of these is taken then.
    """
    inside, path = load(args, seed=0).validation(), args.out / "settings.json"
    for name in args.methods:
        method = METHODS[name]
        frame = {"model": args.model, "rounds": args.rounds, "sample": args.sample,
                 "parties": inside.fed.parties, **method.frame}  # fmt: skip
        frame |= {"folds": args.folds} if args.copies else {}
        kind = "copies" if args.copies else "first"
        known = read(path).get(args.dataset, {}).get(name, {})
        before = known.get(kind, {})
        tried = before.get("tried", []) if before.get("frame") == frame else []
        settings = method.with_copies(ranked(known)) if args.copies else method.settings
        for each in settings[: args.settings]:
            if any(one["settings"] == each for one in tried):
                continue
            line = Progress(f"tune {args.dataset}, {name} {words(each)}")
            tried.append(attempt(method, each, inside, args, line))
            with alone_with(path):
                stored = read(path)
                found = stored.setdefault(args.dataset, {}).setdefault(name, {})
                found[kind] = {"frame": frame, "tried": tried}
                found["chosen"] = best(found)
                write(path, stored)
        show_choice(args, name)


def attempt(
    method: Method, settings: Settings, inside: Parties, args: argparse.Namespace, line: Progress
) -> Record:
    """Run one setting on validation points; one that fails has no accuracy."""
    value, by_group, seconds, failed = None, None, None, None
    folds = args.folds if args.copies else None
    parties = inside.prepared(settings.get("virtual", 0), folds, seed=0)
    try:
        outcome = train(method, settings, parties, args, 0, line)
        groups = score(outcome.accuracy, parties)
        by_group = {group: found["accuracy"] for group, found in groups.items()}
        value, seconds = float(np.mean([*by_group.values()])), outcome.seconds
        value = value if np.isfinite(value) else None
    except RunFailed as error:
        failed = str(error)
    line.show(failed or f"{by_group}, {seconds:.0f} s", end=True)
    return {"settings": settings, "accuracy": value, "groups": by_group, "seconds": seconds}


def ranked(found: Record, kind: str = "first") -> list[Settings]:
    """What was tried, the best first, without what failed."""
    tried = [each for each in found.get(kind, {}).get("tried", []) if each["accuracy"] is not None]
    return [each["settings"] for each in sorted(tried, key=lambda each: -each["accuracy"])]


def best(found: Record) -> Settings:
    """The best of the last kind of settings that were tried."""
    return next(iter(ranked(found, "copies" if "copies" in found else "first")), {})


def at_edges(found: Record) -> list[str]:
    """Fields of the chosen setting that are at the edge of all that was tried."""
    tried = [one["settings"] for kind in ("first", "copies") if kind in found
             for one in found[kind]["tried"]]  # fmt: skip
    return edges(tried, found["chosen"])


def show_choice(args: argparse.Namespace, name: str) -> None:
    found = read(args.out / "settings.json")[args.dataset][name]
    edge = f" (at the edge: {', '.join(at_edges(found))})" if at_edges(found) else ""
    print(f"{name}: {words(found['chosen'])}{edge}")


def words(settings: Settings) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it is"


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace a file at once: whoever stops the script finds the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(content, indent=1) + "\n")
    aside.replace(path)


# -- the table ------------------------------------------------------------------------------------


def run_all(args: argparse.Namespace) -> None:
    """Run every method with every seed that results.json lacks, then write table and plot."""
    path = args.out / args.dataset / "results.json"
    settings = read(args.out / "settings.json").get(args.dataset, {})
    for seed in [] if args.draw else args.seeds:
        loaded = load(args, seed)
        for name in args.methods:
            tuned = settings.get(name)
            chosen = {} if tuned is None else tuned["chosen"]
            frame = {
                "method": name,
                "seed": seed,
                "writers": args.writers,
                "parties": loaded.fed.parties,
                "model": args.model,
                "rounds": args.rounds,
                "sample": args.sample,
                "settings": chosen,
                **METHODS[name].frame,
            }
            frame |= {"folds": args.folds} if args.folds else {}
            done = read(path).get("runs", [])
            if any(all(each.get(k) == v for k, v in frame.items()) for each in done):
                continue
            line = Progress(f"{args.dataset}, {name}, seed {seed}")
            parties = loaded.prepared(chosen.get("virtual", 0), args.folds, seed)
            try:
                outcome = train(METHODS[name], chosen, parties, args, seed, line)
            except RunFailed as error:
                line.show(f"failed: {error}", end=True)
                continue
            groups = score(outcome.accuracy, parties)
            record: Record = {**frame, "tuned": tuned is not None, "groups": groups,
                              "edges": [] if tuned is None else at_edges(tuned),
                              "known": loaded.known, "joining": outcome.joining,
                              "seconds": outcome.seconds, "curve": outcome.curve}  # fmt: skip
            keep(path, record)
            shown = ", ".join(f"{k} {100 * v['accuracy']:.1f}" for k, v in groups.items())
            line.show(f"{shown}, {outcome.seconds:.0f} s", end=True)
    if read(path).get("runs"):
        report(args.out / args.dataset, args.dataset, read(path)["runs"])


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Wait until no other process changes the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def keep(path: Path, record: Record) -> None:
    """Put a run in the place of its predecessor, among what other processes added meanwhile."""
    with alone_with(path):
        _keep(path, record)


def _keep(path: Path, record: Record) -> None:
    stored = read(path)
    same = ("method", "seed", "writers")
    runs = [
        each for each in stored.get("runs", []) if any(each[k] != record[k] for k in same)
    ]  # fmt: skip
    write(path, {**stored, "runs": [*runs, record]})


# -- the command line -----------------------------------------------------------------------------


def options() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("methods", nargs="*", help=f"of {', '.join(METHODS)}; all of them")
    shared.add_argument("--model", help="mlp")
    shared.add_argument("--rounds", type=int)
    shared.add_argument("--sample", type=float, help="share of the parties a round takes")
    shared.add_argument("--every", type=int, help="rounds between evaluations; only the last")
    shared.add_argument("--writers", type=int, help="how many parties train; all that are not new")
    shared.add_argument("--parties", type=int, help="of cifar10 and mnist, new ones included")
    shared.add_argument("--workers", type=int, help="processes of one run; as many as are best")
    shared.add_argument("--data", type=Path, help="the folder that holds CIFAR-10")
    shared.add_argument("--quick", action="store_true", help="few parties and rounds, one seed")
    shared.add_argument("--out", type=Path, help="where to write; beside this script")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="command", required=True)
    for name in SETUPS:
        one = kinds.add_parser(name, parents=[shared], help=f"the table of {name}")
        one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        one.add_argument("--draw", action="store_true", help="table and plot of what is there")
    one = kinds.add_parser("tune", help="choose settings on validation points")
    one.add_argument("dataset", choices=list(SETUPS))
    one.add_argument("--copies", action="store_true", help="settings with virtual parties, too")
    one.add_argument("--settings", type=int, help="how many are tried per method; all")
    one._add_container_actions(shared)
    return parser


def main(words: list[str] | None = None) -> None:
    args = options().parse_args(words)
    tuning = args.command == "tune"
    args.dataset = args.dataset if tuning else args.command
    setup = SETUPS[args.dataset]
    args.epochs, args.folds = None, setup.folds
    if args.quick:
        args.writers, args.parties = args.writers or 10, args.parties or 20
        args.rounds, args.sample, args.epochs = args.rounds or 2, args.sample or 0.5, 2
        args.seeds, args.settings = [0], 2
        args.out = args.out or Path(tempfile.mkdtemp(prefix="personal-"))
        print(f"quick: results go to {args.out}", file=sys.stderr)
    args.model = args.model or setup.model
    args.rounds = args.rounds or setup.rounds
    args.sample = args.sample or setup.sample
    args.parties = args.parties or setup.parties
    args.out = args.out or FOLDER
    for name in args.methods:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
        if not METHODS[name].exists:
            raise ArchipelError(f"method {name}: there is no algorithm {METHODS[name].algorithm}.")
    args.methods = args.methods or [name for name, each in METHODS.items() if each.exists]
    (tune if tuning else run_all)(args)


if __name__ == "__main__":
    try:
        main()
    except ArchipelError as error:
        sys.exit(f"error: {error}")
