# SPDX-License-Identifier: Apache-2.0
"""Look on at runs, and stop at the end of a round when asked to."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from archipel.runs.run import Run


class View(Protocol):
    """Whoever looks on, and whether that shows nothing."""

    quiet: bool

    def __call__(self, run: Run) -> bool | None: ...
    def say(self, text: str) -> None: ...


class Stoppable:
    """A view that stops the run after the round in which Ctrl-C or SIGTERM came."""

    def __init__(self, view: View) -> None:
        self._view, self._asked, self._in_rounds = view, False, False
        self._told: Run | None = None
        self._graphs: set[str] = set()

    def __call__(self, run: Run) -> bool:
        self._in_rounds = True
        self._tell_graph(run)
        stop = bool(self._view(run)) or self._asked
        if self._asked:  # the picture of the round has taken the word away
            self._view.say("stopping")
        return stop

    def _tell_graph(self, run: Run) -> None:
        """Say who talks to whom, and how fast they agree, before the first round."""
        if self._told is not run and run.topology is not None:
            from archipel.graphs import summary

            told = str(summary(run.topology, run.data.clusters, algorithm=run.algorithm))
            if told not in self._graphs:  # rows of a comparison mostly have the same
                print(told, file=sys.stderr, flush=True)
            self._graphs.add(told)
        self._told = run

    def say(self, text: str) -> None:
        """Tell what comes next, which is no round; asked to stop, it does not come."""
        self._in_rounds = False
        if self._asked:
            raise KeyboardInterrupt
        self._view.say(text)

    def ask(self, _signal: int, _frame: FrameType | None) -> None:
        if self._asked or not self._in_rounds:  # the second time, or nothing that could be lost
            self._tell("stopping at once")
            raise KeyboardInterrupt
        self._asked = True
        self._tell("stopping after this round; once more to stop at once")

    def _tell(self, text: str) -> None:
        """Say it at once: in the picture, or where there is none in a line of its own."""
        self._view.say(text)
        if self._view.quiet:
            print(f"archipel: {text}.", file=sys.stderr, flush=True)


@contextmanager
def stoppable(view: View) -> Iterator[Stoppable]:
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
