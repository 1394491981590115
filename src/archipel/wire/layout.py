# SPDX-License-Identifier: Apache-2.0
"""How steps see the vectors of a message: the matrices of the model's layers, and few numbers.

Papers compress a model's update layer by layer, as matrices d1 x d2, and leave alone what has one
dimension (biases, scales of norms): few numbers that matter much. So a vector of the model's length
is cut into a matrix for each layer and one vector with all the rest. Another long vector is a
matrix of one row; a short one, and BatchNorm's statistics, stay vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from archipel.exchange.statistics import statistics_of
from archipel.tree import Tree, leaves
from archipel.vector import ParamSpec
from archipel.wire.step import Vectors

FEW = 256  # numbers of a vector that is not worth a code


@dataclass(frozen=True)
class Layout:
    """Cuts the vectors of a message into what steps see, and joins that again."""

    form: Vectors  # one party's vectors
    spec: ParamSpec | None  # the model's layers, where they are known
    few: tuple[bool, ...]  # vectors that stay as they are

    @classmethod
    def of(cls, form: Tree, spec: ParamSpec | None) -> Layout:
        vectors = tuple(leaf for leaf in leaves(form) if leaf.is_floating_point())
        statistics = statistics_of(form)
        few = tuple(x is statistics or (x.dim() < 2 and x.numel() < FEW) for x in vectors)
        return cls(vectors, spec, few)

    @property
    def layers(self) -> tuple[int, ...]:
        """Which of the model's layers each part is; -1 for those of none."""
        found = list[int]()
        for at, one in enumerate(self.form):
            of_model = self._layers(at) is not None
            parts = self._parts(at, one)
            found += range(len(parts)) if of_model else [-1] * len(parts)
        return tuple(found)

    def cut(self, vectors: Sequence[Tensor]) -> Vectors:
        """Vectors `[..., *shape]` as matrices `[..., d1, d2]` and vectors `[..., n]`."""
        return tuple(part for at, x in enumerate(vectors) for part in self._parts(at, x))

    def join(self, parts: Sequence[Tensor]) -> Vectors:
        """The other way."""
        rest = iter(parts)
        return tuple(self._whole(at, one, rest) for at, one in enumerate(self.form))

    def _layers(self, at: int) -> ParamSpec | None:
        """The layers in a vector, where it has those of the model."""
        spec = self.spec
        return spec if spec is not None and self.form[at].shape == (spec.size,) else None

    def _parts(self, at: int, x: Tensor) -> list[Tensor]:
        one, spec = self.form[at], self._layers(at)
        lead = x.shape[: x.dim() - one.dim()]
        if spec is not None:
            pieces = list(zip(x.split(spec.sizes, dim=-1), spec.shapes, strict=True))
            matrices = [y.reshape(*lead, shape[0], -1) for y, shape in pieces if len(shape) > 1]
            others = [y for y, shape in pieces if len(shape) < 2]
            return [*matrices, *([torch.cat(others, dim=-1)] if others else [])]
        if self.few[at]:
            return [x.reshape(*lead, one.numel())]
        return [x.reshape(*lead, one.shape[0] if one.dim() > 1 else 1, -1)]

    def _whole(self, at: int, one: Tensor, parts: Iterator[Tensor]) -> Tensor:
        spec = self._layers(at)
        if spec is None:
            part = next(parts)
            return part.reshape((*part.shape[: -1 if self.few[at] else -2], *one.shape))
        matrices = [next(parts) for shape in spec.shapes if len(shape) > 1]
        short = [prod(shape) for shape in spec.shapes if len(shape) < 2]
        others = iter(next(parts).split(short, dim=-1) if short else ())
        found = iter(matrices)
        flat = [
            next(found).flatten(-2) if len(shape) > 1 else next(others) for shape in spec.shapes
        ]
        return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)
