# SPDX-License-Identifier: Apache-2.0
"""Parties that tell each other everything, each over mutual TLS to every other: no one between.

A run is a generator (`aggregation/averaging.py`, `verifiable/peers.py`): what it yields is told to
all, and what all told goes back in. A party tells until it is thanked, and listens until all have
told that have not vanished, or `patience` is over: then it goes on without them. The first thing
that a party tells in a step counts, whatever it tells later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from archipel.aggregation.averaging import Said
from archipel.engines.network.grpc import Caller, GrpcLink, GrpcServer
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import SMALL, Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation.averages import PATIENCE, Say, T, as_array, converse
from archipel.federation.numbers import Card
from archipel.federation.peer import port

_MOST_STEPS = 64  # of a private mean; one with proofs says how many it has


def said(session: str, step: int, content: bytes) -> Letter:
    """What is told in a step of a private mean."""
    return Letter("said", {"study": session, "number": step}, [as_array(content)])


class Mesh:
    """The parties of one run, as one of them sees them."""

    def __init__(
        self,
        home: Path,
        session: str,
        cards: Sequence[Card],
        mine: int,
        steps: int = _MOST_STEPS,
        most: int = SMALL,
    ) -> None:
        """`most` is how many bytes a party may tell in one of so many steps."""
        self.session, self.cards, self.mine = session, cards, mine
        self._steps = steps
        others = {j: card for j, card in enumerate(cards) if j != mine}
        self._links = {
            j: GrpcLink(card.address, card.name, port.credentials(home, [card.certificate]), SMALL)
            for j, card in others.items()
        }
        self._trusted = port.credentials(home, [card.certificate for card in others.values()])
        self._server = GrpcServer(self._answer, self._admit, lambda _: most)
        self._heard: dict[int, dict[int, bytes]] = {}  # step -> party -> what it told
        self._news = asyncio.Event()

    def _admit(self, caller: Caller) -> str:
        """Know a caller by its certificate, exactly."""
        for j, card in enumerate(self.cards):
            if j != self.mine and card.certificate.encode() == caller.certificate:
                return str(j)
        raise ArchipelError(f"{caller.name} is not one of the parties")

    async def _answer(self, identity: str, letter: Letter) -> Letter:
        if letter.kind != "said":
            raise Refused(f"a {letter.kind} is nothing that is told in a private mean.")
        mine = self.cards[self.mine].name
        if letter["study"] != self.session:
            raise Refused(
                f"the file of {mine} differs: compare [average] and [[peers]] of both, and whether "
                "both say --verifiable."
            )
        if not 0 <= letter["number"] < self._steps:
            raise Refused("there is no such step.")
        heard = self._heard.setdefault(letter["number"], {})
        if len(letter.arrays) == 1:
            heard.setdefault(int(identity), letter.arrays[0].numpy().tobytes())
        self._news.set()
        return Letter("thanks")

    async def run(
        self,
        box: Generator[bytes, Said, T],
        wait: float,
        patience: float = PATIENCE,
        before: Callable[[int], None] = lambda _: None,
        say: Say = lambda _: None,
    ) -> T:
        """Take part to the end, as `converse` has it."""
        where = f"[::]:{self.cards[self.mine].address.rpartition(':')[2]}"
        await self._server.start(where, self._trusted)
        others = {j: self.cards[j].name for j in self._links}
        try:
            return await converse(box, others, self._step, wait, patience, before, say)
        finally:
            for link in self._links.values():
                await link.close()
            await self._server.stop(0.5)

    async def _step(
        self, step: int, content: bytes, alive: set[int], patience: float
    ) -> dict[int, bytes]:
        """Tell all that are there, and listen to them."""
        letter = said(self.session, step, content)
        telling = {asyncio.create_task(self._tell(j, letter)) for j in alive}
        heard = self._heard.setdefault(step, {})
        try:
            async with asyncio.timeout(patience):
                while not alive <= heard.keys():
                    self._news.clear()
                    news = asyncio.create_task(self._news.wait())
                    done, _ = await asyncio.wait(
                        {news, *telling}, return_when=asyncio.FIRST_COMPLETED
                    )
                    news.cancel()
                    for task in done & telling:
                        task.result()  # a refusal ends the run
                    telling -= done
                if telling:
                    await asyncio.gather(*telling)
        except TimeoutError:
            pass
        finally:
            for task in telling:
                task.cancel()
            await asyncio.gather(*telling, return_exceptions=True)
        return {j: heard[j] for j in alive if j in heard}

    async def _tell(self, j: int, letter: Letter) -> None:
        """Tell one until it thanks."""
        pause = 0.05
        while True:
            try:
                await self._links[j].ask(letter)
                return
            except Refused as no:
                raise ArchipelError(f"{self.cards[j].name} refuses: {no}") from None
            except (Cut, TimeoutError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)
