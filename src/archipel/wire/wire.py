# SPDX-License-Identifier: Apache-2.0
"""A study's wire: steps up and down, a rule, and how sums are made; checked before the start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from archipel.aggregation.rule import Rule, Ruled
from archipel.aggregation.summation import Summation, Summed
from archipel.core import Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Anatomy, examine
from archipel.exchange.boxes import Boxes
from archipel.tree import leaves
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

    def around(
        self, boxes: Boxes, me: Any, w: Vector, parties: int, cohort: int | None = None
    ) -> tuple[Boxes, Anatomy]:
        """The algorithm on this wire, and what a round of it sends; found on the party `me`."""
        anatomy = examine(boxes, me, w, parties, cohort)
        if self.empty:
            return boxes, anatomy
        if boxes.peer:
            return self._among_peers(boxes, me, w, parties)
        if self.up or self.down:
            self._check_down(anatomy, me)
            boxes = Wired(boxes, self.up, self.down, anatomy, me.sender(0))
        if self.rule is not None:
            boxes = Ruled(boxes, self.rule, len(anatomy.messages))
        if self.sum is not None:
            anatomy = examine(boxes, me, w, parties, cohort)
            boxes = Summed(boxes, self.sum, anatomy, me.sender(0))
        return boxes, examine(boxes, me, w, parties, cohort)

    def _among_peers(self, boxes: Boxes, me: Any, w: Vector, parties: int) -> tuple[Boxes, Anatomy]:
        for key, value in (("rule", self.rule), ("sum", self.sum), ("down", self.down)):
            if value:
                raise ArchipelError(
                    f"wire.{key}: {boxes.name} has no server, which alone needs it: leave it out."
                )
        mixed = list(me.mixed)  # what its round has mixed so far, in order
        boxes = WiredPeers(boxes, self.up, mixed, me.sender(0))
        return boxes, examine(boxes, me, w, parties)

    def _check_down(self, anatomy: Anatomy, me: Any) -> None:
        """Refuse steps on the way down that keep something of their own: there is nobody to keep it."""
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
