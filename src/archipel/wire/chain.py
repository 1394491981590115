# SPDX-License-Identifier: Apache-2.0
"""Steps one after another, for one message: the way there, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.exchange.varying import Varying, parts_of
from archipel.tree import Tree, fill, leaves
from archipel.vector import ParamSpec
from archipel.wire.layout import Layout
from archipel.wire.step import NoNumbers, Step, Vectors, factors, no_numbers, redraws
from archipel.wire.structured import Structured


class Payload(NamedTuple):
    """What travels: what the steps made of the vectors, and whole numbers as they are."""

    coded: Tree
    plain: Vectors


@dataclass(frozen=True)
class Chain:
    """The steps of a wire, fitted to messages of one form."""

    steps: tuple[Step, ...]
    form: Tree  # of one party's upload
    layout: Layout
    layers: tuple[int, ...]  # of the model, see Sender
    into: tuple[Vectors, ...]  # what goes into each step, of one party
    out: tuple[Tree, ...]  # what comes out of it

    @classmethod
    def fitted(
        cls, steps: Sequence[Step], form: Tree, me: Sender, spec: ParamSpec | None = None
    ) -> Chain:
        """Run the steps on an upload of zeros of this form, and write down what goes in and out."""
        into, out = list[Vectors](), list[Tree]()
        layout = Layout.of(form, spec)
        layers = layout.layers
        vectors = layout.cut([x.new_zeros(x.shape) for x in layout.form])
        for at, step in enumerate(steps):
            into.append(vectors)
            try:
                own = step.init(vectors)
                _check_order(steps[:at], step, own, out)
                payload, _ = step.send(_at(me, at, layers), vectors, own)
            except NoNumbers as no:
                sent = zip(steps, out, strict=False)
                maker = next(each for each, made in sent if no_numbers(leaves(made)))
                same = type(maker) is type(step)
                remedy = "leave one out" if same else f"put {name(step)} before {name(maker)}"
                raise ArchipelError(
                    f"{no}, and {name(maker)} before it makes codes of them: {remedy}."
                ) from None
            out.append(payload)
            vectors = tuple(leaves(payload))
        return cls(tuple(steps), form, layout, layers, tuple(into), tuple(out))

    @property
    def payload(self) -> Payload:
        """What travels of one upload, without its values."""
        plain = tuple(leaf for leaf in leaves(self.form) if not leaf.is_floating_point())
        return Payload(self.out[-1] if self.steps else self.layout.cut(self.layout.form), plain)

    def init(self) -> tuple[Tree, ...]:
        """The steps' own states at one party."""
        return tuple(s.init(form) for s, form in zip(self.steps, self.into, strict=True))

    def send(
        self, me: Sender, upload: Tree, own: tuple[Tree, ...]
    ) -> tuple[Payload, tuple[Tree, ...]]:
        """What travels of an upload, and the steps' own states after it."""
        whole = [
            leaf.detach().expand((*me.lead, *one.shape))
            for leaf, one in zip(leaves(upload), leaves(self.form), strict=True)
        ]
        found: Any = self.layout.cut([leaf for leaf in whole if leaf.is_floating_point()])
        plain = tuple(leaf for leaf in whole if not leaf.is_floating_point())
        kept = []
        for at, (step, state) in enumerate(zip(self.steps, own, strict=True)):
            found, state = step.send(_at(me, at, self.layers), tuple(leaves(found)), state)
            kept.append(state)
        return Payload(found, plain), tuple(kept)

    def receive(self, them: Sender, payload: Payload) -> Tree:
        """The upload that a payload stands for, or of a sum of payloads if steps are linear."""
        self._check(payload)
        found: Any = payload.coded
        for at in reversed(range(len(self.steps))):
            found = self.steps[at].receive(_at(them, at, self.layers), found, self.into[at])
            found = found if at == 0 else fill(self.out[at - 1], found)
        coded, plain = iter(self.layout.join(found)), iter(payload.plain)
        tensors = [next(coded if one.is_floating_point() else plain) for one in leaves(self.form)]
        return fill(self.form, tensors)

    def _check(self, payload: Payload) -> None:
        """Refuse what has another form than what the steps send, of one sender or of a stack."""
        found, wanted = leaves(payload), leaves(self.payload)
        leads = {x.shape[: x.dim() - one.dim()] for x, one in zip(found, wanted, strict=False)}
        same = len(found) == len(wanted) and all(
            x.dtype == one.dtype
            and x.dim() >= one.dim()
            and x.shape[x.dim() - one.dim() :] == one.shape
            for x, one in zip(found, wanted, strict=True)
        )
        if not same or len(leads) > 1:
            names = ", ".join(map(name, self.steps)) or "no step"
            raise ArchipelError(f"a payload of another form than {names} would have sent.")


def name(step: Step) -> str:
    return type(step).__name__


def _check_order(before: Sequence[Step], step: Step, own: Tree, out: Sequence[Tree]) -> None:
    """Refuse a step that makes nothing good of what those before it send."""
    if out and any(isinstance(part, Varying) for part in parts_of(out[-1])):
        raise ArchipelError(
            f"{name(step)} stands after {name(before[-1])}, which sends bytes of varying length: "
            f"put {name(before[-1])} last."
        )
    if before and isinstance(step, Structured):
        raise ArchipelError(
            f"{name(step)} restricts training itself, and {name(before[-1])} stands before it: put "
            f"{name(step)} first."
        )
    if leaves(own):
        for other in filter(redraws, before):
            raise ArchipelError(
                f"{name(step)} adds what it left out to the next upload, and {name(other)} before "
                "it sends other numbers of that in every round: leave one of them out."
            )
    if step.bound(None) is not None:
        for other in filter(factors, before):
            raise ArchipelError(
                f"{name(step)} bounds a norm, and {name(other)} before it sends factors of the "
                f"upload: put {name(step)} before {name(other)}."
            )


def _at(me: Sender, step: int, layers: Sequence[int]) -> Sender:
    """The sender as a step knows it; only the first sees the model's layers."""
    return replace(me, step=step, layers=layers if step == 0 else ())
