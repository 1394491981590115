# SPDX-License-Identifier: Apache-2.0
"""A peer: a site that other peers ask, too, and that needs no coordinator once a study runs.

It joins, reviews and approves as a site does. Of the coordinator it gets the signed roster, once,
and tells it from time to time how far it is, if the coordinator can be reached. Vectors go from
peer to peer, over mutual TLS in both directions, each signed by the peer that made it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from archipel.data.federation import Federation
from archipel.engines.network.contacts import SILENCE, Words
from archipel.engines.network.grpc import Caller, GrpcLink, GrpcServer
from archipel.engines.network.letters import Letter
from archipel.engines.network.peers import Peer, Report
from archipel.engines.network.seat import Seat
from archipel.engines.network.transport import SMALL, Cut, Refused
from archipel.errors import ArchipelError
from archipel.exchange import is_peer
from archipel.federation.authority import Invitation, verify
from archipel.federation.duty import Duty
from archipel.federation.roster import Roster, Signed, check_address
from archipel.federation.site import Left, Site, signed
from archipel.graphs import topology
from archipel.run import plain
from archipel.store.files import write
from archipel.tree import first, nbytes


class Files:
    """A peer's part in a study on its disk: a file for each name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        copies = {key: tensor.detach().clone() for key, tensor in tensors.items()}
        write(self._folder / f"{name}.safetensors", safetensors.torch.save(copies))

    def kept(self) -> dict[str, dict[str, Tensor]]:
        found = self._folder.glob("[!.]*.safetensors")
        return {path.stem: safetensors.torch.load(path.read_bytes()) for path in found}

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            (self._folder / f"{name}.safetensors").unlink(missing_ok=True)


class Lane:
    """A way to another peer, closed in a pause."""

    def __init__(self, link: GrpcLink, site: Site) -> None:
        self._link, self._site, self.most, self.pieces = link, site, link.most, 0

    async def ask(self, letter: Letter) -> Letter:
        if self._site.paused:
            raise Cut("this peer is paused.")
        return await self._link.ask(letter)

    async def close(self) -> None:
        await self._link.close()


