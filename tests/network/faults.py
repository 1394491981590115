# SPDX-License-Identifier: Apache-2.0
"""A bad line: a TCP proxy that delays, slows, stalls, cuts, repeats and refuses, as it is told."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

PIECE = 16 << 10  # bytes that are passed on at once


@dataclass
class Way:
    """One direction of a line; all may be changed while bytes pass."""

    delay: float = 0.0  # seconds that every byte is under way
    rate: float | None = None  # bit/s
    twice: int = 0  # so many of the next pieces come two times
    cut_at: int | None = None  # cut the line once this many bytes have passed since it was made
    hold_at: int | None = None  # pass no more than this many
    passed: int = 0  # bytes so far
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def reaches(self, passed: int) -> None:
        """Wait until so many bytes have passed."""
        while self.passed < passed:
            self._moved.clear()
            await self._moved.wait()

    def release(self) -> None:
        """Hold nothing back any more."""
        self.hold_at = None
        self._moved.set()

    async def room(self) -> int:
        """How many bytes may pass now, at least one."""
        while self.hold_at is not None and self.passed >= self.hold_at:
            self._moved.clear()
            await self._moved.wait()
        limits = [n - self.passed for n in (self.hold_at, self.cut_at) if n is not None]
        return max(1, min([PIECE, *limits]))

    def count(self, size: int) -> bool:
        """Take note of bytes that passed; whether the line is cut now."""
        self.passed += size
        self._moved.set()
        if self.cut_at is None or self.passed < self.cut_at:
            return False
        self.cut_at = None
        return True


class Line:
    """The line of one site to its coordinator; `up` is what the site sends."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self.up, self.down = Way(), Way()
        self.port = 0
        self.calls = 0  # connections that were let through
        self._refused_until = self._stalled_until = 0.0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self.port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut what is connected now, without a goodbye."""
        for writer in self._open:
            writer.transport.abort()

    def refuse(self, seconds: float) -> None:
        """Cut, and let nobody through for a while."""
        self._refused_until = asyncio.get_running_loop().time() + seconds
        self.cut()

    def stall(self, seconds: float) -> None:
        """Pass nothing for a while; all stays connected."""
        self._stalled_until = asyncio.get_running_loop().time() + seconds

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there = None
        try:
            if asyncio.get_running_loop().time() < self._refused_until:
                return
            from_there, there = await asyncio.open_connection(*self._target)
            self._open |= {writer, there}
            self.calls += 1
            ways = [(reader, there, self.up), (from_there, writer, self.down)]
            passing = [asyncio.ensure_future(self._pass(*way)) for way in ways]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in passing:
                    each.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, there):
                if end is not None:
                    self._open.discard(end)
                    end.transport.abort()
            self._tasks.discard(task)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        """Pass bytes on; returns when either side is gone, or the line is cut."""
        clock = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)

        async def read() -> None:
            while piece := await reader.read(PIECE):
                await under_way.put((clock() + way.delay, piece))
            await under_way.put((0.0, b""))

        reading = asyncio.ensure_future(read())
        try:
            with suppress(OSError):
                while True:
                    due, piece = await under_way.get()
                    if not piece:
                        return
                    while (wait := max(due, self._stalled_until) - clock()) > 0:
                        await asyncio.sleep(wait)
                    while piece:
                        some, piece = _split(piece, await way.room())
                        if way.rate:
                            await asyncio.sleep(8 * len(some) / way.rate)
                        writer.write(some)
                        if way.twice:
                            way.twice -= 1
                            writer.write(some)
                        await writer.drain()
                        if way.count(len(some)):
                            return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def _split(piece: bytes, at: int) -> tuple[bytes, bytes]:
    return piece[:at], piece[at:]
