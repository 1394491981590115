"""Who takes part: properties of a cohort, whatever the policy and whatever goes wrong."""

import math
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import archipel as ar
from archipel import rng
from archipel.engines.engine import Cause, Outcome
from archipel.errors import ArchipelError, BelowQuorum
from archipel.runs.attendance import DrawnAttendance
from archipel.runs.participation import Cohort, Participation, absences
from archipel.runs.simulation import Options
from archipel.study.sections import Round, Simulated

ELIGIBLES = st.sets(st.integers(0, 60), min_size=1, max_size=40).map(
    lambda parties: np.array(sorted(parties))
)
SHARES = st.floats(0, 1)
SPANS = st.tuples(st.integers(1, 20), st.integers(0, 5)).map(lambda s: (s[0], s[0] + s[1]))
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "sample": SHARES | st.integers(1, 5),
        "over_select": st.floats(0, 3),
        "quorum": SHARES | st.integers(0, 5),
        "on_missing": st.sampled_from(["continue", "wait", "abort"]),
        "deadline": st.floats(0.01, 100),
        "dropouts": SHARES,
        "lost": SHARES,
        "stragglers": SHARES,
        "availability": SHARES | st.integers(2, 30).map(lambda day: f"day:{day}"),
        "away": st.dictionaries(st.integers(0, 60), st.lists(SPANS, max_size=2).map(tuple)),
        "speed": st.floats(0.01, 1000),
        "speed_spread": st.floats(0, 3),
    },
)


def drawn(policy, eligible, seed=0, t=0, partial=False, clock=None):
    """A round's cohort; a policy that cannot be met is no example."""
    who = Participation(**policy)
    work = 1.0 + eligible % 7 * 10.0
    try:
        return who, who.draw(eligible, seed, t, partial, work, clock)
    except BelowQuorum:
        return who, None
    except ArchipelError as error:
        assert "sample = " in str(error) or "quorum = " in str(error)
        return who, None


@given(ELIGIBLES, POLICIES, st.integers(0, 2**62), st.integers(0, 30), st.booleans())
def test_a_cohort_adds_up(eligible, policy, seed, t, partial):
    who, cohort = drawn(policy, eligible, seed, t, partial)
    assume(cohort is not None)
    sampled, present = cohort.sampled.tolist(), cohort.present.tolist()

    assert sampled == sorted({*sampled}) and {*sampled} <= {*eligible.tolist()}
    assert present == sorted({*present}) and {*present} <= {*sampled}
    assert sorted([*present, *cohort.missing]) == sampled
    assert {*cohort.missing.values()} <= {
        *map(Cause, ("away", "dropped out", "too slow", "not needed"))
    }
    count = who.count(len(eligible))
    asked = math.ceil(count * (1 + who.over_select) - 1e-9)
    assert len(sampled) == min(asked, len(eligible)) and len(present) <= count
    assert len(cohort.effort) == len(present)
    assert ((cohort.effort >= 0) & (cohort.effort <= 1)).all()
    assert partial or (cohort.effort == 1).all()
    needed = who.quorum if isinstance(who.quorum, int) else math.ceil(who.quorum * count - 1e-9)
    assert cohort.counted == (len(present) >= needed)
    assert cohort.counted or who.on_missing == "continue"
    assert cohort.waited == 0 or who.on_missing == "wait"


@given(ELIGIBLES, POLICIES, st.integers(0, 2**62), st.integers(0, 30))
def test_the_same_seed_draws_the_same(eligible, policy, seed, t):
    _, first = drawn(policy, eligible, seed, t)
    _, again = drawn(policy, eligible, seed, t)

    if first is None:
        assert again is None
    else:
        assert all(np.array_equal(a, b) for a, b in zip(first[:3], again[:3], strict=True))
        assert first[3:] == again[3:]


@given(ELIGIBLES, st.floats(0, 1) | st.integers(1, 5), st.integers(0, 99), st.integers(0, 99))
def test_by_default_a_round_is_a_plain_uniform_sample(eligible, sample, seed, t):
    assume(isinstance(sample, float) or sample <= len(eligible))
    cohort = Participation(sample).draw(eligible, seed, t)
    count = sample if isinstance(sample, int) else max(1, int(sample * len(eligible) + 1e-9))
    places = rng.generator(seed, t, "sample").choice(
        len(eligible), count, replace=False, shuffle=False
    )

    assert cohort.present.tolist() == sorted(eligible[places].tolist())
    assert cohort.present is cohort.sampled or cohort.present.tolist() == cohort.sampled.tolist()
    assert cohort.counted and not cohort.missing and cohort.waited == 0


