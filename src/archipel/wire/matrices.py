# SPDX-License-Identifier: Apache-2.0
"""Steps that code each matrix of a message by itself, and leave few numbers as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.tree import Tree
from archipel.wire.step import Vectors, is_matrix, need_numbers


class Matrices(ABC):
    """A step over matrices `[..., d1, d2]`, one by one: `code` at the party, `decode` at the other
    end. What has one dimension, such as biases and other steps' scales, travels as it is.
    """

    unbiased: ClassVar[bool] = False
    redraws: ClassVar[bool] = False  # see `step.redraws`

    @property
    def linear(self) -> bool:
        return False

    def init(self, form: Vectors) -> Tree:
        need_numbers(self, form)
        return None

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        coded = tuple(
            self.code(me, str(at), x) if is_matrix(x, me) else x for at, x in enumerate(upload)
        )
        return coded, own

    def receive(self, them: Sender, payload: Tree, form: Vectors) -> Vectors:
        return tuple(
            self.decode(them, str(at), coded, one) if one.dim() > 1 else coded
            for at, (coded, one) in enumerate(zip(payload, form, strict=True))
        )

    def bound(self, before: float | None) -> float | None:
        return None

    @abstractmethod
    def code(self, me: Sender, place: str, x: Tensor) -> Tree:
        """What travels of a matrix; `place` tells draws for it from those for others."""

    @abstractmethod
    def decode(self, them: Sender, place: str, coded: Tree, one: Tensor) -> Tensor:
        """The matrix that it stands for; `one` is one party's, without values."""


class Feedback(Matrices):
    """The same with error feedback [Seide 2014, Stich 2018]: what did not arrive of x + e is the
    next e, a party's own.
    """

    def init(self, form: Vectors) -> Tree:
        need_numbers(self, form)
        return tuple(torch.zeros_like(x) if x.dim() > 1 else None for x in form)

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        coded, errors = list[Tree](), list[Tree]()
        for at, (x, e) in enumerate(zip(upload, own, strict=True)):
            if not is_matrix(x, me):
                coded.append(x)
                errors.append(None)
                continue
            code, rest = self.parted(me, str(at), x + e)
            coded.append(code)
            errors.append(rest)
        return tuple(coded), tuple(errors)

    def code(self, me: Sender, place: str, x: Tensor) -> Tree:
        return self.parted(me, place, x.clone())[0]

    @abstractmethod
    def parted(self, me: Sender, place: str, x: Tensor) -> tuple[Tree, Tensor]:
        """What travels of a matrix, and x less what arrives of it; x may be written over."""
