# SPDX-License-Identifier: Apache-2.0
"""CHOCO: consensus by coded changes on a ring, and decentralised SGD's accuracy for few bytes.

Koloskova, Stich, Jaggi, ICML 2019, https://arxiv.org/abs/1902.00340.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import archipel as ar
from archipel.exchange.sender import Sender
from archipel.graphs import topology
from archipel.models import build
from archipel.wire import Float16, Sign, TopK
from archipel.wire.chain import Chain
from archipel.wire.changes import Changes
from archipel.wire.matrices import Matrices
from archipel.wire.step import Step, shaped

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, gates, save, table

FOLDER = Path(__file__).parent
N, D = 25, 2000  # of the ring
LR, BATCH, ROUNDS, EVERY = 0.1, 32, 400, 50
LONGER = 600  # rounds of CHOCO, whose messages are small


@dataclass(frozen=True)
class QSGD(Matrices):
    """Alistarh et al. 2017, divided by tau = 1 + min(d / s², sqrt(d) / s) as CHOCO's paper does."""

    levels: int = 16  # s

    def code(self, me: Sender, place: str, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.flatten(-2)
        norm = flat.norm(dim=-1, keepdim=True)
        drawn = me.uniform(flat.shape[-1], f"qsgd {place}").to(x.dtype)
        whole = (flat.abs() / norm.clamp_min(1e-300) * self.levels + drawn).floor()
        return norm, (flat.sign() * whole).to(torch.int8)

    def decode(self, them: Sender, place: str, coded: Any, one: Tensor) -> Tensor:
        (norm, whole), d, s = coded, one.numel(), self.levels
        tau = 1 + min(d / s**2, d**0.5 / s)
        return shaped(norm / (s * tau) * whole.to(norm.dtype), one)


# -- consensus -------------------------------------------------------------------------------------


def consensus(steps: Sequence[Step], gamma: float, rounds: int, memory: bool = True) -> list[float]:
    """Mean squared distance from the mean after every round of gossip, from normal vectors."""
    w = topology("ring", N).weights()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((N, D)))
    mean, held, errors = x.mean(dim=0), torch.zeros_like(x), list[float]()
    one = Sender(0, 0, 0, np.zeros(1, np.int64))
    coding = Changes.fitted(Chain.fitted(steps, torch.zeros(D, dtype=torch.float64), one), one)
    drift = 0.0
    for t in range(rounds + 1):
        error = float((x - mean).square().sum(dim=-1).mean())
        if error < 1e4:
            drift = max(drift, float((x.mean(dim=0) - mean).abs().max()))
        errors.append(error)
        me = Sender(0, t, 0, np.arange(N), (N,))
        arrives = coding.send(me, x - held if memory else x)[1]
        held = held + arrives if memory else arrives
        x = x + gamma * (w @ held - held)
    if drift > 1e-9:
        raise SystemExit(f"the mean moved by {drift:g}.")
    return errors


CURVES: dict[str, tuple[tuple[Step, ...], float, int, bool, str]] = {
    "exact gossip": ((), 1.0, 300, True, INK),
    "CHOCO, QSGD with 16 levels, gamma = 1": ((QSGD(16),), 1.0, 300, True, GREEN),
    "CHOCO, top 1 %, gamma = 0.05": ((TopK(0.01),), 0.05, 4000, True, BLUE),
    "CHOCO, top 1 %, gamma = 0.1": ((TopK(0.01),), 0.1, 4000, True, ORANGE),
    "top 1 % without memory, gamma = 0.05": ((TopK(0.01),), 0.05, 4000, False, PURPLE),
    "top 1 % without memory, gamma = 1": ((TopK(0.01),), 1.0, 4000, False, GREY),
}


# -- learning --------------------------------------------------------------------------------------


def federation(parties: int) -> ar.Federation:
    """Return MNIST's test set as 8000 training and 2000 test images, two shards a party."""
    _, _, x, y = ar.load("mnist", parties=1).party(0)
    return ar.Federation.from_split(
        x[:8000], y[:8000], x[8000:], y[8000:], partition="shards:2", parties=parties, classes=10
    )


def model(fed: ar.Federation) -> ar.Model:
    module = build("logistic", fed.shape, fed.classes)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return ar.Model(module)


WAYS: dict[str, tuple[Any, tuple[Step, ...], str]] = {
    "decentralised SGD": (ar.DSGD(LR, BATCH), (), INK),
    "CHOCO, sign, gamma = 0.8": (ar.Choco(LR, 0.8, batch_size=BATCH), (Sign(),), BLUE),
    "CHOCO, sign, gamma by default": (ar.Choco(LR, batch_size=BATCH), (Sign(),), GREEN),
    "CHOCO, top 1 % in float16, gamma = 0.1": (
        ar.Choco(LR, 0.1, batch_size=BATCH), (TopK(0.01), Float16()), ORANGE,
    ),
}  # fmt: skip


def learn(fed: ar.Federation, name: str, rounds: int) -> dict[str, Any]:
    """Bytes so far, and accuracies of the mean model and of the peers' own, on all test images."""
    algorithm, steps, _ = WAYS[name]
    found: dict[str, Any] = {"round": [], "bytes": [], "mean": [], "peers": [], "worst": []}
    sent, plan = 0, ar.Plan("stacked", fed.parties, 1)
    graph, wire = topology("torus", fed.parties), ar.Wire(up=steps)
    with ar.LocalEngine(algorithm, fed, model(fed), plan=plan, topology=graph, wire=wire) as engine:
        for t in range(rounds):
            sent += engine.round(t, range(fed.parties)).up
            if (t + 1) % EVERY:
                continue
            peers = [engine.evaluate(w).pooled["accuracy"] for w in engine.own_models()]
            found["round"].append(t + 1)
            found["bytes"].append(sent)
            found["mean"].append(engine.evaluate(engine.vector()).pooled["accuracy"])
            found["peers"].append(float(np.mean(peers)))
            found["worst"].append(min(peers))
    return found


