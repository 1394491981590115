# SPDX-License-Identifier: Apache-2.0
"""What a site does while it is up: tell what it decided, and take part in what it approved."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress

import torch

from archipel.data.federation import Federation
from archipel.data.scaling import Scaling, Sums
from archipel.engines.network.grpc import GrpcLink
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation import binding, scale
from archipel.federation.site import Left, Site
from archipel.tree import fits

_LOOK = 1.0  # seconds between two looks at what was decided here
_HELLO = 15.0  # seconds between two questions for what is new
_AGAIN = 10.0  # seconds until something that failed is tried again
_LINES = 10.0  # seconds between two lines about rounds
_LEAST = 5  # values that a sum leaving the site is made of

Say = Callable[[str], None]


async def up(site: Site, stop: asyncio.Event, say: Say) -> None:
    """Take part in all that was approved, until told to stop or shut out."""
    duty = Duty(site, say)
    with site.at_work():
        try:
            while not stop.is_set():
                await duty.look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _LOOK)
        finally:
            await duty.end()


class Duty:
    """A site's studies under way."""

    def __init__(self, site: Site, say: Say) -> None:
        self._site, self._say, self._said = site, say, ""
        self._link = site.link()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._next = 0.0  # when to ask the coordinator again
        self._approved: list[str] = []

    async def look(self) -> None:
        """See what was decided here and what is new there, and begin what can begin."""
        site = self._site
        changed = site.shelf.untold() or site.shelf.approved() != self._approved
        if site.paused or not (changed or time.monotonic() >= self._next):
            return
        self._next = time.monotonic() + _HELLO * random.uniform(0.8, 1.2)
        try:
            await self._renew()
            await site.tell(self._link)
            states = await site.studies(self._link)
        except (Cut, Refused) as error:
            self._tell(str(error))
            self._next = time.monotonic() + _AGAIN
            return
        self._tell(f"connected to {site.federation} at {site.address}")
        self._approved = site.shelf.approved()
        self._tasks = {study: task for study, task in self._tasks.items() if not task.done()}
        for study in self._approved:
            decision = site.shelf.decision(study)
            refused = decision is not None and decision.refused
            state = states.get(study)
            goes_on = state in ("open", "running", "stopped")
            if not refused and (goes_on or (state == "done" and site.shelf.is_open(study))):
                self.begin(study)

    def begin(self, study: str) -> None:
        """Take part in a study, unless this is under way."""
        if study not in self._tasks or self._tasks[study].done():
            self._tasks[study] = asyncio.create_task(self._attend(study))

    async def _renew(self) -> None:
        """With a new certificate everything begins again, from the disk, over a new link."""
        if await self._site.renew(self._link):
            await self.end()
            self._link, self._tasks = self._site.link(), {}
            self._say("certificate renewed")

    async def _attend(self, study: str) -> None:
        site, name = self._site, self._site.shelf.read(study).name
        try:
            data = await data_of(site, self._link, study)
            self._say(f"{name}: takes part with {int(data.n.sum())} training points")
            rounds = await site.attend(self._link, study, data, _now_and_then(self._say, name))
            self._say(f"{name}: done, {rounds} rounds")
        except Left as left:
            self._say(str(left))
        except ArchipelError as error:
            self._say(f"{name}: {error}")
            await site.away(self._link, study, f"refuses: {_without_values(str(error))}")
            await asyncio.sleep(_AGAIN)

    def _tell(self, text: str) -> None:
        """Say it, unless it was the last thing that was said of the connection."""
        if text != self._said:
            self._said = text
            self._say(text)

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._link.close()


def _without_values(text: str) -> str:
    """A sentence without numbers and names: it may leave this site, they may not.

    >>> _without_values("'/data/a.csv': 3 rows in column 'age'")
    "'...': ... rows in column '...'"
    """
    return re.sub(r"\d[\d.,]*", "...", re.sub(r"'[^']*'", "'...'", text))


def _now_and_then(say: Say, name: str) -> Say:
    """Say what a study says, but of rounds that follow fast only some."""
    last = -_LINES

    def tell(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if not text.startswith("round ") or now - last >= _LINES:
            last = now
            say(f"{name}: {text}")

    return tell


async def data_of(site: Site, link: GrpcLink, study: str) -> Federation:
    """The site's own table as the study describes it, on the scale that all sites share."""
    described = site.shelf.read(study)
    records = binding.records(site.home / "data", described)
    standardise = described.data.standardise is not False
    scaling = None
    if binding.needs_scale(described):
        path = site.shelf.folder(study) / "scale.safetensors"
        if not path.exists():
            scale.keep(path, await _scaling(site, link, study, _enough(records.sums())))
        scaling = scale.read(path)
    return records.federation(scaling, site.name, standardise)


def _enough(sums: Sums) -> Sums:
    """Refuse sums of so few rows that they would show them."""
    fewest = int(sums.counts.min())
    if fewest < _LEAST:
        raise ArchipelError(
            f"a column has {fewest} values in this site's training rows: sums of fewer than "
            f"{_LEAST} would show single patients, so nothing is sent; add rows."
        )
    return sums


async def _scaling(site: Site, link: GrpcLink, study: str, sums: Sums) -> Scaling:
    """Ask for the scale; send sums where they are wanted."""
    letter, pause = Letter("scale", {"study": study}), 1.0
    while True:
        await site.may(link, study)
        try:
            answer = await link.ask(letter)
        except Cut:
            await asyncio.sleep(pause)
            pause = min(2 * pause, 30)
            continue
        match answer.kind:
            case "scaling":
                return _checked(answer, sums)
            case "wanted":
                unsigned = Letter("sums", {"study": study}, list(sums))
                signature = site.sign(unsigned)
                letter = Letter("sums", {"study": study, "signature": signature}, list(sums))
            case "wait":
                await asyncio.sleep(min(max(0.1, answer["seconds"]), _AGAIN))
            case kind:
                raise Refused(f"a {kind} is no answer to a site that asks for the scale.")


def _checked(letter: Letter, sums: Sums) -> Scaling:
    """The scale in a letter, of as many columns as this site has."""
    if not fits(tuple(Scaling(sums.totals, sums.totals)), letter.arrays):
        raise Refused("the scale has another form than this site's columns.")
    found = Scaling(*letter.arrays)
    if not bool(torch.isfinite(found.mean).all() and (found.scale > 0).all()):
        raise Refused("the scale is none: a mean that is not finite, or a divisor of 0.")
    return found
