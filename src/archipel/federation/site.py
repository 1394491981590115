# SPDX-License-Identifier: Apache-2.0
"""A site: its keys, its data, what it agreed to, and its part in the studies it approved.

Everything is in the site's own folder and everything it decides is decided there: pausing, leaving
and the audit log work without the coordinator. The site connects outwards only, and its data is
read by its own process alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import safetensors.torch

from archipel.data.federation import Federation
from archipel.engines.network.attend import Attendance
from archipel.engines.network.grpc import Credentials, GrpcLink
from archipel.engines.network.letters import Letter, digest
from archipel.engines.network.seat import Seat, anatomy_of
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.audit import Audit
from archipel.federation.authority import (
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
from archipel.federation.sitting import Facts
from archipel.store.files import write


def signed(letter: Letter) -> bytes:
    """What a site signs of an upload or of scores: all of it, so that it fits no other round."""
    parts = [letter.kind]
    parts += [f"{k}={letter.fields[k]!r}" for k in sorted(letter.fields) if k != "signature"]
    arrays = [digest(a.contiguous().reshape(-1).numpy().data).hex() for a in letter.arrays]
    return "\n".join(["archipel letter", *parts, *arrays]).encode()


class Site:
    """A site's folder, and what the site does."""

    def __init__(self, home: Path) -> None:
        self.home = home
        try:
            about = json.loads((home / "site.json").read_text())
            self.name, self.address = str(about["name"]), str(about["address"])
            self.federation = str(about["federation"])
            self.identity = Identity.read((home / "identity.key").read_bytes())
        except FileNotFoundError:
            raise ArchipelError(
                f"home = '{home}': no site there; join with 'archipel site join TOKEN'."
            ) from None
        self.audit = Audit(home / "audit.jsonl", self.identity)

    # -- joining -----------------------------------------------------------------------------------

    @classmethod
    async def join(cls, home: Path, invitation: Invitation) -> Site:
        """Make keys here, and have the coordinator certify them."""
        if (home / "site.json").exists():
            raise ArchipelError(f"home = '{home}': a site has joined from there; name another.")
        if invitation.expires < datetime.now(UTC):
            raise ArchipelError(
                f"the token expired at {invitation.expires:%Y-%m-%d %H:%M} UTC: ask for another."
            )
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        key, identity = new_key(), Identity.create()
        link = GrpcLink(invitation.address, COORDINATOR, invitation.credentials)
        fields = {
            "site": invitation.site,
            "secret": invitation.secret,
            "request": request(key, invitation.site),
            "identity": identity.public,
        }
        try:
            answer = await asyncio.wait_for(link.ask(Letter("enrol", fields)), 30)
        except (Cut, TimeoutError) as error:
            raise ArchipelError(
                f"no coordinator at {invitation.address} ({error or 'no answer'}): is it up, and "
                "may this machine reach it?"
            ) from None
        finally:
            await link.close()
        if answer["authority"] != invitation.authority:
            raise ArchipelError("the coordinator is not the one that the token names: do not join.")
        write_secret(home / "site.key", pem_of(key))
        write_secret(home / "identity.key", identity.pem)
        write(home / "site.pem", answer["certificate"])
        write(home / "authority.pem", answer["authority"])
        about = {
            "name": invitation.site,
            "address": invitation.address,
            "federation": invitation.federation,
        }
        write(home / "site.json", json.dumps(about, indent=1).encode())
        site = cls(home)
        words = fingerprint(answer["authority"])
        site.audit.append("joined", federation=invitation.federation, fingerprint=words)
        return site

    def link(self) -> GrpcLink:
        home = self.home
        files = [(home / name).read_bytes() for name in ("site.key", "site.pem", "authority.pem")]
        return GrpcLink(self.address, COORDINATOR, Credentials(*files))

    async def renew(self, link: GrpcLink) -> bool:
        """Ask for a new certificate where this one ends soon, with a new key."""
        if ends((self.home / "site.pem").read_bytes()) - datetime.now(UTC) > RENEW:
            return False
        key = new_key()
        answer = await link.ask(Letter("renew", {"request": request(key, self.name)}))
        write_secret(self.home / "site.key", pem_of(key))
        write(self.home / "site.pem", answer["certificate"])
        self.audit.append("renewed")
        return True

    # -- deciding ----------------------------------------------------------------------------------

    async def studies(self, link: GrpcLink) -> dict[str, str]:
        """Hash and state of the studies there are."""
        fields = {"version": version("archipel"), "approved": sorted(self.approved())}
        return dict((await link.ask(Letter("hello", fields)))["studies"])

    async def fetch(self, link: GrpcLink, study: str) -> tuple[bytes, list[str]]:
        """The exact bytes of a study, checked against its hash, and who approved it so far."""
        answer = await link.ask(Letter("study", {"study": study}))
        text = answer["text"].encode()
        if approval.hash_of(text) != study:
            raise ArchipelError(
                f"study {study[:12]}: the coordinator sent other bytes than its hash says; do not "
                "approve, and tell the coordinator's operator."
            )
        members = [name for name in answer["members"].split(", ") if name]
        return text, members

    def review(self, text: bytes, data: Federation, members: list[str]) -> str:
        """What approving would mean."""
        study = approval.read(text)
        model = study.build_model(data)
        anatomy = anatomy_of(study.algorithm_object, data, model, 0, study.study.seed)
        before = [
            (self._folder(digest) / "study.toml").read_bytes()
            for digest in self.approved()
            if digest != approval.hash_of(text)
        ]
        last = next((old for old in before if approval.read(old).name == study.name), None)
        return approval.review(study, approval.hash_of(text), anatomy, members, last, text)

    async def decide(
        self, link: GrpcLink, text: bytes, decision: str, data: Federation | None, counts: bool
    ) -> None:
        """Approve or reject these exact bytes, here first and then at the coordinator."""
        study = approval.hash_of(text)
        folder = self._folder(study)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "study.toml", text)
        write(folder / "decision", decision.encode())
        self.audit.append(decision, study=study)
        facts = {} if data is None else Facts.of(data, counts).to_json()
        fields = {
            "study": study,
            "decision": decision,
            "facts": facts,
            "signature": self.identity.sign(approval.statement(study, decision)),
        }
        answer = await link.ask(Letter("approve", fields))
        if answer.kind == "seat":
            write(folder / "party", str(answer["party"]).encode())

    def approved(self) -> list[str]:
        """Hashes of the studies that this site agreed to."""
        found = (self.home / "studies").glob("*/decision")
        return [path.parent.name for path in found if path.read_bytes() == b"approved"]

    async def personalise(self, study: str, data: Federation) -> dict[str, float]:
        """Get the model of a finished study, this site's own where the algorithm makes one.

        It is written beside the approval; returns its metrics on this site's test points.
        """
        seat, path = self._seat(study, data)
        link = self.link()
        try:
            w, rounds = await Attendance(seat, link, study).model()
        finally:
            await link.close()
        module = seat.model.to_module(w, seat.own.buffers)
        tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
        write(path.with_name("model.safetensors"), safetensors.torch.save(tensors))
        self.audit.append("personalised", study=study, rounds=rounds)
        return seat.score(w, rounds, own=seat.has_personal)

    def _seat(self, study: str, data: Federation) -> tuple[Seat, Path]:
        """This site's seat in a study that it approved, as it was left, and where that lies."""
        if study not in self.approved():
            raise Refused(f"study {study[:12]} is not approved at this site: review it first.")
        folder = self._folder(study)
        described = approval.read((folder / "study.toml").read_bytes())
        model = described.build_model(data)
        party = int((folder / "party").read_text())
        seat = Seat(described.algorithm_object, data, model, party=party, seed=described.study.seed)
        path = folder / "state.safetensors"
        if path.exists():
            seat.restore(safetensors.torch.load_file(path))
        return seat, path

    def _lock(self) -> int:
        """One process of a site at a time; the system lets go of it however the process ends."""
        handle = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ArchipelError(
                f"home = '{self.home}': this site is at work in another process; stop that first."
            ) from None
        return handle

    def _folder(self, study: str) -> Path:
        return self.home / "studies" / study

    # -- taking part -------------------------------------------------------------------------------

    async def attend(
        self,
        study: str,
        data: Federation,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Take part in an approved study until it is done; return its rounds."""
        seat, path = self._seat(study, data)

        def keep() -> None:
            write(path, safetensors.torch.save(seat.state()))

        def sign(letter: Letter) -> bytes:
            size = sum(array.numel() * array.element_size() for array in letter.arrays)
            self.audit.append(
                "sent", kind=letter.kind, study=study, round=int(letter["round"]) + 1, bytes=size
            )
            return self.identity.sign(signed(letter))

        link, lock = self.link(), self._lock()
        try:
            attendance = Attendance(seat, link, study, sign=sign, keep=keep, say=say)
            rounds = await attendance.run()
        finally:
            await link.close()
            os.close(lock)
        self.audit.append("done", study=study, rounds=rounds)
        return rounds
