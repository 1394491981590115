# SPDX-License-Identifier: Apache-2.0
"""The in-memory twin of the transport: the same conversations without a network, for tests.

Faults are those of a network: a stream may be cut after so many bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Answer, Cut, Partials, ask, serve

_DEPTH = 4  # messages under way before the sender waits


class MemoryStream:
    """One end of a pair of queues."""

    def __init__(
        self, inbox: asyncio.Queue[bytes | None], outbox: asyncio.Queue[bytes | None]
    ) -> None:
        self._inbox, self._outbox = inbox, outbox
        self.left: float = float("inf")  # bytes that pass before the stream is cut

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        one: asyncio.Queue[bytes | None] = asyncio.Queue(_DEPTH)
        other: asyncio.Queue[bytes | None] = asyncio.Queue(_DEPTH)
        return cls(one, other), cls(other, one)

    async def send(self, data: bytes) -> None:
        self.left -= len(data)
        if self.left < 0:
            self.end()
            raise Cut("the stream was cut.")
        await self._outbox.put(data)

    async def receive(self) -> bytes:
        data = await self._inbox.get()
        if data is None:
            self._inbox.put_nowait(None)
            raise Cut("the stream was cut.")
        return data

    def end(self) -> None:
        """Nothing passes any more, either way."""
        for queue in (self._inbox, self._outbox):
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)


class MemoryLink:
    """A party's way to a coordinator in the same process."""

    def __init__(
        self,
        name: str,
        answer: Answer,
        partials: Partials,
        most: Callable[[str], int] = lambda _: 1 << 62,
    ) -> None:
        self._name, self._answer, self._partials, self._most = name, answer, partials, most
        self._mine, self.most, self.pieces = Partials(), 1 << 62, 0
        self.cuts: list[tuple[float, float]] = []  # of the next streams: bytes there, bytes back

    async def ask(self, letter: Letter) -> Letter:
        here, there = MemoryStream.pair()
        if self.cuts:
            here.left, there.left = self.cuts.pop(0)

        async def other_side() -> None:
            try:
                await serve(there, self._name, self._answer, self._partials, self._most)
            except Cut:
                here.end()

        task = asyncio.create_task(other_side())
        try:
            return await ask(here, letter, self._mine, self.most)
        finally:
            here.end()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        pass
