# SPDX-License-Identifier: Apache-2.0
"""What coding an upload costs: against plain numpy of the same definitions, and beside a round.

Numpy's side is each definition as one would write it down, on one vector, with what both ends do:
each draws for itself, and a step with feedback keeps its error. Ours is the wire's chain. Both have
one thread, memory that malloc keeps (as the engine's workers have it) and the same
numbers, in turn. Beside a round: one upload of 10^6 parameters,
there and back, as a share of W3's round; the uploads of W1's cohort, stacked as workers code them,
as a share of W1's round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import archipel as ar
from archipel.engines.local.pool import keep_memory
from archipel.exchange.sender import Sender
from archipel.tree import tree_map
from archipel.vector import ParamSpec
from archipel.wire import (
    Float16,
    PowerSGD,
    Quantise,
    RandomK,
    Rotate,
    Sign,
    Subsample,
    TopK,
)
from archipel.wire.chain import Chain
from archipel.wire.step import Step
from networks import build
from ours import federation
from workloads import WORKLOADS, Workload, cohort

RESULTS = Path(__file__).parent / "results"
SIDE = 1000
SPEC = ParamSpec(("weight",), ((SIDE, SIDE),))
CHAINS: dict[str, tuple[Step, ...]] = {
    "rotate, subsample:0.0625, quantise:2": (Rotate(), Subsample(0.0625), Quantise(2)),
    "rotate, quantise:2": (Rotate(), Quantise(2)),
    "rotate": (Rotate(),),
    "subsample:0.0625": (Subsample(0.0625),),
    "quantise:1": (Quantise(1),),
    "quantise:2": (Quantise(2),),
    "quantise:8": (Quantise(8),),
    "top_k:0.01": (TopK(0.01),),
    "random_k:0.01": (RandomK(0.01),),
    "sign": (Sign(),),
    "power_sgd:2": (PowerSGD(2),),
    "float16": (Float16(),),
}
GOALS = {"numpy": 5.0, "W3": 0.10, "W1": 0.30}
ERROR = np.full(SIDE * SIDE, 1e-3, np.float32)  # that a step with feedback has from before


# -- the definitions in numpy ----------------------------------------------------------------------


def np_hadamard(y: Any) -> Any:
    """H y / sqrt(d), butterfly by butterfly."""
    y, h = y.copy(), 1
    while h < len(y):
        pairs = y.reshape(-1, 2, h)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        h *= 2
    return y / np.float32(np.sqrt(len(y)))


def np_signs(d: int) -> Any:
    return np.random.default_rng(0).choice([-1.0, 1.0], d).astype(np.float32)


def np_rotate(x: Any) -> Any:
    d = 1 << (len(x) - 1).bit_length()
    coded = np_hadamard(np.pad(x, (0, d - len(x))) * np_signs(d))
    return coded, lambda y: (np_hadamard(y) * np_signs(d))[: len(x)]


def np_drawn(n: int, share: float) -> Any:
    return np.random.default_rng(0).choice(n, round(share * n), replace=False)


def np_placed(n: int, at: Any, values: Any) -> Any:
    out = np.zeros(n, np.float32)
    out[at] = values
    return out


def np_subsample(x: Any, share: float) -> Any:
    values = x[np_drawn(len(x), share)] / np.float32(share)
    return values, lambda y: np_placed(len(x), np_drawn(len(x), share), y)


def np_quantise(x: Any, bits: int) -> Any:
    least, most = x.min(), x.max()
    step = (most - least) / (2**bits - 1)
    codes = np.floor((x - least) / step + np.random.default_rng(0).random(len(x))).astype(np.uint8)
    ones = np.unpackbits(codes[:, None], axis=1, bitorder="little", count=bits)
    packed = np.packbits(ones)

    def back(data: Any) -> Any:
        ones = np.unpackbits(data, count=len(x) * bits).reshape(-1, bits)
        return least + step * (ones @ (1 << np.arange(bits))).astype(np.float32)

    return packed, back


def np_chain(x: Any, *parts: Callable[[Any], Any]) -> Any:
    backs = []
    for part in parts:
        x, back = part(x)
        backs.append(back)
    for back in reversed(backs):
        x = back(x)
    return x


def np_feedback(x: Any, part: Callable[[Any], Any]) -> Any:
    """At the party what is sent and the next error, at the other end what arrives."""
    wanted = x + ERROR
    coded, back = part(wanted)
    return wanted - back(coded), back(coded)


def np_top_k(x: Any, share: float) -> Any:
    k = round(share * len(x))
    at = np.argpartition(np.abs(x), len(x) - k)[-k:].astype(np.int32)
    return (at, x[at]), lambda coded: np_placed(len(x), *coded)


def np_random_k(x: Any, share: float) -> Any:
    values = x[np_drawn(len(x), share)]
    return values, lambda y: np_placed(len(x), np_drawn(len(x), share), y)


def np_sign(x: Any) -> Any:
    coded = np.abs(x).mean(), np.packbits(x >= 0)

    def back(coded: Any) -> Any:
        ones = np.unpackbits(coded[1], count=len(x)).astype(np.float32)
        return coded[0] * (2 * ones - 1)

    return coded, back


def np_power_sgd(x: Any, rank: int) -> Any:
    m = x.reshape(SIDE, SIDE)
    p, _ = np.linalg.qr(m @ np.random.default_rng(0).standard_normal((SIDE, rank), np.float32))
    return (p, m.T @ p), lambda coded: (coded[0] @ coded[1].T).reshape(-1)


NUMPY: dict[str, Callable[[Any], Any]] = {
    "rotate, subsample:0.0625, quantise:2": lambda x: np_chain(
        x, np_rotate, lambda y: np_subsample(y, 0.0625), lambda y: np_quantise(y, 2)
    ),
    "rotate, quantise:2": lambda x: np_chain(x, np_rotate, lambda y: np_quantise(y, 2)),
    "rotate": lambda x: np_chain(x, np_rotate),
    "subsample:0.0625": lambda x: np_chain(x, lambda y: np_subsample(y, 0.0625)),
    "quantise:1": lambda x: np_chain(x, lambda y: np_quantise(y, 1)),
    "quantise:2": lambda x: np_chain(x, lambda y: np_quantise(y, 2)),
    "quantise:8": lambda x: np_chain(x, lambda y: np_quantise(y, 8)),
    "top_k:0.01": lambda x: np_feedback(x, lambda y: np_top_k(y, 0.01)),
    "random_k:0.01": lambda x: np_feedback(x, lambda y: np_random_k(y, 0.01)),
    "sign": lambda x: np_feedback(x, np_sign),
    "power_sgd:2": lambda x: np_feedback(x, lambda y: np_power_sgd(y, 2)),
    "float16": lambda x: x.astype(np.float16).astype(np.float32),
}


# -- ours ------------------------------------------------------------------------------------------


class Coder:
    """A chain with some uploads of one spec."""

    def __init__(self, steps: tuple[Step, ...], spec: ParamSpec, parties: int) -> None:
        lead = (parties,) if parties > 1 else ()
        one = Sender(0, 0, 0, np.array([0]))
        self.chain = Chain.fitted(steps, torch.zeros(spec.size), one, spec)
        self.me = Sender(0, 0, 0, np.arange(parties), lead)
        self.own = tree_map(lambda leaf: leaf.expand(*lead, *leaf.shape).clone(), self.chain.init())
        self.x = torch.from_numpy(heavy((*lead, spec.size)))

    def encode(self) -> Any:
        return self.chain.send(self.me, self.x, self.own)[0]

    def both(self) -> Any:
        return self.chain.receive(self.me, self.encode())


def heavy(shape: tuple[int, ...]) -> Any:
    """Numbers of unlike size, as those of an update are."""
    draw = np.random.default_rng(1)
    return (draw.standard_normal(shape) * np.exp(draw.standard_normal(shape))).astype(np.float32)


def once(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], Any], reps: int) -> float:
    work()
    return statistics.median(once(work) for _ in range(reps))


def rounds(workload: Workload, wire: ar.Wire, reps: int) -> float:
    """Seconds of a round, with the engine as users have it."""
    algorithm = ar.FedAvg(lr=workload.lr, local_epochs=1, batch_size=workload.batch_size)
    model = ar.Model(build(workload), loss="cross_entropy")
    with ar.LocalEngine(algorithm, federation(workload), model, seed=0, wire=wire) as engine:
        times = []
        for t in range(2 + reps):
            ids = cohort(workload, t)
            times.append(once(lambda: engine.round(t, ids)))  # noqa: B023
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=15)
    args = parser.parse_args()
    w1, w3 = WORKLOADS["W1"], WORKLOADS["W3"]
    plain = {w.name: rounds(w, ar.Wire(), n) for w, n in ((w1, 300), (w3, 3))}
    coded = {
        name: rounds(w1, ar.Wire(up=CHAINS[name]), 300)
        for name in ("rotate, subsample:0.0625, quantise:2", "quantise:8", "top_k:0.01")
    }
    workers = min(2, torch.get_num_threads())
    torch.set_num_threads(1)
    threadpool_limits(1)
    keep_memory()
    spec = ParamSpec(("weight", "bias"), ((w1.classes, 784), (w1.classes,)))
    x = heavy((SIDE * SIDE,))
    copied = median(lambda: torch.from_numpy(x).clone(), 50)
    found = []
    for name, steps in CHAINS.items():
        one, stack = Coder(steps, SPEC, 1), Coder(steps, spec, w1.cohort // workers)
        theirs = median(lambda: NUMPY[name](x), max(3, args.reps // 3))  # noqa: B023
        ours, encoded = median(one.both, args.reps), median(stack.encode, args.reps)
        found.append(
            {
                "chain": name,
                "numpy_ms": 1e3 * theirs,
                "ours_ms": 1e3 * ours,
                "ratio": theirs / ours,
                "copies": ours / copied,
                "of_w3": ours / plain["W3"],
                "w1_ms": 1e3 * encoded,
                "of_w1": encoded / plain["W1"],
            }
        )
    rows = [
        f"| {r['chain']} | {r['numpy_ms']:.1f} | {r['ours_ms']:.1f} | {r['ratio']:.1f} | "
        f"{r['copies']:.0f} | {r['of_w3']:.1%} | {r['w1_ms']:.2f} | {r['of_w1']:.0%} |"
        for r in found
    ]
    text = "\n".join(
        [
            "| wire.up | numpy, ms | ours, ms | ratio | copies | of W3's round | W1's, ms "
            "| of W1's round |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Goals: {GOALS['numpy']:.0f} times numpy, where numpy takes many passes: one copy of "
            f"the vector takes {1e3 * copied:.2f} ms, and `copies` is ours in those; at most "
            f"{GOALS['W3']:.0%} of W3's round ({1e3 * plain['W3']:.0f} ms) and "
            f"{GOALS['W1']:.0%} of W1's ({1e3 * plain['W1']:.1f} "
            f"ms; its cohort of {w1.cohort} is coded by {workers} workers). W1's round with the "
            "wire, there and back: "
            + ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in coded.items())
            + ". Made by `python benchmarks/wire.py`.",
            "",
        ]
    )
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "wire.md").write_text(text)
    kept = {"plain": plain, "coded": coded, "chains": found}
    (RESULTS / "wire.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
