# SPDX-License-Identifier: Apache-2.0
"""A message of a round that is open: who works on it, who is woken, how long it is waited for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from archipel.engines.engine import Cause
from archipel.engines.network.bounds import LONGEST
from archipel.engines.network.letters import Sealed
from archipel.engines.network.server import Upload


class Bell:
    """Wakes parties that wait for work, and no others: a thousand may be waiting."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def wait(self, party: int, seconds: float) -> None:
        """Return when the bell rings for the party, or after some time."""
        self.ring([party])  # whoever waited in its name is gone
        future = self._waiting[party] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(party) is future:
                del self._waiting[party]

    def ring(self, parties: Iterable[int] | None = None) -> None:
        """Wake these parties; all without any."""
        for party in list(self._waiting if parties is None else parties):
            future = self._waiting.pop(party, None)
            if future is not None and not future.done():
                future.set_result(None)

    def __len__(self) -> int:
        return len(self._waiting)


class Named(NamedTuple):
    """A letter that parties have had since an earlier round: what it is known by."""

    name: bytes


@dataclass
class Opened:
    """A message of a round that some parties work on."""

    round: int
    number: int
    attempt: int
    letters: Mapping[int, Sealed | Named]  # by party
    most: int = 1  # parties that the round began with
    given: set[int] = field(default_factory=set)  # who was sent its letter
    uploads: dict[int, Upload] = field(default_factory=dict)
    lost: dict[int, Cause] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)  # when it last made progress
    reached: dict[int, int] = field(default_factory=dict)  # how far it said that it is
    doing: dict[int, str] = field(default_factory=dict)
    refused: Counter[int] = field(default_factory=Counter)  # uploads that were none
    moved: asyncio.Event = field(default_factory=asyncio.Event)  # an upload came, or a party went

    @property
    def waits_for(self) -> list[int]:
        return [k for k in self.letters if k not in self.uploads and k not in self.lost]


@dataclass(frozen=True)
class Patience:
    """How long a message is waited for."""

    deadline: float | None = None  # seconds of a round; its messages have equal shares of them
    silence: float = 60.0  # seconds without progress after which a party counts as lost
    enough: int | None = None  # uploads after which the others are not needed
    needed: int = 1  # uploads without which the round changes nothing
    # where nobody waits for anybody
    buffer: int | None = None  # K, uploads of a step; all parties' unless given
    at_once: int | None = None  # parties that train at a time; all unless given

    @property
    def limit(self) -> float:
        """Seconds after which nobody is waited for, whatever it says."""
        return LONGEST if self.deadline is None else self.deadline
