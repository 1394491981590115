# SPDX-License-Identifier: Apache-2.0
"""What a rule costs on 100 uploads of 10^6 parameters: against its bound, and against ByzFL.

A bound is what the rule cannot do without, measured in the same process with one thread: reading
the uploads once (a sum over each row), sorting every column (numpy, cut to blocks that fit the
cache), one matrix product of the uploads with themselves, or one of as many rows as it makes.
ByzFL is given the same float32 tensor. Peaks are of memory beyond the uploads, of rules that take
blocks of columns. All in turn, medians of `--repeats`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from threadpoolctl import threadpool_limits

from archipel import rules
from archipel.aggregation.rule import InTurn
from archipel.exchange.uploads import Received

RESULTS = Path(__file__).parent / "results"
F = 20
GOAL = 2.0  # of the bound, at most
HELD = 4 << 30  # bytes that ByzFL may hold, at most; above, it is left out


def byzfl() -> Any:
    """ByzFL's aggregators, past its package's `__init__`; None where it is not installed."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.submodule_search_locations is None:
        return None
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    after = importlib.import_module("byzfl.aggregators.aggregators")
    before = importlib.import_module("byzfl.aggregators.preaggregators")
    return types.SimpleNamespace(**vars(after), NNM=before.NNM, Clipping=before.Clipping)


# -- bounds ----------------------------------------------------------------------------------------


def reads(x: torch.Tensor) -> None:
    """Every number once."""
    torch.linalg.vector_norm(x, dim=1)


def sorts(x: torch.Tensor) -> None:
    """Every column sorted, a block that fits the cache at a time."""
    data, size = x.numpy(), max(64, (1 << 19) // len(x))
    for at in range(0, data.shape[1], size):
        np.ascontiguousarray(data[:, at : at + size].T).sort(axis=1)


def products(x: torch.Tensor) -> None:
    """Uploads with themselves: all inner products."""
    _ = x @ x.T


def mixes(x: torch.Tensor) -> None:
    """The same, and as many rows made of all rows."""
    gram = x @ x.T
    _ = gram @ x


def sums(x: torch.Tensor) -> None:
    """Every number read once for its row's norm, and once for a mean of rows."""
    torch.linalg.vector_norm(x, dim=1)
    _ = torch.full((1, len(x)), 1 / len(x)) @ x


def clips(x: torch.Tensor) -> None:
    """Three times a distance of every row and a mean of rows."""
    for _ in range(3):
        sums(x)


CASES: dict[str, tuple[Any, Callable[[torch.Tensor], None], Callable[[Any], Any] | None]] = {
    "median": (rules.Median(), sorts, lambda b: b.Median()),
    "trimmed_mean": (rules.TrimmedMean(F), sorts, lambda b: b.TrMean(F)),
    "krum": (rules.Krum(F), products, lambda b: b.Krum(F)),
    "multi_krum": (rules.MultiKrum(F), products, lambda b: b.MultiKrum(F)),
    "bulyan": (rules.Bulyan(F), lambda x: (products(x), sorts(x[: len(x) - 2 * F]))[0], None),
    "geometric_median": (rules.GeometricMedian(), products, lambda b: b.GeometricMedian()),
    "centred_clipping": (
        rules.CentredClipping(1000.0, 3),
        clips,
        lambda b: b.CenteredClipping(L=3, tau=1000.0),
    ),
    "norm_bound": (
        rules.NormBound(900.0),
        sums,
        lambda b: lambda x: b.Average()(b.Clipping(900.0)(x.clone())),  # it changes its input
    ),
    "nnm": (rules.NNM(F), products, lambda b: lambda x: b.Average()(b.NNM(F)(x))),
    "bucketing": (rules.Bucketing(2), sums, None),
    "nnm, trimmed_mean": (
        InTurn((rules.NNM(F), rules.TrimmedMean(F))),
        lambda x: (mixes(x), sorts(x))[0],
        lambda b: lambda x: b.TrMean(F)(b.NNM(F)(x)),
    ),
}  # fmt: skip


def ours(rule: Any, x: torch.Tensor) -> Any:
    """A rule on uploads as the server has them, and the mean of what it makes."""
    return rule(Received(torch.arange(len(x)), len(x), {}, rows=x)).mean()


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def peak(call: Callable[[], Any]) -> int:
    """Bytes beyond those before, at most, looked at every few milliseconds."""
    process, stop, most = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def look() -> None:
        while not stop.wait(0.005):
            most[0] = max(most[0], process.memory_info().rss - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    call()
    stop.set()
    watcher.join()
    return most[0]


def measure(m: int, p: int, repeats: int) -> dict[str, Any]:
    """Seconds of each rule, of its bound and of ByzFL, in turn."""
    theirs = byzfl()
    x = torch.randn((m, p), generator=torch.Generator().manual_seed(0))
    found: dict[str, Any] = {"uploads": m, "parameters": p, "rules": {}}
    for name, (rule, bound, make) in CASES.items():
        calls = {"ours": lambda rule=rule: ours(rule, x), "bound": lambda bound=bound: bound(x)}
        many = m * (m - F) * p * 4 > HELD and "nnm" in name  # it holds all rows it averages at once
        if make is not None and theirs is not None and not many:
            calls["byzfl"] = lambda make=make: make(theirs)(x)
        try:
            seconds: dict[str, list[float]] = {each: [] for each in calls}
            for _ in range(repeats):
                for each, call in calls.items():
                    seconds[each].append(timed(call))
        except RuntimeError as error:  # torch's quantile, which ByzFL's median asks, has a limit
            calls.pop("byzfl", None)
            print(f"{name}: ByzFL: {error}", file=sys.stderr)
            seconds = {each: [timed(call) for _ in range(repeats)] for each, call in calls.items()}
        row: dict[str, Any] = {k: statistics.median(v) for k, v in seconds.items()}
        row["peak"] = peak(calls["ours"])
        found["rules"][name] = row
        print(name, row, file=sys.stderr, flush=True)
    return found


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['uploads']} uploads of {found['parameters']:,} parameters, one thread.", "",
        "| rule | ms | bound, ms | times the bound | ByzFL, ms | times as fast | peak beyond, MB |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, row in found["rules"].items():
        other = row.get("byzfl")
        times = row["ours"] / row["bound"]
        faster = "" if other is None else f"{other / row['ours']:.1f}"
        lines.append(
            f"| {name} | {1e3 * row['ours']:.0f} | {1e3 * row['bound']:.0f} | {times:.2f}"
            f"{'' if times <= GOAL else ' (above 2)'} | "
            f"{'' if other is None else f'{1e3 * other:.0f}'} | "
            f"{faster} | {row['peak'] / 1e6:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uploads", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="write results/rules.json and .md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        found = measure(given.uploads, given.parameters, given.repeats)
    text = table(found)
    print(text)
    if given.keep:
        (RESULTS / "rules.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "rules.md").write_text(text)


if __name__ == "__main__":
    main()