def test_sampling_is_uniform():
    counts = np.zeros(10)
    for t in range(2000):
        counts[Participation(3).draw(np.arange(10), 1, t).present] += 1

    assert abs(counts / 2000 - 0.3).max() < 0.04


# -- absences --------------------------------------------------------------------------------------


@given(st.integers(1, 20), st.integers(0, 10), st.integers(1, 40))
def test_away_rounds_are_exact(first, more, number):
    away = {2: ((first, first + more), (35, 35))}
    cohort = Participation(away=away).draw(np.arange(4), 0, number - 1)

    gone = first <= number <= first + more or number == 35
    assert cohort.missing == ({2: Cause("away")} if gone else {})


@given(st.floats(0.05, 0.95), st.integers(0, 99))
def test_availability_is_a_rate(rate, seed):
    who = Participation(availability=rate)
    rounds, parties = 40, 100
    here = sum(len(who.draw(np.arange(parties), seed, t).present) for t in range(rounds))

    sd = math.sqrt(rate * (1 - rate) / (rounds * parties))
    assert abs(here / (rounds * parties) - rate) < 5 * sd


@given(st.integers(1, 15).map(lambda half: 2 * half), st.integers(0, 99))
def test_a_day_has_each_party_half_of_its_rounds_in_one_piece(day, seed):
    who = Participation(availability=f"day:{day}", quorum=0)
    here = np.array(
        [np.isin(np.arange(30), who.draw(np.arange(30), seed, t).present) for t in range(2 * day)]
    )

    assert (here[:day].sum(axis=0) == day // 2).all()
    assert (here[:day] == here[day:]).all()
    changes = (here[:day] != np.roll(here[:day], 1, axis=0)).sum(axis=0)
    assert (changes == 2).all()
    assert len({tuple(column) for column in here.T}) > 1  # time zones differ


@given(SHARES, st.integers(0, 99))
def test_dropouts_are_a_rate(rate, seed):
    who = Participation(dropouts=rate, quorum=0)
    cohorts = [who.draw(np.arange(100), seed, t) for t in range(20)]
    dropped = sum(len(cohort.missing) for cohort in cohorts)

    assert abs(dropped / 2000 - rate) < 5 * math.sqrt(0.25 / 2000)
    assert all({*cohort.missing.values()} <= {Cause("dropped out")} for cohort in cohorts)


def test_those_who_are_there_are_asked_first():
    away = dict.fromkeys(range(8), ((1, 5),))
    cohort = Participation(sample=3, away=away).draw(np.arange(10), 0, 0)

    assert {8, 9} <= {*cohort.sampled.tolist()} and len(cohort.sampled) == 3
    assert cohort.present.tolist() == [8, 9]


# -- too late --------------------------------------------------------------------------------------


@given(SHARES, st.booleans(), st.integers(0, 99))
def test_stragglers_are_left_out_or_keep_part_of_their_work(share, partial, seed):
    who = Participation(stragglers=share, quorum=0)
    cohort = who.draw(np.arange(20), seed, 0, keeps_partial_work=partial)
    late = round(share * 20)

    if partial:
        assert (cohort.effort < 1).sum() == late and not cohort.missing
    else:
        assert len(cohort.missing) == late and (cohort.effort == 1).all()


def test_a_deadline_drops_the_slow_or_cuts_their_work():
    who = Participation(deadline=10.0, speed=2.0, quorum=0)
    work = np.array([10.0, 20.0, 40.0, 200.0])  # 5, 10, 20 and 100 seconds
    left_out = who.draw(np.arange(4), 0, 0, False, work)
    cut = who.draw(np.arange(4), 0, 0, True, work)

    assert left_out.missing == {2: Cause("too slow"), 3: Cause("too slow")}
    assert cut.effort.tolist() == [1, 1, 0.5, 0.1]


def test_without_a_clock_a_deadline_changes_nothing():
    cohort = Participation(deadline=1e-6).draw(np.arange(4), 0, 0, False, np.full(4, 1e9))

    assert len(cohort.present) == 4


def test_over_selection_counts_the_fastest():
    who = Participation(sample=3, over_select=1.0, speed=1.0)
    work = np.arange(6.0, 0.0, -1.0)  # party 5 is done first
    cohort = who.draw(np.arange(6), 0, 0, False, work)

    assert cohort.present.tolist() == [3, 4, 5]
    assert cohort.missing == dict.fromkeys([0, 1, 2], Cause("not needed"))


@given(st.floats(0, 3), st.integers(0, 99))
def test_speeds_spread_and_stay(spread, seed):
    who = Participation(speed=5.0, speed_spread=spread)
    seconds = [who._seconds(np.arange(400), np.arange(400), seed, np.full(400, 5.0))] * 2

    logs = np.log(seconds[0])
    assert abs(logs.std() - spread) <= 0.2 * spread + 1e-9
    assert np.array_equal(*seconds)


# -- too few ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quorum", "counted"), [(3, True), (4, False), (0.75, True), (0.76, False), (0, True)]
)
def test_quorum_as_a_number_and_as_a_share(quorum, counted):
    who = Participation(quorum=quorum, away={0: ((1, 1),)})

    assert who.draw(np.arange(4), 0, 0).counted is counted


