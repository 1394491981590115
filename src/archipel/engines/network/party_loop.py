# SPDX-License-Identifier: Apache-2.0
"""A party's loop: ask for work, do it, send what came of it, until the study is done.

Every step may be repeated: whatever is cut is asked or sent again, and says the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from math import nan
from typing import Any, TypeVar

from archipel.aggregation.others import Stranger
from archipel.engines.network.letters import Letter
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.scoring import Learnt
from archipel.engines.network.transport import BEAT, SMALL, Cut, Link, Refused
from archipel.engines.network.turn import Arrays, Turn
from archipel.errors import ArchipelError
from archipel.exchange.talk import Talk
from archipel.tree import leaves

_OFTEN = 1.0  # seconds between two words of a party that listens while it trains
_LONG = 60.0  # seconds that a party waits at most before it asks again

T = TypeVar("T")
Sign = Callable[[Letter], bytes]
Doing = tuple[str, int]  # what a party does, and how far it is: a number that grows


class Rescaled(ArchipelError):
    """The party's data is on a scale that the study has no more."""


class CalledBack(ArchipelError):
    """What a party works on is not waited for any more."""


class PartyLoop:
    """One party's part in one study."""

    def __init__(
        self,
        party_state: PartyState,
        link: Link,
        study: str,
        *,
        sign: Sign = lambda _: b"",
        keep: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
        may: Callable[[], Awaitable[None]] | None = None,
        counts: bool = True,
        scale: str | None = None,
        log: Callable[[str | None], str | None] = lambda _: None,
        meet: Callable[[], Awaitable[None]] | None = None,
        pace: Callable[[], Awaitable[None]] | None = None,
        pause: float = 1.0,
    ) -> None:
        """`keep` is called before anything leaves, so that a restart sends the same again.

        `may` is awaited before every letter: it returns when the party may go on, or raises.
        `scale` names the scale of the party's data; where it was made anew, `Rescaled` is raised.
        Without `counts` the party does not tell how many points it has, trained on or measured on.
        `log` takes the anchor of the other side's audit log and returns this one's. `meet` asks who
        the other parties are, where the work names one that is not known here. `pace` is awaited
        after training: a rehearsal has slow parties.
        """
        self._party_state, self._link, self._study = party_state, link, study
        link.most = max(link.most, SMALL + party_state.most)
        self._sign, self._keep, self._say, self._pause = sign, keep, say, pause
        self._may, self._counts, self._scale, self._log = may, counts, scale, log
        self._meet, self._pace = meet, pace
        self._tells_work = counts and not party_state.by_record
        self._anchor: str | None = None  # of the other side's audit log, as it came last
        self._scoring = asyncio.Lock()
        self._grown = 0, 0  # how far the work was at the last beat, and how often it had grown

    async def run(self) -> int:
        """Take part until the study is done; return its number of rounds."""
        while True:
            asked = {"pending": self._party_state.pending, "busy": None, "scale": self._scale}
            if self._party_state.asynchronous:
                asked["last"] = self._party_state.last
            letter = await self._ask("next", **asked)
            match letter.kind:
                case "verdict":
                    self._party_state.verdict(letter["round"], letter["counted"])
                    self._keep()
                case "work":
                    await self._work(letter)
                case "again":
                    await self._send(*self._party_state.again(letter["round"]))
                case "evaluate":
                    await self._evaluate(letter)
                case "wait":
                    seconds = letter["seconds"]
                    await asyncio.sleep(seconds if 0 <= seconds < _LONG else _LONG)
                case "done":
                    return int(letter["rounds"])
                case "rescaled":
                    raise Rescaled("the scale of the features was made anew: asking for it.")
                case kind:
                    raise Refused(f"a {kind} is no answer to a party that asks for work.")

    async def _work(self, letter: Letter) -> None:
        t, number = letter["round"], letter["number"]
        self._say(f"round {t + 1}, message {number + 1}")
        asked = (t, number, list(letter.arrays), letter["attempt"], letter.name)
        try:
            arrays, gradients = await self._worked(*asked)
        except Stranger:
            if self._meet is None:
                raise
            await self._meet()
            arrays, gradients = await self._worked(*asked)
        except CalledBack as why:
            self._say(f"round {t + 1}: {why}")
            self._party_state.verdict(t, False)
            self._keep()
            return
        self._keep()
        turn = self._party_state.turn
        if self._party_state.asynchronous and number == 0 and turn is not None:
            await self._send(turn, arrays)
            return
        fields = {"round": t, "number": number, "attempt": letter["attempt"]}
        await self._upload(arrays, gradients, letter.name, letter.fields.get("log"), **fields)

    async def _send(self, turn: Turn, arrays: Arrays) -> None:
        """Send what was made of a version, for the round that it has joined."""
        fields = {"round": turn.joined, "number": 0, "attempt": turn.attempt}
        fields |= {"version": turn.round}
        await self._upload(arrays, turn.gradients[0], turn.name, self._anchor, **fields)

    async def _upload(
        self, arrays: Arrays, gradients: int, answers: bytes, log: str | None, **fields: Any
    ) -> None:
        fields |= {
            "n": self._party_state.n,
            "gradients": gradients if self._counts else 0,
            "answers": answers,
            "log": self._log(log),
        }
        with suppress(Refused):  # too late, or begun anew: ask what now
            await self._ask("upload", arrays, **fields)

    # -- where nobody waits for anybody ------------------------------------------------------------

    async def _worked(self, *asked: Any) -> tuple[Arrays, int]:
        """An upload, made in a thread; where others do not wait for it, this party listens then."""
        work = self._party_state.work
        if not self._party_state.asynchronous or asked[1] > 0:
            found: tuple[Arrays, int] = await self._busy(work, *asked)
            if self._pace is not None and asked[1] == 0:
                await self._pace()
            return found
        events = asyncio.get_running_loop()

        def admission(version: int, name: bytes) -> tuple[int, int]:
            asking = self._admission(version, name)
            return asyncio.run_coroutine_threadsafe(asking, events).result()

        self._party_state.admission = admission
        listening = asyncio.create_task(self._listen())
        try:
            return await asyncio.to_thread(work, *asked)
        finally:
            async with self._scoring:  # one model at a time
                listening.cancel()

    async def _admission(self, version: int, name: bytes) -> tuple[int, int]:
        """Say that this party has trained: the round that its upload is for, and the attempt."""
        if self._pace is not None:
            await self._pace()
        while True:
            try:
                letter = await self._ask("ready", round=version, answers=name)
            except Refused as no:
                raise CalledBack(str(no)) from None
            if letter.kind == "wait":
                await asyncio.sleep(min(max(0.0, letter["seconds"]), _LONG))
            elif letter.kind != "admitted" or letter["round"] != version:
                raise Refused(f"a {letter.kind} is no answer to a party that has trained.")
            else:
                self._anchor = letter.fields.get("log")
                return letter["joined"], letter["attempt"]

    async def _listen(self) -> None:
        """While this party trains, say how far it is, and score models that others have made."""
        while True:
            with suppress(ArchipelError):
                if self._may is not None:
                    await self._may()
                doing, reached = self._progress()
                said = self._letter("next", (), pending=-1, busy=doing, reached=reached)
                answer = await self._link.ask(said)
                if answer.kind == "evaluate":
                    async with self._scoring:
                        await self._evaluate(answer)
                    continue
            await asyncio.sleep(_OFTEN)

    async def _evaluate(self, letter: Letter) -> None:
        """Score the shared model, and this party's own where it has one.

        An own model by the server's advice is made once: other advice would be another model.
        """
        party_state, t = self._party_state, letter["round"]
        shared, own = list(letter.arrays), None
        first = party_state.may_score(t, letter.name, shared)
        self._keep()  # that it was scored, before anything of it leaves
        if party_state.answer is None:
            scores = await self._busy(party_state.told, party_state.learnt(shared), t)
            if party_state.has_personal and (first or not party_state.asks):
                model = await self.personal(t, party_state.rest(shared))
                own = await self._busy(party_state.told, model, t, True)
            elif party_state.has_personal:
                own = dict.fromkeys(scores, nan)
            party_state.answer = scores, own
            self._keep()
        scores, own = party_state.answer
        points = int(party_state.data.n_test[party_state.party]) if self._counts else 0
        with suppress(Refused):
            await self._ask("scores", round=t, metrics=scores, own=own, points=points)

    async def model(self) -> tuple[Learnt, int]:
        """The model that this party uses after the study, and its rounds: in three messages.

        The first brings what was learnt; two more where the algorithm asks the server. Nothing is
        trained here but what the algorithm trains for a model of a party's own.
        """
        letter = await self._ask("model")
        learnt, rounds = list(letter.arrays), int(letter["rounds"])
        if not self._party_state.has_personal:
            return self._party_state.learnt(learnt), rounds
        return await self.personal(rounds, learnt), rounds

    async def personal(self, t: int, sent: list[Any]) -> Learnt:
        """This party's own model, asking the server where the algorithm does."""
        talk, number = await self._busy(Talk, self._party_state.personal(t, sent)), 0
        while not talk.ended:
            advice = await self._ask("ask", talk.said, number=number)
            await self._busy(talk.send, list(advice.arrays))
            number += 1
        found: Learnt = talk.said
        return found

    async def _busy(self, work: Callable[..., Any], *args: Any) -> Any:
        """Work in a thread, and say from time to time how far it is."""
        return await self._beating(asyncio.to_thread(work, *args), self._progress)

    async def _answer(self, letter: Letter) -> Letter:
        """Ask once; where a large answer comes over a slow line, say how far it is.

        The other side cannot see that: whatever lies between may take all of its bytes at once.
        """
        before = self._link.pieces

        def doing() -> Doing | None:
            nonlocal before
            last, before = before, self._link.pieces
            return self._far(f"receives, {before} pieces") if before > last else None

        return await self._beating(self._link.ask(letter), doing)

    async def _beating(self, work: Coroutine[Any, Any, T], doing: Callable[[], Doing | None]) -> T:
        """Wait for something, and say from time to time what it does, where there is a word."""
        task, beat = asyncio.create_task(work), None
        try:
            while True:
                done, _ = await asyncio.wait([task], timeout=BEAT)
                if done:
                    return task.result()
                if (beat is None or beat.done()) and (said := doing()):
                    beat = asyncio.create_task(self._beat(said))
        finally:
            task.cancel()
            if beat is not None:
                beat.cancel()

    async def _beat(self, said: Doing) -> None:
        """Say what this party does; whether it is heard is seen by what comes next."""
        with suppress(ArchipelError, TimeoutError):
            if self._may is not None:
                await self._may()  # in a pause not even a count leaves
            letter = self._letter("next", (), pending=-1, busy=said[0], reached=said[1])
            async with asyncio.timeout(BEAT):
                await self._link.ask(letter)

    def _progress(self) -> Doing:
        if (gradients := self._gradients) is None:
            return self._far("evaluates")
        return self._far(f"trains, {gradients} gradients" if self._tells_work else "trains")

    def _far(self, text: str) -> Doing:
        """What this party does, with a number that grows as long as that moves on.

        It is all that has come and was computed so far, or where counts must not leave how often
        that had grown when this was asked.
        """
        reached = self._link.pieces + (self._gradients or 0)
        if self._tells_work:
            return text, reached
        before, grown = self._grown
        self._grown = reached, grown + (reached != before)
        return text, self._grown[1]

    @property
    def _gradients(self) -> int | None:
        """Of the round that is computed now."""
        turn = self._party_state.turn
        return None if turn is None or turn.me is None else turn.me.gradients

    def _letter(self, kind: str, arrays: Any, **fields: Any) -> Letter:
        return Letter(kind, {"study": self._study, **fields}, arrays)

    async def _ask(self, kind: str, arrays: Any = (), **fields: Any) -> Letter:
        """Ask until there is an answer."""
        letter = self._letter(kind, leaves(tuple(arrays)), **fields)
        if self._may is not None:
            await self._may()
        if kind in ("upload", "scores", "ask"):
            letter = letter.adding(signature=self._sign(letter))
        pause = self._pause
        while True:
            if self._may is not None:
                await self._may()
            try:
                return await self._answer(letter)
            except Cut as cut:
                self._say(f"{cut} Trying again in {pause:.0f} s.")
                await asyncio.sleep(pause)
                pause = min(2 * pause, 8 * self._pause)
