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

from archipel.aggregation.roster import SIGNED, Signed
from archipel.data.federation import Federation
from archipel.data.scaling import Scaling, Sums
from archipel.engines.network.grpc import GrpcLink
from archipel.engines.network.letters import Letter
from archipel.engines.network.party_loop import Rescaled
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation import scale
from archipel.federation.site import binding
from archipel.federation.site.policy import SPENT, Overspent, Withheld
from archipel.federation.site.site import Left, Site
from archipel.federation.site.sums import Releases
from archipel.tree import fits

_LOOK = 1.0  # seconds between two looks at what was decided here
_HELLO = 15.0  # seconds between two questions for what is new
_LONG = 60.0  # seconds until a study is looked at again that this site's policy refuses
_AGAIN = 10.0  # seconds until something that failed is tried again
_LINES = 10.0  # seconds between two lines about rounds
_FAR = 1e4  # scaled values of a column are nearer to 0 than this, on the whole
_DECLINED = "declined by the site's own policy"
_HUGE = 1e12  # times a column's own size that its scale may be

Say = Callable[[str], None]


async def up(site: Site, stop: asyncio.Event, say: Say) -> None:
    """Take part in all that was approved, until told to stop or shut out."""
    service = Service(site, say)
    with site.at_work():
        try:
            while not stop.is_set():
                await service.look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await stop.wait()
        finally:
            await service.end()


class Service:
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
        changed = site.site_studies.untold() or site.site_studies.approved() != self._approved
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
        self._approved = site.site_studies.approved()
        self._tasks = {study: task for study, task in self._tasks.items() if not task.done()}
        for study in self._approved:
            decision = site.site_studies.decision(study)
            refused = decision is not None and decision.refused
            state = states.get(study)
            goes_on = state in ("open", "running", "stopped")
            if not refused and (goes_on or (state == "done" and site.site_studies.is_open(study))):
                self.begin(study)
            elif state == "done":
                site.over(study)

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
        site, name = self._site, self._site.site_studies.read(study).name
        try:
            data = await data_of(site, self._link, study)
            self._say(f"{name}: takes part with {int(data.n.sum())} training points")
            rounds = await site.attend(self._link, study, data, _now_and_then(self._say, name))
            self._say(f"{name}: done, {rounds} rounds")
        except Left as left:
            self._say(str(left))
        except Rescaled as anew:
            self._say(f"{name}: {anew}")
        except Withheld as no:
            self._say(f"{name}: {no}")
            spent = isinstance(no, Overspent)
            await site.away(self._link, study, SPENT if spent else _DECLINED, patience=_LONG)
            await asyncio.sleep(_LONG)  # until somebody has changed something
        except ArchipelError as error:
            self._say(f"{name}: {error}")
            why = f"refuses: {_without_values(str(error))}"
            await site.away(self._link, study, SIGNED if isinstance(error, Signed) else why)
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
    described, policy = site.site_studies.read(study), site.policy
    records = binding.records(site.home / "data", described)
    rows = int((~records.is_test).sum())
    policy.check_upload(rows, rows)
    scaling = None
    if described.scaled:
        given = Releases(site.home / "data" / "sums").sums(records, policy)
        scaling = await _shared_scale(site, link, study, given, records.sums())
    return records.federation(scaling, site.name)


async def _shared_scale(site: Site, link: GrpcLink, study: str, given: Sums, own: Sums) -> Scaling:
    """The study's scale: asked for until this site has counted in a round, then the one it has."""
    path = site.site_studies.folder(study) / "scale.safetensors"
    if path.exists() and site.site_studies.has_counted(study):
        return scale.read(path)
    before = scale.name_at(path)
    found = await _scaling(site, link, study, given, own)
    if before is not None and before != scale.digest(found):
        site.rescaled(study)
    scale.keep(path, found)
    return found


async def _scaling(site: Site, link: GrpcLink, study: str, given: Sums, own: Sums) -> Scaling:
    """Ask for the scale; send sums where they are wanted. `own` are this site's, unabridged."""
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
                return _checked(answer, own)
            case "wanted":
                unsigned = Letter("sums", {"study": study}, list(given))
                letter = unsigned.adding(signature=site.sign(unsigned))
            case "wait":
                await asyncio.sleep(min(max(0.1, answer["seconds"]), _AGAIN))
            case kind:
                raise Refused(f"a {kind} is no answer to a site that asks for the scale.")


def _checked(letter: Letter, own: Sums) -> Scaling:
    """The scale in a letter, if it could be one of this site's columns."""
    if not fits(tuple(Scaling(own.totals, own.totals)), letter.arrays):
        raise Refused("the scale has another form than this site's columns.")
    found = Scaling(*letter.arrays)
    if not bool(torch.isfinite(found.mean).all() and (found.scale > 0).all()):
        raise Refused("the scale is none: a mean that is not finite, or a divisor of 0.")
    count = own.counts.clamp(min=1)
    mean = own.totals / count
    spread = (own.squares / count - mean**2).clamp(min=0).sqrt()
    far = torch.maximum((mean - found.mean).abs(), spread) > _FAR * found.scale
    huge = found.scale > _HUGE * torch.maximum(mean.abs(), spread).clamp(min=1)
    if bool(((own.counts > 0) & (far | huge)).any()):
        raise Refused(
            "the scale is none of this site's columns, whose values would be far from 0 or all of "
            "them 0; ask the operator to have it made anew."
        )
    return found
