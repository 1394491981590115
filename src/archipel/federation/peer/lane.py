# SPDX-License-Identifier: Apache-2.0
"""A peer's way to another, who may move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from archipel.engines.network.grpc import GrpcLink
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut
from archipel.federation.site.site import Site


class Lane:
    """A way to another peer, wherever that is now; closed in a pause."""

    def __init__(self, where: Callable[[], str], opened: Callable[[str], GrpcLink], site: Site):
        """`opened` makes a link to an address."""
        self._where, self._opened, self._site = where, opened, site
        self._at = where()
        self._link = opened(self._at)
        self._asking: Counter[GrpcLink] = Counter()  # conversations under way
        self.most = self._link.most

    @property
    def pieces(self) -> int:
        return self._link.pieces

    async def ask(self, letter: Letter) -> Letter:
        if self._site.paused:
            raise Cut("this peer is paused.")
        if (now := self._where()) != self._at:
            left, self._at, self._link = self._link, now, self._opened(now)
            await self._close_where_idle(left)
        link = self._link
        self._asking[link] += 1
        try:
            return await link.ask(letter)
        finally:
            self._asking[link] -= 1
            await self._close_where_idle(link)

    async def _close_where_idle(self, link: GrpcLink) -> None:
        """Close a link that leads to where the peer was, once nothing comes over it any more."""
        if link is not self._link and not self._asking[link]:
            del self._asking[link]
            await link.close()

    async def close(self) -> None:
        await self._link.close()
