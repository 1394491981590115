# SPDX-License-Identifier: Apache-2.0
"""A transfer that was cut goes on where it was, and is checked then."""

import asyncio

import pytest
import torch

from archipel.engines.network.in_memory import MemoryLink, MemoryStream
from archipel.engines.network.letters import BadLetter, Letter, Sealed
from archipel.engines.network.transport import Cut, Partials, Refused, give, take

LARGE = Letter("thanks", {}, [torch.randn(900_000)])  # more than three pieces


class Ending:
    """A stream that is cut after so many messages."""

    def __init__(self, stream, messages):
        self.send, self._stream, self._left = stream.send, stream, messages

    async def receive(self):
        self._left -= 1
        if self._left < 0:
            raise Cut("the stream was cut.")
        return await self._stream.receive()


def after_a_cut(letter, again):
    """Send a letter until the stream is cut, then another: what arrives, in how many pieces."""

    async def play():
        partials, pieces = Partials(), []

        async def send(letter, messages):
            here, there = MemoryStream.pair()
            giving = asyncio.create_task(give(here, letter))
            came, pieces[:] = Ending(there, messages), []
            try:
                return await take(came, "ulm", partials, 1 << 30, moved=lambda: pieces.append(1))
            finally:
                here.end()
                giving.cancel()
                await asyncio.gather(giving, return_exceptions=True)

        with pytest.raises(Cut):
            await send(letter, 3)
        assert len(pieces) == 2
        return await send(again, 100), len(pieces)

    return asyncio.run(play())


def test_only_the_rest_of_a_letter_is_sent_again():
    found, pieces = after_a_cut(LARGE, LARGE)
    assert torch.equal(found.arrays[0], LARGE.arrays[0])
    assert pieces == 2


def test_bytes_of_another_letter_are_no_rest():
    other = Sealed(Letter("thanks", {}, [torch.randn(900_000)]))
    other.name = Sealed(LARGE).name
    with pytest.raises(BadLetter, match="not those that were offered"):
        after_a_cut(LARGE, other)


def test_another_letter_begins_anew():
    other = Letter("thanks", {}, [torch.randn(900_000)])
    found, pieces = after_a_cut(LARGE, other)
    assert torch.equal(found.arrays[0], other.arrays[0])
    assert pieces == 4


def test_a_letter_of_another_length_than_offered_is_refused():
    sealed = Sealed(Letter("thanks"))
    sealed.size += 1

    async def play():
        here, there = MemoryStream.pair()
        await give(here, sealed)
        await take(there, "ulm", Partials(), 1 << 30)

    with pytest.raises(BadLetter, match="not those that were offered"):
        asyncio.run(play())


def test_a_refusal_before_the_bytes_reaches_the_asker():
    async def answer(who, letter):
        raise AssertionError

    async def play():
        link = MemoryLink("ulm", answer, Partials(), most=lambda _: 1000)
        await link.ask(LARGE)

    with pytest.raises(Refused, match="at most 1000 are expected"):
        asyncio.run(play())
