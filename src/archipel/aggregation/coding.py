# SPDX-License-Identifier: Apache-2.0
"""What parties add up, and how it becomes integers modulo 2^b whose sum cannot overflow.

Uploads, uploads times n and n itself have bounds of their own: `range`, `range` times the largest
number of examples, and that number. Each is one `FixedPoint`; n is added up exactly. What is an
integer already, modulo 2^32 or less, is added up as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from archipel.aggregation.fixed_point import FixedPoint
from archipel.errors import ArchipelError

Vectors = tuple[Tensor, ...]


class Terms(NamedTuple):
    """What each party has added up, each tensor `[..., *shape]`; or the form of it."""

    uploads: Vectors = ()  # for a mean over parties
    by_examples: Vectors = ()  # the same times n, for a mean over examples
    n: Vectors = ()  # that of the party, where they are asked for


class Coding(Protocol):
    """How terms become integers, and how the terms of all are read of the sum."""

    def encode(self, terms: Terms, lead: tuple[int, ...]) -> Tensor:
        """The integers `[..., d]` of one party's terms, or of a stack's."""

    def decode(self, total: Tensor, form: Terms) -> Vectors:
        """The sums `total` stands for, in the order of the terms; `form` is one party's."""


@dataclass(frozen=True)
class Grid:
    """Terms on grids that are as fine as modulus, range and number of parties allow."""

    range: float
    examples: int
    parties: int
    bits: int = 32

    @property
    def uploads(self) -> FixedPoint:
        return FixedPoint(self.range, self.parties, self.bits)

    @property
    def by_examples(self) -> FixedPoint:
        return FixedPoint(self.range * self.examples, self.parties, self.bits)

    @property
    def n(self) -> FixedPoint:
        """Steps of 1, up to the most that a party may have."""
        code = self.uploads
        if code.most < self.examples:
            raise ArchipelError(
                f"wire.sum: examples = {self.examples} of each of {self.parties} parties do not "
                f"fit {self.bits} bits: give fewer, or bits=64."
            )
        return FixedPoint(float(code.most), self.parties, self.bits)

    def check(self) -> None:
        """Refuse fields that no sum could have."""
        self._groups(Terms(n=(torch.zeros(1),)))

    def encode(self, terms: Terms, lead: tuple[int, ...]) -> Tensor:
        for n in terms.n:
            check_examples(int(n.max()), self.examples)
        parts = [
            _encoded(code, x.detach()).reshape(*lead, -1)
            for code, group in self._groups(terms)
            for x in group
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def decode(self, total: Tensor, form: Terms) -> Vectors:
        sizes = [x.numel() for x in (*form.uploads, *form.by_examples, *form.n)]
        parts = iter(total.split(sizes))
        return tuple(
            _decoded(code, next(parts), x).view(x.shape).to(x.dtype)
            for code, group in self._groups(form)
            for x in group
        )

    def _groups(self, terms: Terms) -> list[tuple[FixedPoint, Vectors]]:
        groups = [(self.uploads, terms.uploads)]
        if terms.n:
            groups += [(self.by_examples, terms.by_examples), (self.n, terms.n)]
        return groups


def check_examples(n: int, examples: int) -> None:
    """Refuse a party with more examples than fit."""
    if n > examples:
        raise ArchipelError(
            f"wire.sum: a party has {n} examples, more than examples = {examples} of the sum: give "
            f"examples={n} or more."
        )


def _encoded(code: FixedPoint, x: Tensor) -> Tensor:
    if x.is_floating_point():
        return code.encode(x, "wire.sum: a number of an upload")
    return x.to(code.dtype, copy=True)  # masks are added in place


def _decoded(code: FixedPoint, total: Tensor, one: Tensor) -> Tensor:
    return code.decode(total) if one.is_floating_point() else total
