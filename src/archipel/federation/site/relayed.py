# SPDX-License-Identifier: Apache-2.0
"""A private mean between sites: what they tell each other goes through their coordinator.

Each site signs what it tells, and knows the others by the keys in its file: so the coordinator can
change nothing and speak for nobody. It can keep something back. Of a mean that is made over links
from each to each, neighbours open their terms with one that has not published; here that would be
in the coordinator's hand, who has the value. So nobody opens any (`opens`): all that are in
publish, or there is no mean and all that was published stays hidden.

A site that begins anew says so: every word has the names of the attempts that its sender has heard
of, its own among them, and those who have heard others stop before they publish.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

from archipel.aggregation import averaging
from archipel.aggregation.averaging import PUBLISHED, Said
from archipel.engines.network.grpc import GrpcLink
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError, BelowQuorum, RunFailed
from archipel.federation.averages import (
    PATIENCE,
    Average,
    Say,
    T,
    as_array,
    assure_new,
    converse,
    keep,
    terms_of,
)
from archipel.federation.certificates import COORDINATOR, verify
from archipel.federation.numbers import NumbersFile, Seat
from archipel.federation.site.averages import NUMBERS, Asked
from archipel.federation.site.site import Site
from archipel.privacy.sources import System
from archipel.verifiable import peers
from archipel.verifiable.bulletin import Board
from archipel.verifiable.party import Party
from archipel.verifiable.verification import Verdict, checked

_SILENCE = Letter("heard", {"signatures": {}})
_ATTEMPT = 16  # bytes
_LETTER = 1 << 20  # bytes that a coordinator takes from a site at once
_MOST = 64 << 20  # bytes that it passes on of all others


def asked(site: Site, file: NumbersFile, table: str = NUMBERS, verifiable: bool = False) -> Asked:
    """The mean that a site's file asks for; refused where the file is not this site's."""
    seats = {each.name: each.identity for each in file.sites}
    if site.name not in seats:
        raise ArchipelError(
            f"sites: {site.name} is not among them: {', '.join(seats) or 'none'}; put in what "
            f"'archipel average --site {site.home}' prints."
        )
    if seats[site.name] != site.identity.public.hex():
        raise ArchipelError(f"sites: the identity of {site.name} is not that of '{site.home}'.")
    others = sorted(file.values.keys() - {site.name})
    if site.name not in file.values or others:
        whose = f"those of {others[0]} are another's, leave them out" if others else "give them"
        raise ArchipelError(f"values: this file has {site.name}'s own numbers alone; {whose}.")
    file.question.scaled(file.values[site.name], site.name)
    file.question.plan(len(seats))
    terms = terms_of(file, seats) if verifiable else None
    if terms is not None and 3 * len(seats) * peers.longest(terms) > _LETTER:
        raise ArchipelError(
            f"average.names: proofs of {len(file.question.names)} numbers of {len(seats)} sites do "
            "not fit into a letter; ask for fewer numbers."
        )
    return Asked(site, file, tuple(seats), table, f"the coordinator of {site.federation}", terms)


def seat(site: Site) -> Seat:
    """What others need to know of a site."""
    return Seat(site.name, site.identity.public.hex())


async def take_part(
    this: Asked, wait: float, patience: float = PATIENCE, say: Say = lambda _: None
) -> Average:
    """Take part with this site's own numbers, once it is approved."""
    site, file, question = this.site, this.file, this.file.question
    mine, plan = this.parties.index(site.name), question.plan(len(this.parties))

    def before(number: int) -> None:
        if number == PUBLISHED:
            this.charge()

    x = question.scaled(file.values[site.name], site.name)
    box = averaging.member(question, plan, mine, x, os.urandom(32), System(), opens=False)
    found = await _Relayed(this, file.session).run(box, wait, patience, before, say)
    return Average(
        averaging.estimate(question, plan, found), tuple(this.parties[j] for j in found.there)
    )


