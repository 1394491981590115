"""What a coordinator takes from whom, where nobody waits for anybody: letter by letter."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel.algorithms import FedBuff
from archipel.engines.engine import Cause
from archipel.engines.network.answers import Answers
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted
from archipel.engines.network.letters import Letter, Sealed, decode
from archipel.engines.network.opened import Patience
from archipel.engines.network.party_loop import CalledBack
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Refused
from archipel.privacy.promise import Privacy

DATA = ar.load("heart_disease").standardised()
EVERYBODY = list(range(DATA.training))
WORK = {"lr": 0.1, "batch_size": 16}


def model():
    torch.manual_seed(0)
    return ar.Model(nn.Linear(13, 2))


class Hand:
    """A coordinator that is asked by hand, by parties at whatever pace a test has."""

    def __init__(self, state=None):
        algorithm = FedBuff(**WORK)
        boxes, anatomy = fitted(algorithm, DATA, model(), 0, 0, None, len(EVERYBODY))
        self.engine = NetworkEngine(boxes, model(), anatomy, len(EVERYBODY), "s")
        self.engine.clock, self.now = lambda: self.now, 0.0
        self.answers = Answers(self.engine)
        self.states = [
            PartyState(algorithm, DATA.select(np.array([k])), model(), party=k, private=False)
            for k in EVERYBODY
        ]
        if state is not None:
            self.engine.restore(state)

    @property
    def flights(self):
        return {k: flight.version for k, flight in self.engine.buffered.flights.items()}

    @asynccontextmanager
    async def round(self, t, parties=EVERYBODY, **patience):
        """Open round t; its outcome is there once K uploads are."""
        task = asyncio.create_task(self.engine.round(t, parties, Patience(**patience)))
        while self.engine.buffered._letter is None and not task.done():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def done(self, task):
        """The outcome of a round; who counted is told so from then on."""
        outcome = await asyncio.wait_for(task, 60)
        self.answers.verdicts[len(self.answers.verdicts)] = frozenset(outcome.arrived.tolist())
        return outcome

    async def passes(self, seconds, task):
        """Let time pass, and the round look at its clock."""
        self.now += seconds
        self.engine.buffered._moved.set()
        for _ in range(20):
            await asyncio.sleep(0)
        return task.done()

    async def ask(self, k, kind, arrays=(), **fields):
        """A party's letter, as bytes there and back."""
        letter = decode(b"".join(Sealed(Letter(kind, {"study": "s", **fields}, arrays)).pieces))
        found = await self.answers.answer(k, letter)
        sealed = found if isinstance(found, Sealed) else Sealed(found)
        return decode(b"".join(sealed.pieces))

    async def next(self, k, pending=-1, last=-1):
        return await self.ask(k, "next", pending=pending, busy=None, last=last)

    async def trained(self, k, work):
        """Do the work of a letter, ready to be sent."""
        admitted = await self.ask(k, "ready", round=work["round"], answers=work.name)
        self.states[k].admission = lambda *_: (admitted["joined"], admitted["attempt"])
        arrays, gradients = self.states[k].work(work["round"], 0, list(work.arrays), 0, work.name)
        return arrays, {
            "round": admitted["joined"], "number": 0, "attempt": admitted["attempt"],
            "version": work["round"], "n": self.states[k].n, "gradients": gradients,
            "answers": work.name, "signature": b"",
        }  # fmt: skip

    async def works(self, k):
        """A party that asks, trains and sends at once."""
        arrays, fields = await self.trained(k, await self.next(k, last=self.states[k].last))
        await self.ask(k, "upload", arrays, **fields)
        return arrays, fields

    async def hears(self, k):
        letter = await self.next(k, self.states[k].pending, self.states[k].last)
        assert letter.kind == "verdict"
        self.states[k].verdict(letter["round"], letter["counted"])
        return letter["counted"]


def by_hand(test):
    """Run a test of a coordinator's."""

    def run(monkeypatch):
        monkeypatch.setattr("archipel.engines.network.answers.POLL", 0.02)
        asyncio.run(test(Hand()))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@by_hand
