# SPDX-License-Identifier: Apache-2.0
"""A study's wire: steps up and down, a rule, and how sums are made; checked before the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from archipel.aggregation.rule import Rule, Ruled
from archipel.aggregation.summation import Summation, Summed
from archipel.core import Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Anatomy, OnWire, examine
from archipel.exchange.boxes import Boxes
from archipel.tree import Tree, leaves
from archipel.wire.chain import Chain
from archipel.wire.step import Step
from archipel.wire.wired import Wired, WiredPeers


@dataclass(frozen=True)
class Wire:
    """What stands between parties and the server; nothing unless given."""

    up: tuple[Step, ...] = ()
    down: tuple[Step, ...] = ()
    rule: Rule | None = None
    sum: Summation | None = None

    def __post_init__(self) -> None:
        if self.sum is not None and self.rule is not None:
            raise _disagree(
                "wire.rule", self.rule, "looks at single uploads", "wire.sum", self.sum,
                "shows their sum alone", 'leave the rule out, or say wire.sum = "plain"',
            )  # fmt: skip
        for step in self.up:
            if self.sum is not None and not step.linear:
                raise _disagree(
                    "wire.up", step, "has to be undone for every upload (it is not linear)",
                    "wire.sum", self.sum, "shows their sum alone",
                    'leave the step out, or say wire.sum = "plain"',
                )  # fmt: skip

    @property
    def empty(self) -> bool:
        return not (self.up or self.down or self.rule or self.sum)

    def fitted(
        self, boxes: Boxes, me: Any, w: Vector, parties: int, cohort: int | None = None
    ) -> tuple[Callable[[Boxes], Boxes], Anatomy]:
        """What puts the algorithm on this wire, and what a round of it sends; found on `me`."""
        anatomy = examine(boxes, me, w, parties, cohort)
        if boxes.peer:
            anatomy = anatomy._replace(mixed=tuple(me.mixed or ()))
        if self.empty:
            return (lambda inner: inner), anatomy
        layers: list[Callable[[Boxes], Boxes]] = []

        def around(inner: Boxes) -> Boxes:
            for layer in layers:
                inner = layer(inner)
            return inner

        def chains(steps: Sequence[Step], forms: Sequence[Tree]) -> list[Chain]:
            return [Chain.fitted(steps, form, me.sender(i)) for i, form in enumerate(forms)]

        if boxes.peer:
            self._check_peers(boxes)
            mixed = chains(self.up, anatomy.mixed)
            layers.append(lambda inner: WiredPeers(inner, mixed))
            sent = tuple(chain.out[-1] for chain in mixed)
            found = examine(around(boxes), me, w, parties)
            return around, found._replace(mixed=sent, wire=self._named)
        if self.up or self.down:
            self._check_down(anatomy)
            up = chains(self.up, [message.upload for message in anatomy.messages])
            told = [anatomy.sent, *(message.reply for message in anatomy.messages[:-1])]
            down = chains(self.down, told) if self.down else []
            layers.append(lambda inner: Wired(inner, up, down, me.seed))
        if self.rule is not None:
            rule, count = self.rule, len(anatomy.messages)
            layers.append(lambda inner: Ruled(inner, rule, count))
        if self.sum is not None:
            how, single = self.sum, examine(around(boxes), me, w, parties, cohort)
            layers.append(lambda inner: Summed(inner, how, single, me.seed))
        found = examine(around(boxes), me, w, parties, cohort)
        return around, found._replace(summed=self.sum is not None, wire=self._named)

    @property
    def _named(self) -> OnWire:
        rule, how = ("" if each is None else repr(each) for each in (self.rule, self.sum))
        return OnWire(tuple(map(repr, self.up)), tuple(map(repr, self.down)), rule, how)

    def _check_peers(self, boxes: Boxes) -> None:
        """Refuse what a server alone could do."""
        for key, value in (("rule", self.rule), ("sum", self.sum), ("down", self.down)):
            if value:
                raise ArchipelError(
                    f"wire.{key}: {boxes.name} has no server, which alone needs it: leave it out."
                )

    def _check_down(self, anatomy: Anatomy) -> None:
        """Refuse steps on the way down that keep a state: nobody keeps it there."""
        for step in self.down:
            if leaves(step.init(tuple(leaves(anatomy.sent)))):
                raise ArchipelError(
                    f"wire.down: {type(step).__name__} keeps a state for each sender, and the "
                    "server keeps none for replies: use it in wire.up."
                )


def _disagree(
    key: str, one: object, says: str, other_key: str, other: object, other_says: str, remedy: str
) -> ArchipelError:
    return ArchipelError(
        f"{key}: {type(one).__name__} {says}, and {other_key}: {type(other).__name__} "
        f"{other_says}: {remedy}."
    )
