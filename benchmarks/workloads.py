# SPDX-License-Identifier: Apache-2.0
"""The four speed workloads: synthetic parties of unequal size and a fixed schedule of cohorts.

numpy only, because it is also imported inside the peers' environments. Data are drawn once from a
fixed seed and cached as `.npy` files under `.bench/data`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".bench"
CHARACTERS = 80  # alphabet of W4, and the length of its sequences
SIGMA = 0.5  # of the logarithm of the party sizes


@dataclass(frozen=True)
class Workload:
    """One model and one federation; E=1 local epoch everywhere."""

    name: str
    title: str
    data: str  # cache key: W1 and W2 train on the same examples
    parties: int  # K
    cohort: int  # parties per round
    mean: float  # of the lognormal before clipping to low..high
    low: int
    high: int
    batch_size: int
    lr: float
    classes: int
    text: bool
    flops: float  # one example: forward, gradient of weights, gradient of inputs (not the first)
    rounds_per_burst: int  # at most, whatever the seconds


def _dense_flops(*macs: int, input_gradient: bool = False) -> float:
    """Floating point operations of one training example, from multiply-adds per layer."""
    return 2.0 * (3 * sum(macs) - (0 if input_gradient else macs[0]))


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            name="W1",
            title="logistic regression 784-10",
            data="W12",
            parties=1000,
            cohort=100,
            mean=60,
            low=20,
            high=200,
            batch_size=10,
            lr=0.05,
            classes=10,
            text=False,
            flops=_dense_flops(784 * 10),
            rounds_per_burst=50,
        ),
        Workload(
            name="W2",
            title="MLP 784-200-200-10",
            data="W12",
            parties=1000,
            cohort=100,
            mean=60,
            low=20,
            high=200,
            batch_size=10,
            lr=0.05,
            classes=10,
            text=False,
            flops=_dense_flops(784 * 200, 200 * 200, 200 * 10),
            rounds_per_burst=50,
        ),
        Workload(
            name="W3",
            title="CNN, 1.69M parameters, 62 outputs",
            data="W3",
            parties=500,
            cohort=50,
            mean=100,
            low=40,
            high=300,
            batch_size=20,
            lr=0.05,
            classes=62,
            text=False,
            flops=_dense_flops(28**2 * 25 * 32, 14**2 * 25 * 32 * 64, 3136 * 512, 512 * 62),
            rounds_per_burst=1,
        ),
        Workload(
            name="W4",
            title="char-LSTM, embedding 8, 2x128, length 80",
            data="W4",
            parties=200,
            cohort=20,
            mean=100,
            low=40,
            high=300,
            batch_size=10,
            lr=0.5,
            classes=CHARACTERS,
            text=True,
            flops=CHARACTERS
            * _dense_flops(512 * (8 + 128), 512 * (128 + 128), 128 * 80, input_gradient=True),
            rounds_per_burst=1,
        ),
    )
}


@dataclass(frozen=True)
class Arrays:
    """Party k owns rows offsets[k]:offsets[k + 1] of x and y."""

    x: NDArray[np.float32] | NDArray[np.int64]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


def load(workload: Workload) -> Arrays:
    """Return the memory-mapped examples, drawing them at the first call."""
    folder = CACHE / "data" / workload.data
    if not (folder / "offsets.npy").exists():
        _draw(workload, folder)
    return Arrays(
        np.load(folder / "x.npy", mmap_mode="c"),
        np.load(folder / "y.npy", mmap_mode="c"),
        np.load(folder / "offsets.npy"),
    )


def _draw(workload: Workload, folder: Path) -> None:
    rng = np.random.default_rng(0)
    location = np.log(workload.mean) - SIGMA * SIGMA / 2
    sizes = rng.lognormal(location, SIGMA, workload.parties)
    sizes = np.clip(sizes, workload.low, workload.high).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    examples = int(offsets[-1])
    if workload.text:
        sequences = rng.integers(0, CHARACTERS, (examples, CHARACTERS + 1))
        x, y = sequences[:, :-1].copy(), sequences[:, 1:].copy()
    else:
        x = rng.standard_normal((examples, 784), dtype=np.float32)
        teacher = rng.standard_normal((784, workload.classes), dtype=np.float32)
        y = (x @ teacher).argmax(1).astype(np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in (("x", x), ("y", y), ("offsets", offsets)):  # offsets last: it says "done"
        part = folder / f"{name}.{os.getpid()}.npy"
        np.save(part, values)
        part.replace(folder / f"{name}.npy")


def cohort(workload: Workload, t: int) -> NDArray[np.int64]:
    """Return the parties of round t: the same for every candidate."""
    rng = np.random.default_rng(1000 + t)
    return rng.choice(workload.parties, workload.cohort, replace=False)


def samples_per_round(workload: Workload, rounds: int = 200) -> float:
    """Return the mean number of examples a cohort holds."""
    sizes = load(workload).sizes
    return float(np.mean([sizes[cohort(workload, t)].sum() for t in range(rounds)]))


def probe(workload: Workload, examples: int = 500) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the first examples, on which every candidate reports its loss after warm-up."""
    arrays = load(workload)
    return np.array(arrays.x[:examples]), np.array(arrays.y[:examples])
