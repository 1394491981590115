# SPDX-License-Identifier: Apache-2.0
"""Zstandard against an arithmetic coder, on codes of real uploads."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zstandard
from torch import Tensor
from wires import SHARE, Caught, unpacked

import archipel as ar
from archipel.wire import Quantise, Rotate, Subsample, bits
from archipel.wire.step import Step

Codes = npt.NDArray[np.uint8]  # of one upload, a byte each
ROUND = 3  # whose uploads are caught
CASES: dict[str, tuple[Step, ...]] = {
    **{f"plain, {b} bits": (Quantise(b),) for b in (1, 2, 4, 8)},
    **{f"rotated, {b} bits": (Rotate(), Quantise(b)) for b in (1, 2, 4, 8)},
    "rotated, 1/16, 2 bits": (Rotate(), Subsample(SHARE), Quantise(2)),
}


def constriction() -> Any:
    """The package with the arithmetic coder, which nothing else of Archipel needs."""
    try:
        import constriction
    except ImportError:
        sys.exit("the part 'coders' needs an arithmetic coder: pip install constriction")
    return constriction


def caught(fed: ar.Federation, model: str, steps: Sequence[Step]) -> list[Codes]:
    """The codes of each upload of a round, all layers after one another."""
    last = Caught(ROUND)
    run = ar.simulate(
        ar.FedAvg(lr=0.1, local_epochs=2, batch_size=10), fed, model, rounds=ROUND + 1, sample=20,
        evaluate_every=ROUND + 1, wire=ar.Wire(up=(*steps, last)), workers=1,
    )  # fmt: skip
    quantise = steps[-1]
    assert isinstance(quantise, Quantise)
    spec = run.task_model.spec
    counts = [_coded(n, steps) for n, s in zip(spec.sizes, spec.shapes, strict=True) if len(s) > 1]
    uploads = unpacked(last.payloads)
    return [
        np.concatenate(
            [
                bits.unpacked(x, quantise.bits, n).numpy()
                for x, n in zip(upload, counts, strict=True)
            ]
        )
        for upload in uploads
    ]


def _coded(n: int, steps: Sequence[Step]) -> int:
    """How many of a layer's n numbers are coded."""
    for step in steps:
        n = round(step.share * n) if isinstance(step, Subsample) else n
    return n


def bound(codes: Codes) -> float:
    """Bits a number that no coder of single numbers can beat: their entropy."""
    counts = np.bincount(codes)
    shares = counts[counts > 0] / len(codes)
    return float(-(shares * np.log2(shares)).sum())


def with_zstandard(codes: Codes, width: int) -> tuple[int, Callable[[], object], Callable[[], Any]]:
    """Bytes as the step `entropy` makes them, and what codes and decodes."""
    numbers = torch.from_numpy(codes)
    compress = zstandard.ZstdCompressor(level=1, write_checksum=False).compress
    expand = zstandard.ZstdDecompressor().decompress

    def encode() -> bytes:
        return compress(bits.packed(numbers, width).numpy().tobytes())

    def decode() -> Tensor:
        raw = torch.frombuffer(bytearray(expand(coded)), dtype=torch.uint8)
        return bits.unpacked(raw, width, len(codes))

    coded = encode()
    return len(coded), encode, decode


def with_arithmetic(
    codes: Codes, width: int
) -> tuple[int, Callable[[], object], Callable[[], Any]]:
    """The same with a range coder; how often each number occurs travels in two bytes each."""
    stream = constriction().stream

    def model(counts: npt.NDArray[np.int64]) -> Any:
        return stream.model.Categorical((counts + 1e-9) / counts.sum(), perfect=False)

    def encode() -> npt.NDArray[np.uint32]:
        counts = np.bincount(codes, minlength=1 << width)
        encoder = stream.queue.RangeEncoder()
        encoder.encode(codes.astype(np.int32), model(counts))
        return encoder.get_compressed()

    told = np.bincount(codes, minlength=1 << width)

    def decode() -> npt.NDArray[np.uint8]:
        decoder = stream.queue.RangeDecoder(coded)
        return decoder.decode(model(told), len(codes)).astype(np.uint8)

    coded = encode()
    return 4 * len(coded) + (2 << width), encode, decode


def _milliseconds(job: Callable[[], object], numbers: int) -> float:
    """Of a million numbers; the least of five times."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        job()
        times.append(time.perf_counter() - began)
    return 1e9 * min(times) / numbers


def compare(codes: Sequence[Codes], width: int) -> dict[str, float]:
    """Bits a number and time of both coders, and the bound: means over uploads."""
    rows = []
    for some in codes:
        row: dict[str, float] = {"numbers": len(some), "bound": bound(some)}
        for name, coder in (("zstandard", with_zstandard), ("arithmetic", with_arithmetic)):
            size, encode, decode = coder(some, width)
            assert np.array_equal(np.asarray(decode()), some), f"{name} lost something"
            row[f"{name} bits"] = 8 * size / len(some)
            row[f"{name} encode"] = _milliseconds(encode, len(some))
            row[f"{name} decode"] = _milliseconds(decode, len(some))
        rows.append(row)
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def measure(model: str = "2nn") -> dict[str, dict[str, float]]:
    """Every case, on uploads of MNIST."""
    constriction()
    torch.set_num_threads(1)
    fed = ar.load("mnist", partition="iid", parties=100)
    found = {}
    for name, steps in CASES.items():
        width = steps[-1].bits
        found[name] = {"width": width, **compare(caught(fed, model, steps)[:10], width)}
        print(name, found[name], file=sys.stderr, flush=True)
    return found
