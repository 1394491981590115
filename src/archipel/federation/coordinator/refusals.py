# SPDX-License-Identifier: Apache-2.0
"""What was refused, in the audit log, without letting anybody fill the disk with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from archipel.federation.audit import Audit

MOST = 20  # entries of one sender in a minute; further ones are counted
_MINUTE = 60.0
_REASON = 500  # characters: a reason may say again what was sent


@dataclass
class _Window:
    began: float
    written: int = 0
    more: int = 0


class Refusals:
    """Writes refusals down, a sender's first ones of a minute each and then how many more."""

    def __init__(self, audit: Audit, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit, self._clock = audit, clock
        self._windows: dict[str, _Window] = {}
        self.total = 0

    def add(self, sender: str, letter: str, reason: str) -> None:
        self.total += 1
        now = self._clock()
        window = self._windows.get(sender)
        if window is None or now - window.began >= _MINUTE:
            self._close(sender)
            window = self._windows[sender] = _Window(now)
        if window.written == MOST:
            window.more += 1
            return
        window.written += 1
        self._audit.append("refused", site=sender, letter=letter, reason=reason[:_REASON])

    def flush(self) -> None:
        """Write down what was only counted so far."""
        for sender in list(self._windows):
            self._close(sender)

    def _close(self, sender: str) -> None:
        window = self._windows.pop(sender, None)
        if window is not None and window.more:
            self._audit.append("refused", site=sender, more=window.more)
