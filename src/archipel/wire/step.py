# SPDX-License-Identifier: Apache-2.0
"""A step of the wire: what is done to an upload where it leaves, and undone where it arrives.

A step is a frozen dataclass of settings with pure methods, as an algorithm is. It sees an upload
as a tuple of vectors `[..., *shape]`, whatever the algorithm calls them; leading dimensions are
stacked parties. What it keeps for itself from round to round (the error of what was left out) is
its own state, one per party and message.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from archipel.exchange.sender import Sender
from archipel.tree import Tree

Vectors = tuple[Tensor, ...]  # of an upload, each [..., *shape]


@runtime_checkable
class Step(Protocol):
    """One step; `archipel.conformance.check_step` holds it against what it says of itself."""

    linear: ClassVar[bool]  # what comes of a sum of payloads is the sum of what comes of each
    unbiased: ClassVar[bool]  # on average, what arrives is what was sent

    def init(self, form: Vectors) -> Tree:
        """The own state of one party before its first upload of this form; None for none."""

    def send(self, me: Sender, upload: Vectors, own: Tree) -> tuple[Tree, Tree]:
        """At the party: what travels, a tree of tensors, and the own state after it."""

    def receive(self, them: Sender, payload: Tree, form: Vectors) -> Vectors:
        """At the server, before any sum: the upload; `form` is one party's, without values."""

    def bound(self, before: float | None) -> float | None:
        """The largest norm of an upload after this step, where `before` is the largest before."""