async def prove(
    this: Asked, bulletin: Path, wait: float, patience: float = PATIENCE, say: Say = lambda _: None
) -> Verdict:
    """Take part with proofs, and write the bulletin that all sites have."""
    site, file, terms = this.site, this.file, this.terms
    assert terms is not None
    assure_new(bulletin)
    board = Board(None)
    box = peers.member(
        Party(site.name, file.values[site.name], site.identity), terms, board,
        file.question.dropouts, lambda phase: this.charge() if phase == "publish" else None,
        opens=False,
    )  # fmt: skip
    try:
        await _Relayed(this, f"{file.session} with proofs").run(box, wait, patience, say=say)
    finally:
        keep(board, bulletin)
    return checked(board.entries, board.lines)


class _Relayed:
    """The sites of one run, as one of them hears them."""

    def __init__(self, this: Asked, session: str) -> None:
        self._site, self._session = this.site, session
        self._others = {j: each for j, each in enumerate(this.parties) if each != this.site.name}
        self._attempts = dict.fromkeys(this.parties, bytes(_ATTEMPT))  # of each; none so far
        self._attempts[this.site.name] = os.urandom(_ATTEMPT)
        self._keys = {each.name: bytes.fromhex(each.identity) for each in this.file.sites}
        self._link = GrpcLink(this.site.address, COORDINATOR, this.site.credentials(), _MOST)

    async def run(
        self,
        box: Generator[bytes, Said, T],
        wait: float,
        patience: float,
        before: Callable[[int], None] = lambda _: None,
        say: Say = lambda _: None,
    ) -> T:
        """Take part to the end, as `converse` has it."""
        try:
            return await converse(box, self._others, self._step, wait, patience, before, say)
        finally:
            await self._link.close()

    async def _step(
        self, step: int, content: bytes, alive: set[int], patience: float
    ) -> dict[int, bytes]:
        """Tell the coordinator, and ask until all that are there were heard."""
        numbers = {self._others[j]: j for j in alive}
        content = b"".join(self._attempts.values()) + content
        signature = self._site.identity.sign(self._statement(self._site.name, step, content))
        heard: dict[int, bytes] = {}
        ends, pause = time.monotonic() + patience, 0.05
        while alive - heard.keys() and (left := ends - time.monotonic()) > 0:
            wanted = [name for name, j in numbers.items() if j not in heard]
            fields = {"study": self._session, "number": step, "wanted": wanted}
            letter = Letter("relay", {**fields, "signature": signature}, [as_array(content)])
            try:
                async with asyncio.timeout(left):
                    answer = await self._link.ask(letter)
            except Refused as no:
                raise ArchipelError(f"the coordinator refuses: {no}") from None
            except (Cut, TimeoutError):
                answer = _SILENCE
            news = self._told(answer, step, wanted)
            heard |= {numbers[name]: told for name, told in news}
            if not news:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 2.0)
        return heard

    def _told(self, answer: Letter, step: int, wanted: list[str]) -> list[tuple[str, bytes]]:
        signatures = answer["signatures"] if answer.kind == "heard" else {}
        if len(signatures) != len(answer.arrays) or not signatures.keys() <= set(wanted):
            raise RunFailed("the coordinator answers with something else than was asked for.")
        found = []
        for name, array in zip(sorted(signatures), answer.arrays, strict=True):
            told = array.numpy().tobytes()
            if not verify(self._keys[name], signatures[name], self._statement(name, step, told)):
                raise RunFailed(
                    f"the coordinator passed on something that {name} did not sign: compare the "
                    f"identity of {name} in your file with it, and tell the coordinator's operator."
                )
            found.append((name, self._of_this_attempt(name, told)))
        return found

    def _of_this_attempt(self, name: str, told: bytes) -> bytes:
        """What a site tells, unless it has heard of other attempts than this one."""
        for i, (each, known) in enumerate(self._attempts.items()):
            theirs = told[i * _ATTEMPT : (i + 1) * _ATTEMPT]
            if each == name and known == bytes(_ATTEMPT):
                self._attempts[name] = theirs
            elif theirs != known and bytes(_ATTEMPT) not in (theirs, known):
                raise BelowQuorum(f"{each} has begun anew meanwhile: run it again with all others.")
        return told[len(self._attempts) * _ATTEMPT :]

    def _statement(self, name: str, step: int, content: bytes) -> bytes:
        head = f"archipel relayed\0{self._session}\0{step}\0{len(name)}\0{name}\0"
        return head.encode() + content
