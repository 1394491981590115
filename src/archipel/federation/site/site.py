# SPDX-License-Identifier: Apache-2.0
"""A site: its keys, its data, what it agreed to, and its part in the studies it approved.

Everything is in the site's own folder and everything it decides is decided there: pausing, leaving
and the audit log work without the coordinator. The site connects outwards only, and its data is
read by its own process alone. What computes is imported where it is done: a pause works at once.

One file, since whatever a site does is checked against what it agreed to, and goes into its audit
log, here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from archipel.engines.network.letters import VECTORS, Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.anchors import Anchors
from archipel.federation.audit import Anchor, Audit
from archipel.federation.certificates import (
    COORDINATOR,
    RENEW,
    Identity,
    Invitation,
    ends,
    fingerprint,
    new_key,
    pem_of,
    request,
    write_secret,
)
from archipel.federation.peer import port
from archipel.federation.site.policy import Policy
from archipel.federation.site.studies import Decision, SiteStudies
from archipel.store.files import locked, write

if TYPE_CHECKING:
    from archipel.data.federation import Federation
    from archipel.data.shadow import Facts
    from archipel.engines.network.grpc import Credentials, GrpcLink

_RESCALED = 3  # times that a study's scale may be made anew
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


def signed(letter: Letter) -> bytes:
    """What a site signs of an upload or of scores: all of it, so that it fits no other round."""
    parts = [letter.kind]
    parts += [f"{k}={letter.fields[k]!r}" for k in sorted(letter.fields) if k != "signature"]
    arrays = [
        f"{tag} {shape} {digest.hex()}"
        for (tag, shape), digest in zip(letter.forms, letter.digests, strict=True)
    ]
    return "\n".join(["archipel letter", *parts, *arrays]).encode()


class Left(ArchipelError):
    """The site has taken its approval back."""


class Site:
    """A site's folder, and what the site does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        try:
            about = json.loads((home / "site.json").read_text())
            self.name, self.address = str(about["name"]), str(about["address"])
            self.federation = str(about["federation"])
            self.listens = str(about.get("listens", ""))  # where a peer is asked
            self.identity = Identity.read((home / "identity.key").read_bytes())
        except FileNotFoundError:
            raise ArchipelError(
                f"home = '{home}': no site there; join with 'archipel site join TOKEN'."
            ) from None
        self.audit = Audit(home / "audit.jsonl", self.identity)
        self.site_studies = SiteStudies(home / "studies")
        self._fault = ""  # of the coordinator's log, as it was last said
        self.pace: Callable[[], Awaitable[None]] | None = None  # of slow sites, in a rehearsal

    def assure_listens(self) -> None:
        """Refuse what only a peer can do."""
        if not self.listens:
            raise ArchipelError(
                f"home = '{self.home}': a site that listens nowhere; join anew with 'archipel peer "
                "join TOKEN --address HOST:PORT'."
            )

    # -- joining -----------------------------------------------------------------------------------

    @classmethod
    async def join(cls, home: Path, invitation: Invitation, listens: str = "") -> Site:
        """Make keys here, and have the coordinator certify them; a peer listens somewhere."""
        from archipel.engines.network.grpc import GrpcLink

        if (home / "site.json").exists():
            raise ArchipelError(f"home = '{home}': a site has joined from there; name another.")
        if invitation.expires < datetime.now(UTC):
            raise ArchipelError(
                f"the token expired at {invitation.expires:%Y-%m-%d %H:%M} UTC: ask for another."
            )
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)  # also where it was there
        key, identity = new_key(), Identity.create()
        link = GrpcLink(invitation.address, COORDINATOR, invitation.credentials)
        fields = {
            "site": invitation.site,
            "secret": invitation.secret,
            "request": request(key, invitation.site),
            "identity": identity.public,
        }
        try:
            async with asyncio.timeout(30):
                answer = await link.ask(Letter("enrol", fields))
        except (Cut, TimeoutError) as error:
            silent = f"the coordinator at {invitation.address} does not answer; try again later."
            raise ArchipelError(f"not joined: {str(error) or silent}") from None
        finally:
            await link.close()
        if answer["authority"] != invitation.authority:
            raise ArchipelError("the coordinator is not the one that the token names: do not join.")
        write_secret(home / "site.pem", pem_of(key) + answer["certificate"])
        write_secret(home / "identity.key", identity.pem)
        write(home / "authority.pem", answer["authority"])
        if listens:
            port.make(home, invitation.site)
        about = {
            "name": invitation.site,
            "address": invitation.address,
            "federation": invitation.federation,
            "listens": listens,
        }
        write(home / "site.json", json.dumps(about, indent=1).encode())
        site = cls(home)
        words = fingerprint(answer["authority"])
        site.audit.append("joined", federation=invitation.federation, fingerprint=words)
        return site

    def credentials(self) -> Credentials:
        """The site's TLS key and certificate, which lie in one file so that they always fit."""
        from archipel.engines.network.grpc import Credentials

        key, begins, certificate = (self.home / "site.pem").read_bytes().partition(_CERTIFICATE)
        return Credentials(key, begins + certificate, self.authority)

    @property
    def authority(self) -> bytes:
        """The certificate that the federation is."""
        return (self.home / "authority.pem").read_bytes()

    def link(self) -> GrpcLink:
        from archipel.engines.network.grpc import GrpcLink  # a pause talks to nobody

        return GrpcLink(self.address, COORDINATOR, self.credentials())

    async def renew(self, link: GrpcLink) -> bool:
        """Ask for a new certificate where this one ends soon, with a new key."""
        if ends(self.credentials().chain) - datetime.now(UTC) > RENEW:
            return False
        key = new_key()
        answer = await link.ask(Letter("renew", {"request": request(key, self.name)}))
        write_secret(self.home / "site.pem", pem_of(key) + answer["certificate"])
        self.audit.append("renewed")
        return True

    # -- deciding ----------------------------------------------------------------------------------

    async def studies(self, link: GrpcLink) -> dict[str, str]:
        """Hash and state of the studies there are."""
        fields = {"version": version("archipel"), "approved": sorted(self.site_studies.approved())}
        return dict((await link.ask(Letter("hello", fields)))["studies"])

    async def fetch(self, link: GrpcLink, study: str) -> tuple[bytes, list[str]]:
        """The exact bytes of a study, checked against its hash and kept; who approved it so far."""
        answer = await link.ask(Letter("study", {"study": study}))
        text = answer["text"].encode()
        if approval.hash_of(text) != study:
            raise ArchipelError(
                f"study {study[:12]}: the coordinator sent other bytes than its hash says; do not "
                "approve, and tell the coordinator's operator."
            )
        self.site_studies.put(text)
        return text, [name for name in answer["members"].split(", ") if name]

    @property
    def policy(self) -> Policy:
        """This site's own rules, as they are now."""
        return Policy.read(self.home)

    def decide(self, text: bytes, decision: str, facts: Facts | None = None) -> str:
        """Approve, reject or leave these exact bytes: it holds from now on; return their hash.

        `tell` has the coordinator know.
        """
        study = self.site_studies.put(text)
        if decision == "approved":
            approval.read(text)
        told = {} if facts is None else facts.to_json()
        if told and self.listens:
            told |= {"address": self.listens, "certificate": port.certificate(self.home)}
        self._decide(study, Decision(decision, told))
        return study

    def _decide(self, study: str, decision: Decision) -> None:
        self.site_studies.decide(study, decision)
        self.audit.append(decision.decision, study=study)

    async def tell(self, link: GrpcLink) -> None:
        """Tell the coordinator what was decided; a study it refuses to take is not told again."""
        for study in self.site_studies.untold():
            found = self.site_studies.decision(study)
            assert found is not None
            facts = dict(found.facts)
            said = approval.statement(self.name, study, found.decision, facts)
            fields = {
                "study": study,
                "decision": found.decision,
                "facts": facts,
                "signature": self.identity.sign(said),
            }
            try:
                await link.ask(Letter("approve", fields))
            except Refused as no:
                self.site_studies.decide(study, found._replace(told=True, refused=str(no)))
                raise
            self.site_studies.told(study)

    async def place(self, link: GrpcLink, study: str, patient: bool = True) -> int:
        """This site's number in a study that it approved: given once, when the study starts."""
        self.assure_approved(study)
        pause = 1.0
        while not self.site_studies.has_party(study):
            if patient:
                await self.may(link, study)
            try:
                answer = await link.ask(Letter("place", {"study": study}))
            except Cut:
                if not patient:
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, 30)
                continue
            if answer.kind == "seat":
                self.site_studies.seated(study, answer["party"])
            elif answer.kind != "wait":
                raise Refused(f"a {answer.kind} is no answer to a site that asks for its number.")
            elif not patient:
                raise ArchipelError(f"study {study[:12]} has not started: this site has no number.")
            else:
                await asyncio.sleep(min(max(0.1, answer["seconds"]), 10.0))
        return self.site_studies.party(study)

    # -- always, also when nobody answers ----------------------------------------------------------

    @property
    def paused(self) -> bool:
        return (self.home / "paused").exists()

    def pause(self) -> None:
        """Send nothing until `resume`."""
        if not self.paused:
            write(self.home / "paused", b"")
            self.audit.append("paused")

    def resume(self) -> None:
        """End a pause."""
        if self.paused:
            (self.home / "paused").unlink()
            self.audit.append("resumed")

    def leave(self, studies: Sequence[str]) -> None:
        """Take back the approval of studies: nothing of this site leaves for them any more."""
        for study in studies:
            self._decide(study, Decision("withdrawn", {}))

    def assure_approved(self, study: str) -> None:
        """Refuse a study that this site has not agreed to."""
        if not self.site_studies.has_approved(study):
            raise Refused(f"study {study[:12]} is not approved at this site: review it first.")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """One process of a site at a time; the system lets go of it however the process ends."""
        with locked(self.home / "lock") as mine:
            if not mine:
                raise ArchipelError(
                    f"home = '{self.home}': this site is at work in another process; stop that "
                    "first."
                )
            yield

    # -- taking part -------------------------------------------------------------------------------

    def rescaled(self, study: str) -> None:
        """The scale was made anew before this site counted: its open round is of the old one.

        What was computed for that round may have left, so this is allowed a few times only.
        """
        before = sum(each.detail["study"] == study for each in self.audit.entries("rescaled"))
        if before >= _RESCALED:
            raise Refused(f"study {study[:12]}: its scale was made anew {before} times; leave it.")
        self.audit.append("rescaled", study=study)
        self.site_studies.drop_round(study)

    def over(self, study: str) -> None:
        """A study ended in which this site did not take part: it plans nothing any more."""
        took_part = (self.site_studies.folder(study) / "peer").exists()
        if not took_part and not self.site_studies.is_over(study):
            self.site_studies.end(study, 0)
            self.audit.append("done", study=study, rounds=0)

    def sign(self, letter: Letter) -> bytes:
        """Write down that a letter leaves, how many numbers it has and its digest, and sign it."""
        said = signed(letter)
        size = sum(array.numel() * array.element_size() for array in letter.arrays)
        maps = [value for value in letter.fields.values() if isinstance(value, dict)]
        numbers = sum(array.numel() for array in letter.arrays) + sum(map(len, maps))
        detail = {"kind": letter.kind, "study": letter["study"], "bytes": size}
        detail |= {"numbers": numbers, "digest": sha256(said).hexdigest()}
        if "round" in letter.fields:
            detail["round"] = int(letter["round"]) + (letter.kind in VECTORS)
        self.audit.append("sent", **detail)
        return self.identity.sign(said)

    def exchange(self, theirs: str | None, say: Callable[[str], None]) -> str:
        """Keep the anchor of the coordinator's log, and return that of this site's."""
        if theirs is not None:
            kept = Anchors(self.home / "anchors.json")
            if fault := kept.hear(COORDINATOR, Anchor.read(theirs)):
                if fault != self._fault:
                    say(f"{fault}: tell the coordinator's operator, and keep anchors.json")
                    self.audit.append("anchor", of=COORDINATOR, fault=fault, anchor=theirs)
                self._fault = fault
            else:
                kept.save()
        return self.audit.head.text

    async def away(self, link: GrpcLink, study: str, why: str, patience: float = 10.0) -> None:
        """Have the coordinator know that this site does not work now, if it can be told.

        It cannot be told of a study that has not begun; it is told again for so many seconds.
        """
        letter = Letter("away", {"study": study, "reason": why[:80]})
        with suppress(ArchipelError, TimeoutError):
            async with asyncio.timeout(patience):
                while (await link.ask(letter)).kind == "wait":
                    await asyncio.sleep(0.1)

    async def may(self, link: GrpcLink, study: str) -> None:
        """Return when something may leave for a study: not in a pause, and never without approval.

        The coordinator is told of a pause, if it can be.
        """
        if self.paused:
            await self.away(link, study, "paused")
        while self.paused:
            await asyncio.sleep(0.5)
        if not self.site_studies.has_approved(study):
            raise Left(f"study {study[:12]}: this site has left it.")

    def tells_counts(self, study: str) -> bool:
        """Whether numbers of rows leave for a study: they did on approval, and still may."""
        decision = self.site_studies.decision(study)
        return self.policy.tells_counts and decision is not None and decision.facts.get("n", 0) > 0

    async def attend(
        self,
        link: GrpcLink,
        study: str,
        data: Federation,
        say: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Take part in an approved study until it is done; return its rounds."""
        from safetensors.torch import save

        from archipel.engines.network.party_loop import PartyLoop
        from archipel.federation import scale
        from archipel.federation.site.acquaintances import Acquaintances
        from archipel.federation.site.part import party_state_at

        await self.place(link, study)
        self.site_studies.goes_on(study)  # what it plans is reserved anew, after all others
        party_state, path = party_state_at(self, study, data)

        def keep() -> None:
            write(path, save(party_state.state()))

        attendance = PartyLoop(
            party_state, link, study, sign=self.sign, keep=keep, say=say, pace=self.pace,
            may=lambda: self.may(link, study), counts=self.tells_counts(study),
            scale=scale.name_at(path.with_name("scale.safetensors")),
            log=lambda theirs: self.exchange(theirs, say),
            meet=lambda: Acquaintances(self, study).meet(link, say),
        )  # fmt: skip
        rounds = await attendance.run()
        self.site_studies.end(study, rounds)
        self.audit.append("done", study=study, rounds=rounds)
        return rounds
