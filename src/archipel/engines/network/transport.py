# SPDX-License-Identifier: Apache-2.0
"""A conversation: one letter there, one letter back, over any two-way stream of byte strings.

The side that sends first offers a letter by its length and name. A small one comes with the offer.
Of a large one the receiver says how many bytes it has already, from a conversation that was cut,
and the rest follows in pieces: so transfers of any size are resumed, whatever the stream is. That
bytes of one stream are as they were sent is the stream's affair (TLS); what was put together from
several is checked against the name.
The asking side is always the party, which connects outwards only; both kinds of stream, in memory
(`memory.py`) and gRPC (`grpc.py`), run these same functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from archipel.engines.network.letters import PIECE, BadLetter, Letter, Sealed, decode
from archipel.errors import ArchipelError

POLL = 20.0  # seconds that a question is held before it is answered with "not yet"
BEAT = 5.0  # seconds between two words of a party at work on how far it is
INLINE = 64 << 10  # bytes of a letter that comes with its offer
SMALL = 2 << 20  # bytes of a letter that brings no model
_REASON = 4000  # characters of a refusal, which may say again what was sent
_OFFER, _HAVE = b"O", b"H"


class Cut(ArchipelError):
    """The other side is gone, or does not answer: what was sent may be sent again."""


class Refused(ArchipelError):
    """The other side says no, and why."""


class Stream(Protocol):
    """Two-way, of byte strings, in order; both methods raise `Cut` once the other side is gone."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes: ...


class Link(Protocol):
    """A party's way to the other side: opens a stream for each conversation."""

    most: int  # bytes of an answer

    @property
    def pieces(self) -> int:
        """Pieces of large answers that came so far."""

    async def ask(self, letter: Letter) -> Letter:
        """Say something and return the answer; `Cut` where there is none, `Refused` for a no."""

    async def close(self) -> None: ...


Answer = Callable[[str, Letter], Awaitable[Letter | Sealed]]  # who asks, and what
Moved = Callable[[], None]  # called whenever a piece of a large letter has passed


class Partials:
    """Letters of which only some bytes came so far: of each sender its newest."""

    def __init__(self, most: int = 4 << 30) -> None:
        self._parts: dict[str, tuple[bytes, bytearray]] = {}  # by sender
        self._coming: Counter[str] = Counter()  # bytes of letters under way, by sender
        self._most = most

    @contextmanager
    def room(self, sender: str, size: int, most: int) -> Iterator[None]:
        """While a letter comes; one sender's letters have at most so many bytes at once."""
        if self._coming[sender] + size > most:
            raise Cut("more large letters at once than there is room for.")
        self._coming[sender] += size
        try:
            yield
        finally:
            self._coming[sender] -= size
            if not self._coming[sender]:
                del self._coming[sender]

    def take(self, sender: str, name: bytes) -> bytearray:
        """What there is of a letter; it is nobody else's until it is put back."""
        if self._parts.get(sender, (b"",))[0] != name:
            return bytearray()
        return self._parts.pop(sender)[1]

    def put_back(self, sender: str, name: bytes, part: bytearray) -> None:
        """Keep a part; the oldest ones go where all are more than there is room for."""
        self.forget(sender)
        self._parts[sender] = name, part
        while sum(len(each) for _, each in self._parts.values()) > self._most:
            del self._parts[next(iter(self._parts))]

    def forget(self, sender: str) -> None:
        """Drop what a sender left behind: it has sent a whole large letter since."""
        self._parts.pop(sender, None)


async def give(
    stream: Stream, letter: Letter | Sealed, moved: Moved = lambda: None
) -> bytes | None:
    """Send a letter, from where the receiver wants its bytes.

    Where it wants none and answers at once, return the offer of its answer.
    """
    sealed = letter if isinstance(letter, Sealed) else letter.sealed
    offer = _OFFER + sealed.size.to_bytes(8, "little") + sealed.name
    if sealed.size <= INLINE:
        await stream.send(offer + b"".join(sealed.pieces))
        return None
    await stream.send(offer)
    have = await stream.receive()
    if have[:1] == _OFFER:
        return have
    at = int.from_bytes(have[1:], "little")
    if have[:1] != _HAVE or len(have) != 9 or at > sealed.size:
        raise BadLetter("an answer to an offer that says no number of bytes.")
    for piece in sealed.since(at):
        await stream.send(piece)
        moved()
    return None


async def take(
    stream: Stream,
    sender: str,
    partials: Partials,
    most: int,
    offer: bytes | None = None,
    moved: Moved = lambda: None,
) -> Letter:
    """Receive a letter of at most so many bytes."""
    offer = offer or await stream.receive()
    size, name, inline = int.from_bytes(offer[1:9], "little"), offer[9:41], offer[41:]
    if offer[:1] != _OFFER or len(name) != 32:
        raise BadLetter("bytes that offer no letter.")
    if size > most:
        raise BadLetter(f"a letter of {size} bytes where at most {most} are expected.")
    data, had = bytearray(inline), 0
    if size > INLINE:
        if inline:
            raise BadLetter("an offer of a large letter that brings some of it.")
        with partials.room(sender, size, 2 * most):
            data = partials.take(sender, name)
            had = len(data)
            await _pieces(stream, sender, partials, data, size, name, moved)
    letter = decode(data) if len(data) == size else None
    if letter is None or (had and letter.name != name):
        raise BadLetter("a letter whose bytes are not those that were offered.")
    return letter


async def _pieces(
    stream: Stream,
    sender: str,
    partials: Partials,
    data: bytearray,
    size: int,
    name: bytes,
    moved: Moved,
) -> None:
    """Add the bytes that a large letter lacks; they are kept where the conversation is cut."""
    try:
        await stream.send(_HAVE + len(data).to_bytes(8, "little"))
        while len(data) < size:
            piece = await stream.receive()
            if not piece or len(piece) > PIECE:
                raise BadLetter(f"a piece of {len(piece)} bytes.")
            data += piece
            moved()
    finally:
        if 0 < len(data) < size:
            partials.put_back(sender, name, data)
    partials.forget(sender)


async def ask(
    stream: Stream, letter: Letter, partials: Partials, most: int, moved: Moved = lambda: None
) -> Letter:
    """The asking side of a conversation."""
    early = await give(stream, letter)
    answer = await take(stream, "", partials, most, early, moved)
    if answer.kind == "refused":
        raise Refused(answer["reason"])
    return answer


async def serve(
    stream: Stream,
    sender: str,
    answer: Answer,
    partials: Partials,
    most: Callable[[str], int],
    moved: Moved = lambda: None,
) -> None:
    """The answering side: `most(sender)` is how large a letter of theirs may be."""
    try:
        letter = await take(stream, sender, partials, most(sender), moved=moved)
        reply: Letter | Sealed = await answer(sender, letter)
    except (BadLetter, Refused) as error:
        reply = Letter("refused", {"reason": str(error)[:_REASON]})
    await give(stream, reply, moved)
