"""Devices that come and go: the law of the chains, by day and night, at any second."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.devices.classes import PHONES, Device, Drawn
from archipel.devices.device import HOUR
from archipel.devices.nights import Nights

MANY = np.arange(20_000)


def nights(zones=(0.0,), seed=0, **chains):
    kinds = {"one": Device(1, seconds=1.0, **chains)} if chains else PHONES
    return Nights(Drawn(kinds, seed), zones)


def test_four_times_as_many_phones_are_there_at_night_as_by_day():
    phones = nights()

    shares = [phones.there(MANY, 72 * HOUR + hour * HOUR).mean() for hour in range(24)]

    assert max(shares) / min(shares) == pytest.approx(4, abs=0.6)
    assert np.argmax(shares) in (1, 2, 3, 4, 5) and np.argmin(shares) in (13, 14, 15, 16, 17)


def test_night_comes_earlier_in_the_east():
    phones = nights(zones=(-5.0, 1.0, 8.0))
    zone = phones.zone(MANY)

    shares = {
        ahead: [phones.there(MANY[zone == ahead], hour * HOUR).mean() for hour in range(24)]
        for ahead in (-5.0, 1.0, 8.0)
    }

    assert np.mean(zone == 8.0) == pytest.approx(1 / 3, abs=0.02)
    for ahead, found in shares.items():
        local = (np.argmax(found) + ahead) % 24
        assert local in (0, 1, 2, 3, 4, 5, 6)


def test_a_chain_has_its_share_and_its_spans():
    chain = nights(plugged=(60.0, 180.0))

    there = chain.there(MANY, 1e6)
    stays = chain.until(MANY[there], 1e6) - 1e6
    away = chain.comes(MANY[~there], 1e6) - 1e6

    assert there.mean() == pytest.approx(0.25, abs=0.015)
    assert stays.mean() == pytest.approx(60 * 60, rel=0.05)  # without a memory
    assert np.std(stays) == pytest.approx(60 * 60, rel=0.08)
    assert away.mean() == pytest.approx(180 * 60, rel=0.05)


def test_conditions_hold_together_or_the_device_is_away():
    both = nights(idle=(60.0, 60.0), wifi=(30.0, 10.0))

    there = both.there(MANY, 1e6)

    assert there.mean() == pytest.approx(0.5 * 0.75, abs=0.015)
    stays = both.until(MANY[there], 1e6) - 1e6
    assert stays.mean() == pytest.approx(60 / (1 / 60 + 1 / 30), rel=0.05)


@given(st.integers(0, 2**40), st.floats(0, 1e7), st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_answers_agree_with_each_other_and_with_any_order(first, at, seed):
    phones, parties = nights((0.0, 9.0), seed), first + np.arange(40)

    there = phones.there(parties, at)
    comes, until = phones.comes(parties, at), phones.until(parties, at)

    assert np.array_equal(comes == at, there) and np.array_equal(until > at, there)
    assert phones.there(parties, comes).all()
    assert not phones.there(parties[~there], np.nextafter(comes[~there], -1)).any()
    assert not phones.there(parties[there], until[there]).any()
    assert phones.there(parties[there], np.nextafter(until[there], -1)).all()
    assert np.array_equal(phones.there(parties[::-1], at), there[::-1])
    assert phones.comes(parties[:1], at)[0] == comes[0]


def test_a_class_without_conditions_never_leaves():
    kinds = {"server": Device(1, seconds=1.0), "phone": Device(1, seconds=1.0, plugged=(1.0, 9.0))}
    mixed = Nights(Drawn(kinds, 0), (0.0,))
    servers = mixed.speeds.kind(MANY) == 0

    there, until = mixed.there(MANY, 5e5), mixed.until(MANY, 5e5)

    assert there[servers].all() and np.isinf(until[servers]).all()
    assert np.isfinite(until[~servers]).all() and there[~servers].mean() < 0.2
