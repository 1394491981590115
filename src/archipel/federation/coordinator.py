# SPDX-License-Identifier: Apache-2.0
"""The coordinator: enrols sites, asks for their approval, and runs studies with those who gave it.

All it knows is in its folder and its database, so that it may be killed at any moment: keys and
certificates, the roll (who belongs, what was approved), a run's folder per study, the audit log.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from archipel import recording
from archipel.data.shadow import Facts, shadow
from archipel.engines.network.grpc import Caller, GrpcServer
from archipel.engines.network.letters import Letter, Sealed
from archipel.engines.network.transport import POLL, Refused
from archipel.errors import ArchipelError, DatabaseAway, RunFailed
from archipel.exchange import is_peer
from archipel.federation import approval, roster
from archipel.federation.authority import (
    GUEST,
    serial,
    verify,
)
from archipel.federation.binding import needs_scale
from archipel.federation.gathering import Gathering
from archipel.federation.home import Home
from archipel.federation.reception import Reception
from archipel.federation.refusals import Refusals
from archipel.federation.scale import Scale
from archipel.federation.site import signed
from archipel.federation.sitting import Adjourned, Sitting
from archipel.plugins import reason
from archipel.recording import Recorder
from archipel.simulation import Watch
from archipel.store.files import write
from archipel.store.folder import Folder
from archipel.store.roll import Roll
from archipel.study import Study

_SMALL = 1 << 20  # bytes of a letter that is no upload


class Coordinator:
    """The coordinator at work; `async with Coordinator(home) as coordinator`."""

    def __init__(
        self, home: Home, *, say: Callable[[str], None] = lambda _: None, silence: float = 60.0
    ) -> None:
        self.home, self._say, self._silence = home, say, silence
        self.roll = Roll.open(home.database)
        self.audit = home.audit
        self.sittings: dict[str, Sitting] = {}
        self.seen: dict[str, float] = {}  # site -> when its last letter came
        self.letters: Counter[str] = Counter()  # by kind
        self._missed: dict[str, str] = {}  # study -> who missed its last round, and why
        self._begun = asyncio.Event()  # a study began; a new one for the next
        self._refusals = Refusals(self.audit)
        self.reception = Reception(home, self.roll, self.sittings, say)
        self._server = GrpcServer(self.answer, self._admit, self._most, moved=self._moved)

    async def up(self, listen: str | None = None) -> int:
        """Open the port; return its number."""
        port = self.home.address.rpartition(":")[2]
        number = await self._server.start(listen or f"[::]:{port}", self.home.credentials())
        self.audit.append("up", port=number)
        return number

    async def down(self) -> None:
        """Close the port; studies under way go on from their last round when it is up again."""
        for sitting in self.sittings.values():
            sitting.engine.adjourn()
        await self._server.stop(0.5)
        self._refusals.flush()
        self.audit.append("down")
        self.roll.close()

    @property
    def refused(self) -> int:
        """Letters that were refused since it is up."""
        return self._refusals.total

    async def serve(self, stop: asyncio.Event, watch: Watch | None = None) -> None:
        """Run every study that was started, side by side, until told to stop."""
        running: dict[str, asyncio.Task[Any]] = {}
        while not stop.is_set():
            with suppress(DatabaseAway):
                for study in self.roll.studies():
                    if study.state == "running" and study.hash not in running:
                        task = asyncio.create_task(self._going(study.hash, study.name, watch))
                        running[study.hash] = task
                    elif study.state == "stopped" and study.hash in self.sittings:
                        self.sittings[study.hash].engine.adjourn()
            for digest in [digest for digest, task in running.items() if task.done()]:
                del running[digest]
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
        for sitting in self.sittings.values():
            sitting.engine.adjourn()
        await asyncio.gather(*running.values())

    async def _going(self, digest: str, name: str, watch: Watch | None) -> None:
        try:
            run = await self.run(digest, watch)
            self._say(f"{name}: done, {run.done} rounds, in {run.folder}")
        except Adjourned:
            self._say(f"{name}: adjourned; it goes on from its last round")
        except DatabaseAway as error:
            self._say(f"{name}: {error}")  # and it goes on when the database is back
        except Exception as error:
            self._say(f"{name}: failed: {_why(error)}")
            with suppress(DatabaseAway):
                if self.roll.study(digest).state == "running":
                    self.roll.set_state(digest, "failed", _why(error))
        finally:
            self.sittings.pop(digest, None)

    # -- who may speak, and how much ---------------------------------------------------------------

    def _admit(self, caller: Caller) -> str:
        if not caller.name.startswith(GUEST):
            self.roll.admitted(caller.name, serial(caller.certificate))
            self.seen[caller.name] = time.monotonic()
        return caller.name

    def _most(self, name: str) -> int:
        if name.startswith(GUEST):
            return _SMALL
        uploads = [
            max(sitting.engine.anatomy.bytes_up, sitting.engine.anatomy.bytes_down)
            for sitting in self.sittings.values()
        ]
        return _SMALL + max(uploads, default=0)

    def _moved(self, name: str) -> None:
        for sitting in list(self.sittings.values()):
            sitting.moved(name)

    # -- letters -----------------------------------------------------------------------------------

    async def answer(self, sender: str, letter: Letter) -> Letter | Sealed:
        """Answer one letter of a site, or of a guest that wants to become one."""
        self.letters[letter.kind] += 1
        try:
            answer = self.reception.answer(sender, letter)
            if answer is not None:
                return answer
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
        place = self.roll.place(digest, site)
        if place.decision != "approved":
            raise Refused(f"site {site} has not approved this study: review it first.")
        sitting = self.sittings.get(digest)
        if sitting is None:
            study = self.roll.study(digest)
            if study.state in ("open", "running", "stopped"):
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._begun.wait(), POLL)
                return Letter("wait", {"seconds": 0.0})
            if study.state != "done":
                raise Refused(f"study {study.name} is {study.state}.")
            sitting = self.sittings[digest] = self._finished(digest)
        if "signature" in letter.fields:
            said = await asyncio.to_thread(signed, letter)
            if not verify(place.identity, letter["signature"], said):
                raise Refused(f"the {letter.kind} is not signed by the site.")
        party = self.roll.seat(digest, site) if place.party is None else place.party
        answer: Letter | Sealed = await sitting.answer(party, letter)
        return answer

    # -- studies -----------------------------------------------------------------------------------

    async def approved(self, digest: str, sites: int) -> None:
        """Wait until so many sites have approved."""
        while True:
            decisions = self.roll.decisions(digest)
            if sum(d.decision == "approved" for d in decisions) >= sites:
                return
            await asyncio.sleep(0.2)

    async def run(self, digest: str, watch: Watch | None = None) -> Any:
        """Run an approved study with the sites that approved it, from where it is."""
        sitting, path = self._sitting(digest)
        (run,) = sitting.runs
        sites = run.data.training
        if Folder.exists(path):
            folder = Folder.open(path, self.home.shared)
            begins = "resumed"
        else:
            text = bytes(self.roll.study(digest).text)
            facts = next(facts for facts in sitting.sites.values() if facts is not None)
            described = {"text": text.decode(), "facts": facts.to_json()}
            row = {"description": described, "hash": digest}
            folder = recording.create(path, run, row, {"study.toml": text}, self.home.shared)
            begins = "started"
        with folder:
            if begins == "resumed":
                sitting.restore(recording.restore(folder, run))
            ended = run.state == "done"
            run.folder, run.state = path, "running"
            sitting.recorder = Recorder(folder, run, sitting.engine.state, 0.0)
            sitting.recorder.event(begins, f"after round {run.done} with {sites} sites")
            self.roll.set_state(digest, "running", f"round {run.done} of {run.rounds}")
            self.audit.append(begins, study=digest, round=run.done, sites=sites)
            self.sittings[digest] = sitting
            self._begun.set()
            self._begun = asyncio.Event()
            try:
                if not ended:
                    await asyncio.to_thread(sitting.go, self._seeing(digest, watch), None)
            except (Adjourned, DatabaseAway):
                raise
            except Exception as error:
                sitting.recorder.fail(error)
                self.roll.set_state(digest, "failed", _why(error))
                self.audit.append("failed", study=digest, reason=_why(error))
                raise
            sitting.desk.end(run.done)
            self.roll.set_state(digest, "done", f"{run.done} rounds")
            self.audit.append("done", study=digest, rounds=run.done)
        return run

    def _finished(self, digest: str) -> Sitting:
        """A study that was done before this process began, to give out what it learnt."""
        sitting, path = self._sitting(digest)
        with Folder.open(path, self.home.shared) as folder:
            sitting.restore(recording.restore(folder, sitting.runs[0]))
        sitting.desk.end(sitting.runs[0].done)
        return sitting

    def _sitting(self, digest: str) -> tuple[Sitting, Path]:
        """A study with the sites that have a number in it, and the folder of its run."""
        record = self.roll.study(digest)
        study = approval.read(bytes(record.text))
        decisions = {d.site: d for d in self.roll.decisions(digest)}
        sites = {
            site: Facts.of_json(decisions[site].facts)
            if decisions[site].decision == "approved"
            else None
            for site in self.roll.seats(digest)
        }
        if not any(sites.values()):
            raise ArchipelError(f"study {record.name}: no site has approved it yet.")
        fed = shadow(study.name, sites)
        model = study.build_model(fed)
        events = asyncio.get_running_loop()
        scale = None
        if needs_scale(study):
            scale = Scale(self.home.path / "scales" / f"{digest}.safetensors", digest, fed.shape[0])
        is_among_peers = is_peer(study.algorithm_object)
        sitting = (Gathering if is_among_peers else Sitting)(
            study.algorithm_object,
            fed,
            model,
            study.policy(),
            digest,
            sites,
            events,
            self._silence,
            scale,
        )
        if isinstance(sitting, Gathering):
            sitting.roster = self._roster(study, digest)
            sitting.revoked = functools.partial(self._revoked, digest, sitting.roster)
        (run,) = sitting.runs
        run.study, run.environment = study, recording.environment(study)
        return sitting, self.home.run_of(digest)

    def _roster(self, study: Study, digest: str) -> roster.Signed:
        """Who takes part in a study between peers: those who approved when it first started."""
        path = self.home.path / "rosters" / f"{digest}.json"
        if path.exists():
            return roster.Signed.of_json(path.read_bytes())
        told = {d.site: d for d in self.roll.decisions(digest) if d.decision == "approved"}
        seats = list(self.roll.seats(digest))
        members = [
            roster.Member(party, site, d.identity.hex(), d.facts, d.signature.hex())
            for party, site in enumerate(seats)
            if (d := told.get(site)) is not None and self.roll.site(site).revoked is None
        ]
        made = roster.make(digest, study.topology.name or "", len(seats), members)
        signed_roster = made.sign(self.home.authority)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, signed_roster.to_json())
        self.audit.append("roster", study=digest, peers=", ".join(m.name for m in members))
        return signed_roster

    def _revoked(self, digest: str, signed_roster: roster.Signed) -> roster.Signed:
        """Whom of its roster a study between peers goes on without."""
        members = signed_roster.read(self.home.authority.pem).peers
        known = {site.name: site for site in self.roll.sites()}
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
        self.audit.append(
            "round", study=digest, round=t + 1, present=present, missing=missing,
            counted=bool(cohort.counted),
        )  # fmt: skip
        if missing != self._missed.get(digest, ""):
            self._say(f"from round {t + 1} on: " + (f"without {missing}" if missing else "all"))
        self._missed[digest] = missing


def _why(error: Exception) -> str:
    """What went wrong: in a sentence of ours, or in somebody's code."""
    return str(error) if isinstance(error, ArchipelError) else reason(error)
