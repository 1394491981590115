# SPDX-License-Identifier: Apache-2.0
"""The other sites of a study, by the keys that this site knows them by.

Sums that nobody can look into hold against the coordinator only where it cannot stand for other
sites. Who a study's sites are comes from the coordinator; a site believes it once, and where
somebody has confirmed a key beforehand (`federation/confirmed.py`) not even then. From then on a
number of the study has its name, and a name its key in every study, until an operator who has
telephoned says otherwise (`archipel site keys`). Where a study takes nobody late, no number comes
to those that the site met first. Keys of peers are the same ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archipel.aggregation.others import SUM, Stranger
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation.certificates import verify
from archipel.federation.confirmed import Confirmed, not_confirmed
from archipel.federation.peer.known_keys import KnownKeys
from archipel.federation.roster import fingerprint
from archipel.federation.site.policy import POLICY, Withheld
from archipel.store.files import write

if TYPE_CHECKING:
    from archipel.engines.network.grpc import GrpcLink
    from archipel.federation.site.site import Site

_MOST = 1 << 16  # members of a study


class Member(NamedTuple):
    """A site of a study."""

    name: str
    identity: str  # Ed25519 public key, in hexadecimal


class Acquaintances:
    """What a site knows of the others in one study."""

    def __init__(self, site: Site, study: str) -> None:
        self._site, self._study = site, study
        self._path = site.site_studies.folder(study) / "members.json"
        self._trusted = site.home / "peers.json"
        self._keys, self._confirmed = KnownKeys(self._trusted), Confirmed(site.home)
        self._known: dict[int, bytes] = {}
        self._unconfirmed: dict[int, str] = {}  # whom the policy wants confirmed first
        self._seen: tuple[object, ...] = ()  # the files as they were when they were read last

    def names(self) -> dict[int, str]:
        """Of those that this site has met here, by number."""
        if not self._path.exists():
            return {}
        return {int(k): name for k, name in json.loads(self._path.read_bytes()).items()}

    @property
    def public(self) -> bytes:
        return self._site.identity.public

    def sign(self, what: bytes) -> bytes:
        return self._site.identity.sign(SUM + what)

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        paths = (self._path, self._trusted, self._confirmed.path, self._site.home / POLICY)
        files = tuple(map(_mark, paths))
        if files != self._seen:  # an operator may have decided otherwise meanwhile
            self._look()
            self._seen = files
        if by in self._unconfirmed:
            raise Withheld(not_confirmed([self._unconfirmed[by]]))
        if by not in self._known:
            raise Stranger(f"study {self._study[:12]}: the key of party {by} is not known here.")
        return verify(self._known[by], signature, SUM + what)

    def _look(self) -> None:
        """Read whom this site knows by which key, and whom its policy does not let it know yet."""
        keys = {name: each.identity for name, each in self._keys.known().items()}
        wanted = self._confirmed.lacking(keys) if self._site.policy.confirmed else []
        keys[self._site.name] = self._site.identity.public.hex()
        names = {k: name for k, name in self.names().items() if name in keys}
        self._known = {k: bytes.fromhex(keys[name]) for k, name in names.items()}
        self._unconfirmed = {k: name for k, name in names.items() if name in wanted}

    async def meet(self, link: GrpcLink, say: Callable[[str], None] = lambda _: None) -> None:
        """Ask the coordinator who the others are, and remember those who are new."""
        pause = 1.0
        while True:
            await self._site.may(link, self._study)
            try:
                answer = await link.ask(Letter("members", {"study": self._study}))
                break
            except Cut:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 30.0)
        if answer.kind != "known":
            raise Refused(f"a {answer.kind} is no answer to a site that asks who the others are.")
        self.take(_read(answer["members"]), say)

    def take(self, told: dict[int, Member], say: Callable[[str], None] = lambda _: None) -> None:
        """Remember members that are new; refuse one that has another name or key than it had."""
        site, before, keys = self._site, self.names(), self._keys.known()
        mine = site.site_studies.party(self._study)
        if told.get(mine) != Member(site.name, site.identity.public.hex()):
            raise self._liar(f"has another name or key for party {mine}, which is this site")
        if any(told[k].name != name for k, name in before.items() if k in told):
            raise self._liar("gives a site's number to another one")
        if any(len({each[i] for each in told.values()}) < len(told) for i in (0, 1)):
            raise self._liar("has one name or key for two parties")
        new = [each.name for k, each in told.items() if k not in before]
        if before and new and not site.site_studies.read(self._study).round.late_joiners:
            raise self._liar(
                f"names {', '.join(new)}, whom this site has not met in it, and the study has "
                "late_joiners = false"
            )
        for name, identity in told.values():
            if name in keys and keys[name].identity != identity:
                raise ArchipelError(
                    f"the coordinator has another key for {name} than this site has known since "
                    f"{keys[name].since}: telephone {name}; only if it has joined anew and "
                    f"'archipel site keys' says there '{fingerprint(identity)}', say 'archipel "
                    f"site keys --forget {name}'."
                )
        others = {name: key for name, key in told.values() if name != site.name}
        self._confirmed.check(others)
        if site.policy.confirmed and (lacking := self._confirmed.lacking(others)):
            raise Withheld(not_confirmed(lacking))
        for name, identity in told.values():
            if name != site.name and name not in keys:
                self._keys.trust(name, identity)
                words = fingerprint(identity)
                site.audit.append("met", peer=name, fingerprint=words)
                say(f"meets {name} for the first time, fingerprint {words}")
        names = before | {k: each.name for k, each in told.items()}
        write(self._path, json.dumps({str(k): name for k, name in names.items()}).encode())

    def _liar(self, what: str) -> ArchipelError:
        return ArchipelError(
            f"study {self._study[:12]}: the coordinator {what}: this site takes no part; tell the "
            "other sites."
        )


def _mark(path: Path) -> tuple[int, ...]:
    """What is another once the file was written anew."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(content: bytes) -> dict[int, Member]:
    """Members as they came; refused where that is no list of them."""
    try:
        told = json.loads(content)
        found = {number: Member(name, bytes.fromhex(key).hex()) for number, name, key in told}
        right = (
            isinstance(told, list)
            and len(found) == len(told) <= _MOST
            and all(
                type(number) is int and isinstance(member.name, str) and len(member.identity) == 64
                for number, member in found.items()
            )
        )
    except (ValueError, TypeError):
        right = False
    if not right:
        raise Refused("the members of the study are no list of numbers, names and keys.")
    return found