class PeerSite(Site):
    """A site's folder, for a site that is asked as well."""

    def __init__(self, home: Path, silence: float = SILENCE, stays: bool = False) -> None:
        super().__init__(home)
        if not self.listens:
            raise ArchipelError(
                f"home = '{home}': a site that listens nowhere; join anew with 'archipel peer "
                "join TOKEN --address HOST:PORT'."
            )
        self._silence, self._stays = silence, stays
        self._serving: dict[str, tuple[Peer, Roster]] = {}

    @classmethod
    async def join_as_peer(cls, home: Path, invitation: Invitation, address: str) -> PeerSite:
        await Site.join(home, invitation, check_address(address))
        return cls(home)

    @property
    def certificate(self) -> bytes:
        return self.credentials().chain

    # -- being asked -------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self, address: str | None = None) -> AsyncIterator[int]:
        """Answer other peers; by default on the port that they were told, on every network."""
        server = GrpcServer(self._answer, self._admit, self._most)
        where = address or f"[::]:{self.listens.rpartition(':')[2]}"
        port = await server.start(where, self.credentials())
        self.audit.append("up", port=port)
        try:
            yield port
        finally:
            await server.stop(0.2)
            self.audit.append("down")

    def _admit(self, caller: Caller) -> str:
        if self.paused:
            raise ArchipelError(f"{self.name} is paused")
        if self._serving and not any(r.member(caller.name) for _, r in self._serving.values()):
            raise ArchipelError(f"{caller.name} is in no study with {self.name}")
        return caller.name

    def _most(self, name: str) -> int:
        return SMALL + max((peer.most for peer, _ in self._serving.values()), default=0)

    async def _answer(self, sender: str, letter: Letter) -> Letter:
        if "study" not in letter.fields:
            raise Refused(f"a {letter.kind} is nothing that a peer sends.")
        if letter["study"] not in self._serving:
            raise Cut("not yet.")  # it will be asked again
        peer, roster = self._serving[letter["study"]]
        member = roster.member(sender)
        if member is None or not self.shelf.has_approved(roster.study):
            raise Refused(f"{sender} and {self.name} are not both in this study.")
        return await peer.answer(member.party, letter)

    # -- taking part -------------------------------------------------------------------------------

    def begun(self) -> list[str]:
        """Approved studies whose roster is here."""
        approved = self.shelf.approved()
        return [each for each in approved if (self.shelf.folder(each) / "roster.json").exists()]

    async def roster(self, link: GrpcLink, study: str) -> Roster:
        """The study's signed roster: from the disk, or else from the coordinator."""
        path = self.shelf.folder(study) / "roster.json"
        authority = (self.home / "authority.pem").read_bytes()
        if path.exists():
            found = Signed.of_json(path.read_bytes())
            return self._checked(found.read(authority), study)
        pause = 1.0
        while True:
            await self.may(link, study)
            try:
                answer = await link.ask(Letter("roster", {"study": study}))
            except Cut:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 30)
                continue
            if answer.kind == "peers":
                found = Signed(answer["roster"], answer["signature"])
                roster = self._checked(found.read(authority), study)
                write(path, found.to_json())
                return roster
            await asyncio.sleep(answer["seconds"])

    def _checked(self, roster: Roster, study: str) -> Roster:
        mine = roster.member(self.name)
        right = (self.shelf.party(study), self.listens, self.identity.public.hex())
        if roster.study != study or mine is None:
            raise ArchipelError(f"the roster is not one of study {study[:12]} with {self.name}.")
        if roster.topology != (self.shelf.read(study).topology.name or ""):
            raise ArchipelError(
                f"the roster names another graph ('{roster.topology}') than study {study[:12]}: do "
                "not take part, and tell the coordinator's operator."
            )
        if (mine.party, mine.address, mine.identity) != right:
            raise ArchipelError(
                f"the roster has another number, address or key for {self.name} than it has here: "
                "do not take part, and tell the coordinator's operator."
            )
        return roster

    async def attend(
        self,
        link: GrpcLink,
        study: str,
        data: Federation,
        say: Callable[[str], None] = lambda _: None,
    ) -> int:
        """Take part in an approved study until its rounds are done; return them.

        A peer that stays answers others that come back later, until it is stopped.
        """
        described = self.shelf.read(study)
        if not is_peer(described.algorithm_object):
            raise ArchipelError(
                f"study {described.name}: {described.algorithm.name} has a server; take part with "
                "'archipel site up'."
            )
        roster, folder = await self.roster(link, study), self.shelf.folder(study)
        seat, path = self._seat(study, data)
        lanes, about = self._lanes(roster, seat), described.study
        log = Log(folder / "rounds.jsonl")

        def report(told: Report) -> None:
            log.add(told)
            say(_said(told, roster))

        peer = Peer(
            seat,
            topology(roster.topology, roster.parties, about.seed),
            lanes,
            Words(study, about.rounds, self.sign, _checking(roster)),
            Files(folder / "peer"),
            asynchronous=described.topology.asynchronous,
            evaluate_every=about.evaluate_every,
            silence=self._silence,
            report=report,
            counts=self.policy.counts,
        )
        self._serving[study] = peer, roster
        telling = asyncio.create_task(self._telling(link, study, seat, log))
        running = asyncio.create_task(peer.run())
        try:
            while not running.done():
                await asyncio.wait([running], timeout=1.0)
                if not self.shelf.has_approved(study):
                    raise Left(f"study {study[:12]}: this peer has left it.")
                if peer.is_alone and await self._is_over(link, study):
                    peer.contacts.leave()
            with suppress(Cut):  # the others ended without it: its model is what it has
                await running
            module = seat.model.to_module(first(seat.own.state), seat.own.buffers)
            tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
            write(path.with_name("model.safetensors"), safetensors.torch.save(tensors))
            self.audit.append("done", study=study, rounds=peer.round)
            if self._stays:
                say(f"done, after round {peer.round}; answers others that come back")
                await asyncio.Event().wait()
            with suppress(TimeoutError):  # the coordinator may be down
                await asyncio.wait_for(log.all_told(), self._silence)
        finally:
            for task in (running, telling):
                task.cancel()
            await asyncio.gather(running, telling, return_exceptions=True)
            for lane in lanes.values():
                await lane.close()
        return peer.round

    async def _is_over(self, link: GrpcLink, study: str) -> bool:
        """Whether the coordinator says that the study was done while this peer was away."""
        try:
            states = await asyncio.wait_for(self.studies(link), 10)
        except (ArchipelError, TimeoutError):
            return False
        return states.get(study) == "done"

    def _lanes(self, roster: Roster, seat: Seat) -> dict[int, Lane]:
        credentials, most = self.credentials(), SMALL + seat.most + nbytes(tuple(seat.mixed))
        return {
            member.party: Lane(GrpcLink(member.address, member.name, credentials, most), self)
            for member in roster.peers
            if member.name != self.name
        }

    async def _telling(self, link: GrpcLink, study: str, seat: Seat, log: Log) -> None:
        """Tell the coordinator what became of each round, whenever it can be reached."""
        decision = self.shelf.decision(study)
        agreed = decision is not None and decision.facts["n"] > 0 and self.policy.counts
        points = int(seat.data.n_test[seat.party]) if agreed else 0
        while True:
            fields = {"study": study, "points": points, **await log.untold()}
            letter = Letter("told", fields)
            letter = Letter("told", {**fields, "signature": self.sign(letter)})
            while True:
                await self.may(link, study)
                try:
                    answer = await asyncio.wait_for(link.ask(letter), 60)
                    if answer.kind == "thanks":
                        break
                except Refused:
                    break
                except (Cut, TimeoutError):
                    pass
                await asyncio.sleep(1.0)
            log.told()


