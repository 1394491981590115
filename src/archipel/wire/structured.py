# SPDX-License-Identifier: Apache-2.0
"""Steps that restrict training itself, so that an update is of few numbers from the start.

Such a step is the first of a wire: a party's gradients and local steps stay in a subspace that both
ends know, and of its upload only the coordinates in it travel. An upload that is not in it, such as
SCAFFOLD's second vector, is refused: nothing is left out in silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.training.subspace import Subspace
from archipel.tree import Tree
from archipel.vector import ParamSpec
from archipel.wire.layout import Layout
from archipel.wire.step import Vectors, is_matrix, need_numbers

_ROUNDING = 1e-3  # of an upload's norm that may be outside the subspace,
_LEAST = 1e-5  # and of each number: where rates fall to 0, rounding is all that is left of a change


class Structured(ABC):
    """A step with a basis for each layer: `inside` gives coordinates, `outside` the matrix."""

    common: bool
    unbiased: ClassVar[bool] = True  # of what is in the subspace, as all is that is trained there
    redraws: ClassVar[bool] = True

    @property
    def linear(self) -> bool:
        return self.common

    def init(self, form: Vectors) -> None:
        need_numbers(self, form)

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        sent = []
        for at, x in enumerate(upload):
            layer = _layer(me, at)
            if not is_matrix(x, me) or layer < 0:
                sent.append(x)
                continue
            one = x.new_zeros(()).expand(x.shape[-2:])
            basis = self._basis(me, layer, one)
            inner = self.inside(x, basis)
            self._check(x, self.outside(inner, basis, one))
            sent.append(inner)
        return tuple(sent), own

    def receive(self, them: Sender, payload: Tree, form: Vectors) -> Vectors:
        found = []
        for at, (inner, one) in enumerate(zip(payload, form, strict=True)):
            layer = _layer(them, at)
            coded = one.dim() > 1 and layer >= 0
            basis = self._basis(them, layer, one) if coded else None
            found.append(inner if basis is None else self.outside(inner, basis, one))
        return tuple(found)

    def bound(self, before: float | None) -> float | None:
        return before

    def restrict(self, me: Sender, spec: ParamSpec, dtype: torch.dtype) -> Subspace:
        """What a party's training is restricted to in a round."""
        layout = Layout.of(torch.zeros(spec.size, dtype=dtype), spec)
        forms = layout.cut(layout.form)
        bases = tuple(
            self._each(me, self._basis(me, at, one))
            for at, one in enumerate(forms)
            if one.dim() > 1
        )

        def project(x: Tensor, bases: tuple[Tensor, ...]) -> Tensor:
            parts = layout.cut((x,))
            kept = [
                self.outside(self.inside(part, basis), basis, one)
                for part, basis, one in zip(parts, bases, forms, strict=False)
            ]
            (whole,) = layout.join([*kept, *parts[len(kept) :]])
            return whole

        return Subspace(bases, project)

    @abstractmethod
    def basis(self, me: Sender, place: str, one: Tensor) -> Tensor:
        """The basis of a layer's subspace, of each party or of all."""

    @abstractmethod
    def inside(self, x: Tensor, basis: Tensor) -> Tensor:
        """Coordinates `[..., a, b]` of the projection of a matrix `[..., d1, d2]`."""

    @abstractmethod
    def outside(self, inner: Tensor, basis: Tensor, one: Tensor) -> Tensor:
        """The matrix with these coordinates; `one` is one party's, without values."""

    def _basis(self, me: Sender, layer: int, one: Tensor) -> Tensor:
        """The same in all messages of a round."""
        return self.basis(replace(me, number=0, step=0), str(layer), one)

    def _each(self, me: Sender, basis: Tensor) -> Tensor:
        """A basis with a row for each party."""
        return basis.expand(*me.lead, *basis.shape) if self.common else basis

    def _check(self, x: Tensor, arrives: Tensor) -> None:
        """Refuse an upload that is not in the subspace."""
        lost, norm = (y.flatten(-2).norm(dim=-1) for y in (x - arrives, x))
        least = _LEAST * (x.shape[-2] * x.shape[-1]) ** 0.5
        if bool((lost > _ROUNDING * norm + least).any()):
            raise ArchipelError(
                f"wire.up: {type(self).__name__} restricts training to a subspace, and the "
                "algorithm sends a vector that is not in it: take subsample, random_k or top_k."
            )


def _layer(me: Sender, at: int) -> int:
    return me.layers[at] if me.layers else at
