# SPDX-License-Identifier: Apache-2.0
"""Steps one after another, for one message: the way there, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from archipel.exchange.sender import Sender
from archipel.tree import Tree, fill, leaves
from archipel.wire.step import Step, Vectors


class Payload(NamedTuple):
    """What travels: what the steps made of the vectors, and whole numbers as they are."""

    coded: Tree
    plain: Vectors


@dataclass(frozen=True)
class Chain:
    """The steps of a wire, fitted to messages of one form."""

    steps: tuple[Step, ...]
    form: Tree  # of one party's upload
    into: tuple[Vectors, ...]  # what goes into each step, of one party
    out: tuple[Tree, ...]  # what comes out of it

    @classmethod
    def fitted(cls, steps: Sequence[Step], form: Tree, me: Sender) -> Chain:
        """Run the steps on one upload `[p]` of this form, and write down what goes in and out."""
        into, out = [], []
        vectors = tuple(leaf for leaf in leaves(form) if leaf.is_floating_point())
        for step in steps:
            into.append(vectors)
            payload, _ = step.send(me, vectors, step.init(vectors))
            out.append(payload)
            vectors = tuple(leaves(payload))
        return cls(tuple(steps), form, tuple(into), tuple(out))

    def init(self) -> tuple[Tree, ...]:
        """The steps' own states at one party."""
        return tuple(s.init(form) for s, form in zip(self.steps, self.into, strict=True))

    def send(
        self, me: Sender, upload: Tree, own: tuple[Tree, ...]
    ) -> tuple[Payload, tuple[Tree, ...]]:
        """What travels of an upload, and the steps' own states after it."""
        whole = [
            leaf.detach().expand(*me.lead, *one.shape)
            for leaf, one in zip(leaves(upload), leaves(self.form), strict=True)
        ]
        found: Any = tuple(leaf for leaf in whole if leaf.is_floating_point())
        plain = tuple(leaf for leaf in whole if not leaf.is_floating_point())
        kept = []
        for step, state in zip(self.steps, own, strict=True):
            found, state = step.send(me, tuple(leaves(found)), state)
            kept.append(state)
        return Payload(found, plain), tuple(kept)

    def receive(self, them: Sender, payload: Payload) -> Tree:
        """The upload that a payload stands for, or of a sum of payloads if steps are linear."""
        found: Any = payload.coded
        for at in reversed(range(len(self.steps))):
            vectors = self.steps[at].receive(them, found, self.into[at])
            found = vectors if at == 0 else fill(self.out[at - 1], vectors)
        coded, plain = iter(leaves(found)), iter(payload.plain)
        tensors = [next(coded if one.is_floating_point() else plain) for one in leaves(self.form)]
        return fill(self.form, tensors)