class Log:
    """What became of a peer's rounds, a line each, and how many lines the coordinator knows."""

    def __init__(self, path: Path) -> None:
        self._path, self._cursor = path, path.with_name("told")
        *self._lines, cut = (path.read_text() if path.exists() else "").split("\n")
        if cut:  # the process was killed while it wrote
            write(path, "".join(f"{line}\n" for line in self._lines).encode())
        told = self._cursor.read_text() if self._cursor.exists() else ""
        self._told = min(int(told) if told.isdigit() else 0, len(self._lines))
        self._moved = asyncio.Event()

    def add(self, report: Report) -> None:
        line = json.dumps(plain({**report._asdict(), "missing": dict(report.missing)}))
        with self._path.open("a") as file:
            file.write(line + "\n")
        self._lines.append(line)
        self._moved.set()

    async def untold(self) -> dict[str, Any]:
        """The first line that the coordinator does not know."""
        while self._told >= len(self._lines):
            self._moved.clear()
            await self._moved.wait()
        found: dict[str, Any] = json.loads(self._lines[self._told])
        return found

    def told(self) -> None:
        self._told += 1
        self._cursor.write_text(str(self._told))
        self._moved.set()

    async def all_told(self) -> None:
        while self._told < len(self._lines):
            self._moved.clear()
            await self._moved.wait()


def _checking(roster: Roster) -> Callable[[int, Letter], None]:
    members = {member.party: member for member in roster.peers}

    def check(j: int, letter: Letter) -> None:
        identity = bytes.fromhex(members[j].identity)
        if not verify(identity, letter["signature"], signed(letter)):
            raise Refused(f"the {letter.kind} is not signed by {members[j].name}.")

    return check


def _said(report: Report, roster: Roster) -> str:
    names = {member.party: member.name for member in roster.peers}
    text = f"round {report.round}"
    if report.metrics:
        text += ", " + ", ".join(f"{k} {v:.3g}" for k, v in report.metrics.items())
    if report.missing:
        text += "; without " + ", ".join(f"{names[j]}: {w}" for j, w in report.missing.items())
    return text


async def up(
    site: PeerSite, stop: asyncio.Event, say: Callable[[str], None], listen: str | None = None
) -> None:
    """Take part in all that was approved, and answer other peers, until told to stop.

    Studies whose roster is here go on whether the coordinator answers or not.
    """
    duty = Duty(site, say)
    with site.at_work():
        try:
            while not stop.is_set():  # with a renewed certificate it listens anew
                certificate = site.certificate
                async with site.listening(listen) as port:
                    say(f"listens on port {port}, as {site.listens}")
                    while not stop.is_set() and site.certificate == certificate:
                        for study in site.begun():
                            duty.begin(study)
                        await duty.look()
                        with suppress(TimeoutError):
                            await asyncio.wait_for(stop.wait(), 1.0)
        finally:
            await duty.end()
