# SPDX-License-Identifier: Apache-2.0
"""Look on at runs, and stop at the end of a round when asked to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archipel.run import Run
    from archipel.simulation import Watch


class Stoppable:
    """A view that stops the run after the round in which Ctrl-C or SIGTERM came."""

    def __init__(self, view: Watch) -> None:
        self._view, self._asked, self._in_rounds = view, False, False

    def __call__(self, run: Run) -> bool:
        self._in_rounds = True
        return bool(self._view(run)) or self._asked

    def say(self, text: str) -> None:
        """Tell what comes next, which is no round; asked to stop, it does not come."""
        self._in_rounds = False
        if self._asked:
            raise KeyboardInterrupt
        self._view.say(text)

    def ask(self, _signal: int, _frame: FrameType | None) -> None:
        if self._asked or not self._in_rounds:  # the second time, or nothing that could be lost
            raise KeyboardInterrupt
        self._asked = True
        self._view.say("stopping after this round; once more to stop at once")


@contextmanager
def stoppable(view: Watch) -> Iterator[Stoppable]:
    """Have Ctrl-C and SIGTERM ask the view to stop."""
    watch = Stoppable(view)
    before = {
        number: signal.signal(number, watch.ask) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield watch
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def watching() -> Iterator[Stoppable]:
    """Show a live picture where there is a terminal."""
    from archipel.report.live import LiveView

    with LiveView() as view, stoppable(view) as watch:
        yield watch