async def test_an_upload_of_an_older_version_counts_while_it_is_under_way(hand):
    async with hand.round(0, buffer=2) as task:
        slow = await hand.next(3)
        await hand.works(0)
        await hand.works(1)
        outcome = await hand.done(task)
    assert outcome.arrived.tolist() == [0, 1] and not outcome.stale
    assert await hand.hears(0) and await hand.hears(1)
    async with hand.round(1, buffer=2) as task:
        assert hand.flights == {0: 1, 1: 1, 2: 1, 3: 0}  # but for who has an older one
        await hand.works(0)
        arrays, fields = await hand.trained(3, slow)
        await hand.ask(3, "upload", arrays, **fields)
        outcome = await hand.done(task)

    assert outcome.arrived.tolist() == [0, 3]
    assert outcome.stale == {3: 1}
    assert await hand.hears(3)


@by_hand
async def test_no_party_is_in_a_buffer_twice_and_none_is_counted_again(hand):
    async with hand.round(0, buffer=3) as task:
        arrays, fields = await hand.works(0)
        assert (await hand.ask(0, "upload", arrays, **fields)).kind == "thanks"  # sent again
        assert list(hand.engine.buffered.uploads) == [0]
        assert (await hand.next(0, pending=0, last=0)).kind == "wait"  # no work, no verdict
        assert (await hand.next(0, last=0)).kind == "wait"
        with pytest.raises(Refused, match="version 0: is not waited for from this party"):
            await hand.ask(0, "ready", round=0, answers=fields["answers"])
        await hand.works(1)
        await hand.works(2)
        outcome = await hand.done(task)
    assert outcome.arrived.tolist() == [0, 1, 2]
    async with hand.round(1, buffer=3) as task:
        with pytest.raises(Refused, match="version 0: is not waited for"):  # a replay
            await hand.ask(0, "upload", arrays, **fields)
        assert not hand.engine.buffered.uploads


