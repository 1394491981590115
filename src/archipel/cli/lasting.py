# SPDX-License-Identifier: Apache-2.0
"""Commands that last until they are stopped: their lines have times, and Ctrl-C ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipel.cli.logs import say
from archipel.errors import clean

if TYPE_CHECKING:
    import asyncio


def timed(text: str) -> None:
    """A line with its time, on standard output."""
    say(with_time(text))


def with_time(text: str) -> str:
    from datetime import UTC, datetime

    return clean(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}")


def stopping() -> asyncio.Event:
    """An event that Ctrl-C and SIGTERM set; that they did is said at once."""
    import asyncio
    import signal

    stop = asyncio.Event()

    def ask() -> None:
        if not stop.is_set():
            timed("stopping")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ask)
    return stop
