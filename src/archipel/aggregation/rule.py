# SPDX-License-Identifier: Apache-2.0
"""Rules over single uploads: `Uploads -> Uploads`, between what arrives and the server's mean.

A rule is a frozen dataclass that is called with the uploads of a message. It asks for single ones
(`uploads.stack()`), so it excludes sums that nobody can look into, and the engine finds that out by
itself. What it returns is `Chosen`: some of the rows, or rows made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from archipel.core import Uploads
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.talk import Talk
from archipel.tree import Tree


class Rule(Protocol):
    """What the server gets in place of the uploads that arrived."""

    def __call__(self, uploads: Uploads) -> Uploads: ...


@dataclass(frozen=True)
class InTurn:
    """Several rules, each given what the one before it makes."""

    rules: tuple[Rule, ...]

    def __call__(self, uploads: Uploads) -> Uploads:
        for rule in self.rules:
            uploads = rule(uploads)
        return uploads

    def __repr__(self) -> str:
        return ", then ".join(map(repr, self.rules))


class Ruled(Around):
    """An algorithm whose server is given what a rule makes of the last upload of a round.

    Earlier messages of a round pass as they are: what they mean is the algorithm's own business.
    """

    def __init__(self, inner: Boxes, rule: Rule, messages: int) -> None:
        super().__init__(inner)
        self._rule, self._messages = rule, messages

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        last = self._messages - 1
        talk = Talk(self.inner.server(shared, self._rule(uploads) if last == 0 else uploads))
        for number in range(1, self._messages):
            uploads = yield talk.said
            talk.send(self._rule(uploads) if number == last else uploads)
        return talk.said
