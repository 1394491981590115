# SPDX-License-Identifier: Apache-2.0
"""A run while it happens, in the terminal: how far, how good, who takes part, at what cost."""

from __future__ import annotations

import os
import re
import sys
import time
from io import StringIO
from pathlib import Path
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from archipel.errors import clean
from archipel.report.braille import Line
from archipel.report.frame import BAD, TOGETHER, Clock, Pace, Still, fit, lines

if TYPE_CHECKING:
    from types import TracebackType

    from archipel.report.notebook import NotebookView
    from archipel.runs.run import Run

_PER_SECOND = 8  # drawings, at most
_SHARE = 0.01  # of the time, at most, goes into drawing
_drawing = RLock()

if hasattr(os, "register_at_fork"):  # a worker forked in mid-drawing would inherit a held lock
    os.register_at_fork(
        before=_drawing.acquire,
        after_in_parent=_drawing.release,
        after_in_child=_drawing.release,
    )


class LiveView:
    """Draws a run on standard error where that is a terminal; elsewhere writes nothing at all.

    >>> import archipel as ar
    >>> with LiveView() as view:
    ...     run = ar.simulate(ar.FedAvg(), "heart_disease", rounds=2, workers=1, watch=view)
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.quiet = not _can_draw(self.console, own=console is None)
        self._still: Still | None = None
        self._clock: Clock | None = None
        self._doing: str | None = None
        self._over = Event()
        self._thread: Thread | None = None
        self._live: Live | None = None

    def __call__(self, run: Run) -> None:
        """Take note of a round; a thread of its own draws."""
        if self.quiet:
            return
        now = time.perf_counter()
        if self._clock is None or self._clock.run is not run:
            self._clock = Clock(run, now)
        self._still = Still.of(run, self._clock.tick(now))
        self._doing = None

    def say(self, text: str) -> None:
        """Show what goes on besides rounds, until the next one."""
        self._doing = text

    def __enter__(self) -> LiveView:
        if not self.quiet:
            self._live = Live(
                console=self.console,
                auto_refresh=False,
                get_renderable=self._frame,
                vertical_overflow="crop",
                redirect_stdout=sys.stdout.isatty(),  # else results would go to standard error
            )
            self._over.clear()
            self._live.start()
            self._thread = Thread(target=self._draw, args=(self._live,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._doing = None
        if self._live is None or self._thread is None:
            return
        self._over.set()
        self._thread.join()
        if self._still is not None:
            self._still = Still.of(self._still.run, self._still.pace).ended(kind)
        self._live.stop()
        self._live = self._thread = None

    def _draw(self, live: Live) -> None:
        """Draw until it is over, less often where drawing is slow."""
        cost = 0.0
        while not self._over.wait(max(1 / _PER_SECOND, cost / _SHARE)):
            with _drawing:
                began = time.thread_time()
                live.refresh()
                cost = time.thread_time() - began

    def _frame(self) -> RenderableType:
        still, doing, now = self._still, self._doing, time.perf_counter()
        width, height = self.console.size
        frame: list[Line] = []
        try:
            if still is not None:
                frame = lines(still, width, height - 1 - (doing is not None), now)
        except Exception as error:  # a picture must never cost a run
            frame = [[(clean(f"no picture: {error!r}"), BAD)]]
        if doing is not None:
            spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"[int(now * 10) % 10]
            frame.append([(f" {spinner} ", TOGETHER), (clean(doing), "")])
        return _Frame([fit(line, width) for line in frame])


class _Frame:
    """Lines that are laid out already."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            for text, style in line:
                yield Segment(text, Style.parse(style))
            yield Segment.line()


def _can_draw(console: Console, own: bool) -> bool:
    """Whether a console shows drawings: a terminal that moves its cursor and knows the dots."""
    if own and not (console.file.isatty() and (os.environ.get("TERM") or os.name == "nt")):
        return False  # whatever FORCE_COLOR says
    utf = console.encoding.lower().startswith("utf")
    return console.is_terminal and not console.is_dumb_terminal and utf


def live_view(console: Console | None = None) -> LiveView | NotebookView:
    """Return the view that fits where this runs: a notebook, a terminal, or neither."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if console is None and getattr(shell, "kernel", None) is not None:
        from archipel.report.notebook import NotebookView

        return NotebookView()
    return LiveView(console)


def render(run: Run, width: int, height: int = 24) -> RenderableType:
    """Return the picture of a run as it stands, at most so many columns and lines."""
    pace = Pace(0.0, run.seconds)
    if run.done and run.seconds > 0:
        pace = Pace(0.0, run.seconds, run.seconds / run.done, run.spent.gradients / run.seconds)
    return _Frame(lines(Still.of(run, pace), width, height, 0.0))


def picture(run: Run, path: str | Path, width: int = 100, height: int = 24) -> Path:
    """Write the picture of a run as an SVG file that needs nothing from elsewhere."""
    console = Console(
        file=StringIO(),
        record=True,
        width=width,
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(render(run, width, height))
    svg = console.export_svg(title="archipel")
    path = Path(path)
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    path.write_text(svg, encoding="utf-8")
    return path
