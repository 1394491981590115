# SPDX-License-Identifier: Apache-2.0
"""How to compute: which way, how many parties at a time, how many workers. Chosen by timing.

Whatever is stacked is first compared with one party at a time on a few points; a way that differs
(BatchNorm under padding, dropout, anything that mixes examples) is out. The rest is timed for a
fraction of a second, and the answer is remembered for this machine and model shape.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from archipel import rng
from archipel.algorithms.fedavg import FedAvg
from archipel.data.federation import Federation
from archipel.engines.local.pool import cores
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.models.model import Model, OneByOne, Points, Vmapped, Way
from archipel.models.stacked import Stacked

BLOCKS = (1, 2, 4, 8, 16, 32, 64)
_BLOCK_BYTES = 64 << 20  # parameters of a block, at most


@dataclass(frozen=True)
class Plan:
    """`way` computes `block` parties at a time in each of `workers` processes."""

    way: Literal["one", "channels_last", "vmapped", "stacked"]
    block: int
    workers: int


def ways(
    model: Model,
    data: Federation,
    wanted: str | None = None,
    candidates: Mapping[str, Way] | None = None,
) -> dict[str, Way]:
    """The ways that are right for this model: equal to one party at a time on a probe.

    "vmapped" is never quicker than "stacked", and torch takes seconds to get it ready: it is left
    out where both are right, unless it is wanted.
    """
    right: dict[str, Way] = {"one": model.one}
    candidates = _candidates(model) if candidates is None else candidates
    points = _probe(model, data)
    w = model.w + 0.01 * torch.randn(
        3, model.p, generator=torch.Generator().manual_seed(0), dtype=model.dtype
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about layers that torch.func loops over
        try:
            expected = model.one.grad(w, points)
        except ArchipelError:  # BatchNorm without statistics refuses the party with one point
            return right
        for name, way in candidates.items():
            if name == "vmapped" and "stacked" in right and wanted != "vmapped":
                continue
            try:
                got = way.grad(w, points)
            except Exception:  # torch.func has no rule for some layer: one party at a time then
                continue
            if bool(((got - expected).norm(dim=-1) <= 1e-3 * expected.norm(dim=-1) + 1e-6).all()):
                right[name] = way
    return right


def _candidates(model: Model) -> dict[str, Way]:
    """Ways that may be right for this model."""
    found: dict[str, Way] = {}
    if any(isinstance(layer, nn.Conv2d) for layer in model.module.modules()):
        found["channels_last"] = OneByOne(model, channels_last=True)
    if not model.buffer_spec.names:
        stacked = Stacked.of(model)
        found |= ({"stacked": stacked} if stacked else {}) | {"vmapped": Vmapped(model)}
    return found


def separable(model: Model, data: Federation) -> bool:
    """Whether the gradient over points is that over parts of them: no layer mixes examples."""
    data = data.form
    if not model.separable or len(data.x) < 4:
        return False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = model.grad(model.w, data.x[:4], data.y[:4])
        halves = [model.grad(model.w, data.x[i : i + 2], data.y[i : i + 2]) for i in (0, 2)]
    return bool(((halves[0] + halves[1]) / 2 - whole).norm() <= 1e-3 * whole.norm() + 1e-6)


def choose(
    model: Model, data: Federation, batch_size: int | float | None, workers: int | None
) -> Plan:
    """Time the ways that are right and return the quickest, remembered per model shape."""
    if workers is not None and workers < 1:
        raise ArchipelError(f"workers = {workers}: give at least 1, or leave it out for all cores.")
    if workers is not None and workers > 64 * cores():
        raise ArchipelError(
            f"workers = {workers}: this machine has {cores()} cores; give at most {64 * cores()}."
        )
    count = cores() if workers is None else workers
    key = _key(model, data, _points(data, batch_size))
    plan = _remembered(key)
    if plan is None:
        plan = _calibrate(model, data, batch_size)
        _remember(key, plan)
    return replace(plan, workers=count)


def _calibrate(model: Model, data: Federation, batch_size: int | float | None) -> Plan:
    best, least = Plan("one", _one_block(model), 1), float("inf")
    work = FedAvg(lr=1e-4, batch_size=batch_size)
    points = _points(data, batch_size)
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = ways(model, data)
        for name, way in right.items():
            if name in ("one", "channels_last"):
                seconds = _time(model, data, way, work, 1, 2 * least)
                if seconds < least:
                    best, least = Plan(name, _one_block(model), 1), seconds  # type: ignore[arg-type]
                continue
            worse = 0
            for block in BLOCKS if name == "stacked" else BLOCKS[2:]:
                if not _fits(model, data, points, block) or worse == 2:
                    break
                seconds = _time(model, data, way, work, block, 2 * least)
                worse = 0 if seconds < 1.1 * least else worse + 1 + (seconds > 2 * least)
                if seconds < least:
                    best, least = Plan(name, block, 1), seconds  # type: ignore[arg-type]
    return best


def _time(
    model: Model, data: Federation, way: Way, work: FedAvg, block: int, hopeless: float
) -> float:
    """Seconds of a party's local epoch (eight batches at most), in blocks of so many parties.

    The least of a few tries with other parties each time, so that their data come from memory as
    in a run. Processor time, since another program may be running.
    """
    eligible = np.flatnonzero(data.n.numpy() > 0)
    size = _points(data, work.batch_size)
    seconds: list[float] = []
    began = time.perf_counter()
    for attempt in range(6):
        count = min(len(eligible), block if attempt == 0 else max(block, min(64, 8 * block)))
        chosen = rng.generator(attempt, "calibration").choice(eligible, count, replace=False)
        ids = chosen[np.argsort(-data.n.numpy()[chosen])]
        start = time.process_time()
        for at in range(0, count, block):
            some = ids[at : at + block]
            me = LocalParty(data, model, way, some, 0, attempt, (len(some),), limit=8 * size)
            me.descend(model.w, work)
        seconds.append((time.process_time() - start) / count)
        patience = 5 if attempt == 0 else 1  # the first try also fetches code
        if min(seconds) > patience * hopeless or time.perf_counter() - began > 0.15:
            break
    return min(seconds[1:] or seconds)


def _probe(model: Model, data: Federation) -> Points:
    """Points of three parties with one, two and three examples, padded."""
    data = data.form
    rows = torch.arange(9).view(3, 3) % len(data.x)
    lengths = np.array([3, 2, 1])
    weights = (np.arange(3) < lengths[:, None]) / lengths[:, None]
    return Points(data.x[rows], data.y[rows], torch.from_numpy(weights).to(model.dtype), lengths)


def _points(data: Federation, batch_size: int | float | None) -> int:
    """A typical batch of this federation."""
    sizes = data.n[data.n > 0].double()
    typical = float(sizes.median()) if len(sizes) else 1.0
    if batch_size is None:
        return max(1, min(256, int(typical)))
    if isinstance(batch_size, float):
        return max(1, round(batch_size * typical))
    return max(1, min(batch_size, int(typical)))


def _fits(model: Model, data: Federation, points: int, block: int) -> bool:
    return block * max(model.p, points * prod(data.shape)) * 4 <= _BLOCK_BYTES or block == 1


def _one_block(model: Model) -> int:
    """Parties per call when they are computed one by one: few where vectors are long."""
    return max(1, min(16, (16 << 20) // (model.p * 4)))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with so many torch threads: one in a worker, since more only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- memory of earlier choices ---------------------------------------------------------------------


def _key(model: Model, data: Federation, points: int) -> str:
    facts = (
        str(model.module),
        model.spec.shapes,
        str(model.dtype),
        model.loss_function.name,
        tuple(data.shape),
        points,
        platform.processor() or platform.machine(),
        cores(),
        torch.__version__,
    )
    return blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "archipel" / "plans.json"


def _remembered(key: str) -> Plan | None:
    try:
        return Plan(**json.loads(_cache().read_text())[key])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(key: str, plan: Plan) -> None:
    """Keep a choice; a machine where nothing can be written simply times again."""
    path = _cache()
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({**known, key: asdict(plan)}, file)
        Path(file.name).replace(path)
    except OSError:
        return
