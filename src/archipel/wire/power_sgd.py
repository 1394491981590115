# SPDX-License-Identifier: Apache-2.0
"""A step: low-rank sketches with error feedback.  PowerSGD, Vogels et al. 2019, arXiv 1905.13727.

Algorithm 1, one power iteration from where the last ended: P <- orthogonal(M Q), Q <- M' P, and
P Q' arrives of the matrix M = x + e.

Departures: the paper's workers take the mean of M Q before it is made orthogonal, which needs a
second exchange; here every party has a P and a Q of its own, and the mean is of what arrives. A
message without layers is a matrix of one row, which no low rank makes smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from archipel import rng
from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.tree import Tree
from archipel.wire.step import Vectors, need_numbers


class Factors(NamedTuple):
    p: Tensor  # [..., d1, r], columns orthonormal
    q: Tensor  # [..., d2, r]


class Own(NamedTuple):
    """What a party keeps for a matrix."""

    error: Tensor  # [..., d1, d2]
    q: Tensor  # [..., d2, r] where the last iteration ended


@dataclass(frozen=True)
class PowerSGD:
    """Send each matrix as a product of two thin ones; the rest is sent later (error feedback)."""

    rank: int = 2  # r

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    redraws: ClassVar[bool] = True
    factors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ArchipelError(f"rank = {self.rank}: give a whole number from 1.")

    def init(self, form: Vectors) -> Tree:
        need_numbers(self, form)
        return tuple(self._own(x) if x.dim() > 1 else None for x in form)

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        sent, kept = list[Tree](), list[Tree]()
        for x, mine in zip(upload, own, strict=True):
            if mine is None:
                sent.append(x)
                kept.append(None)
                continue
            m = x + mine.error
            lost = mine.q.norm(dim=-2, keepdim=True) == 0  # of a matrix of zeros: begin anew
            start = torch.where(lost, self._drawn(x), mine.q)
            p = _orthogonal(
                (start.mT.contiguous() @ m.mT).mT
            )  # M Q; thin products are slow as such
            q = (p.mT @ m).mT.contiguous()  # M' P
            sent.append(Factors(p, q))
            kept.append(Own(m.sub_(p @ q.mT), q))
        return tuple(sent), tuple(kept)

    def receive(self, them: Sender, payload: Tree, form: Vectors) -> Vectors:
        return tuple(x.p @ x.q.mT if isinstance(x, Factors) else x for x in payload)

    def bound(self, before: float | None) -> float | None:
        return None

    def _own(self, x: Tensor) -> Own:
        return Own(torch.zeros_like(x), self._drawn(x))

    def _drawn(self, x: Tensor) -> Tensor:
        """Where the first iteration begins, `[d2, r]`."""
        d1, d2 = x.shape[-2:]
        drawn = rng.generator("power_sgd", d2).standard_normal((d2, min(self.rank, d1, d2)))
        return torch.from_numpy(drawn).to(x.dtype)


def _orthogonal(x: Tensor) -> Tensor:
    """Orthonormal columns that span those of x; of numbers of 16 bits, by way of 32."""
    wide = x.float() if x.element_size() < 4 else x
    found: Tensor = torch.linalg.qr(wide).Q
    return found.to(x.dtype).contiguous()
