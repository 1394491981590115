# SPDX-License-Identifier: Apache-2.0
"""A peer: a site that other peers ask, too, and that needs no coordinator once a study runs.

It joins, reviews and approves as a site does. Of the coordinator it gets the signed roster, once,
tells it from time to time how far it is, and asks it who was revoked, if it can be reached. Where
the others are it hears from them (`finding.py`). Vectors go from peer to peer, each signed by the
peer that made it, over mutual TLS in both directions with certificates that the peers made
themselves: the coordinator can stand for nobody.

One file, since a peer is one process whose parts end together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import safetensors.torch

from archipel.data.federation import Federation
from archipel.engines.network.company import PAUSE, most_edges
from archipel.engines.network.grpc import Caller, GrpcLink, GrpcServer
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import SILENCE, Words, beat_every
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.peers import Peer, Report
from archipel.engines.network.transport import SMALL, Cut, Link, Refused
from archipel.errors import ArchipelError
from archipel.exchange.boxes import is_peer
from archipel.federation import bundles
from archipel.federation.certificates import Invitation, verify
from archipel.federation.peer import port
from archipel.federation.peer.finding import Finding
from archipel.federation.peer.lane import Lane
from archipel.federation.peer.members import Members
from archipel.federation.peer.record import Files, Log
from archipel.federation.roster import Member, Roster, Signed, check_address
from archipel.federation.site.part import party_state_at
from archipel.federation.site.service import Service
from archipel.federation.site.site import Left, Site, signed
from archipel.graphs import topology
from archipel.store.files import write
from archipel.tree import nbytes

_TRIES = 50  # to open a port that was just closed
LOOK = 30.0  # seconds between two questions for who was revoked


class Serving(NamedTuple):
    """A study that a peer is in."""

    peer: Peer
    roster: Roster
    finding: Finding


class PeerSite(Site):
    """A site's folder, for a site that is asked as well."""

    def __init__(
        self, home: Path, silence: float = SILENCE, stays: bool = False, confirm: bool = False
    ) -> None:
        """With `confirm` a peer's key that is new here counts once somebody has confirmed it."""
        super().__init__(home)
        self.assure_listens()
        self._silence, self._stays = silence, stays
        self._serving: dict[str, Serving] = {}
        self._server = GrpcServer(self._answer, self._admit, self._most)
        self._where, self._turn = "", asyncio.Lock()  # where it listens now
        self.trusted: frozenset[str] = frozenset()  # certificates of fellow members
        self.members = Members(self, confirm)

    @classmethod
    async def join_as_peer(cls, home: Path, invitation: Invitation, address: str) -> PeerSite:
        await Site.join(home, invitation, check_address(address))
        return cls(home)

    def moves(self, address: str) -> None:
        """Have other peers reach this one at another address from now on; they find out."""
        if check_address(address) != self.listens:
            self.listens = address
            about = json.loads((self.home / "site.json").read_text())
            write(
                self.home / "site.json",
                json.dumps({**about, "listens": address}, indent=1).encode(),
            )
            self.audit.append("moved", address=address)

    # -- being asked -------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self, address: str | None = None) -> AsyncIterator[int]:
        """Answer other peers; by default on the port that they were told, on every network."""
        where = address or f"[::]:{self.listens.rpartition(':')[2]}"
        self.trusted = frozenset(each.certificate for each in self._members())
        number = await self._server.start(where, port.credentials(self.home, self.trusted))
        self._where = f"{where.rpartition(':')[0]}:{number}"
        self.audit.append("up", port=number)
        try:
            yield number
        finally:
            self._where = ""
            await self._server.stop(0.2)
            self.audit.append("down")

    async def _listen_anew(self) -> None:
        """Trust those alone who are fellow members now; a port's trust is fixed while it is open.

        gRPC can change it for an open port (dynamic credentials), and crashes when two handshakes
        come at that moment.
        """
        async with self._turn:
            trusted = frozenset(each.certificate for each in self._members())
            if not self._where or trusted == self.trusted:
                return
            await self._server.stop(0.2)  # who was talking asks again
            for left in reversed(range(_TRIES)):
                try:
                    await self._server.start(self._where, port.credentials(self.home, trusted))
                    break
                except ArchipelError:  # the port is not free yet
                    if not left:
                        raise
                    await asyncio.sleep(0.2)
            self.trusted = trusted

    def _members(self) -> list[Member]:
        """Whom this peer answers."""
        return [
            member
            for study, (_, roster, _) in self._serving.items()
            if self.site_studies.has_approved(study)
            for member in roster.peers
            if member.name != self.name and member.name not in self.members.revoked(study)
        ]

    def _admit(self, caller: Caller) -> str:
        """Know a caller by its certificate, exactly, and not by who stands for it."""
        if self.paused:
            raise ArchipelError(f"{self.name} is paused")
        for member in self._members():
            if member.certificate.encode() == caller.certificate:
                return member.identity
        raise ArchipelError(f"{caller.name} is in no study with {self.name}")

    def _most(self, identity: str) -> int:
        return SMALL + max((each.peer.most for each in self._serving.values()), default=0)

    async def _answer(self, identity: str, letter: Letter) -> Letter:
        if "study" not in letter.fields:
            raise Refused(f"a {letter.kind} is nothing that a peer sends.")
        if letter["study"] not in self._serving:
            raise Cut("not yet.")  # it will be asked again
        peer, roster, finding = self._serving[letter["study"]]
        member = next((each for each in roster.peers if each.identity == identity), None)
        if member is None or not self.site_studies.has_approved(roster.study):
            raise Refused(f"the caller and {self.name} are not both in this study.")
        if letter.kind == "view" and not peer.liveness.of[member.party].gone:
            return await finding.answer(letter)
        return await peer.answer(member.party, letter)

    # -- who is out --------------------------------------------------------------------------------

    async def _look_for_revoked(
        self, link: GrpcLink, peer: Peer, roster: Roster, say: Callable[[str], None]
    ) -> None:
        """Ask the coordinator from time to time who was revoked; who once was is out for good."""
        study = roster.study
        while True:
            with suppress(Cut, Refused, TimeoutError):
                await self.may(link, study)
                asked = Letter("roster", {"study": study})
                async with asyncio.timeout(60):
                    answer = await link.ask(asked)
                if answer.kind == "peers":
                    found = Signed(answer["revoked"], answer["revoked_signature"])
                    self._drop(found.revoked(self.authority, study), peer, roster, say)
                    await self._listen_anew()
            await asyncio.sleep(LOOK)

    def _drop(
        self, names: frozenset[str], peer: Peer, roster: Roster, say: Callable[[str], None]
    ) -> None:
        before, study = self.members.revoked(roster.study), roster.study
        if new := sorted(names - before):
            write(
                self.site_studies.folder(study) / "revoked.json",
                json.dumps(sorted(names | before)).encode(),
            )
            self.audit.append("dropped", study=study, peers=", ".join(new))
            say(f"goes on without {', '.join(new)}: revoked")
        for member in roster.peers:
            if member.name in names | before and member.name != self.name:
                peer.liveness.drop(member.party)

    # -- taking part -------------------------------------------------------------------------------

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
        described = self.site_studies.read(study)
        if not is_peer(described.algorithm_object):
            raise ArchipelError(
                f"study {described.name}: {described.algorithm.name} has a server; take part with "
                "'archipel site up'."
            )
        roster, folder = (
            await self.members.roster(link, study, say),
            self.site_studies.folder(study),
        )
        about, graph = described.study, None
        if roster.topology:
            names = [str(k) for k in range(roster.parties)]  # a place may be empty
            for member in roster.peers:
                names[member.party] = member.name
            graph = topology(roster.topology, roster.parties, about.seed, names)
            graph = graph.weighed(described.topology.weights or "metropolis")
        edges = 0 if graph is None else most_edges(graph)
        party_state, path = party_state_at(self, study, data, roster.parties, edges)
        lanes: dict[int, Lane] = {}
        finding = self._finding(roster, lanes, say)
        lanes |= self._lanes(roster, party_state, finding)
        log = Log(folder / "rounds.jsonl")

        def report(told: Report) -> None:
            log.add(told)
            say(_said(told, roster))

        peer = Peer(
            party_state,
            graph,
            lanes,
            Words(study, about.rounds, self.sign, _checking(roster)),
            Files(folder / "peer"),
            asynchronous=described.topology.asynchronous,
            evaluate_every=about.evaluate_every,
            silence=self._silence,
            deadline=described.round.deadline,
            paused=lambda: self.paused,
            report=report,
            counts=self.tells_counts(study),
            pause=PAUSE if described.topology.pause is None else described.topology.pause,
        )
        self._drop(frozenset(), peer, roster, say)
        self._serving[study] = Serving(peer, roster, finding)
        await self._listen_anew()
        telling = asyncio.create_task(self._telling(link, study, party_state, log))
        looking = asyncio.create_task(self._look_for_revoked(link, peer, roster, say))
        running = asyncio.create_task(peer.run())
        others = [telling, looking, asyncio.create_task(finding.run(peer.mixing.around()))]
        try:
            while not running.done():
                await asyncio.wait([running], timeout=1.0)
                if not self.site_studies.has_approved(study):
                    raise Left(f"study {study[:12]}: this peer has left it.")
                if peer.is_alone and await self._is_over(link, study):
                    peer.liveness.leave()
            with suppress(Cut):  # the others ended without it: its model is what it has
                await running
            module = party_state.model.to_module(*party_state.mine())
            tensors = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
            write(path.with_name("model.safetensors"), safetensors.torch.save(tensors))
            bundles.of_site(self, study, party_state, data, party_state.mine(), peer.round)
            self.audit.append("done", study=study, rounds=peer.round)
            if self._stays:
                say(f"done, after round {peer.round}; answers others that come back")
                await asyncio.Event().wait()
            with suppress(TimeoutError):  # the coordinator may be down
                async with asyncio.timeout(self._silence):
                    await log.all_told()
        finally:
            for task in (running, *others):
                task.cancel()
            await asyncio.gather(running, *others, return_exceptions=True)
            for lane in lanes.values():
                await lane.close()
        return peer.round

    async def _is_over(self, link: GrpcLink, study: str) -> bool:
        """Whether the coordinator says that the study was done while this peer was away."""
        try:
            async with asyncio.timeout(10):
                states = await self.studies(link)
        except (ArchipelError, TimeoutError):
            return False
        return states.get(study) == "done"

    def _finding(
        self, roster: Roster, lanes: Mapping[int, Link], say: Callable[[str], None]
    ) -> Finding:
        """How this peer learns where the others are, and tells them where it is."""
        mine, study = roster.member(self.name), roster.study
        assert mine is not None

        def out(j: int) -> bool:
            return study in self._serving and self._serving[study].peer.liveness.of[j].gone

        def moved(member: Member, address: str) -> None:
            self.audit.append("found", study=study, peer=member.name, address=address)
            say(f"{member.name} is at {address} now")

        return Finding(
            roster,
            mine.party,
            lanes,
            self.site_studies.folder(study) / "addresses.json",
            address=lambda: self.listens,
            sign=self.identity.sign,
            every=beat_every(self._silence),
            out=out,
            paused=lambda: self.paused,
            moved=moved,
        )

    def _lanes(self, roster: Roster, party_state: PartyState, finding: Finding) -> dict[int, Lane]:
        most, lanes = SMALL + party_state.most + nbytes(tuple(party_state.anatomy.between)), {}
        for member in roster.peers:
            if member.name != self.name:
                trusted = port.credentials(self.home, [member.certificate])
                where = partial(finding.address, member.party)
                opened = partial(GrpcLink, name=member.name, credentials=trusted, most=most)
                lanes[member.party] = Lane(where, opened, self)
        return lanes

    async def _telling(self, link: GrpcLink, study: str, party_state: PartyState, log: Log) -> None:
        """Tell the coordinator what became of each round, whenever it can be reached."""
        while True:
            fields = {"study": study, "points": 0, **await log.untold()}
            if self.tells_counts(study):
                fields["points"] = int(party_state.data.n_test[party_state.party])
            else:
                fields["gradients"] = 0
            fields["log"] = self.audit.head.text
            if "edges" not in fields or not party_state.boxes.learns_graph:
                fields["edges"] = None  # of an older version, or what the study says
            letter = Letter("told", fields)
            letter = Letter("told", {**fields, "signature": self.sign(letter)})
            while True:
                await self.may(link, study)
                try:
                    async with asyncio.timeout(60):
                        answer = await link.ask(letter)
                    if answer.kind == "thanks":
                        break
                except Refused:
                    break
                except (Cut, TimeoutError):
                    pass
                await asyncio.sleep(1.0)
            log.told()


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
    service = Service(site, say)
    with site.at_work():
        async with site.listening(listen) as number:
            say(f"listens on port {number}, as {site.listens}")
            try:
                while not stop.is_set():
                    for study in site.members.begun():
                        service.begin(study)
                    await service.look()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await stop.wait()
            finally:
                await service.end()
