# SPDX-License-Identifier: Apache-2.0
"""A study's wire: steps up and down, a rule, and how sums are made; checked before the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from archipel import rng
from archipel.aggregation.rule import Rule, Ruled
from archipel.aggregation.shuffled import ShuffledSum
from archipel.aggregation.summation import (
    Exact,
    OfIntegers,
    Summation,
    Summed,
    counted_of,
    groups_of,
)
from archipel.core import Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Anatomy, OnWire, examine, go_on
from archipel.exchange.boxes import Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.varying import size_of
from archipel.tree import Tree, fill, leaves
from archipel.wire.chain import Chain
from archipel.wire.changes import Changes
from archipel.wire.step import Step
from archipel.wire.structured import Structured
from archipel.wire.wired import Wired, WiredPeers

MOST_LOST = 0.5  # of the norm of what travels as a model, not as its change
_TRIED = 3  # rounds before the start, where a step may fail later than in the first


@dataclass(frozen=True)
class Wire:
    """What stands between parties and the server; nothing unless given."""

    up: tuple[Step, ...] = ()
    down: tuple[Step, ...] = ()
    rule: Rule | None = None
    sum: Summation | None = None

    def __post_init__(self) -> None:
        for before, step in zip(self.up, self.up[1:], strict=False):
            if isinstance(step, Structured):
                same = type(before) is type(step)
                remedy = "leave one out" if same else f"put {type(step).__name__} first"
                raise _disagree(
                    "wire.up", step, "restricts training itself", "wire.up", before,
                    "stands before it", remedy,
                )  # fmt: skip
        groups = 1 if self.sum is None else groups_of(self.sum)
        if self.sum is not None and self.rule is not None and groups == 1:
            inside = 'have it look at sums of groups, "secure:groups=5", '
            raise _disagree(
                "round.rule", self.rule, "looks at single uploads", "wire.sum", self.sum,
                "shows their sum alone",
                (inside if hasattr(self.sum, "groups") else "")
                + 'say wire.sum = "plain", or leave the rule out: on a sum, wire.up = ["clip:1.0"] '
                "bounds what a party that keeps to the protocol can do",
            )  # fmt: skip
        if groups > 1 and self.rule is None:
            raise ArchipelError(
                f"wire.sum: groups = {groups} show a sum of each group, and no round.rule looks at "
                'these: name one, such as round.rule = "median", or leave groups out.'
            )
        for step in self.up:
            if self.sum is not None and not step.linear:
                # with a field `common` it is linear where all parties draw the same
                alike = "" if getattr(step, "common", True) else "give it common=true, "
                raise _disagree(
                    "wire.up", step, "has to be undone for every upload (it is not linear)",
                    "wire.sum", self.sum, "shows their sum alone",
                    f'{alike}leave the step out, or say wire.sum = "plain"',
                )  # fmt: skip

    @property
    def empty(self) -> bool:
        return not (self.up or self.down or self.rule or self.sum)

    def fitted(
        self,
        boxes: Boxes,
        me: Any,
        w: Vector,
        parties: int,
        cohort: int | None = None,
        exact: bool = False,
    ) -> tuple[Callable[[Boxes], Boxes], Anatomy]:
        """What puts the algorithm on this wire, and what a round of it sends; found on `me`.

        With `exact`, integers that a protocol would add up are added up without it.
        """
        anatomy = examine(boxes, me, w, parties, cohort)
        if boxes.peer:
            anatomy = anatomy._replace(mixed=tuple(me.mixed or ()))
        if self.empty:
            return (lambda inner: inner), anatomy
        layers: list[Callable[[Boxes], Boxes]] = []
        weighed, counted = False, -1

        def around(inner: Boxes) -> Boxes:
            for layer in layers:
                inner = layer(inner)
            return inner

        def chains(steps: Sequence[Step], forms: Sequence[Tree]) -> list[Chain]:
            spec = me.blueprint.spec
            return [Chain.fitted(steps, form, me.sender(i), spec) for i, form in enumerate(forms)]

        if boxes.peer:
            self._check_peers(boxes, anatomy, bool(me.changes))
            if not self.up:
                return around, anatomy._replace(wire=self._named)
            with _naming("wire.up"):
                mixed = list[Chain | Changes]()
                for number, chain in enumerate(chains(self.up, anatomy.mixed)):
                    change = number in me.changes
                    if not change:
                        check_model(chain, me.sender(number))
                    mixed.append(Changes.fitted(chain, me.sender(number)) if change else chain)
            layers.append(lambda inner: WiredPeers(inner, mixed))
            sent = tuple(chain.payload for chain in mixed)
            forms = [each.form if isinstance(each, Changes) else each.payload for each in mixed]
            whole = sum(map(size_of, forms)) if me.changes else 0
            found = examine(around(boxes), me, w, parties)
            return around, found._replace(mixed=sent, whole=whole, wire=self._named)
        if self.up or self.down:
            with _naming("wire.up"):
                up = chains(self.up, [message.upload for message in anatomy.messages])
            told = [anatomy.sent, *(message.reply for message in anatomy.messages[:-1])]
            with _naming("wire.down"):
                down = chains(self.down, told) if self.down else []
                for number, chain in enumerate(down):
                    check_model(chain, me.sender(number), keeps=False)
            layers.append(lambda inner: Wired(inner, up, down, me.seed))
        if self.rule is not None:
            _check_server_rule(self.rule, boxes)
            rule, count = self.rule, len(anatomy.messages)
            layers.append(lambda inner: Ruled(inner, rule, count))
        if self.sum is not None:
            how: Summation | Exact = self.sum
            if exact and isinstance(how, OfIntegers):
                how = Exact(how)
            if exact and isinstance(how, ShuffledSum):
                how = replace(how, shuffler="")
            if groups_of(self.sum) > 1:
                self._check_groups(boxes, anatomy)
            single = examine(around(boxes), me, w, parties, cohort)
            weighed = any("mean by examples" in message.asks for message in single.messages)
            counted = counted_of(how)
            layers.append(lambda inner: Summed(inner, how, single, me.seed))
        if self.up and isinstance(self.up[0], Structured):
            if not any(layer >= 0 for chain in up for layer in chain.layers):
                raise ArchipelError(
                    f"wire.up: {type(self.up[0]).__name__} restricts training to few numbers of "
                    f"each layer, and {boxes.name} sends none of the model's layers whole: take "
                    "subsample, random_k or top_k."
                )  # training would be restricted, and nothing would be smaller
            go_on(around(boxes), [replace(me, round=t) for t in range(_TRIED)], w, parties)
        found = examine(around(boxes), me, w, parties, cohort)
        summed = self.sum is not None
        return around, found._replace(
            summed=summed, weighed=weighed, counted=counted, wire=self._named
        )

    def _check_groups(self, boxes: Boxes, anatomy: Anatomy) -> None:
        """Refuse an algorithm that looks at single uploads: a group's mean is none."""
        if any(message.asks & {"stack", "n"} for message in anatomy.messages):
            raise ArchipelError(
                f"wire.sum: groups = {groups_of(self.sum)} show means of groups, and {boxes.name} "
                "looks at single uploads (uploads.stack() or uploads.n); take an algorithm that "
                'needs their mean alone, or wire.sum = "plain".'
            )

    @property
    def _named(self) -> OnWire:
        rule, how = ("" if each is None else repr(each) for each in (self.rule, self.sum))
        return OnWire(tuple(map(repr, self.up)), tuple(map(repr, self.down)), rule, how)

    def _check_peers(self, boxes: Boxes, anatomy: Anatomy, copies: bool) -> None:
        """Refuse what a server alone could do; `copies` is whether neighbours hold some."""
        if self.sum is not None:
            raise ArchipelError(
                f"wire.sum = {type(self.sum).__name__}: a peer of {boxes.name} weighs what each "
                "neighbour tells it once, and nobody looks into a sum only where all agree in "
                "several messages who is in it: take an algorithm with a server, or leave it out."
            )
        if self.down:
            raise ArchipelError(
                f"wire.down: {boxes.name} has no server, which alone needs it: leave it out."
            )
        if self.rule is not None and not anatomy.mixed:
            raise ArchipelError(
                f"round.rule: parties of {boxes.name} mix with nobody: leave it out."
            )
        if self.rule is not None and self.up and copies:
            raise ArchipelError(
                f"round.rule, wire.up: neighbours of {boxes.name} add codes to copies of each "
                "other's vectors, and a rule for what comes of that is not in this version; leave "
                "one of the two out, or take dsgd."
            )


