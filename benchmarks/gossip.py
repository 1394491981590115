# SPDX-License-Identifier: Apache-2.0
"""Without a server: what mixing costs, and rounds and wake-ups against loops and other libraries.

- Decentralised SGD with 1,000 parties of W1 on a sparse graph, beside its steps without mixing.
- Asynchronous gossip and coordinate descent with 100 and 1,000 parties: a wake-up here, in a plain
  loop over parties of the same mathematics in torch, and in gossipy, taken in turns.
- A round of decentralised SGD with 16 parties: here, and in decentralizepy, whose nodes are
  processes with sockets between them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import archipel as ar
from archipel.data.federation import Federation
from archipel.engines import schedule
from archipel.engines.local.engine import LocalEngine
from archipel.graphs import topology
from processes import describe
from workloads import WORKLOADS, load

RESULTS = Path(__file__).resolve().parent / "results"
FEATURES, BATCH, DEGREE = 57, 32, 10
NODES, NODE_DEGREE = 16, 4
MIXING, PLAIN = 0.20, 20.0  # at most of W1's round; at least times faster than the plain loop


@dataclass(frozen=True)
class Apart:
    """The steps of decentralised SGD, which mix with nobody."""

    lr: float = 0.05
    batch_size: int = 10

    def init(self, x: Tensor) -> Tensor:
        return x

    def party(self, me: Any, x: Tensor) -> Tensor:
        return x - self.lr * me.grad(x, me.batch(self.batch_size))


def rounds(
    algorithm: Any, data: Federation, model: ar.Model, graph: str, count: int, **options: int
) -> float:
    """Seconds of a round, at the median."""
    everybody, around = np.arange(data.training), topology(graph, data.training)
    times = []
    with LocalEngine(algorithm, data, model, topology=around, **options) as engine:
        for t in range(count + 2):
            began = time.perf_counter()
            engine.round(t, everybody)
            times.append(time.perf_counter() - began)
    return median(times[2:])


def mixing(count: int) -> dict[str, float]:
    """Decentralised SGD on W1's parties, all of them, and what of it mixing is."""
    workload = WORKLOADS["W1"]
    drawn = load(workload)
    xs, ys = torch.from_numpy(drawn.x).float(), torch.from_numpy(drawn.y).long()
    cuts = list(zip(drawn.offsets[:-1].tolist(), drawn.offsets[1:].tolist(), strict=True))
    data = Federation.from_arrays(
        [xs[a:b] for a, b in cuts], [ys[a:b] for a, b in cuts], test=0.0, classes=10
    )
    model = ar.Model(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)))
    graph = f"random_regular:{DEGREE}"
    whole = rounds(ar.DSGD(lr=0.05, batch_size=10), data, model, graph, count)
    alone = rounds(Apart(), data, model, graph, count)
    fedavg = ar.FedAvg(lr=0.05, batch_size=10)
    with LocalEngine(fedavg, data, model) as engine:  # W1's own round, with all 1,000 parties
        engine.round(0, np.arange(data.training))
        began = time.perf_counter()
        for t in range(count):
            engine.round(t + 1, np.arange(data.training))
        full = (time.perf_counter() - began) / count
    return {"dsgd": whole, "steps": alone, "w1": full, "share": max(0.0, whole - alone) / full}


# -- wake-ups --------------------------------------------------------------------------------------


