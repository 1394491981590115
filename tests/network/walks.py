# SPDX-License-Identifier: Apache-2.0
"""Studies at a coordinator with a member that lies: a walk through the states of a study."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import fields, replace

from archipel.algorithms import ALGORITHMS
from archipel.data.shadow import Facts
from archipel.engines.network.in_memory import MemoryLink
from archipel.engines.network.letters import KINDS, Letter
from archipel.engines.network.party_loop import Rescaled
from archipel.engines.network.presence import Adjourned
from archipel.engines.network.transport import Partials, Refused
from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.coordinator.rescale import rescale
from archipel.federation.site import binding
from archipel.federation.site.service import data_of
from archipel.federation.site.site import signed
from network.liar import NOT_BEGUN, REAL, WHOLE, Lies, Teller, held_by
from network.test_coming_and_going import STUDY, write_tables
from network.test_federation import text_of

HONEST, LIAR = ("site-0", "site-1", "site-2"), "site-3"
ROUNDS = 4

_MOVES = ("upload", "scores", "ask", "sums")  # what a study waits for
_SENT = ["hello", "study", "approve", "next", "upload", "scores", "away", "scale", "sums", "roster",
         "told", "model", "ask", "renew", "enrol"]  # fmt: skip
_KINDS = [*KINDS, *4 * _SENT]
_HARMLESS = [kind for kind in _KINDS if kind not in (*_MOVES, "away", "approve", "renew")]
_LASTING = ("upload", "scores", "approve", "away", "next", "renew")  # what may change a study
_WAYS = ["right"] * 4 + ["spoilt"] * 3 + ["lie"] * 3 + ["late"] * 2 + ["twice", "away", "leaves"]
_SLACK = 4000  # numbers and characters: a member's last words, and counts that get more digits


def text_for(algorithm, seed, **changes):
    """A study with as little work as the algorithm allows."""
    known = {field.name for field in fields(ALGORITHMS[algorithm])}
    small = {"local_steps": 1, "batch_size": 8, "head_epochs": 1, "tune_epochs": 1, "size": 4,
             "hidden": 5, "tune_steps": 1, "new_steps": 1, "inner_steps": 1}  # fmt: skip
    options = {f"algorithm.{name}": value for name, value in small.items() if name in known}
    if algorithm in ("fedrep", "fedper", "knnper"):
        options |= {"model.name": "mlp"}
    about = {"study.rounds": ROUNDS, "study.seed": seed, "study.name": f"{algorithm} {seed}",
             "round.quorum": 3, "round.deadline": 300}  # fmt: skip
    return text_of(algorithm, **about, **options, **changes)


def text_of_tables(seed):
    """A study of tables, whose features need a common scale."""
    about = f'[study]\nname = "tables {seed}"\nseed = {seed}\nrounds = {ROUNDS}\n'
    policy = "quorum = 3\ndeadline = 300"
    rest = STUDY.format(rounds=ROUNDS, policy=policy).partition("[data]")[2]
    return (about + "[data]" + rest).encode()


class Walk:
    """One study at a coordinator, with three honest sites and one that lies."""

    def __init__(self, one, sites, text, seed, tally):
        self.one, self.sites, self.text = one, sites, text
        self.lies, self.tally = Lies(seed), tally
        self.digest = one.home.submit(text)
        self.ahead = 0.0  # seconds that passed although nobody waited for them
        self.restarts = self.lies.draws.randrange(2)
        self.attempts = {}  # round -> its first attempt

    @property
    def server_study(self):
        return self.one.server_studies.get(self.digest)

    @property
    def liar(self):
        """The number of the member that lies."""
        return list(self.server_study.sites.of).index(LIAR)

    def where(self):
        """The state that the coordinator is in, for the member that lies."""
        server_study = self.server_study
        if server_study is None:
            return NOT_BEGUN
        if self.one.registry.place(self.digest, LIAR).decision != "approved":
            return "withdrawn"
        answers, engine, me = server_study.answers, server_study.engine.engine, self.liar
        if answers.rounds_done is not None:
            return "done"
        if answers._scored is not None:
            return "evaluation" if answers._lacks(me) else "scored"
        opened = engine.opened
        if opened is None:
            return "closed"
        first = self.attempts.setdefault(opened.round, opened.attempt)
        anew = "" if first == opened.attempt else " anew"
        answered = ", answered" if me in opened.uploads else ", lost" if me in opened.lost else ""
        asked = "" if me in opened.letters else ", not asked"
        return f"message {opened.number + 1}{anew}{answered}{asked}"

    def place(self):
        """What is open at the coordinator, or that all is done."""
        server_study = self.server_study
        if server_study is None:
            return None
        run, answers = server_study.run, server_study.answers
        return (
            server_study,
            run.done,
            server_study.engine.engine.opened,
            answers._scored,
            answers.rounds_done,
        )

    def waited_for(self):
        """Whose letters the study waits for."""
        if self.server_study is None:
            return set()
        answers, engine = self.server_study.answers, self.server_study.engine.engine
        if answers._scored is not None:
            return {k for k in range(engine.parties) if answers._lacks(k)}
        return set() if engine.opened is None else set(engine.opened.waits_for)

    def time_passes(self):
        """Some seconds are over."""
        self.ahead += 10.0
        answers, opened = self.server_study.answers, self.server_study.engine.engine.opened
        answers._came.set()
        if opened is not None:
            opened.moved.set()

    async def go(self):
        """Play it to its end; return the run."""
        self.one.enrolment._kept.clear()  # a minute has passed since the last walk
        for site, data in self.sites.values():
            link = MemoryLink(site.name, self.one.answer, Partials())
            await site.fetch(link, self.digest)
            site.decide(self.text, "approved", self.facts(data))
            await site.tell(link)
        member = self.member()
        attending = [asyncio.create_task(self._attends(name)) for name in HONEST]
        lying = asyncio.create_task(member.run())
        try:
            run = await asyncio.wait_for(self._runs(), 600)
            assert await asyncio.gather(*attending) == [ROUNDS] * 3
            await asyncio.wait_for(lying, 600)
        except TimeoutError:
            raise AssertionError(f"it hangs in {self.where()}, for {self.waited_for()}") from None
        finally:
            for task in (*attending, lying):
                task.cancel()
            await asyncio.gather(*attending, lying, return_exceptions=True)
            member.report()
        assert not member.teller.faults
        assert all(after <= before + _SLACK for before, after in member.held), member.held
        self.one.server_studies.pop(self.digest)
        return run

    def facts(self, data):
        """What a site tells of its data."""
        return Facts.of(data)

    def member(self):
        return Member(self, *self.sites[LIAR])

    async def attend(self, site, link):
        """Take part as a site does; return the rounds."""
        return await site.attend(link, self.digest, self.sites[site.name][1])

    async def _attends(self, name):
        link = MemoryLink(name, self.one.answer, Partials())
        return await self.attend(self.sites[name][0], link)

    async def _runs(self):
        while True:
            running = asyncio.create_task(self.one.run(self.digest))
            while self.server_study is None and not running.done():
                await asyncio.sleep(0.01)
            if self.server_study is not None:
                self.server_study.engine.engine.clock = lambda: time.monotonic() + self.ahead
            try:
                return await running
            except Adjourned:
                before = self.one.server_studies.pop(self.digest)
                before.engine.engine.bell.ring()  # sites ask again, 20 seconds earlier
                self.stopped()

    def stopped(self):
        """What the operator does before the study is started again."""

    def stop(self):
        """The operator stops the study in the middle of something, and starts it again."""
        self.restarts -= 1
        self.server_study.engine.adjourn()


class Tables(Walk):
    """A study of the sites' own tables: they send sums first, and get a scale.

    Wrong sums may make a scale that honest sites refuse. Then the operator has it made anew,
    without those sums, which is possible as long as no round is done.
    """

    def __init__(self, one, sites, text, seed, tally):
        super().__init__(one, sites, text, seed, tally)
        folder, study = one.home.path.parent, approval.read(text)
        if not (folder / "tables").exists():
            write_tables(folder, len(sites))
        for k, (site, _) in enumerate(sites.values()):
            binding.bind(site.home / "data", study, folder / "tables" / f"clinic-{k}.csv")
        self._schema = binding.schema_of(study)
        self.refusals = 0

    def facts(self, data):
        return Facts.of(self._schema.empty(), counts=False)

    def member(self):
        member = super().member()
        member.well = self.lies.draws.choice([0, member.well])  # or it lies from its sums on
        return member

    def where(self):
        server_study = self.server_study
        if server_study is not None and server_study.sites.scale.made is None:
            sent = list(server_study.sites.of).index(LIAR) in server_study.sites.scale.sent
            return "no scale, sums sent" if sent else "no scale"
        return super().where()

    async def attend(self, site, link):
        data = await data_of(site, link, self.digest)
        return await site.attend(link, self.digest, data)

    async def _attends(self, name):
        while True:
            try:
                return await super()._attends(name)
            except Rescaled:
                self.tally["rescaled", "next"] += 1
            except Refused as no:
                assert "the scale is none of this site's columns" in str(no)
                self.refusals += 1
                if (
                    self.server_study is not None
                    and LIAR not in self.server_study.sites.scale.without
                ):
                    self.server_study.engine.adjourn()
                await asyncio.sleep(0.1)

    def stopped(self):
        is_member = self.one.registry.place(self.digest, LIAR).decision == "approved"
        try:
            rescale(self.one.home, self.digest, [LIAR] if is_member else [])
        except ArchipelError as no:
            assert "rounds are done with its scale" in str(no)


class Member:
    """The link of a site that takes part and lies."""

    most, pieces = 1 << 62, 0

    def __init__(self, walk, site, data):
        self.walk, self.site, self.data = walk, site, data
        self.lies, self.draws = walk.lies, walk.lies.draws
        self.teller = Teller(site.name, walk.one.answer, walk.where, walk.tally)
        self.right = {}  # the last letter of a kind as it should have been
        self.well = self.draws.randrange(1, 9)  # moves until it begins to spoil
        self.held = []  # what the coordinator held before and after many letters

    def report(self):
        """For whoever reads why a walk failed."""
        print("the last letters:", *self.teller.last, *self.teller.faults, sep="\n  ")

    async def close(self):
        pass

    def signed(self, letter):
        if "signature" not in KINDS[letter.kind] or letter.kind == "approve":
            return letter
        signature = self.site.identity.sign(signed(letter))
        return Letter(letter.kind, {**letter.fields, "signature": signature}, letter.arrays)

    async def babbles(self, letters, kinds=None):
        """Say some things, of any kind."""
        kinds = kinds or (_HARMLESS if self.well > 0 else _KINDS)
        for _ in range(letters):
            kind = self.draws.choice(kinds)
            letter = self.lies.letter(kind, self.right.get(kind), self.walk.digest)
            await self.teller.say(self.signed(letter) if self.draws.random() < 0.9 else letter)

    async def ask(self, letter):
        """What the site's own code says, and what is said instead."""
        self.right[letter.kind] = letter
        await self.babbles(self.draws.randrange(4))
        if letter.kind == "sums":
            await self.floods(20)
        if letter.kind in _MOVES:
            self.well -= 1
            letter = await self._moves(letter)
        self.walk.tally[self.walk.where(), letter.kind] += 1
        self.teller.last.append(f"{self.walk.where()}: right {letter.kind}")
        answer = await self.teller.link.ask(letter)
        if self.well <= 0 and letter.kind in _MOVES and self.draws.random() < 0.5:
            await self.teller.say(letter)  # again, although it was taken
        return answer

    async def _moves(self, letter):
        match "right" if self.well > 0 else self.draws.choice(_WAYS):
            case "spoilt":
                return self.signed(self.lies.spoilt(letter))
            case "lie":
                return self.signed(self.lies.letter(letter.kind, letter, self.walk.digest))
            case "late":
                await self.dawdles()
            case "twice":
                await self.teller.say(letter)
            case "away":
                await self.teller.say(Letter("away", {"study": self.walk.digest, "reason": "\n"}))
            case "leaves":
                self.site.leave([self.walk.digest])
                await self._tells()
                await self.babbles(5)
        return letter

    async def dawdles(self):
        """Let time pass until nobody waits for this member; it is silent, or says that it works."""
        walk, says = self.walk, self.draws.random() < 0.5
        while walk.waited_for() - {walk.liar}:
            await asyncio.sleep(0.005)
        if walk.waited_for():
            await self.floods(40)
        if walk.waited_for() and walk.restarts:
            walk.stop()
            return
        busy = {"study": walk.digest, "pending": -1, "busy": "trains", "scale": None}
        while walk.waited_for() == {walk.liar}:
            if says:
                await self.teller.say(Letter("next", {**busy, "reached": int(walk.ahead)}))
            walk.time_passes()
            await asyncio.sleep(0)

    async def floods(self, letters):
        """Say very much in one state: nothing of it stays at the coordinator."""
        kinds = [kind for kind in _KINDS if kind not in _LASTING]
        await self.teller.say(Letter("model", {"study": self.walk.digest}))  # is made once
        place, before = self.walk.place(), held_by(self.walk.one)
        await self.babbles(letters, kinds)
        if self.walk.place() == place:  # the study itself did not go on
            self.held.append((before, held_by(self.walk.one)))

    async def _tells(self):
        with suppress(ArchipelError):
            await self.site.tell(self.teller.link)

    async def _approves(self):
        """Approve again, first with facts that are none, now and then."""
        right = self.walk.facts(self.data)
        self.walk.one.enrolment._kept.clear()
        for _ in range(self.draws.randrange(2)):
            name = self.draws.choice(["n", "n_test", "classes", "task"])
            wrong = self.draws.choice([*REAL, *WHOLE, "text", 77])
            with suppress(ArchipelError, ValueError):  # what is no JSON cannot even be signed
                self.site.decide(self.walk.text, "approved", replace(right, **{name: wrong}))
                await self._tells()
        self.site.decide(self.walk.text, "approved", right)
        await self._tells()

    async def run(self):
        """Take part until the study is over, whatever happens."""
        walk = self.walk
        while True:
            with suppress(ArchipelError):
                await walk.attend(self.site, self)
                break
            await self._approves()
            if walk.server_study is not None:
                await self.dawdles()
            await asyncio.sleep(0.02)
        self.right["model"] = Letter("model", {"study": walk.digest})
        self.well = 0
        await self.floods(60)
