# SPDX-License-Identifier: Apache-2.0
"""A site behind an HTTP CONNECT proxy joins and takes part through it, and could not without."""

import asyncio
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace

from archipel.federation.site.policy import Policy
from network.processes import Drill, Process

NOWHERE = "coordinator.invalid"  # a name that only the proxy knows


class Connects:
    """A proxy that takes CONNECT and nothing else, and knows one name."""

    def __init__(self, name, port):
        self._name, self._target, self.port = name, port, 0
        self.asked = []  # the request line and the headers of each
        self.passed = 0  # bytes, both ways
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *headers = head.decode().rstrip().split("\r\n")
            self.asked.append((first, headers))
            if first.split()[:2] != ["CONNECT", f"{self._name}:{self._target}"]:
                writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
                return
            from_there, there = await asyncio.open_connection("127.0.0.1", self._target)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(self._pass(reader, there), self._pass(from_there, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(asyncio.current_task())

    async def _pass(self, reader, writer):
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                self.passed += len(piece)
                writer.write(piece)
                await writer.drain()
        writer.close()


def test_a_site_behind_a_connect_proxy_joins_and_takes_part(tmp_path):
    async def main():
        changes = {"study.rounds": 2, "model.name": "mlp", "model.widths": [6000]}
        async with Drill(tmp_path, 1, changes) as drill:
            port = int(drill.home.address.rpartition(":")[2])
            async with Connects(NOWHERE, port) as proxy, asyncio.timeout(600):
                drill.submit()
                await drill.coordinator.start()
                await drill.until_up()
                invitation = replace(drill.home.invite("site-0"), address=f"{NOWHERE}:{port}")
                told = ["join", invitation.token(), "--yes", "--home", str(drill.path(0))]
                join = Process(tmp_path / "join.log", "site", *told)
                through = f"http://ulm:secret@127.0.0.1:{proxy.port}"
                for process in (join, *drill.processes):
                    process.environment["https_proxy"] = through
                await join.start()
                assert await join.wait() == 0, join.log.read_text()
                Policy.open().write(drill.path(0))
                joined = len(proxy.asked)
                drill.approve(0)
                await drill.processes[0].start()
                await drill.until_approved(1)
                drill.home.start(drill.hash)
                await drill.finished()
            return drill, proxy, joined

    drill, proxy, joined = asyncio.run(main())
    assert 0 < joined < len(proxy.asked)
    port = drill.home.address.rpartition(":")[2]
    assert {first for first, _ in proxy.asked} == {f"CONNECT {NOWHERE}:{port} HTTP/1.1"}
    secret = b64encode(b"ulm:secret").decode()
    assert all(f"Proxy-Authorization: Basic {secret}" in headers for _, headers in proxy.asked)
    size = 4 * drill.vector().numel()
    assert proxy.passed > 2 * 2 * size  # two rounds, there and back
    assert drill.lines[0].calls == 0
    assert drill.difference() <= 1e-6