LIES = {
    "a version that it was not given": ({"version": 5}, "version 5: is not waited for"),
    "no version": ({"version": None}, "says of which version it is"),
    "another letter": ({"answers": bytes(32)}, "version 0: the upload answers another letter"),
    "a later round": ({"round": 7}, "weighed for round 8, and this party was told 1"),
    "an earlier round": ({"round": -3}, "weighed for round -2, and this party was told 1"),
    "a second message": ({"number": 1}, "says of which version it is"),
    "another form": ({"arrays": [torch.zeros(3)]}, "another form"),
    "a count that cannot be": ({"n": -1.0}, "n = -1"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_party_that_lies_is_refused_with_a_cause_and_may_still_say_the_truth(lie):
    changed, why = LIES[lie]

    async def run():
        hand = Hand()
        async with hand.round(0, buffer=1) as task:
            arrays, fields = await hand.trained(0, await hand.next(0))
            told = {**fields, **{k: v for k, v in changed.items() if k != "arrays"}}
            with pytest.raises(Refused, match=why):
                await hand.ask(0, "upload", changed.get("arrays", arrays), **told)
            await hand.ask(0, "upload", arrays, **fields)
            return await hand.done(task)

    assert asyncio.run(run()).arrived.tolist() == [0]


@by_hand
async def test_who_was_not_told_a_round_sends_nothing_that_counts(hand):
    async with hand.round(0, buffer=1):
        work = await hand.next(0)
        arrays, fields = await hand.trained(0, work)
        hand.engine.buffered.flights[1].given = True
        with pytest.raises(Refused, match="the upload answers another letter"):
            await hand.ask(1, "upload", arrays, **{**fields, "answers": bytes(32)})
        with pytest.raises(Refused, match="the party was given other numbers"):
            await hand.ask(1, "ready", round=0, answers=bytes(32))


@pytest.mark.parametrize("number", [float("nan"), 3e38])
def test_an_upload_that_spoils_the_model_is_left_out_and_named(number):
    """Also where a step takes one upload: whoever sends such a one holds nobody up."""

    async def run():
        hand = Hand()
        async with hand.round(0, buffer=1) as task:
            arrays, fields = await hand.trained(0, await hand.next(0))
            await hand.ask(0, "upload", [torch.full_like(arrays[0], number)], **fields)
            assert not await hand.passes(0.0, task)
            assert not await hand.hears(0)
            await hand.works(1)
            return await hand.done(task), hand.engine.vector()

    outcome, vector = asyncio.run(run())
    assert outcome.arrived.tolist() == [1]
    assert outcome.missing == {0: Cause("diverged")}
    assert bool(torch.isfinite(vector).all())


@by_hand
async def test_who_falls_silent_is_called_back_and_begins_anew_with_the_newest_version(hand):
    async with hand.round(0, buffer=2, silence=10.0) as task:
        late = await hand.next(3)
        for k in (0, 1, 2):
            hand.engine.buffered.flights[k].seen = 5.0
        assert not await hand.passes(10.0, task)
        assert 3 not in hand.flights or not hand.engine.buffered.flights[3].given
        await hand.works(0)
        await hand.works(1)
        outcome = await hand.done(task)
    assert outcome.missing[3] == Cause("silent", "asked for work")
    async with hand.round(1, buffer=2, silence=10.0) as task:
        with pytest.raises(Refused, match="version 0: is not waited for from this party"):
            await hand.ask(3, "ready", round=0, answers=late.name)
        assert (await hand.next(3))["round"] == 1


@by_hand
async def test_who_is_at_work_is_believed_until_its_time_is_up(hand):
    """A slow site may train for long in one go, and a liar has a flight no longer than that."""
    async with hand.round(0, buffer=2, silence=10.0, deadline=35.0) as task:
        await hand.next(2)
        await hand.next(3)
        for _ in range(4):
            await hand.passes(9.0, task)
            hand.engine.note(2, "trains", 1)  # and so on, for ever
        await hand.passes(0.0, task)
        lost = dict(hand.engine.buffered._lost)

    assert lost[3].why == "silent"
    assert lost[2] == Cause("too slow", "trains")


@pytest.mark.parametrize(("needed", "arrived"), [(1, [0]), (2, [])])
def test_where_too_few_are_there_those_count_if_they_are_a_quorum(needed, arrived):
    async def run():
        hand = Hand()
        hand.engine.buffered.here = lambda k: k == 0
        how = {"buffer": 2, "silence": 10.0, "needed": needed}
        async with hand.round(0, **how) as task:
            await hand.works(0)
            assert not await hand.passes(9.9, task)
            await hand.passes(0.2, task)
            outcome = await hand.done(task)
        async with hand.round(1, **how):  # what did not count waits for the next
            assert list(hand.engine.buffered.uploads) == ([] if arrived else [0])
        return outcome

    assert asyncio.run(run()).arrived.tolist() == arrived


@by_hand
async def test_a_site_that_comes_in_mid_round_gets_work_at_once(hand):
    there = {0}
    hand.engine.buffered.here = lambda k: k in there
    async with hand.round(0, buffer=2) as task:
        await hand.works(0)
        there.add(2)
        assert (await hand.next(2)).kind == "work"
        hand.engine.lose(2, Cause("paused"))
        assert not await hand.passes(0.0, task)
        await hand.works(2)
        assert (await hand.done(task)).arrived.tolist() == [0, 2]


@by_hand
async def test_no_more_train_at_once_than_the_study_says_and_everybody_has_a_turn(hand):
    seen = set()
    for t in range(12):
        async with hand.round(t, buffer=1, at_once=2) as task:
            assert len(hand.flights) == 2
            k = min(hand.flights, key=lambda k: (k in seen, k))
            seen.add(k)
            await hand.works(k)
            await hand.done(task)
        assert await hand.hears(k)
    assert seen == set(EVERYBODY)


@by_hand
async def test_a_coordinator_that_comes_back_knows_who_works_on_what(hand):
    """Killed after round 1: uploads that were here, and work under way, count after it."""
    async with hand.round(0, buffer=2) as task:
        works = {k: await hand.next(k) for k in EVERYBODY}
        for k in (0, 1, 2):
            made = await hand.trained(k, works[k])
            await hand.ask(k, "upload", made[0], **made[1])
        await hand.done(task)
    assert list(hand.engine.buffered.uploads) == [2]

    again = Hand(state=hand.engine.state())
    again.states, again.answers.verdicts = hand.states, hand.answers.verdicts
    assert again.flights == {2: 0, 3: 0}
    assert (await again.next(2, pending=0, last=0)).kind == "again"
    async with again.round(1, buffer=2) as task:
        assert (await again.next(2, pending=0, last=0)).kind == "again"
        turn, arrays = again.states[2].again(0)
        fields = {
            "round": turn.joined, "number": 0, "attempt": 0, "version": 0, "n": again.states[2].n,
            "gradients": turn.gradients[0], "answers": turn.name, "signature": b"",
        }  # fmt: skip
        await again.ask(2, "upload", arrays, **fields)
        made = await again.trained(3, works[3])
        await again.ask(3, "upload", made[0], **made[1])
        outcome = await again.done(task)

    assert outcome.arrived.tolist() == [2, 3]
    assert outcome.stale == {3: 1}  # of 2, what it was weighed for before the restart


@by_hand
async def test_who_lost_its_work_meanwhile_gets_the_newest_version(hand):
    async with hand.round(0, buffer=1) as task:
        await hand.next(2)
        await hand.works(0)
        await hand.done(task)
    again = Hand(state=hand.engine.state())
    async with again.round(1, buffer=1):
        assert again.flights[2] == 0
        assert (await again.next(2))["round"] == 1
        assert again.flights[2] == 1


@by_hand
async def test_who_has_the_newest_version_from_before_a_restart_goes_on(hand):
    """The checkpoint does not name it: it was given after it was written."""
    async with hand.round(0, buffer=1) as task:
        await hand.works(0)
        await hand.done(task)
    state = hand.engine.state()
    async with hand.round(1, buffer=1):
        work = await hand.next(1)
    again = Hand(state=state)
    again.states = hand.states
    assert again.engine.buffered.holds(1, 1)  # nobody is told anything before the round is open
    async with again.round(1, buffer=1) as task:
        made = await again.trained(1, work)
        await again.ask(1, "upload", made[0], **made[1])
        assert (await again.done(task)).arrived.tolist() == [1]


def test_what_a_version_costs_is_charged_once_before_it_is_computed_and_each_by_itself():
    """Also of a version that was called back: its noise was drawn, and something may have left."""
    charged = []
    promise = Privacy(unit="record", noise=1.0, clip=1.0, delta=1e-3)
    state = PartyState(
        FedBuff(lr=0.1, batch_size=16), DATA.select(np.array([0])), model(), party=0, rounds=6,
        privacy=promise, charge=lambda t, _, noise: charged.append((t, noise)),
    )  # fmt: skip
    shared = [torch.zeros(28)]

    def admission(joined):
        def asked(version, _):
            assert charged[-1][0] == version
            if joined is None:
                raise CalledBack("not waited for any more.")
            return joined, 0

        return asked

    state.admission = admission(2)
    first, _ = state.work(0, 0, shared, 0, bytes(32))
    again, _ = state.work(0, 0, shared, 0, bytes(32))
    state.verdict(0, True)
    assert torch.equal(first[0], again[0])
    with pytest.raises(Refused, match="round 3 is not one that this party may still take part in"):
        state.work(2, 0, shared)  # it was in round 3 already
    state.admission = admission(None)
    with pytest.raises(CalledBack):
        state.work(3, 0, shared)
    state.verdict(3, False)
    state.admission = admission(5)
    state.work(4, 0, shared)

    assert [t for t, _ in charged] == [0, 3, 4]
    assert len({noise for _, noise in charged}) == 3
    state.verdict(4, True)
    state.admission = admission(9)
    with pytest.raises(Refused):
        state.work(5, 0, shared)  # beyond the study
