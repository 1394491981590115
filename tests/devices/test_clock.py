"""Rounds on the simulated clock: what adds up, what is as without it, who comes and goes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms import DSGD, FedAvg, FedProx
from archipel.devices.classes import PHONES, Device, Drawn, alike
from archipel.devices.device import Always, Devices
from archipel.devices.nights import Nights
from archipel.devices.trace import Trace
from archipel.engines.engine import Cause
from archipel.errors import ArchipelError, BelowQuorum
from archipel.runs.beginning import Beginning
from archipel.runs.clock import Clock, _shuffled
from archipel.runs.participation import Participation
from problems import classification, network

PLAN = ar.Plan("one", 4, 1)


class Messages:
    """The anatomy of a round of one message."""

    messages = (None,)

    def __init__(self, up=1000, down=2000):
        self.bytes_up, self.bytes_down = up, down

    def in_cohort(self, m):
        return self


def clock_of(devices, policy, eligible, seed=0, work=None, **more):
    who = Participation(**policy)
    work = np.ones(len(eligible)) if work is None else work
    return Clock(devices, who, eligible, seed, work, 1e6, **more)


def rounds_of(clock, count, partial=False):
    past = []
    for t in range(count):
        drawn = clock.draw(t, sum(1 + one.waited for one in past), past, Messages(), partial)
        past.append(clock.settled(drawn, Messages()))
    return past


def spans(*devices, period=1e6):
    return Trace.of([list(each) for each in devices], [period] * len(devices))


ELIGIBLES = st.sets(st.integers(0, 60), min_size=1, max_size=40).map(
    lambda parties: np.array(sorted(parties))
)
SHARES = st.floats(0, 1)
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "sample": SHARES | st.integers(1, 5),
        "over_select": st.floats(0, 3),
        "quorum": SHARES | st.integers(0, 5),
        "on_missing": st.sampled_from(["continue", "wait"]),
        "dropouts": st.floats(0, 0.9),
        "stragglers": st.floats(0, 0.9),
        "lost": SHARES,
        "availability": st.floats(0.1, 1),
        "away": st.dictionaries(st.integers(0, 60), st.just(((2, 4),)), max_size=3),
    },
)
TAILED = {"a": Device(1, seconds=1.0, spread=1.0, down=8.0, up=4.0, watts=(1.0, 2.0))}
COMING = {"a": Device(1, seconds=1.0, spread=1.0, idle=(20.0, 10.0), plugged=(9.0, 1.0), swing=3)}
PRESENCES = st.sampled_from(
    [
        Devices(Drawn(TAILED, 0), Always()),
        Devices(Drawn(COMING, 0), Nights(Drawn(COMING, 0), (0.0, 9.0))),
        Devices(Drawn(TAILED, 0), spans([(0, 400), (500, 900)], [(100, 101), (300, 700)])),
    ]
)


@given(ELIGIBLES, POLICIES, st.integers(0, 2**40), st.booleans(), PRESENCES, st.booleans())
@settings(deadline=None, max_examples=30)
def test_rounds_add_up_and_the_clock_never_goes_back(eligible, policy, seed, partial, devices, p):
    more = {"deadline": 3.0} if seed % 2 else {}
    clock = clock_of(devices, {**policy, **more}, eligible, seed, pace=p)
    try:
        past = rounds_of(clock, 4, partial)
    except BelowQuorum:
        assume(False)
    except ArchipelError as error:
        assert "sample = " in str(error) or "quorum = " in str(error)
        assume(False)

    at, low, high = 0.0, 0.0, 0.0
    for cohort in past:
        sampled, present, timing = cohort.sampled.tolist(), cohort.present.tolist(), cohort.timing
        assert sorted([*present, *cohort.missing]) == sampled == sorted({*sampled})
        assert {*sampled} <= {*eligible.tolist()}
        assert len(present) <= clock._who.count(len(eligible))
        assert ((cohort.effort >= 0) & (cohort.effort <= 1)).all() and len(cohort.effort) == len(
            present
        )
        assert partial or (cohort.effort == 1).all()
        assert at == timing.began <= timing.start <= timing.end
        assert not more or timing.end - timing.start <= 3.0 + 1e-6
        assert timing.low >= low and timing.high >= high and timing.high >= timing.low
        assert timing.slow is None or 0 <= timing.slow <= len(present)
        here = [k for k in sampled if cohort.missing.get(k) != Cause("away")]
        assert devices.presence.there(np.array(here, np.int64), timing.start).all()
        at, low, high = timing.end, timing.low, timing.high


@given(ELIGIBLES, POLICIES, st.integers(0, 2**40), st.booleans(), st.integers(0, 5))
@settings(deadline=None)
def test_equal_speeds_are_rounds_without_a_clock(eligible, policy, seed, partial, t):
    who = Participation(**policy)
    clock = clock_of(Devices(alike(2.0), Always()), policy, eligible, seed)
    try:
        plain = who.draw(eligible, seed, t, partial)
    except ArchipelError:
        assume(False)

    timed = clock.draw(t, t, [], Messages(), partial)

    for one, other in zip(plain, timed._replace(timing=None), strict=True):
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
    assert plain.timing is None and timed.timing.end <= 2.0 * (1 + plain.waited) + 1e-9


def test_a_run_of_equal_speeds_learns_the_same_bits():
    data, model = classification(12, 4, 3, 0), network(4, 3)
    common = {"rounds": 4, "sample": 6, "over_select": 0.5, "dropouts": 0.2, "plan": PLAN}
    algorithm = FedAvg(lr=0.1, local_steps=3, batch_size=2)

    plain = ar.simulate(algorithm, data, model, **common)
    timed = ar.simulate(algorithm, data, model, **common, speed=2.0, clock=True)

    assert torch.equal(plain.vector, timed.vector)
    assert [c.missing for c in plain.participation] == [c.missing for c in timed.participation]
    assert "simulated" not in plain.history[-1] and plain.simulated is None
    assert timed.history[-1]["simulated"]["seconds"] == pytest.approx(4 * 3 * 2 / 2.0, rel=0.4)


# -- exact times -----------------------------------------------------------------------------------


def test_a_round_ends_with_the_upload_it_needs_and_others_are_not_needed():
    four = np.arange(4)
    clock = clock_of(
        Devices(alike(1.0), Always()), {"sample": 2, "over_select": 1.0}, four,
        work=np.array([5.0, 3.0, 9.0, 4.0]),
    )  # fmt: skip

    (cohort,) = rounds_of(clock, 1)

    assert cohort.present.tolist() == [1, 3] and cohort.timing.end == 4.0
    assert cohort.missing == dict.fromkeys([0, 2], Cause("not needed"))


def test_who_leaves_in_the_middle_drops_out_and_is_not_waited_for():
    presence = spans([(0, 5)], [(0, 900)], [(0, 900)])
    clock = clock_of(
        Devices(alike(1.0), presence), {}, np.arange(3), work=np.array([10.0, 7.0, 8.0])
    )

    (cohort,) = rounds_of(clock, 1)

    assert cohort.present.tolist() == [1, 2] and cohort.timing.end == 8.0
    assert cohort.missing == {0: Cause("dropped out", "no longer there")}


def test_the_clock_jumps_to_when_enough_are_there():
    presence = spans([(0, 5000)], [(1000, 5000)], [(7000, 9000)])
    patient = clock_of(Devices(alike(1.0), presence), {}, np.arange(3), patience=1e6)
    hasty = clock_of(Devices(alike(1.0), presence), {"quorum": 2}, np.arange(3), patience=60)
    most = clock_of(Devices(alike(1.0), presence), {"sample": 2}, np.arange(3), patience=1e5)

    assert rounds_of(most, 1)[0].timing[:7] == (0.0, 1000.0, 1001.0, 0.0, 0.0, {}, None)
    assert rounds_of(hasty, 1)[0].timing.start == 1000.0  # patience ended, a quorum came
    assert rounds_of(patient, 1)[0].timing.start == 1e6  # all three are never there at once


def test_patience_begins_a_round_with_a_quorum():
    presence = spans([(0, 5000)], [(0, 5000)], [(7000, 9000)])
    clock = clock_of(Devices(alike(1.0), presence), {"quorum": 2}, np.arange(3), patience=60)

    first, second = rounds_of(clock, 2)

    assert first.sampled.tolist() == [0, 1] and first.timing.start == 60.0
    assert second.timing.began == first.timing.end == 61.0 and second.timing.start == 121.0


def test_a_quorum_that_is_never_there_at_once_is_told_and_does_not_hang():
    presence = spans([(0, 400)], [(500, 900)], period=1000)
    clock = clock_of(Devices(alike(1.0), presence), {"quorum": 2}, np.arange(2))

    with pytest.raises(ArchipelError, match="2 of 2 parties are not there at once in 30 days"):
        rounds_of(clock, 1)


def test_a_deadline_cuts_training_where_its_part_counts():
    kinds = {"a": Device(1, seconds=1.0, down=16.0, up=8.0)}
    devices, work = Devices(Drawn(kinds, 0), Always()), np.array([4.0, 40.0])
    megabytes = Messages(up=1_000_000, down=2_000_000)  # a second each way
    clock = clock_of(devices, {"deadline": 12.0}, np.arange(2), work=work)

    whole = clock.draw(0, 0, [], megabytes)
    part = clock.draw(0, 0, [], megabytes, keeps_partial_work=True)

    assert whole.missing == {1: Cause("too slow")} and whole.timing.end == 12.0
    assert part.effort.tolist() == [1.0, 0.25] and part.timing.end == 12.0


def test_what_was_begun_in_vain_costs_its_joules():
    kinds = {"a": Device(1, seconds=1.0, watts=(1.0, 3.0))}
    presence = spans([(0, 5)], [(0, 900)])
    clock = clock_of(Devices(Drawn(kinds, 0), presence), {}, np.arange(2), work=np.full(2, 10.0))

    (cohort,) = rounds_of(clock, 1)

    assert (cohort.timing.low, cohort.timing.high) == (15.0, 45.0)


def test_a_party_that_never_finishes_is_told():
    kinds = {"a": Device(1, seconds=1e308, spread=5.0)}
    clock = clock_of(Devices(Drawn(kinds, 0), Always()), {}, np.arange(5), work=np.full(5, 1e9))

    with pytest.raises(ArchipelError, match=r"never finishes; give round.deadline"):
        rounds_of(clock, 1)


# -- pace, fairness, many parties ------------------------------------------------------------------


def test_pace_asks_as_many_as_are_needed_for_the_sample_to_arrive():
    policy, many = {"sample": 20, "dropouts": 0.3}, np.arange(500)
    devices = Devices(alike(1.0), Always())

    steered = rounds_of(clock_of(devices, policy, many, pace=True), 30)
    plain = rounds_of(clock_of(devices, policy, many), 30)

    assert np.mean([len(one.present) for one in plain]) < 15
    assert np.mean([len(one.present) for one in steered[5:]]) > 18
    assert len(steered[0].sampled) == 20 and len(steered[-1].sampled) == pytest.approx(29, abs=2)


def test_first_to_finish_leaves_the_slowest_fifth_out():
    devices, many = Devices(Drawn({"a": Device(1, seconds=1.0, spread=1.0)}, 0), Always()), 500
    shares = []
    for policy in ({"sample": 10}, {"sample": 10, "over_select": 0.3}):
        past = rounds_of(clock_of(devices, policy, np.arange(many)), 200)
        arrived = sum(len(one.present) for one in past)
        shares.append(sum(one.timing.slow for one in past) / arrived)

    assert shares[0] == pytest.approx(0.2, abs=0.03)
    assert shares[1] < 0.07


class Counting:
    """A presence that counts how many parties it was asked about."""

    always = False

    def __init__(self, inner):
        self.inner, self.asked = inner, 0

    def __getattr__(self, name):
        def ask(parties, *more):
            self.asked += len(parties)
            return getattr(self.inner, name)(parties, *more)

        return ask


def test_a_round_of_a_million_phones_asks_about_a_few_thousand():
    speeds = Drawn(PHONES, 0)
    presence = Counting(Nights(speeds, (0.0,)))
    million = np.arange(1_000_000)
    clock = clock_of(
        Devices(speeds, presence), {"sample": 100, "over_select": 0.3}, million, patience=0
    )

    past = rounds_of(clock, 3)

    assert all(len(one.sampled) == 130 for one in past)
    assert presence.asked < 3 * 10_000


@given(st.integers(1, 9000), st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_every_place_comes_once_in_the_random_order(n, seed):
    found = np.concatenate([*_shuffled(n, np.random.default_rng(seed))])

    assert np.array_equal(np.sort(found), np.arange(n))


def test_phones_that_come_and_go_are_not_sampled_uniformly_for_privacy():
    data, model = classification(20, 4, 3, 0), network(4, 3)
    given = {"sample": 5, "rounds": 3}

    still = Beginning(FedAvg(), data, model, given)
    coming = Beginning(FedAvg(), data, model, {**given, "devices": "phones"})
    paced = Beginning(FedAvg(), data, model, {**given, "speed": 1.0, "clock": True, "pace": True})

    assert still.drawn == 5
    assert coming.drawn == paced.drawn == 20 and coming.most == 3


# -- runs ------------------------------------------------------------------------------------------

COMMON = {
    "rounds": 8,
    "sample": 4,
    "over_select": 0.5,
    "devices": "phones",
    "patience": 60.0,
    "plan": PLAN,
    "seed": 3,
}


def phones(out, **more):
    data, model = classification(60, 4, 3, 0), network(4, 3)
    return ar.simulate(
        FedAvg(lr=0.1, local_steps=2, batch_size=2), data, model, out=out, **COMMON, **more
    )


def told(run):
    entries = [{k: v for k, v in entry.items() if k != "seconds"} for entry in run.history]
    return entries, [cohort.timing for cohort in run.participation]


KILLED = f"""
import os, signal, sys
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}
from test_clock import phones
def kill(run):
    if run.done == 5:
        os.kill(os.getpid(), signal.SIGKILL)
