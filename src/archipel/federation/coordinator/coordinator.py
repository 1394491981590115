# SPDX-License-Identifier: Apache-2.0
"""The coordinator: enrols sites, asks for their approval, and runs studies with those who gave it.

All it knows is in its folder and its database, so that it may be killed at any moment: keys and
certificates, the registry (who belongs, who approved), a run's folder per study, the audit log.

One file, since whatever letter comes passes the same doors here, in an order that is to be seen.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from archipel.data.shadow import Facts, shadow
from archipel.engines.network.grpc import Caller, GrpcServer
from archipel.engines.network.letters import Letter, Sealed
from archipel.engines.network.presence import Adjourned
from archipel.engines.network.transport import POLL, Refused
from archipel.errors import ArchipelError, BudgetSpent, DatabaseAway, RunFailed
from archipel.exchange.boxes import is_peer
from archipel.federation import approval, roster
from archipel.federation.anchors import Anchors
from archipel.federation.audit import Anchor
from archipel.federation.certificates import GUEST, serial, verify
from archipel.federation.coordinator.enrolment import Enrolment
from archipel.federation.coordinator.evidence import Evidence
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.coordinator.notices import Notices
from archipel.federation.coordinator.peer_study import PeerStudy
from archipel.federation.coordinator.refusals import Refusals
from archipel.federation.coordinator.relay import Relay
from archipel.federation.coordinator.server_study import ServerStudy
from archipel.federation.scale import Scale, path_of
from archipel.federation.site.binding import schema_of
from archipel.federation.site.site import signed
from archipel.runs import recording
from archipel.runs.loop import Watch
from archipel.runs.recording import Recorder
from archipel.store.files import write
from archipel.store.folder import Folder
from archipel.store.registry import Place, Registry
from archipel.study.file import Study
from archipel.study.plugins import reason

StudyUnderWay = ServerStudy | PeerStudy

_KEPT = 300.0  # seconds that a finished study stays in memory after the last question
_SMALL = 1 << 20  # bytes of a letter that is no upload


class Coordinator:
    """The coordinator at work; `async with Coordinator(home) as coordinator`."""

    def __init__(
        self,
        home: CoordinatorFolder,
        *,
        say: Callable[[str], None] = lambda _: None,
        silence: float = 60.0,
    ) -> None:
        self.home, self._say, self._silence = home, say, silence
        self.registry = Registry.open(home.database, home.key)
        self.audit = home.audit
        self.server_studies: dict[str, StudyUnderWay] = {}
        self._over: dict[str, float] = {}  # finished study -> when a site last asked about it
        self._rebuilding: dict[str, asyncio.Task[StudyUnderWay]] = {}
        self.seen: dict[str, float] = {}  # site -> when its last letter came
        self.letters: Counter[str] = Counter()  # by kind
        self._begun = asyncio.Event()  # a study began; a new one for the next
        self._refusals, self._notices = Refusals(self.audit), Notices(say)
        self._evidence = Evidence(home.evidence, self._full)
        self._anchors, self._faults = Anchors(home.anchors), dict[str, str]()
        self.enrolment = Enrolment(home, self.registry, self.server_studies, say)
        self._relay = Relay()
        self._server = GrpcServer(self.answer, self._admit, self._most, moved=self._moved)

    async def up(self, listen: str | None = None) -> int:
        """Open the port; return its number."""
        port = self.home.address.rpartition(":")[2]
        number = await self._server.start(listen or f"[::]:{port}", self.home.credentials())
        self.audit.append("up", port=number)
        return number

    async def down(self) -> None:
        """Close the port; studies under way go on from their last round when it is up again."""
        for server_study in self.server_studies.values():
            server_study.engine.adjourn()
        await self._server.stop(0.5)
        self._refusals.flush()
        self._anchors.save()
        self.audit.append("down")
        self.registry.close()

    @property
    def refused(self) -> int:
        """Letters that were refused since it is up."""
        return self._refusals.total

    async def serve(self, stop: asyncio.Event, watch: Watch | None = None) -> None:
        """Run every study that was started, side by side, until told to stop."""
        running: dict[str, asyncio.Task[Any]] = {}
        while not stop.is_set():
            with suppress(DatabaseAway):
                for study in self.registry.studies():
                    if study.state == "running" and study.hash not in running:
                        task = asyncio.create_task(self._going(study.hash, study.name, watch))
                        running[study.hash] = task
                    elif study.state == "stopped" and study.hash in self.server_studies:
                        self.server_studies[study.hash].engine.adjourn()
                self._notices.revoked(set(self._revoked()))
                for server_study in self.server_studies.values():
                    server_study.sites.look()
            self._notices.waiting(self.server_studies)
            for digest in [digest for digest, task in running.items() if task.done()]:
                del running[digest]
            self._drop()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await stop.wait()
        for server_study in self.server_studies.values():
            server_study.engine.adjourn()
        await asyncio.gather(*running.values())

    async def _going(self, digest: str, name: str, watch: Watch | None) -> None:
        try:
            run = await self.run(digest, watch)
            self._over[digest] = time.monotonic()  # sites will ask for their verdict
            self._say(f"{name}: done, {run.done} rounds, in {run.folder}")
            return
        except Adjourned:
            stopped = self.registry.study(digest).state == "stopped"
            why = "stopped by the operator" if stopped else "adjourned"
            self._say(f"{name}: {why}; it goes on from its last round")
        except DatabaseAway as error:
            self._say(f"{name}: {error}")  # and it goes on when the database is back
        except BudgetSpent as error:
            self._say(f"{name}: stopped: {error}")
        except Exception as error:
            self._say(f"{name}: failed: {_why(error, name)}")
            with suppress(DatabaseAway):
                if self.registry.study(digest).state == "running":
                    self.registry.set_state(digest, "failed", _why(error, name))
        self.server_studies.pop(digest, None)

    def _drop(self) -> None:
        """Give back the memory of finished studies that nobody has asked about for a while."""
        now = time.monotonic()
        for digest in [digest for digest, asked in self._over.items() if now - asked > _KEPT]:
            del self._over[digest]
            self.server_studies.pop(digest, None)

    # -- who may speak, and how much ---------------------------------------------------------------

    def _admit(self, caller: Caller) -> str:
        if not caller.name.startswith(GUEST):
            try:
                self.registry.admitted(caller.name, serial(caller.certificate))
            except RunFailed:
                raise
            except ArchipelError as error:
                self._refusals.add(caller.name, "any", str(error))
                raise
            self.seen[caller.name] = time.monotonic()
        return caller.name

    def _most(self, name: str) -> int:
        if name.startswith(GUEST):
            return _SMALL
        uploads = [
            max(server_study.engine.anatomy.bytes_up, server_study.engine.anatomy.bytes_down)
            for server_study in self.server_studies.values()
        ]
        return _SMALL + max(uploads, default=0)

    def _moved(self, name: str) -> None:
        for server_study in list(self.server_studies.values()):
            server_study.moved(name)

    # -- letters -----------------------------------------------------------------------------------

    async def answer(self, sender: str, letter: Letter) -> Letter | Sealed:
        """Answer one letter of a site, or of a guest that wants to become one."""
        self.letters[letter.kind] += 1
        try:
            answer = self.enrolment.answer(sender, letter)
            if answer is not None:
                return answer
            if letter.kind == "relay":
                return await self._relay.answer(sender, letter)
            return await self._of_study(sender, letter)
        except RunFailed:  # the database is away, or a disk is full: the site asks again
            raise
        except ArchipelError as error:
            self._refusals.add(sender, letter.kind, str(error))
            raise Refused(str(error)) from None

    async def _of_study(self, site: str, letter: Letter) -> Letter | Sealed:
        """A letter about a study that is under way."""
        if "study" not in letter.fields:
            raise Refused(f"a {letter.kind} is nothing that a site sends.")
        digest = letter["study"]
        place = self.registry.place(digest, site)
        if place.decision != "approved":
            raise Refused(f"site {site} has not approved this study: review it first.")
        if letter.kind == "place":
            return await self._place(digest, site, place)
        server_study = self.server_studies.get(digest)
        if server_study is not None:
            self._notices.letter(server_study, site, letter)
        if server_study is None:
            study = self.registry.study(digest)
            if study.state in ("open", "running", "stopped"):
                await self._beginning()
                return Letter("wait", {"seconds": 0.0})
            if study.state != "done":
                raise Refused(f"study {study.name} is {study.state}.")
            server_study = await self._rebuilt(digest)
        if digest in self._over:
            self._over[digest] = time.monotonic()
        if place.party is None:
            raise Refused(f"site {site} has no number in this study yet: ask for its place first.")
        answer: Letter | Sealed
        if "signature" not in letter.fields:
            answer = await server_study.answer(place.party, letter)
            return answer
        said = await asyncio.to_thread(signed, letter)
        if not verify(place.identity, letter["signature"], said):
            raise Refused(f"the {letter.kind} is not signed by the site.")
        self._evidence.check_size(said)
        anchor = Anchor.read(letter["log"]) if letter.fields.get("log") is not None else None
        answer = await server_study.answer(place.party, letter)
        self._evidence.keep(digest, site, place.identity, said, letter["signature"])
        if anchor is not None:
            self._hear(site, anchor, place.identity)
        return answer

    def _hear(self, site: str, anchor: Anchor, identity: bytes) -> None:
        """Keep the anchor of a site's log; say it where that shows that the log was cut."""
        fault = self._anchors.hear(site, anchor, identity.hex())
        if fault and fault != self._faults.get(site):
            self._say(f"{fault}; ask {site} about it")
            self.audit.append("anchor", site=site, fault=fault, anchor=anchor.text)
        self._faults[site] = fault

    def _full(self, study: str, site: str) -> None:
        self._say(f"so much came from {site} that no more evidence of it is kept for {study[:12]}")
        self.audit.append("evidence-full", site=site, study=study)

    async def _place(self, digest: str, site: str, place: Place) -> Letter:
        """A site's number in a study, once it has one: when the study starts."""
        if place.party is None:
            await self._beginning()
            place = self.registry.place(digest, site)
        if place.party is None:
            return Letter("wait", {"seconds": 0.0})
        return Letter("seat", {"study": digest, "party": place.party})

    async def _beginning(self) -> None:
        """Wait until some study begins, as long as a site may be kept waiting."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL):
                await self._begun.wait()

    # -- studies -----------------------------------------------------------------------------------

    async def approved(self, digest: str, sites: int) -> None:
        """Wait until so many sites have approved."""
        while True:
            decisions = self.registry.decisions(digest)
            if sum(d.decision == "approved" for d in decisions) >= sites:
                return
            await asyncio.sleep(0.2)

    async def run(self, digest: str, watch: Watch | None = None) -> Any:
        """Run an approved study with the sites that approved it, from where it is."""
        self.registry.number(digest)
        events = asyncio.get_running_loop()  # others are answered while a promise is planned
        server_study, path = await asyncio.to_thread(self._server_study, digest, events)
        run = server_study.run
        sites = run.data.training
        if Folder.exists(path):
            folder = Folder.open(path, self.home.shared)
            begins = "resumed"
        else:
            text = bytes(self.registry.study(digest).text)
            facts = next(facts for facts in server_study.sites.of.values() if facts is not None)
            described = {"text": text.decode(), "facts": facts.to_json()}
            row = {"description": described, "hash": digest}
            folder = recording.create(path, run, row, {"study.toml": text}, self.home.shared)
            begins = "started"
        with folder:
            if begins == "resumed":
                server_study.loop.restore(recording.restore(folder, run))
            ended = run.state == "done"
            run.folder, run.state = path, "running"
            recorder = Recorder(folder, run, server_study.engine.state, 0.0)
            server_study.loop.recorder = recorder
            run.event(begins, f"after round {run.done} with {sites} sites")
            self.registry.set_state(digest, "running", f"round {run.done} of {run.rounds}")
            who = f"{sites} site{'' if sites == 1 else 's'}"
            self._say(f"{run.data.about.name}: {begins} after round {run.done} with {who}")
            anchor = self.audit.append(begins, study=digest, round=run.done, sites=sites)
            server_study.keep_log(anchor.text)
            self.server_studies[digest] = server_study
            self._begun.set()
            self._begun = asyncio.Event()
            try:
                if not ended:
                    await asyncio.to_thread(server_study.loop.go, self._seeing(digest, watch), None)
            except (Adjourned, DatabaseAway):
                raise
            except BudgetSpent as error:  # it may go on, and what it has is kept
                self.registry.set_state(digest, "stopped", str(error))
                self.audit.append("stopped", study=digest, reason=str(error))
                raise
            except Exception as error:
                why = _why(error, run.data.about.name)
                self.registry.set_state(digest, "failed", why)
                recorder.fail(error)
                self.audit.append("failed", study=digest, reason=why)
                raise
            server_study.end()
            self.registry.set_state(digest, "done", f"{run.done} rounds")
            self.audit.append("done", study=digest, rounds=run.done)
        return run

    async def _rebuilt(self, digest: str) -> StudyUnderWay:
        """A finished study, brought back once for all who ask, while others are answered."""
        task = self._rebuilding.get(digest)
        if task is None:
            events = asyncio.get_running_loop()
            work = asyncio.to_thread(self._finished, digest, events)
            task = self._rebuilding[digest] = asyncio.create_task(work)
        try:
            server_study = await asyncio.shield(task)
        finally:
            if task.done():
                self._rebuilding.pop(digest, None)
        self._over.setdefault(digest, time.monotonic())
        return self.server_studies.setdefault(digest, server_study)

    def _finished(self, digest: str, events: asyncio.AbstractEventLoop) -> StudyUnderWay:
        """A study that was done before, to give out what it learnt."""
        server_study, path = self._server_study(digest, events)
        with Folder.open(path, self.home.shared) as folder:
            server_study.loop.restore(recording.restore(folder, server_study.run))
        server_study.end()
        return server_study

    def _server_study(
        self, digest: str, events: asyncio.AbstractEventLoop
    ) -> tuple[StudyUnderWay, Path]:
        """A study with the sites that have a number in it, and the folder of its run."""
        record = self.registry.study(digest)
        study = approval.read(bytes(record.text))
        decisions = {d.site: d for d in self.registry.decisions(digest)}
        told = {site: d.facts for site, d in decisions.items() if d.decision == "approved"}
        sites = {
            site: Facts.of_json(told[site]) if site in told else None
            for site in self.registry.party_states(digest)
        }
        if not any(sites.values()):
            raise ArchipelError(f"study {record.name}: no site has approved it yet.")
        fed = shadow(study.name, sites)
        model = study.build_model(fed)
        scale = None
        if study.scaled:
            scale = Scale(path_of(self.home.path, digest), digest, schema_of(study))
        algorithm: Any = study.algorithm_object  # it has a server, or is one of peers
        options = study.policy()
        server_study: StudyUnderWay
        if is_peer(algorithm):
            signed_roster = self._roster(study, digest)
            excluded = functools.partial(self._excluded, digest, signed_roster)
            server_study = PeerStudy(
                algorithm, fed, model, options, sites, signed_roster, excluded, self._silence, scale
            )
        else:
            server_study = ServerStudy(
                algorithm, fed, model, options, digest, sites, events, self._silence, scale
            )
            server_study.members = functools.partial(self._members, digest)
        server_study.sites.revoked = self._revoked
        run = server_study.run
        run.study, run.environment = study, recording.environment(study)
        run.approved = bytes(record.text)
        return server_study, self.home.run_of(digest)

    def _revoked(self) -> dict[str, str]:
        """The sites that were shut out, and why."""
        return {each.name: each.reason or "" for each in self.registry.sites() if each.revoked}

    def _members(self, digest: str) -> bytes:
        """Numbers, names and keys of a study's sites, for those that add up among themselves."""
        told = {d.site: d.identity.hex() for d in self.registry.decisions(digest)}
        numbered = enumerate(self.registry.party_states(digest))
        return json.dumps([[k, site, told[site]] for k, site in numbered if site in told]).encode()

    def _roster(self, study: Study, digest: str) -> roster.Signed:
        """Who takes part in a study between peers: those who approved when it first started."""
        path = self.home.roster_of(digest)
        if path.exists():
            return roster.Signed.of_json(path.read_bytes())
        told = {d.site: d for d in self.registry.decisions(digest) if d.decision == "approved"}
        party_states = list(self.registry.party_states(digest))
        members = [
            roster.Member(party, site, d.identity.hex(), d.facts, d.signature.hex())
            for party, site in enumerate(party_states)
            if (d := told.get(site)) is not None and self.registry.site(site).revoked is None
        ]
        made = roster.make(digest, study.topology.name or "", len(party_states), members)
        signed_roster = made.sign(self.home.authority)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, signed_roster.to_json())
        self.audit.append("roster", study=digest, peers=", ".join(m.name for m in members))
        return signed_roster

    def _excluded(self, digest: str, signed_roster: roster.Signed) -> roster.Signed:
        """Whom of its roster a study between peers goes on without."""
        members = signed_roster.read(self.home.authority.pem).peers
        known = {site.name: site for site in self.registry.sites()}
        gone = [
            each.name
            for each in members
            if known[each.name].revoked or known[each.name].identity.hex() != each.identity
        ]
        return roster.sign_revoked(self.home.authority, digest, gone)

    def _seeing(self, digest: str, watch: Watch | None) -> Any:
        """Whoever looks on, and the audit log: every round's roster, and every miss."""
        noted = [
            int(entry.detail["round"] or 0)
            for entry in self.audit.entries()
            if entry.what == "round" and entry.detail["study"] == digest
        ]
        coordinator, seen = self, {"rounds": max(noted, default=0)}

        class Seeing:
            def __call__(self, run: Any) -> bool | None:
                for t in range(seen["rounds"], run.done):
                    coordinator._note(digest, run, t)
                seen["rounds"] = run.done
                return None if watch is None else watch(run)

            def say(self, text: str) -> None:
                if watch is not None:
                    watch.say(text)

        return Seeing()

    def _note(self, digest: str, run: Any, t: int) -> None:
        cohort = run.participation[t]
        present = ", ".join(run.data.name(int(k)) for k in cohort.present)
        missing = "; ".join(f"{run.data.name(k)}: {why}" for k, why in cohort.missing.items())
        anchor = self.audit.append(
            "round", study=digest, round=t + 1, present=present, missing=missing,
            counted=bool(cohort.counted),
        )  # fmt: skip
        self.server_studies[digest].keep_log(anchor.text)
        self._anchors.save()
        self._notices.round(digest, run, t, missing)


def _why(error: Exception, study: str) -> str:
    """What went wrong: in a sentence of ours, or in somebody's code."""
    if isinstance(error, RunFailed) and isinstance(error.__cause__, OSError):  # a disk is full
        what = str(error).partition(": make room")[0]
        again = f"'archipel coordinator start {study}' goes on from the last round"
        return f"{what}: make room on the coordinator's machine, then {again}."
    return str(error) if isinstance(error, ArchipelError) else reason(error)
