"""Classes of devices: who has which, how long work takes, what it costs."""

import numpy as np
import pytest

from archipel.devices.classes import BASE, PHONES, RATE_DOWN, RATE_UP, Device, Drawn, alike
from archipel.devices.device import Always, Job, Trip

MANY = np.arange(20_000)


def test_a_partys_trip_is_its_own_whoever_else_is_asked():
    speeds, job = Drawn(PHONES, 7), Job(1e8, 4e6, 4e6)
    together = speeds.trip(MANY, np.full(len(MANY), 100.0), job, 3)

    alone = speeds.trip(MANY[[99, 5]], np.full(2, 100.0), job, 3)

    assert np.array_equal(alone.seconds, together.seconds[[99, 5]])


def test_classes_have_their_shares_and_speeds_are_log_normal():
    speeds = Drawn({"a": Device(1, seconds=2.0), "b": Device(3, seconds=0.5, spread=0.8)}, 0)

    kind = speeds.kind(MANY)
    seconds = speeds.trip(MANY, np.ones(len(MANY)), Job(0, 0, 0)).training

    assert np.mean(kind == 0) == pytest.approx(0.25, abs=0.015)
    assert np.all(seconds[kind == 0] == 2.0)
    logs = np.log(seconds[kind == 1])
    assert np.mean(logs) == pytest.approx(np.log(0.5), abs=0.03)
    assert np.std(logs) == pytest.approx(0.8, abs=0.03)


def test_rounds_differ_by_their_jitter_and_by_nothing_else():
    job, ones = Job(0, 0, 0), np.ones(len(MANY))
    still = Drawn({"a": Device(1, seconds=1.0, spread=0.5)}, 0)
    moves = Drawn({"a": Device(1, seconds=1.0, spread=0.5, jitter=0.1)}, 0)

    usual = moves.trip(MANY, ones, job).training
    ratio = np.log(moves.trip(MANY, ones, job, 4).training / usual)

    assert np.array_equal(still.trip(MANY, ones, job, 4).training, usual)
    assert np.std(ratio) == pytest.approx(0.1, abs=0.01)


def test_time_is_flops_over_gflops_and_bytes_over_the_link():
    speeds = Drawn({"a": Device(1, gflops=2.0, down=8.0, up=4.0, watts=(1.0, 2.0))}, 0)
    one = np.array([3])

    trip = speeds.trip(one, np.array([10.0]), Job(1e9, up=1e6, down=2e6))
    joules = speeds.joules(one, trip)

    assert [float(part[0]) for part in trip] == pytest.approx([2.0, 5.0, 2.0, 0.0])
    radio = 2 * (BASE + 8 * RATE_DOWN) + 2 * (BASE + 4 * RATE_UP)
    assert joules.high[0] == pytest.approx(10 + radio)
    assert joules.low[0] == pytest.approx(5 + radio / 10)


def test_half_a_trip_costs_less_and_ends_where_it_was_stopped():
    speeds = Drawn(PHONES, 0)
    trip = speeds.trip(MANY, np.full(len(MANY), 50.0), Job(1e8, 1e6, 1e6))

    part = trip.within(trip.seconds / 2)

    assert np.allclose(part.seconds, trip.seconds / 2)
    assert np.all(speeds.joules(MANY, part).high < speeds.joules(MANY, trip).high)
    assert np.array_equal(trip.within(np.full(len(MANY), np.inf)).seconds, trip.seconds)


def test_parties_alike_take_the_same_time_and_are_always_there():
    seconds = alike(0.5).trip(MANY, np.full(len(MANY), 4.0), Job(1e9, 1e9, 1e9)).seconds
    always = Always()

    assert set(seconds.tolist()) == {2.0}
    assert always.there(MANY, 1e9).all() and np.isinf(always.until(MANY, 0.0)).all()
    assert isinstance(Trip(seconds, seconds, seconds).seconds, np.ndarray)