phones(sys.argv[1], on_round=kill, checkpoint_seconds=0.0)
"""


def test_a_killed_run_goes_on_in_the_same_second(tmp_path):
    whole = phones(tmp_path / "whole")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    code = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
    assert code == -signal.SIGKILL

    resumed = phones(tmp_path / "killed")

    assert told(resumed) == told(whole)
    assert torch.equal(resumed.vector, whole.vector)
    plain = json.loads(json.dumps(resumed.to_json()))
    assert plain["simulated"] == whole.simulated
    assert plain["participation"][-1]["simulated"]["end"] == whole.simulated["seconds"]


def test_fedprox_keeps_what_slow_phones_have():
    data, model = classification(10, 4, 3, 0), network(4, 3)
    kinds = {"slow": {"share": 1, "seconds": 1.0, "spread": 1.0}}

    run = ar.simulate(
        FedProx(lr=0.1, local_epochs=4), data, model, rounds=2, devices=kinds, deadline=10.0,
        plan=PLAN,
    )  # fmt: skip

    assert any((cohort.effort < 1).any() for cohort in run.participation)
    assert run.participation[-1].timing.end == pytest.approx(20.0)


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given, words",
    [
        ({"clock": True}, "nobody takes time; give simulate.devices"),
        ({"trace": "phones"}, "nobody takes time"),
        ({"devices": "toasters"}, "toasters"),
        ({"devices": {}}, "has no classes"),
        ({"devices": "phones", "clock": False}, "leave it out, or them"),
        ({"devices": "phones", "speed": 2.0}, "speeds of their own; leave one out"),
        ({"devices": "phones", "availability": "day:24"}, "counts rounds"),
        ({"devices": "phones", "time_zones": [25]}, "from -12 to 14"),
        ({"devices": "phones", "trace": "phones", "time_zones": [1]}, "its own nights"),
        ({"clock": True, "speed": 1.0, "time_zones": [1]}, "always there"),
        ({"pace": True}, "simulate.pace: belongs to devices"),
        ({"patience": 5.0}, "simulate.patience: belongs to devices"),
        ({"devices": {"a": {"gflops": 1}}}, "simulate.devices.a: give its share"),
        ({"devices": {"a": {"share": 1}}}, "simulate.devices.a.gflops: give either"),
        ({"devices": {"a": {"share": 1, "gflops": 1, "seconds": 2}}}, "give either gflops or"),
        ({"devices": {"a": {"share": 0, "gflops": 1}}}, "devices.a.share = 0: give"),
        ({"devices": {"a": {"share": 1, "gflops": -1}}}, "devices.a.gflops = -1: give"),
        ({"devices": {"a": {"share": 1, "gflops": 1, "spread": 9}}}, "spread = 9: give"),
        ({"devices": {"a": {"share": 1, "gflops": 1, "watts": [3, 1]}}}, "low and high"),
        ({"devices": {"a": {"share": 1, "gflops": 1, "idle": [0, 1]}}}, "two means in minutes"),
        ({"devices": {"a": {"share": 1, "gflops": 1, "swing": 0.5}}}, "swing = 0.5: give"),
        ({"devices": {"a": {"share": 1, "gflop": 1}}}, "gflop"),
    ],
)
def test_devices_that_cannot_be_are_refused_in_one_sentence(given, words):
    data, model = classification(3, 4, 3, 0), network(4, 3)

    with pytest.raises(ArchipelError) as error:
        ar.simulate(FedAvg(), data, model, rounds=1, plan=PLAN, **given)

    assert words in str(error.value) and "\n" not in str(error.value)


def test_peers_have_no_clock():
    data, model = classification(3, 4, 3, 0), network(4, 3)

    with pytest.raises(ArchipelError, match="DSGD has no server"):
        ar.simulate(DSGD(), data, model, rounds=1, plan=PLAN, topology="ring", devices="phones")


def test_a_trace_without_a_quorum_is_refused_before_the_start(tmp_path):
    path = tmp_path / "trace.json"
    never = {"active": [], "inactive": [], "finish_time": 100}
    path.write_text(json.dumps([{"active": [1], "inactive": [9], "finish_time": 100}, never]))
    data, model = classification(4, 4, 3, 0), network(4, 3)

    with pytest.raises(ArchipelError, match="2 of 4 parties are ever there, and a round needs 3"):
        ar.simulate(
            FedAvg(), data, model, rounds=1, plan=PLAN, devices="phones", trace=path, quorum=3
        )


def test_a_study_names_classes_and_a_trace_beside_it(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"active": [5], "inactive": [90], "finish_time": 100}]))
    simulate = {"trace": "trace.json", "devices": {"a": {"share": 1, "gflops": 1, "watts": [1, 2]}}}

    study = ar.Study.of(base=tmp_path, data={"name": "heart_disease"}, simulate=simulate)
    same = study.hash
    path.write_text(path.read_text().replace("90", "80"))

    assert study.options()["trace"] == str(path)
    assert ar.Study.parse(study.toml(), tmp_path).options()["devices"]["a"]["watts"] == [1, 2]
    assert study.hash != same  # the trace is a part of what the result depends on