def problem(parties: int, degree: int = DEGREE) -> tuple[dict[str, Any], Federation]:
    """Parties with 20 to 59 points each, and a sparse graph."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(20, 60, parties)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x = draw.standard_normal((offsets[-1], FEATURES)).astype(np.float32)
    y = (x @ draw.standard_normal(FEATURES) > 0).astype(np.int64)
    adjacent = topology(f"random_regular:{degree}", parties).affinity().toarray()
    arrays = {"x": x, "y": y, "offsets": offsets, "adjacent": adjacent, "batch": BATCH}
    parts = [(x[a:b], y[a:b]) for a, b in pairwise(offsets)]
    data = Federation.from_arrays(
        [torch.from_numpy(a) for a, _ in parts], [torch.from_numpy(b) for _, b in parts], test=0.0
    )
    return arrays, data


def ours(algorithm: Any, data: Federation, count: int) -> float:
    """Seconds of a wake-up."""
    model = ar.Model(torch.nn.Linear(FEATURES, 2))
    graph, everybody = f"random_regular:{DEGREE}", np.arange(data.training)
    with LocalEngine(algorithm, data, model, topology=topology(graph, data.training)) as engine:
        engine.round(0, everybody)
        began = time.perf_counter()
        for t in range(1, count + 1):
            engine.round(t, everybody)
        spent = time.perf_counter() - began
    wakes = sum(len(schedule.woken(0, t, everybody)) for t in range(1, count + 1))
    return spent / wakes


def _step(model: torch.nn.Linear, x: Tensor, y: Tensor, lr: float) -> None:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= lr * parameter.grad


def plain_gossip(data: Federation, adjacent: Any, wakes: int) -> float:
    """Seconds of a meeting, one by one: two train, and the one that was asked averages."""
    models = [torch.nn.Linear(FEATURES, 2) for _ in range(data.training)]
    draw = np.random.default_rng(1)
    around = [np.flatnonzero(row) for row in adjacent]
    parts = [data.party(k)[:2] for k in range(data.training)]
    began = time.perf_counter()
    for _ in range(wakes):
        i = int(draw.integers(data.training))
        j = int(draw.choice(around[i]))
        for k in (i, j):
            x, y = parts[k]
            order = torch.randperm(len(x))
            for at in range(0, len(x), BATCH):
                _step(models[k], x[order[at : at + BATCH]], y[order[at : at + BATCH]], 0.1)
        with torch.no_grad():
            pairs = zip(models[j].parameters(), models[i].parameters(), strict=True)
            for mine, theirs in pairs:
                mine.copy_((mine + theirs) / 2)
    return (time.perf_counter() - began) / wakes


def plain_descent(data: Federation, adjacent: Any, wakes: int) -> float:
    """Seconds of a wake-up of coordinate descent, one party after the other."""
    p = FEATURES * 2 + 2
    theta = torch.zeros(data.training, p)
    draw = np.random.default_rng(1)
    weights = torch.from_numpy(adjacent).float()
    around = [torch.from_numpy(np.flatnonzero(row)) for row in adjacent]
    parts = [data.party(k)[:2] for k in range(data.training)]
    began = time.perf_counter()
    for _ in range(wakes):
        i = int(draw.integers(data.training))
        x, y = parts[i]
        w = theta[i].clone().requires_grad_()
        scores = x @ w[: FEATURES * 2].view(2, FEATURES).T + w[FEATURES * 2 :]
        torch.nn.functional.cross_entropy(scores, y).backward()
        with torch.no_grad():
            near = weights[i, around[i]]
            mean = (near[:, None] * theta[around[i]]).sum(dim=0) / near.sum()
            c = min(1.0, len(x) / 60)
            alpha = 1 / (1 + c)
            theta[i] = (1 - alpha) * theta[i] + alpha * (mean - c * w.grad)
    return (time.perf_counter() - began) / wakes


def elsewhere(peer: str, source: Path, arrays: dict[str, Any], count: int) -> float:
    """Seconds of a round in another library, from a checkout of it."""
    here = Path(__file__).parent / "peers"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        np.savez(path, **arrays)
        surroundings = os.environ | {
            "PYTHONPATH": f"{source}:{here}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(here / f"peer_{peer}.py"), str(path), "--rounds", str(count)]
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{peer}: {done.stderr.strip().splitlines()[-1]}")
    return float(json.loads(done.stdout.strip().splitlines()[-1])["seconds"])


def sockets(checkout: Path, count: int) -> dict[str, float]:
    """Seconds of a round of decentralised SGD, here and between decentralizepy's processes."""
    arrays, data = problem(NODES, NODE_DEGREE)
    model, graph = ar.Model(torch.nn.Linear(FEATURES, 2)), f"random_regular:{NODE_DEGREE}"
    here = rounds(ar.DSGD(lr=0.1, batch_size=BATCH), data, model, graph, count, workers=1)
    there = elsewhere("decentralizepy", checkout / "src", arrays, count)
    return {"ours": here, "decentralizepy": there}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parties", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--gossipy", type=Path, help="a checkout of it")
    parser.add_argument("--decentralizepy", type=Path, help="a checkout of it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": describe(), "mixing": mixing(options.rounds)}
    found = results["mixing"]
    print(
        f"decentralised SGD, 1,000 parties of W1, {DEGREE} neighbours: {1e3 * found['dsgd']:.1f} ms"
        f" a round, {1e3 * found['steps']:.1f} without mixing; mixing is {100 * found['share']:.1f}"
        f" % of W1's round of all parties ({1e3 * found['w1']:.1f} ms; at most {100 * MIXING:.0f})"
    )
    results["wakes"] = []
    for parties in options.parties:
        arrays, data = problem(parties)
        steps = -(-int(data.n.float().mean()) // BATCH)
        algorithms: dict[str, tuple[Any, Callable[[], float]]] = {
            "gossip": (
                ar.Gossip(lr=0.1, local_steps=steps, batch_size=BATCH, exchange="push"),
                partial(plain_gossip, data, arrays["adjacent"], 2 * parties),
            ),
            "coordinate": (
                ar.Coordinate(confident=60),
                partial(plain_descent, data, arrays["adjacent"], 2 * parties),
            ),
        }
        for name, (algorithm, plain) in algorithms.items():
            row: dict[str, Any] = {"parties": parties, "algorithm": name}
            taken: dict[str, list[float]] = {"ours": [], "plain": [], "gossipy": []}
            for _ in range(options.reps):
                taken["ours"].append(ours(algorithm, data, options.rounds))
                taken["plain"].append(plain())
                if name == "gossip" and options.gossipy is not None:
                    spent = elsewhere("gossipy", options.gossipy, arrays, 3)
                    taken["gossipy"].append(spent / parties)
            row |= {who: median(values) for who, values in taken.items() if values}
            results["wakes"].append(row)
            line = f"{name}, {parties} parties: {1e6 * row['ours']:.1f} µs a wake-up; plain loop "
            line += f"{row['plain'] / row['ours']:.1f} times as long"
            if "gossipy" in row:
                line += f"; gossipy {row['gossipy'] / row['ours']:.1f} times"
            print(line, flush=True)
    if options.decentralizepy is not None:
        results["dsgd"] = found = sockets(options.decentralizepy, options.rounds)
        print(
            f"decentralised SGD, {NODES} parties: {1e3 * found['ours']:.2f} ms a round;"
            f" decentralizepy {found['decentralizepy'] / found['ours']:.1f} times as long"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gossip.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