def test_waiting_moves_the_clock_and_nothing_else():
    who = Participation(quorum=4, on_missing="wait", away={0: ((3, 7),)})
    cohort = who.draw(np.arange(4), 0, 2)

    assert cohort.waited == 5 and cohort.counted and not cohort.missing
    later = who.draw(np.arange(4), 0, 3, clock=8)  # rounds 1 to 3, and five waits
    assert later.waited == 0


@given(st.integers(0, 99), st.integers(0, 20))
def test_waiting_is_the_same_every_time(seed, t):
    who = Participation(availability=0.5, quorum=0.7, on_missing="wait")
    first, again = (who.draw(np.arange(10), seed, t) for _ in range(2))

    assert first.waited == again.waited and first.present.tolist() == again.present.tolist()
    assert len(first.present) >= 7


def test_abort_says_who_and_what_to_do():
    who = Participation(quorum=4, on_missing="abort", away={0: ((2, 2),)})

    who.draw(np.arange(4), 0, 0)
    with pytest.raises(BelowQuorum, match=r"round 2: 3 of 4 parties answer \(away\), below the"):
        who.draw(np.arange(4), 0, 1)
    assert BelowQuorum.exit_code == 3


def test_waiting_ends():
    who = Participation(quorum=4, on_missing="wait", away={0: ((1, 10**9),)})

    with pytest.raises(BelowQuorum, match=r"after waiting 1000.*on_missing = 'continue'\."):
        who.draw(np.arange(4), 0, 0)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample", 0), ("sample", -1), ("sample", 1.5), ("sample", math.nan), ("quorum", -1),
        ("quorum", 1.1), ("over_select", -0.1), ("over_select", math.inf), ("dropouts", 1.1),
        ("lost", 1.5),
        ("stragglers", -0.1), ("availability", 2.0), ("availability", "night:3"),
        ("availability", "day:1"), ("deadline", 0.0), ("deadline", math.inf), ("speed", -1.0),
        ("speed_spread", math.nan), ("on_missing", "stop"),
    ],
)  # fmt: skip
def test_a_field_out_of_range_is_named(field, value):
    with pytest.raises(ArchipelError, match=field):
        Participation(**{field: value})


def test_more_than_there_are():
    with pytest.raises(ArchipelError, match="sample = 5: only 4 parties"):
        Participation(sample=5).count(4)
    with pytest.raises(ArchipelError, match="quorum = 3: a round counts 2 of 4 parties at most"):
        Participation(sample=0.5, quorum=3).count(4)


@given(st.lists(SPANS, min_size=1, max_size=4))
def test_absences_are_read_as_written(spans):
    text = ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)

    assert absences(text) == tuple(spans)


@pytest.mark.parametrize("text", ["", "0", "5-1", "a", "1-", "-3", "1--2", "1,,2", "1.5", "9" * 20])
def test_absences_that_are_none(text):
    with pytest.raises(ArchipelError, match="give rounds such as '11-20'"):
        absences(text)


def test_causes_are_closed_words_whatever_a_site_says():
    said = {
        "silent (trains, 512 gradients)": "silent",
        "too slow (has not asked for work)": "too slow",
        "diverged": "diverged",
        "diverged before": "diverged before",
        "refused (its uploads are no answer)": "refused",
        "revoked: lost its laptop": "revoked",
        "declined by the site's own policy": "declined",
        "paused": "paused",
        "leftover rows of an old table": "away",
        "the disk is full (0 bytes)": "away",
        "": "away",
    }
    assert {text: Cause.read(text).why for text in said} == said
    sent = {"silent", "too slow", "diverged", "refused"}
    for text, why in said.items():
        cohort = Cohort(np.arange(2), np.arange(1), np.ones(1), {1: Cause.read(text)})
        assert cohort.reached == (2 if why in sent else 1), text
        assert Cause.read(str(Cause.read(text))) == Cause.read(text)


