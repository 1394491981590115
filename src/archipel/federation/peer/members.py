# SPDX-License-Identifier: Apache-2.0
"""Who a peer's fellow members are: the rosters of its studies, and the keys it knows them by."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from archipel.engines.network.grpc import GrpcLink
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation.confirmed import Confirmed
from archipel.federation.peer.known_keys import KnownKeys
from archipel.federation.roster import Member, Roster, Signed, fingerprint
from archipel.federation.site.site import Site
from archipel.store.files import write

_LONG = 30.0  # seconds that a peer waits at most before it asks for the roster again

Say = Callable[[str], None]


class Members:
    """A peer's rosters, and what it thinks of them."""

    def __init__(self, site: Site, confirm: bool) -> None:
        """With `confirm` a key that is new here counts once somebody has confirmed it."""
        self._site, self._confirm = site, confirm
        self._keys = KnownKeys(site.home / "peers.json")

    def begun(self) -> list[str]:
        """Approved studies whose roster is here."""
        approved = self._site.site_studies.approved()
        return [
            each
            for each in approved
            if (self._site.site_studies.folder(each) / "roster.json").exists()
        ]

    def known(self, study: str) -> Roster | None:
        """The roster on the disk, also one that this peer did not accept yet."""
        for name in ("roster.json", "offered.json"):
            path = self._site.site_studies.folder(study) / name
            if path.exists():
                found = Signed.of_json(path.read_bytes()).read(self._site.authority)
                found.check()
                return found
        return None

    async def roster(self, link: GrpcLink, study: str, say: Say = lambda _: None) -> Roster:
        """The study's signed roster: from the disk, or else from the coordinator."""
        folder, pause = self._site.site_studies.folder(study), 1.0
        if (folder / "roster.json").exists():
            found = Signed.of_json((folder / "roster.json").read_bytes())
            return self._accept(found.read(self._site.authority), study, say)
        while True:
            await self._site.may(link, study)
            try:
                answer = await link.ask(Letter("roster", {"study": study}))
            except Cut:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONG)
                continue
            if answer.kind == "peers":
                found = Signed(answer["roster"], answer["signature"])
                roster = found.read(self._site.authority)
                write(folder / "offered.json", found.to_json())
                self._accept(roster, study, say)
                (folder / "offered.json").replace(folder / "roster.json")
                return roster
            if answer.kind != "wait":
                raise Refused(f"a {answer.kind} is no answer to a peer that asks for the roster.")
            await asyncio.sleep(min(max(0.1, answer["seconds"]), _LONG))

    def _accept(self, roster: Roster, study: str, say: Say) -> Roster:
        """Check a roster, and remember whom this peer meets in it."""
        self._check(roster, study)
        others = [each for each in roster.peers if each.name != self._site.name]
        new, confirmed = self._keys.new(others), Confirmed(self._site.home)
        confirmed.check({each.name: each.identity for each in others})
        wanted = new if self._confirm else others if self._site.policy.confirmed else []
        if names := confirmed.lacking({each.name: each.identity for each in wanted}):
            raise ArchipelError(
                f"nobody here has confirmed the key of {', '.join(names)}: see "
                f"'archipel peer roster {study[:12]}', telephone, and say 'archipel peer trust "
                "NAME' for each."
            )
        for each in new:
            self._keys.trust(each.name, each.identity)
            words = fingerprint(each.identity)
            self._site.audit.append("met", peer=each.name, fingerprint=words)
            say(f"meets {each.name} for the first time, fingerprint {words}")
        return roster

    def _check(self, roster: Roster, study: str) -> None:
        """Refuse a roster of another study, or with anything that a member did not sign."""
        name, site_studies = self._site.name, self._site.site_studies
        mine, decision = roster.member(name), site_studies.decision(study)
        if roster.study != study or mine is None or decision is None:
            raise ArchipelError(f"the roster is not one of study {study[:12]} with {name}.")
        if roster.topology != (site_studies.read(study).topology.name or ""):
            raise ArchipelError(
                f"the roster names another graph ('{roster.topology}') than study {study[:12]}: do "
                "not take part, and tell the coordinator's operator."
            )
        number = site_studies.party(study) if site_studies.has_party(study) else mine.party
        right = (number, self._site.identity.public.hex(), dict(decision.facts))
        if (mine.party, mine.identity, dict(mine.facts)) != right:
            raise ArchipelError(
                f"the roster has another number, address, certificate or key for {name} than it "
                "has here: do not take part, and tell the coordinator's operator."
            )
        roster.check()
        if not site_studies.has_party(study):
            site_studies.seated(study, mine.party)

    def standing(self, member: Member, study: str) -> str:
        """Since when this peer knows another, in words."""
        known = self._keys.known().get(member.name)
        if member.name == self._site.name:
            return "this peer"
        if member.name in self.revoked(study):
            return "revoked"
        if known is None:
            return "new"
        since = f"known since {known.since}"
        return since if known.identity == member.identity else f"another key, {since}"

    def offered(self, name: str, anew: bool) -> str | None:
        """The key that a peer has in rosters which wait for somebody to confirm it."""
        known = self._keys.known().get(name)
        if known is not None and not anew:
            raise ArchipelError(
                f"peer = '{name}': known since {known.since}; only if it has joined anew, say "
                "--anew."
            )
        waiting = [each for each in self._site.site_studies.approved() if each not in self.begun()]
        rosters = [found for each in waiting if (found := self.known(each)) is not None]
        keys = {one.identity for each in rosters if (one := each.member(name)) is not None}
        if len(keys) > 1:
            raise ArchipelError(
                f"peer = '{name}': has {len(keys)} keys in rosters here; tell the coordinator's "
                "operator."
            )
        if not keys and known is None:
            raise ArchipelError(
                f"peer = '{name}': no roster that waits here has it; see 'archipel peer roster "
                "STUDY'."
            )
        return keys.pop() if keys else None

    def trust(self, name: str, identity: str | None) -> None:
        """Have a name stand for this key from now on, or for the next that comes."""
        if identity is None:
            self._keys.forget(name)
            Confirmed(self._site.home).forget(name)
            self._site.audit.append("forgotten", peer=name)
            return
        self._keys.trust(name, identity)
        Confirmed(self._site.home).confirm(name, fingerprint(identity))
        self._site.audit.append("trusted", peer=name, fingerprint=fingerprint(identity))

    def revoked(self, study: str) -> frozenset[str]:
        """The members whom this peer goes on without, as the coordinator once told it."""
        path = self._site.site_studies.folder(study) / "revoked.json"
        return frozenset(json.loads(path.read_bytes())) if path.exists() else frozenset()