# -- what came of it -------------------------------------------------------------------------------


def draw(errors: dict[str, list[float]], learnt: dict[str, dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, curve in errors.items():
        left.plot(curve, color=CURVES[name][-1], label=name)
    left.set(xlabel="round", ylabel="squared distance from the mean", yscale="log")
    left.set(ylim=(1e-4, 1e5), xlim=(0, 4000))
    left.set_title("Consensus on a ring of 25, 2000 numbers each")
    left.legend(loc="lower right", fontsize=8)
    for name, each in learnt.items():
        megabytes = [sent / 1e6 for sent in each["bytes"]]
        right.plot(megabytes, each["peers"], color=WAYS[name][-1], marker="o", ms=3, label=name)
    right.set(xlabel="megabytes sent by all", ylabel="accuracy of the peers' models", xscale="log")
    right.set_title("MNIST, two shards a party, torus of 25")
    right.legend(loc="lower right", fontsize=8)
    return figure


def first_at(each: dict[str, Any], accuracy: float) -> int | None:
    """Bytes until the peers' models have this accuracy on average."""
    pairs = zip(each["bytes"], each["peers"], strict=True)
    return next((sent for sent, reached in pairs if reached >= accuracy), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    began, share = time.perf_counter(), args.rounds / ROUNDS
    errors = {
        name: consensus(steps, gamma, max(20, int(share * rounds)), memory)
        for name, (steps, gamma, rounds, memory, _) in CURVES.items()
    }
    fed, learnt = federation(25), dict[str, dict[str, Any]]()
    for name in WAYS:
        longer = 1.0 if not WAYS[name][1] else LONGER / ROUNDS
        learnt[name] = learn(fed, name, int(args.rounds * longer))
        print(name, learnt[name]["peers"][-1:], file=sys.stderr, flush=True)
    plain = learnt["decentralised SGD"]
    goal, cost = plain["peers"][-1], plain["bytes"][-1]
    rows = []
    for name, each in learnt.items():
        need = first_at(each, goal)
        rows.append([
            name, each["round"][-1], f"{each['mean'][-1]:.1%}", f"{each['peers'][-1]:.1%}",
            f"{each['worst'][-1]:.1%}", f"{each['bytes'][-1] / cost:.2%}",
            "not reached" if need is None else f"{need / cost:.2%}",
        ])  # fmt: skip
    best = learnt["CHOCO, sign, gamma = 0.8"]
    need = first_at(best, goal)
    at = {name: curve[-1] for name, curve in errors.items()}
    exact, coded, slow, fast, small, naive = at.values()
    top = errors["CHOCO, top 1 %, gamma = 0.05"]
    thirds = [top[len(top) * i // 4] for i in (1, 2, 3)] + [top[-1]]
    slopes = [float(np.log(a / b)) for a, b in pairwise(thirds)]
    checks = [
        ("exact gossip after 300 rounds: 4.9e-4", f"{exact:.2g}", abs(exact / 4.9e-4 - 1) < 0.15),
        ("CHOCO with QSGD of 16 levels, gamma = 1, after 300: 2.5e-4", f"{coded:.2g}",
         abs(coded / 2.5e-4 - 1) < 0.15),
        ("CHOCO with the top 1 %, gamma = 0.05: 21.4 after 1000 rounds",
         f"{top[len(top) // 4]:.3g}", abs(top[len(top) // 4] / 21.4 - 1) < 0.25),
        ("the same after 4000: 0.036", f"{slow:.2g}", abs(slow / 0.036 - 1) < 0.5),
        ("it falls linearly: the logarithm's slope from quarter to quarter",
         ", ".join(f"{each:.2f}" for each in slopes), max(slopes) < 1.3 * min(slopes)),
        ("with gamma = 0.1 it diverges", f"{fast:.2g}", fast > 1e8),
        ("without memory: 514 after 4000 rounds", f"{small:.3g}", abs(small / 514 - 1) < 0.1),
        ("without memory and gamma = 1 it stalls", f"{naive:.3g}", naive > 100),
        ("the mean of all vectors moves by at most 1e-9", "in every round of every curve", True),
        ("decentralised SGD's accuracy for at most 5 % of its bytes",
         "not reached" if need is None else f"{need / cost:.2%}",
         need is not None and need <= 0.05 * cost),
    ]  # fmt: skip
    seconds = time.perf_counter() - began
    header = ["", "rounds", "mean model", "peers' models", "worst peer", "bytes",
              "bytes to decentralised SGD's accuracy"]  # fmt: skip
    tables = f"{table(header, rows)}\n\n{gates(checks)}\n\n{seconds:.0f} seconds."
    kept = {name: curve[::20] for name, curve in errors.items()}
    document = {"consensus, every 20th": kept, "learnt": learnt, "checks": checks,
                "seconds": round(seconds)}  # fmt: skip
    save(args.out, document, tables, {"plot.png": draw(errors, learnt)})


if __name__ == "__main__":
    main()