@pytest.mark.parametrize("speed", [None, 1e9])
def test_a_deadline_without_a_clock_is_said_to_do_nothing(speed):
    given = {} if speed is None else {"speed": speed}
    run = ar.simulate(
        ar.FedAvg(), "heart_disease", rounds=1, workers=1, deadline=5.0, plan=ar.Plan("one", 1, 1),
        **given,
    )  # fmt: skip
    said = any(note.startswith("deadline = 5 has no effect in this sim") for note in run.notes)
    assert said == (speed is None)


@given(ELIGIBLES, st.integers(1, 4), st.floats(0, 1), st.integers(0, 2**40))
def test_parties_are_lost_between_messages_and_only_there(eligible, messages, lost, seed):
    who = Participation(lost=lost)
    cohort = who.draw(eligible, seed, 3, messages=messages)
    whole = Participation().draw(eligible, seed, 3)

    assert cohort.present.tolist() == whole.present.tolist() and not cohort.missing
    if cohort.answers is None:
        assert messages == 1 or lost < 1
        return
    assert cohort.answers.shape == cohort.present.shape
    assert 1 <= cohort.answers.min() < messages >= cohort.answers.max()
    if lost == 1:
        assert (cohort.answers == 1).all()


def test_as_many_are_lost_as_is_said():
    who, everybody = Participation(lost=0.2), np.arange(20_000)
    answers = who.draw(everybody, 0, 0, messages=3).answers
    share = [float((answers == number).mean()) for number in (1, 2, 3)]
    np.testing.assert_allclose(share, [0.2, 0.16, 0.64], atol=0.02)


class Losing:
    """An engine that loses parties as it is told to, and keeps in mind what it was told."""

    def __init__(self, messages):
        self.anatomy, self.calls = SimpleNamespace(messages=range(messages)), []

    def round(self, t, parties, effort=None, *, answers=None, needed=1, enough=None, unheard=0):
        self.calls.append((answers, unheard))
        count = len(self.anatomy.messages)
        reached = np.full(len(parties), count) if answers is None else answers
        missing = {
            int(k): Cause("dropped out", f"after message {number}")
            for k, number in zip(parties, reached, strict=True)
            if number < count
        }
        arrived = parties[reached == count]
        return Outcome(arrived if len(arrived) >= needed else arrived[:0], missing, 7, 8, 9)


@pytest.mark.parametrize(("quorum", "counted"), [(1, True), (4, False)])
def test_who_is_lost_in_mid_round_is_missing_and_may_be_one_too_many(quorum, counted):
    data, engine = ar.load("heart_disease"), Losing(2)
    who = Participation(lost=0.5, quorum=quorum)
    attendance = DrawnAttendance(engine, who, ar.FedAvg(), data, np.arange(4), seed=1)
    cohort, outcome = attendance.take_part(0, 0)

    answers = engine.calls[0][0].tolist()
    lost = [k for k, number in enumerate(answers) if number == 1]
    assert 0 < len(lost) < 4
    assert cohort.missing == dict.fromkeys(lost, Cause("dropped out", "after message 1"))
    assert cohort.present.tolist() == [k for k in range(4) if k not in lost]
    assert cohort.counted == counted and cohort.reached == 4 and cohort.answers is None
    assert outcome.gradients == 7


def test_a_round_that_lost_too_many_is_tried_again_with_other_luck():
    data, engine = ar.load("heart_disease"), Losing(2)
    who = Participation(lost=0.5, quorum=3, on_missing="wait")
    attendance = DrawnAttendance(engine, who, ar.FedAvg(), data, np.arange(4), seed=1)
    cohort, _ = attendance.take_part(0, 0)

    assert cohort.counted and len(cohort.present) >= 3
    assert cohort.waited >= 1 and len(engine.calls) == cohort.waited + 1
    assert set(cohort.blocked.values()) == {Cause("dropped out", "after message 1")}


def test_an_algorithm_with_one_message_loses_nobody_in_mid_round():
    options = {"rounds": 3, "workers": 1, "plan": ar.Plan("one", 1, 1)}
    runs = [ar.simulate(ar.FedAvg(), "heart_disease", lost=lost, **options) for lost in (0.0, 0.9)]
    assert runs[0].metrics == runs[1].metrics
    assert not any(cohort.missing for cohort in runs[1].participation)


def test_the_keys_of_a_study_and_of_simulate_say_who_takes_part_alike():
    names = {each.name: each.default for each in fields(Participation) if each.name != "away"}
    sections = Round.model_fields | Simulated.model_fields
    sections.pop("rule")  # of the wire
    others = {"away", "protocols"}  # one is read otherwise, one says how sums are made
    others |= {"devices", "trace", "clock", "time_zones", "patience", "pace"}  # of the clock
    assert names.keys() | others == {*sections} <= {*Options.__annotations__}
    for name, default in names.items():
        assert sections[name].default in (default, None), name
