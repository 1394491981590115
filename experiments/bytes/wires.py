# SPDX-License-Identifier: Apache-2.0
"""What is compared: the wires, and steps that only an experiment needs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

import archipel as ar
from archipel.exchange.sender import Sender
from archipel.exchange.varying import Varying
from archipel.tree import Tree
from archipel.wire import (
    Entropy,
    Float16,
    LowRank,
    PowerSGD,
    Quantise,
    RandomK,
    RandomMask,
    Rotate,
    Sign,
    Subsample,
    TopK,
)
from archipel.wire.matrices import Matrices
from archipel.wire.step import Step, Vectors

sys.path.insert(0, str(Path(__file__).parents[1]))
from reporting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY

SHARE = 1 / 16


class TopKAlone(TopK):
    """The largest numbers without error feedback: what does not travel is lost."""

    init = Matrices.init
    send = Matrices.send


@dataclass(frozen=True)
class Watched(Entropy):
    """Entropy that notes how long the longest upload of each round was."""

    longest: dict[int, int] = field(default_factory=dict, compare=False)  # by round

    def send(self, me: Sender, upload: Vectors, own: None) -> tuple[Varying, None]:
        payload, own = super().send(me, upload, own)
        if me.lead:  # not when a chain is fitted
            so_far = self.longest.get(me.round, 0)
            self.longest[me.round] = max(so_far, int(payload.length.max()))
        return payload, own


@dataclass(frozen=True)
class Caught:
    """The last step of a wire, which keeps what the steps before it made in one round."""

    round: int
    payloads: list[Vectors] = field(default_factory=list, compare=False)

    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def init(self, form: Vectors) -> None:
        return None

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        if me.lead and me.round == self.round:
            self.payloads.append(upload)
        return upload, own

    def receive(self, them: Sender, payload: Tree, form: Vectors) -> Vectors:
        return payload

    def bound(self, before: float | None) -> float | None:
        return before


def unpacked(payloads: list[Vectors]) -> list[list[Tensor]]:
    """The bytes of codes in what was caught, a list for each upload."""
    rows = []
    for payload in payloads:
        coded = [x for x in payload if x.dtype == torch.uint8]
        rows += [[x[k] for x in coded] for k in range(len(coded[0]))]
    return rows


@dataclass(frozen=True)
class Way:
    """A wire, and how it is drawn."""

    title: str
    up: tuple[Step, ...] = ()
    down: tuple[Step, ...] = ()
    colour: str = INK
    style: str | tuple[int, tuple[int, int]] = "-"
    rate_of: str = ""  # another, close to it, whose learning rate it takes
    dear: bool = False  # in computing time: one seed

    @property
    def wire(self) -> ar.Wire:
        return ar.Wire(up=self.up, down=self.down)


SKETCH = (Rotate(), Subsample(SHARE), Quantise(2))
WAYS = {
    "none": Way("uncompressed"),
    "float16": Way("float16", (Float16(),), colour=GREY),
    "q8": Way("8 bits", (Quantise(8),), colour=GREY, style="--"),
    "q2": Way("2 bits", (Quantise(2),), colour=ORANGE, style="--"),
    "hd2": Way("rotation, 2 bits", (Rotate(), Quantise(2)), colour=ORANGE),
    "hd1": Way("rotation, 1 bit", (Rotate(), Quantise(1)), colour=ORANGE, style=":"),
    "sub": Way("subsample 1/16", (Subsample(SHARE),), colour=SKY, style="--"),
    "sub2": Way("subsample 1/16, 2 bits", (Subsample(SHARE), Quantise(2)), colour=SKY, style=":"),
    "sketch": Way("rotation, 1/16, 2 bits", SKETCH, colour=BLUE),
    "dither": Way(
        "rotation, 1/16, 2 bits, dither", (*SKETCH[:2], Quantise(2, dither=True)), colour=BLUE,
        style=(0, (1, 1)),
    ),
    "quarter": Way(
        "rotation, 1/4, 2 bits", (Rotate(), Subsample(1 / 4), Quantise(2)), colour=SKY,
        rate_of="sketch",
    ),
    "sketch+": Way(
        "rotation, 1/16, 2 bits, entropy", (*SKETCH, Entropy()), colour=BLUE, style="--",
        rate_of="sketch",
    ),
    "sketch16": Way(
        "rotation, 1/16, 2 bits, float16, entropy", (*SKETCH, Float16(), Entropy()), colour=BLUE,
        style="-.", rate_of="sketch",
    ),
    "sketch++": Way(
        "rotation, 1/16, 2 bits, entropy; 8 bits down", (*SKETCH, Entropy()), (Quantise(8),),
        colour=BLUE, style=":", rate_of="sketch",
    ),
    "top": Way("top 1 %, feedback", (TopK(0.01),), colour=PURPLE),
    "random": Way("random 1/16, feedback", (RandomK(SHARE),), colour=PURPLE, style="--"),
    "sign": Way("signs, feedback", (Sign(),), colour=PURPLE, style=":"),
    "power": Way("PowerSGD, rank 2", (PowerSGD(2),), colour=GREEN, style=":"),
    "mask": Way("random mask 1/16", (RandomMask(SHARE),), colour=GREEN, dear=True),
    "low": Way("low rank 1/16", (LowRank(SHARE),), colour=GREEN, style="--", dear=True),
}  # fmt: skip
MAIN = (
    "none",
    "sketch",
    "dither",
    "sketch16",
    "quarter",
    "q2",
    "hd2",
    "top",
    "sign",
)  # where runs are dear
