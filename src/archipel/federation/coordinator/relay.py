# SPDX-License-Identifier: Apache-2.0
"""What sites tell each other through the coordinator: signed by them, kept for a while, passed on.

The coordinator understands nothing of it and can change nothing of it. It may keep something back:
then sites end without a result, and what they told hides what it hid before.

A site's first word in a step counts. One that says another at the very beginning has begun anew, so
all that was told is forgotten: those who still wait tell it again when they ask.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import POLL, Refused

if TYPE_CHECKING:
    from torch import Tensor

_SESSIONS = 8  # at a time that one site has begun
_STEPS = 1 << 12
_SITES = 256
_BYTES = 64 << 20  # of one session
_KEPT = 3600.0  # seconds after the last word


@dataclass
class _Session:
    """One conversation: step -> site -> what it told, and its signature."""

    by: str  # who began it
    said: dict[int, dict[str, tuple[Tensor, bytes]]] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)  # whom anybody else asked for
    news: asyncio.Event = field(default_factory=asyncio.Event)
    size: int = 0
    last: float = 0.0


class Relay:
    """All conversations of sites under way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}

    async def answer(self, sender: str, letter: Letter) -> Letter:
        """Keep what a site tells, the first time, and pass on what those it names told."""
        session = self._session(letter["study"], sender)
        self._keep(session, sender, letter)
        wanted = {str(each) for each in letter["wanted"]} - {sender}
        session.wanted |= wanted
        heard = session.said.setdefault(letter["number"], {})
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                while not wanted <= heard.keys():
                    await session.news.wait()
                    if session.said.get(letter["number"]) is not heard:
                        break  # somebody has begun anew
        there = sorted(wanted & heard.keys())
        return Letter(
            "heard",
            {"signatures": {name: heard[name][1] for name in there}},
            [heard[name][0] for name in there],
        )

    def _session(self, name: str, sender: str) -> _Session:
        now = self._clock()
        for each in [k for k, found in self._sessions.items() if now - found.last > _KEPT]:
            del self._sessions[each]
        begun = sum(each.by == sender for each in self._sessions.values())
        if name not in self._sessions and begun >= _SESSIONS:
            raise Refused(f"{_SESSIONS} conversations that you began are under way: wait for them.")
        session = self._sessions.setdefault(name, _Session(sender))
        session.last = now
        return session

    def _keep(self, session: _Session, sender: str, letter: Letter) -> None:
        if not 0 <= letter["number"] < _STEPS or len(letter.arrays) != 1:
            raise Refused("not a step of a conversation.")
        if len(letter["wanted"]) > _SITES or len(letter["signature"]) != 64:
            raise Refused("not what a site tells others.")
        (content,) = letter.arrays
        told = session.said.setdefault(letter["number"], {})
        if sender in told:
            if letter["number"] or sender not in session.wanted or _same(told[sender][0], content):
                return
            session.said, session.size = {letter["number"]: {}}, 0
            told = session.said[letter["number"]]
        session.size += content.numel() * content.element_size()
        if session.size > _BYTES:
            raise Refused(f"more than {_BYTES} bytes were told in this conversation.")
        told[sender] = content, letter["signature"]
        session.news.set()
        session.news = asyncio.Event()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.numpy().tobytes() == b.numpy().tobytes()
