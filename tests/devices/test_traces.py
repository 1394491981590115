"""Traces: found by bisection at any second, in any order, and refused in one sentence."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.devices.trace import Trace, read
from archipel.errors import ArchipelError

# a device as FedScale's documentation shows it
FEDSCALE = {
    "duration": 210625,
    "inactive": [65881, 133574, 208292, 276575, 295006, 356236, 400906, 475099],
    "finish_time": 518400,
    "active": [12788, 100044, 188992, 271372, 276663, 352625, 356267, 442193],
    "model": "CPH1801",
}


@st.composite
def traces(draw):
    """Devices with spans that do not touch, in eighths of a second."""
    spans, periods = [], []
    for _ in range(draw(st.integers(1, 4))):
        period = draw(st.integers(8, 400))
        cuts = draw(st.lists(st.integers(0, period), max_size=12, unique=True).map(sorted))
        cuts = cuts[: len(cuts) // 2 * 2]
        spans.append([(a / 8, b / 8) for a, b in zip(cuts[::2], cuts[1::2], strict=True)])
        periods.append(period / 8)
    if not any(spans):
        spans[0] = [(0.0, 0.5)]
    return spans, periods


def is_there(spans, period, at):
    return any(a <= at % period < b for a, b in spans)


@given(traces(), st.lists(st.integers(0, 4000).map(lambda n: n / 8), min_size=1, max_size=10))
@settings(deadline=None, max_examples=80)
def test_bisection_is_the_look_at_every_span(found, times):
    spans, periods = found
    trace, parties = Trace.of(spans, periods), np.arange(2 * len(spans))

    for at in times:  # a clock that jumps, also back
        there = trace.there(parties, at)
        comes, until = trace.comes(parties, at), trace.until(parties, at)

        for k in parties:
            mine, period = spans[k % len(spans)], periods[k % len(spans)]
            later = [n / 8 for n in range(int(at * 8), int((at + 2 * period) * 8) + 1)]
            ever = [x for x in later if is_there(mine, period, x)]
            gone = [x for x in later if not is_there(mine, period, x)]
            assert there[k] == is_there(mine, period, at)
            assert comes[k] == (ever[0] if ever else np.inf)
            assert until[k] == (at if not there[k] else gone[0] if gone else np.inf)


@given(traces(), st.integers(0, 10**6).map(lambda n: n / 8))
@settings(deadline=None)
def test_when_one_comes_it_is_there_and_when_it_goes_it_is_not(found, at):
    trace = Trace.of(*found)
    parties = np.arange(trace.devices)

    comes = trace.comes(parties, at)
    some = np.isfinite(comes)
    until = trace.until(parties[some], comes[some])
    left = np.isfinite(until)

    assert np.array_equal(some, trace.ever(parties))
    assert trace.there(parties[some], comes[some]).all()
    assert (until > comes[some]).all()
    assert not trace.there(parties[some][left], until[left]).any()


def test_fedscales_own_form_is_read(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"7": FEDSCALE, "9": {**FEDSCALE, "active": [], "inactive": []}}))

    trace = read(path)

    party = np.array([0])
    assert trace.there(party, 400_000.0)[0] and not trace.there(party, 401_000.0)[0]
    assert trace.until(party, 400_000.0)[0] == 400_906
    assert trace.comes(party, 475_099.0)[0] == 518_400 + 12_788
    assert trace.ever(np.arange(4)).tolist() == [True, False, True, False]


DEVICE = {"active": [10], "inactive": [20], "finish_time": 100}


@pytest.mark.parametrize(
    "content, words",
    [
        (pickle.dumps({"0": FEDSCALE}), "is a pickle"),
        (b"\x00\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"{}", "has no devices"),
        (b"3", "has no devices"),
        ([{**DEVICE, "active": [], "inactive": []}], "nobody is ever there"),
        ([7], "'0' is no table"),
        ({"a": {"active": [1], "inactive": [2]}}, "'a' lacks 'finish_time'"),
        ([{**DEVICE, "active": 3}], "no lists"),
        ([{**DEVICE, "active": ["10"]}], "where a number of seconds"),
        ([{**DEVICE, "active": [True]}], "where a number of seconds"),
        ([{**DEVICE, "active": [-5]}], "no time in seconds"),
        ([{**DEVICE, "active": [10, 30]}], "active 2 times and inactive 1 times"),
        ([{**DEVICE, "active": [10, 15], "inactive": [20, 25]}], "by turns"),
        ([{**DEVICE, "inactive": [5]}], "by turns"),
        ([{**DEVICE, "finish_time": 15}], "before its last span ends"),
        (b'[{"active": [NaN], "inactive": [20], "finish_time": 100}]', "no time in seconds"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "trace.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())

    with pytest.raises(ArchipelError) as error:
        read(path)

    assert words in str(error.value) and "simulate.trace = 'trace.json'" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ArchipelError, match=r"none.json'.*check the path"):
        read(tmp_path / "none.json")
