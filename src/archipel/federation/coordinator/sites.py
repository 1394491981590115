# SPDX-License-Identifier: Apache-2.0
"""The sites of a study under way: who is there, who comes and leaves, and what is waited for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import numpy as np

from archipel.data.shadow import Facts, shadow
from archipel.engines.engine import Cause
from archipel.engines.network.letters import Letter
from archipel.engines.network.presence import Presence
from archipel.engines.network.transport import Refused
from archipel.errors import RunFailed, clean
from archipel.federation.scale import Scale
from archipel.rng import Ints
from archipel.runs.participation import Participation
from archipel.runs.recording import pad
from archipel.runs.run import Run

_WORDS = 80  # characters of what a site says of itself


class Elsewhere(Protocol):
    """What is asked of an engine whose parties are elsewhere."""

    @property
    def presence(self) -> Presence:
        """Who is there."""

    def gone(self, party: int, cause: Cause) -> None:
        """A party will not ask for a while, or ever: nobody waits for it."""

    def knows(self, party: int, n: int, n_test: int) -> None:
        """A party told how much data it has, or 0."""


class Sites:
    """The sites of one study, in the order of their numbers; one that left keeps its number."""

    def __init__(
        self,
        run: Run,
        who: Participation,
        sites: Mapping[str, Facts | None],
        engine: Elsewhere,
        scale: Scale | None,
        silence: float,
    ) -> None:
        """`run.data` is the sites' shadow; None instead of facts is a site that left."""
        self._run, self._who, self._engine, self._silence = run, who, engine, silence
        self.of, self.scale, self.presence = dict(sites), scale, engine.presence
        self.revoked: Callable[[], Mapping[str, str]] = dict  # who was shut out, and why
        self.waiting = ""  # what the study waits for, in words; empty while it goes on
        self._changes: deque[tuple[str, Facts | None]] = deque()  # from the next round on
        self._out: dict[str, str] = {}  # those shut out that were noticed
        self._began = False  # sites have had time to come
        self._since: datetime | None = None  # when the study began to wait
        for party, facts in enumerate(self.of.values()):
            if facts is None:
                self.presence.gone(party, Cause("left"))
            else:
                engine.knows(party, facts.n, facts.n_test)

    @property
    def eligible(self) -> Ints:
        """Numbers of the sites that have not left."""
        data = self._run.data
        return np.flatnonzero(data.n[: data.training].numpy() > 0)

    @property
    def present(self) -> int:
        """How many of them are there."""
        return int(self.presence.here(self.eligible).sum())

    @property
    def spent(self) -> int:
        """How many of them say that their privacy budget is spent."""
        return sum(self.presence.cause(k).why == "spent" for k in self.eligible.tolist())

    @property
    def needed(self) -> int:
        """Uploads that a round needs."""
        return self.policy()[1]

    def policy(self) -> tuple[Participation, int]:
        """The study's policy for the sites there are now, and how many uploads a round needs."""
        sample, quorum, count = self._who.sample, self._who.quorum, len(self.eligible)
        if isinstance(sample, int):
            sample = min(sample, count)
        who = replace(self._who, sample=sample, quorum=0)
        if isinstance(quorum, int):
            return who, quorum
        return who, replace(who, quorum=quorum).needed(count)

    def shown(self, doing: Mapping[int, str]) -> dict[str, str]:
        """What every site does now, by name; `doing` is what those do that a round waits for."""
        found = {}
        for k in range(self._run.data.training):
            here = bool(self.presence.here([k])[0])
            state = doing.get(k, "here") if here else str(self.presence.cause(k))
            found[self._run.data.name(k)] = state
        return found

    # -- sites that come late, and sites that leave ------------------------------------------------

    def change(self, site: str, party: int, facts: Facts | None) -> None:
        """From the next round on, a site takes part; without facts it has left, at once."""
        if facts is not None:
            shadow("", {**self.of, site: facts})  # refuses data of another kind
        else:
            self._engine.gone(party, Cause("left"))
        self._changes.append((site, facts))

    def look(self) -> None:
        """See who was shut out since: it has left the study, and is shown as revoked."""
        out = self.revoked()
        self._out = {site: why for site, why in self._out.items() if site in out}  # or came back
        for party, (site, facts) in enumerate(list(self.of.items())):
            if site in out and site not in self._out:
                self._out[site] = out[site]
                self._engine.gone(party, Cause("revoked", clean(out[site])[:_WORDS]))
                if facts is not None:
                    self._changes.append((site, None))

    def take_in(self) -> None:
        """Take those in who came since the last round, and those out who left."""
        self.look()
        if not self._changes:
            return
        run = self._run
        while self._changes:
            site, facts = self._changes.popleft()
            text = f"{site} {'takes part' if facts is not None else 'left'}"
            if site in self._out and facts is None:
                text = f"{site} was revoked: {self._out[site]}"
            self.of[site] = facts
            if facts is not None:
                party = list(self.of).index(site)
                self._engine.knows(party, facts.n, facts.n_test)
                if run.kept is not None and party not in run.kept.uses:
                    run.kept = None  # what this site plans is not known here
            run.event("left" if facts is None else "joined", text)
        if not any(self.of.values()):
            raise RunFailed(f"round {run.done + 1}: every site has left the study.")
        run.data = shadow(run.data.about.name, self.of)
        pad(run)

    # -- letters that are about the site, and not about a round ------------------------------------

    def answer(self, party: int, letter: Letter) -> Letter:
        """Answer a site that goes away, or one that asks for the scale or sends its sums."""
        if letter.kind == "away":
            self._engine.gone(party, Cause.read(clean(letter["reason"])[:_WORDS]))
            return Letter("thanks")
        self.presence.seen(party)
        if self.scale is None:
            raise Refused("the study needs no scale.")
        known = list(self.of)
        site = known[party] if party < len(known) else ""  # one that comes late
        return self.scale.answer(party, letter, site)

    def seen(self, site: str) -> int | None:
        """Bytes of a site's letter pass, so it is there; its number, if it is of the study."""
        if site not in self.of:
            return None
        party = list(self.of).index(site)
        self.presence.seen(party)
        return party

    # -- waiting -----------------------------------------------------------------------------------

    def find_scale(self) -> None:
        """Have the sites send the sums that the scale is made of, before the first round.

        All that approved are waited for as long as one may be silent, then those of the quorum.
        """
        scale = self.scale
        if scale is None or scale.made is not None:
            return
        until = time.monotonic() + self._silence
        while True:
            self.take_in()
            names = list(self.of)
            asked = [k for k in self.eligible.tolist() if names[k] not in scale.without]
            sent = [k for k in asked if k in scale.sent]
            if not asked:
                raise RunFailed("the scale: no site is left whose sums it could be made of.")
            enough = min(len(asked), max(1, self.needed))
            if len(sent) == len(asked) or (time.monotonic() >= until and len(sent) >= enough):
                break
            self.waits("waits for sums", f"{len(sent)} of {len(asked)} sites have sent theirs")
            self.presence.pause(0.1)
        scale.make(sent)
        self.waits("")
        self._run.event("note", f"features are scaled by sums of {len(sent)} sites")

    def wait_for(self, sites: int) -> None:
        """Give sites that are away some time to come: as long as one may be silent.

        The first time it is all of them that are waited for.
        """
        total = len(self.eligible)
        sites = max(1, sites) if self._began else total
        why = "below quorum" if self._began else "waits for sites"
        self._began, until = True, time.monotonic() + self._silence
        while time.monotonic() < until and (here := self.present) < min(sites, total - self.spent):
            self.waits(why, f"{here} of {total} sites are here, {sites} are needed")
            self.presence.pause(0.1)

    def waits(self, why: str, detail: str = "") -> None:
        """Say what the study waits for; nothing where it goes on."""
        self._since = (self._since or datetime.now(UTC)) if why else None
        self.waiting = f"{why} since {self._since:%Y-%m-%d %H:%M} UTC: {detail}" if why else ""