def _check_server_rule(rule: Any, boxes: Boxes) -> None:
    """Refuse what peers alone could do."""
    for each in getattr(rule, "rules", (rule,)):
        if not callable(each):
            raise ArchipelError(
                f"round.rule: {type(each).__name__} is for peers, who have a vector of their own "
                f"to clip around, and {boxes.name} has a server: take centred_clipping or "
                "trimmed_mean."
            )


def check_model(chain: Chain, me: Sender, keeps: bool = True) -> None:
    """Refuse steps for what travels as a model: a change may be rough, a model may not.

    `keeps` is whether who sends it keeps the steps' own states.
    """
    for step, own in zip(chain.steps, chain.init(), strict=True):
        name = type(step).__name__
        if isinstance(step, Structured):
            raise ArchipelError(
                f"{name} restricts a party's training to what it sends to a server, and this is "
                "sent as a model: use it in wire.up of an algorithm with a server."
            )
        if leaves(own) and not keeps:
            raise ArchipelError(
                f"{name} keeps a state for each sender, and the server keeps none for replies: "
                "use it in wire.up."
            )
    draw = rng.generator("check", "loss")
    whole = [torch.from_numpy(draw.standard_normal(x.shape)).to(x.dtype) for x in chain.layout.form]
    upload = fill(chain.form, _among(chain.form, whole))
    own, shares = chain.init(), list[float]()
    for t in range(_TRIED):
        them = replace(me, round=t, lead=())
        payload, own = chain.send(them, upload, own)
        arrives = [x for x in leaves(chain.receive(them, payload)) if x.is_floating_point()]
        apart = [x - y for x, y in zip(whole, arrives, strict=True)]
        shares.append(_length(apart) / max(_length(whole), 1e-30))
    if not all(lost <= MOST_LOST for lost in shares):
        names = ", ".join(type(step).__name__ for step in chain.steps)
        raise ArchipelError(
            f"{names}: what travels here is a model, not its change, and would arrive with an "
            f"error of {max(shares):.0%} of its norm, where {MOST_LOST:.0%} is the most: take more "
            "bits, or float16."
        )


def _length(vectors: Sequence[Tensor]) -> float:
    """The norm of all together."""
    return math.sqrt(sum(float(x.double().square().sum()) for x in vectors))


def _among(form: Tree, vectors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of a message with these vectors, and zeros for whole numbers."""
    rest = iter(vectors)
    return [next(rest) if x.is_floating_point() else x.new_zeros(x.shape) for x in leaves(form)]


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Have every error name the field."""
    try:
        yield
    except ArchipelError as error:
        said = str(error)
        raise type(error)(said if said.startswith("wire") else f"{key}: {said}") from error


def _disagree(
    key: str, one: object, says: str, other_key: str, other: object, other_says: str, remedy: str
) -> ArchipelError:
    return ArchipelError(
        f"{key}: {type(one).__name__} {says}, and {other_key}: {type(other).__name__} "
        f"{other_says}: {remedy}."
    )
