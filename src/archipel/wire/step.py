# SPDX-License-Identifier: Apache-2.0
"""A step of the wire: what is done to an upload where it leaves, and undone where it arrives.

A step is a frozen dataclass of settings with pure methods, as an algorithm is. It sees an upload
as a tuple of tensors, whatever the algorithm calls them: matrices `[..., d1, d2]`, one for each
layer of the model (see `layout`), and vectors `[..., n]` of few numbers, such as biases or the
scales of a step before it; leading dimensions are stacked parties. What it keeps for itself from
round to round (the error of what was left out) is its own state, one per party and message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.tree import Tree

Vectors = tuple[Tensor, ...]  # of an upload, each [..., d1, d2] or [..., n]


@runtime_checkable
class Step(Protocol):
    """One step; `archipel.conformance.check_step` holds it against what it says of itself."""

    unbiased: ClassVar[bool]  # on average, what arrives is what was sent

    @property
    def linear(self) -> bool:
        """Whether what comes of a sum of payloads is the sum of what comes of each."""

    def init(self, form: Vectors) -> Tree:
        """The own state of one party before its first upload of this form; None for none."""

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        """At the party: what travels, a tree of tensors, and the own state after it."""

    def receive(self, them: Sender, payload: Tree, form: Vectors) -> Vectors:
        """At the server, before any sum: the upload; `form` is one party's, without values."""

    def bound(self, before: float | None) -> float | None:
        """The largest norm of an upload after this step, where `before` is the largest before."""


def redraws(step: Step) -> bool:
    """Whether numbers of a step's payload stand for others of the upload in every round."""
    return bool(getattr(step, "redraws", False))


def factors(step: Step) -> bool:
    """Whether an upload is a product of what a step sends: who scales that scales it twice."""
    return bool(getattr(step, "factors", False))


class NoNumbers(ArchipelError):
    """A step stands after one that makes codes of numbers, and can make nothing of these."""


def need_numbers(step: object, form: Vectors) -> None:
    """Refuse codes where a step needs numbers."""
    if no_numbers(form):
        raise NoNumbers(f"{type(step).__name__} needs numbers")


def no_numbers(form: Sequence[Tensor]) -> bool:
    """Whether a message is codes, and no matrix of numbers is left."""
    matrices = [x for x in form if x.dim() > 1 and x.is_floating_point()]
    return not matrices and not all(x.is_floating_point() for x in form)


def is_matrix(x: Tensor, me: Sender) -> bool:
    """Whether a tensor of a stack is a matrix of each party, rather than few numbers."""
    return x.dim() - len(me.lead) > 1


def shaped(flat: Tensor, one: Tensor) -> Tensor:
    """Numbers `[..., n]` as one party's matrix is, `[..., *one.shape]`."""
    return flat.reshape(*flat.shape[:-1], *one.shape)
