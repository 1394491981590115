# SPDX-License-Identifier: Apache-2.0
"""What the coordinator's log says of studies under way: a line where something changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from archipel.engines.network.letters import Letter
from archipel.errors import clean
from archipel.federation.coordinator.peer_study import PeerStudy
from archipel.federation.coordinator.server_study import ServerStudy
from archipel.federation.coordinator.status import waiting

_GRACE = 5.0  # seconds that a study waits before this is said
_QUIET = 10.0  # seconds between two lines about a site that goes away


class Notices:
    """Remembers what was said, so that nothing is said twice."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._revoked: set[str] | None = None  # sites; None before the first look
        self._waits: dict[str, float] = {}  # study -> since when it waits for sites
        self._said: set[str] = set()  # studies of which it was said
        self._away: dict[tuple[str, str], tuple[str, float]] = {}  # study, site -> why, said when
        self._missed: dict[str, str] = {}  # study -> who missed its last round, and why

    def revoked(self, sites: set[str]) -> None:
        """These sites are revoked now."""
        before = sites if self._revoked is None else self._revoked
        for site in sorted(sites - before):
            self._say(f"{site} was revoked")
        self._revoked = sites

    def waiting(self, server_studies: Mapping[str, ServerStudy | PeerStudy]) -> None:
        """Say which studies have begun to wait for sites; `round` says when they go on."""
        for digest, server_study in server_studies.items():
            words, now, run = waiting(server_study), time.monotonic(), server_study.run
            if not words:
                self._waits.pop(digest, None)
                continue
            waits = now - self._waits.setdefault(digest, now)
            if waits >= _GRACE and digest not in self._said:
                self._said.add(digest)
                self._say(f"{run.data.about.name}: waits in round {run.done + 1}: {words}")

    def round(self, digest: str, run: Any, t: int, missing: str) -> None:
        """Round t is done, without these."""
        name = run.data.about.name
        if run.participation[t].counted and digest in self._said:
            self._said.discard(digest)
            self._say(f"{name}: goes on, round {t + 1} is done")
        if missing != self._missed.get(digest, ""):
            who = f"without {missing}" if missing else "all"
            self._say(f"{name}: from round {t + 1} on: {who}")
        self._missed[digest] = missing

    def letter(self, server_study: ServerStudy | PeerStudy, site: str, letter: Letter) -> None:
        """Say that a site pauses or refuses, and that it is back; not each time of many."""
        name = server_study.run.data.about.name
        who, now = (name, site), time.monotonic()
        before, since = self._away.get(who, ("", -_QUIET))
        why = clean(letter["reason"])[:80] if letter.kind == "away" else ""
        if why == before or (why and now - since < _QUIET):
            return
        self._away[who] = (why, now if why else since)
        self._say(f"{name}: {site} is away: {why}" if why else f"{name}: {site} is back")
