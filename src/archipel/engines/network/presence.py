# SPDX-License-Identifier: Apache-2.0
"""Which parties of a study are there, and how a study that waits for them is interrupted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from archipel.engines.engine import Cause
from archipel.engines.network.transport import POLL
from archipel.errors import ArchipelError

_HERE = 2.5 * POLL  # seconds since it last asked in which a party counts as there


class Adjourned(ArchipelError):
    """The coordinator went down; the study goes on from its last round when it is up again."""

    def __init__(self) -> None:
        super().__init__("the study was adjourned.")


class Presence:
    """Parties are there while they ask for work; one that is not may have said why."""

    def __init__(self) -> None:
        self.asked: dict[int, float] = {}  # party -> when it last asked
        self.away: dict[int, Cause] = {}  # party -> why it said that it would be
        self._adjourned = threading.Event()

    def here(self, parties: Iterable[int]) -> NDArray[np.bool_]:
        """Whether each party has asked in the last seconds."""
        now = time.monotonic()
        return np.array([now - self.asked.get(int(k), -1e9) < _HERE for k in parties], bool)

    def cause(self, party: int) -> Cause:
        """Why a party is not there."""
        return self.away.get(party, Cause("away"))

    def seen(self, party: int) -> None:
        """A party asks, so it is there."""
        self.asked[party] = time.monotonic()
        self.away.pop(party, None)

    def silent(self, party: int) -> None:
        """Nothing was heard of a party: it is away until it asks again."""
        self.asked.pop(party, None)

    def gone(self, party: int, cause: Cause) -> None:
        """A party says that it will not ask for a while, or ever."""
        self.asked.pop(party, None)
        self.away[party] = cause

    @property
    def adjourned(self) -> bool:
        """Whether nobody is to be waited for any more."""
        return self._adjourned.is_set()

    def adjourn(self) -> None:
        """Wait for nobody any more."""
        self._adjourned.set()

    def pause(self, seconds: float) -> None:
        """Give parties some time, unless the study is adjourned meanwhile."""
        if self._adjourned.wait(seconds):
            raise Adjourned
