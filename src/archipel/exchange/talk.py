# SPDX-License-Identifier: Apache-2.0
"""One side of a round: a method that may be a generator, advanced message by message.

A plain method is a talk of one message. Whoever drives a party or a server, on any engine, holds a
`Talk` of it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


class Talk:
    """What a method says now, and whether that was its last word.

    >>> def party(x):
    ...     y = yield x + 1
    ...     return y * 2
    >>> talk = Talk(party(1))
    >>> talk.said, talk.ended
    (2, False)
    >>> talk.send(10)
    >>> talk.said, talk.ended
    (20, True)
    """

    def __init__(self, started: Any) -> None:
        self._steps = started if isinstance(started, Generator) else None
        self.said: Any = started
        self.ended = self._steps is None
        if self._steps is not None:
            self.send(None)

    def send(self, message: Any) -> None:
        """Give it the answer to what it said."""
        assert self._steps is not None, "it has said its last word"
        try:
            self.said = self._steps.send(message)
        except StopIteration as end:
            self.said, self.ended = end.value, True
