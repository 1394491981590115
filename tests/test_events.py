"""The clock of events: who is at work when, and from which version of the shared state."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms import FedBuff
from archipel.devices.device import Always, Joules, Trip
from archipel.runs.events import Events
from archipel.runs.participation import Participation
from problems import linear, regression


class Nights(Always):
    """There from 0 to `day` of every 2 `day` seconds; odd parties in the other half."""

    def __init__(self, day):
        self.day, self.always = day, day == np.inf

    def _phase(self, parties, at):
        return (at + (parties % 2) * self.day) % (2 * self.day)

    def there(self, parties, at):
        return np.ones(len(parties), bool) if self.always else self._phase(parties, at) < self.day

    def until(self, parties, at):
        if self.always:
            return np.full(len(parties), np.inf)
        here = self._phase(parties, at)
        return np.where(here < self.day, at + self.day - here, at)

    def comes(self, parties, at):
        if self.always:
            return np.full(len(parties), at)
        here = self._phase(parties, at)
        return np.where(here < self.day, at, at + 2 * self.day - here)


def events_of(parties=12, at_once=5, buffer=3, seed=0, durations=None, presence=None, **who):
    """A clock whose parties take whole seconds, so that many events fall together."""
    takes = np.arange(parties) % 4 + 1.0 if durations is None else np.asarray(durations, float)

    def trip(ids, t):
        return Trip(np.zeros(len(ids)), takes[ids], np.zeros(len(ids)))

    def joules(ids, part, t):
        return Joules(part.seconds, 2 * part.seconds)

    policy = Participation(sample=at_once, **who)
    at = (np.arange(parties), seed, at_once, buffer, presence or Always())
    return Events(policy, *at, trip, joules), takes


def steps_of(events, steps, resting=frozenset()):
    """What ended in each step, and when the step was."""
    found = []
    for t in range(steps):
        ended, _ = events.fill(t, t, set(resting))
        found.append((events.now, ended))
    return found


shapes = st.fixed_dictionaries(
    {
        "parties": st.integers(4, 15),
        "seed": st.integers(0, 99),
        "dropouts": st.sampled_from([0.0, 0.4]),
        "deadline": st.sampled_from([None, 2.5]),
        "day": st.sampled_from([np.inf, 7.5]),
        "at_once": st.integers(1, 15),
        "buffer": st.integers(1, 15),
    }
)


def watched(events, at_once):
    """Have a clock note who begins when, and from which version."""
    begun, original = [], events._begin

    def begin(t, ids):
        assert not set(ids.tolist()) & events._busy  # never somebody who is at work
        begun.extend((events.now, t, k) for k in ids.tolist())
        original(t, ids)
        assert len(events.flights) == len(events._busy) <= at_once

    events._begin = begin
    return begun


@settings(max_examples=40)
@given(shapes)
def test_the_rules_of_the_clock(shape):
    parties, presence = shape["parties"], Nights(shape["day"])
    at_once = min(shape["at_once"], parties)
    buffer = min(shape["buffer"], parties // 4 if shape["deadline"] else parties)  # quick enough
    policy = {"dropouts": shape["dropouts"], "deadline": shape["deadline"]}
    events, _ = events_of(parties, at_once, buffer, shape["seed"], presence=presence, **policy)
    begun = watched(events, at_once)
    done = steps_of(events, 8)
    times = [now for now, _ in done]

    assert times == sorted(times)
    for t, (now, ended) in enumerate(done):
        came = [flight for flight in ended if flight.lost < 0]
        assert len({flight.party for flight in came}) == len(came) == buffer
        assert all(flight.version <= t and flight.ends <= now for flight in ended)
        assert all(flight.high == 2 * flight.low for flight in ended)
    for at, version, k in begun:  # from the newest version: arrivals come before departures
        assert version == sum(now <= at for now in times)
        assert presence.there(np.array([k]), at)[0]


@settings(max_examples=40)
@given(shapes)
def test_what_departs_decides_all_else(shape):
    parties, at_once = shape["parties"], min(shape["at_once"], shape["parties"])
    buffer = min(shape["buffer"], parties)
    events, takes = events_of(parties, at_once, buffer, shape["seed"])
    begun = watched(events, at_once)
    done = steps_of(events, 8)

    flights = sorted((at + takes[k], k, version) for at, version, k in begun)
    for t, (now, ended) in enumerate(done):  # in the order in which they end, K at a time
        mine = flights[t * buffer : (t + 1) * buffer]
        assert [(flight.ends, flight.party, flight.version) for flight in ended] == mine
        assert now == mine[-1][0]


def test_everybody_who_may_is_at_work_at_any_time():
    events, _ = events_of(parties=12, at_once=5, buffer=3)
    begun = watched(events, 5)
    steps_of(events, 30)

    for at in sorted({at for at, _, _ in begun}):
        ends = [(begin, begin + k % 4 + 1) for begin, _, k in begun]
        assert sum(begin <= at < end for begin, end in ends) == 5


def test_a_replacement_is_drawn_from_all_alike():
    counts = np.zeros(12)
    for seed in range(60):
        events, _ = events_of(parties=12, at_once=4, buffer=1, seed=seed, durations=[1.0] * 12)
        for _, ended in steps_of(events, 40):
            counts[[flight.party for flight in ended]] += 1

    assert abs(counts / counts.sum() - 1 / 12).max() < 0.02


def test_with_equal_speeds_events_are_rounds():
    events, _ = events_of(parties=12, at_once=5, buffer=5, seed=3, durations=[2.0] * 12)
    who, everybody = Participation(sample=5), np.arange(12)

    for t, (now, ended) in enumerate(steps_of(events, 6)):
        assert now == 2.0 * (t + 1)
        assert [flight.party for flight in ended] == who.draw(everybody, 3, t).present.tolist()
        assert all(flight.version == t for flight in ended)


def test_who_rests_does_not_begin():
    events, _ = events_of(parties=8, at_once=3, buffer=2)
    begun = watched(events, 3)
    steps_of(events, 5, resting={0, 5})

    assert not {0, 5} & {k for _, _, k in begun}


def test_a_clock_goes_on_where_it_was():
    whole, _ = events_of(dropouts=0.3, presence=Nights(7.5))
    ends = steps_of(whole, 10)
    first, _ = events_of(dropouts=0.3, presence=Nights(7.5))
    before = steps_of(first, 4)
    again, _ = events_of(dropouts=0.3, presence=Nights(7.5))
    again.restore(first.state())
    after = [(again.now, ended) for t in range(4, 10) for ended, _ in [again.fill(t, t, set())]]

    assert before + after == ends


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ({"dropouts": 1.0}, "times a party began and did not finish: lower simulate.dropouts"),
        ({"availability": 0.0}, "round 1: nobody is there, also after waiting 1000 rounds"),
        ({"durations": [np.inf] * 12}, "waits for a party that never finishes"),
    ],
)
def test_a_clock_that_cannot_go_on_says_so(who, sentence):
    events, _ = events_of(**who)

    with pytest.raises(ar.ArchipelError, match=sentence):
        steps_of(events, 1)


def test_who_never_comes_is_not_waited_for():
    class Never(Nights):
        def there(self, parties, at):
            return np.zeros(len(parties), bool)

        def comes(self, parties, at):
            return np.full(len(parties), np.inf)

    events, _ = events_of(presence=Never(7.5))

    with pytest.raises(ar.ArchipelError, match="round 1: waits for a party that never comes"):
        steps_of(events, 1)


def simulated(out=None, stop=None, **more):
    options = {"rounds": 12, "sample": 5, "speed": 3.0, "speed_spread": 1.0, "dropouts": 0.2}
    return ar.simulate(
        FedBuff(lr=0.05, buffer=3),
        regression(9, 3, 0),
        linear(3),
        out=out,
        on_round=None if stop is None else lambda run: run.done == stop,
        checkpoint_seconds=60,
        plan=ar.Plan("one", 2, 1),
        **{**options, **more},
    )


def test_a_run_of_events_is_resumed_to_the_same_bits(tmp_path):
    whole = simulated()
    simulated(tmp_path / "run", stop=5)
    again = simulated(tmp_path / "run")

    assert torch.equal(again.vector, whole.vector)
    assert [c.timing for c in again.participation] == [c.timing for c in whole.participation]
    assert [{**e, "seconds": 0} for e in again.history] == [
        {**e, "seconds": 0} for e in whole.history
    ]
    assert again.spent == whole.spent
    opened = simulated(tmp_path / "run")
    assert opened.history[-1]["staleness"] == whole.history[-1]["staleness"]
    assert [c.timing for c in opened.participation] == [c.timing for c in whole.participation]


def test_what_a_run_tells_of_events():
    run = simulated()
    late = [tau for cohort in run.participation for tau in cohort.timing.staleness]
    last = run.history[-1]

    assert len(late) == 3 * 12 and max(late) > 1 and min(late) == 0
    assert last["staleness"] == {
        "mean": np.mean(run.participation[-1].timing.staleness),
        "max": max(run.participation[-1].timing.staleness),
    }
    assert last["simulated"]["seconds"] == run.participation[-1].timing.end > 0
    lost = [k for cohort in run.participation for k in cohort.missing]
    assert lost and {c.why for r in run.participation for c in r.missing.values()} == {
        "dropped out"
    }
    told = run.anatomy.bytes_down
    assert run.spent.down >= told * (36 + len(lost)) and run.spent.up == 36 * run.anatomy.bytes_up
    assert not any("one second" in note for note in run.notes)


def test_without_speeds_everybody_takes_a_second():
    run = simulated(speed=None, speed_spread=0.0, dropouts=0.0, sample=6)

    assert run.simulated["seconds"] == 6.0  # two steps of three at a time
    assert "every party takes one second, since nobody's speed is known" in run.notes[0]
