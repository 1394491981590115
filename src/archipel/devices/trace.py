# SPDX-License-Identifier: Apache-2.0
"""When devices are there, from a file: FedScale's traces, as JSON.

Of each device, when it becomes active and inactive, in seconds, over and over again after
`finish_time` (Lai et al., ICML 2022, https://arxiv.org/abs/2105.11367). A device is found in its
trace by bisection, whatever second was asked for before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from archipel.devices.device import At, Bools, Floats
from archipel.errors import ArchipelError
from archipel.rng import Ints

BUNDLED = {"phones": Path(__file__).parent / "phones.json"}
_MOST = 1 << 30  # bytes of a file
_FORM = (
    '{"0": {"active": [60, ...], "inactive": [660, ...], "finish_time": 86400}, ...}, seconds at '
    "which a device comes, goes and begins again"
)


@dataclass(frozen=True)
class Trace:
    """When devices are there; party k has the trace k modulo their number. In milliseconds."""

    begins: Ints  # of all spans, device by device
    ends: Ints
    first: Ints  # the place of each device's first span, and of the end
    period: Ints  # after which each begins again

    always = False

    @classmethod
    def of(cls, spans: Sequence[Sequence[tuple[float, float]]], period: Sequence[float]) -> Trace:
        """Of each device, spans from when to when it is there, in order."""
        flat = np.array([span for each in spans for span in each], np.float64).reshape(-1, 2)
        begins, ends = (_milliseconds(flat[:, i]) for i in (0, 1))
        first = np.cumsum([0, *map(len, spans)])
        return cls(begins, ends, first, _milliseconds(np.array(period, np.float64)))

    @property
    def devices(self) -> int:
        return len(self.period)

    def ever(self, parties: Ints) -> Bools:
        """Who is ever there, `[m]`."""
        mine = parties % self.devices
        return self.first[mine + 1] > self.first[mine]

    def there(self, parties: Ints, at: At) -> Bools:
        return self._find(parties, at)[0]

    def until(self, parties: Ints, at: At) -> Floats:
        there, place, turn = self._find(parties, at)
        found, mine = _each(parties, at), parties % self.devices
        mine, place, turn = mine[there], place[there], turn[there]
        first, period = self.first[mine], self.period[mine]
        ends = self.ends[place] + turn * period
        joins = (self.ends[place] == period) & (self.begins[first] == 0)  # with the next turn
        ends = ends + np.where(joins, self.ends[first], 0)
        whole = joins & (self.ends[first] == period)  # never away
        found[there] = np.where(whole, np.inf, ends / 1000)
        return found

    def comes(self, parties: Ints, at: At) -> Floats:
        there, place, turn = self._find(parties, at)
        mine = parties % self.devices
        first, last, period = self.first[mine], self.first[mine + 1], self.period[mine]
        found, ever = np.full(len(parties), np.inf), last > first
        later = ever & (place + 1 < last)  # in this turn, or else the first of the next
        found[later] = (self.begins[place[later] + 1] + (turn * period)[later]) / 1000
        again = ever & ~later
        found[again] = (self.begins[first[again]] + ((turn + 1) * period)[again]) / 1000
        return np.where(there, _each(parties, at), found)

    def zone(self, parties: Ints) -> Floats | None:
        return None

    def _find(self, parties: Ints, at: At) -> tuple[Bools, Ints, Ints]:
        """Whether each is there, its last span to begin, and which turn it is, all `[m]`.

        Before the first span that is the place before it.
        """
        now, mine = _milliseconds(_each(parties, at)), parties % self.devices
        turn, time = now // self.period[mine], now % self.period[mine]
        low, high = self.first[mine] - 1, self.first[mine + 1]  # begins[low] <= time < begins[high]
        while (high - low > 1).any():
            middle = (low + high) // 2
            looks = high - low > 1
            begun = looks & (self.begins[np.where(looks, middle, 0)] <= time)
            low, high = np.where(begun, middle, low), np.where(looks & ~begun, middle, high)
        begun = low >= self.first[mine]
        there = begun & (time < self.ends[np.where(begun, low, 0)])
        return there, low, turn


def read(path: Path) -> Trace:
    """Read a file of traces."""
    told = f"simulate.trace = '{path.name}'"
    try:
        if path.stat().st_size > _MOST:
            raise ArchipelError(f"{told}: the file has more than 1 GiB; take fewer devices.")
        content = path.read_bytes()
    except OSError as error:
        raise ArchipelError(
            f"{told}: cannot be read ({error.strerror or error}); check the path."
        ) from None
    if content[:1] == b"\x80":  # how a pickle begins
        raise ArchipelError(
            f"{told}: is a pickle, which can run programs when it is opened; where you trust it, "
            "write it as JSON, json.dump(pickle.load(open(FILE, 'rb')), open('trace.json', 'w'))."
        )
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ArchipelError(f"{told}: is no JSON; give {_FORM}.") from None
    devices = list(found.values()) if isinstance(found, Mapping) else found
    if not isinstance(devices, list) or not devices:
        raise ArchipelError(f"{told}: has no devices; give {_FORM}.")
    names = list(found) if isinstance(found, Mapping) else [str(i) for i in range(len(devices))]
    spans, periods = [], []
    for name, each in zip(names, devices, strict=True):
        try:
            mine, period = _device(each)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            why = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ArchipelError(f"{told}: device '{name}' {why}; give {_FORM}.") from None
        spans.append(mine)
        periods.append(period)
    if not any(spans):
        raise ArchipelError(
            f"{told}: nobody is ever there in it, so no round could begin; give a trace with spans "
            "from active to inactive."
        )
    return Trace.of(spans, periods)


def _device(told: Any) -> tuple[list[tuple[float, float]], float]:
    """The spans of a device, and after what time they begin again."""
    if not isinstance(told, Mapping):
        raise ValueError("is no table")
    numbers = {name: told[name] for name in ("active", "inactive", "finish_time")}
    active, inactive, period = numbers.values()
    if not (isinstance(active, list) and isinstance(inactive, list)):
        raise ValueError("has no lists active and inactive")
    for value in (*active, *inactive, period):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"has {json.dumps(value)[:20]} where a number of seconds belongs")
        if not 0 <= value <= 1e10:
            raise ValueError(f"has {value:g}, which is no time in seconds")
    if len(active) != len(inactive):
        raise ValueError(f"is active {len(active)} times and inactive {len(inactive)} times")
    spans = [(float(a), float(b)) for a, b in zip(active, inactive, strict=True)]
    if any(b - a < 0.001 for a, b in spans) or any(b > c for (_, b), (c, _) in pairwise(spans)):
        raise ValueError("is not active and inactive by turns, in order")
    if period < 1 or (spans and spans[-1][1] > period):
        raise ValueError(f"has finish_time {period:g}, before its last span ends")
    return _joined(spans), float(period)


def _joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same with spans that touch made one."""
    found: list[tuple[float, float]] = []
    for begin, end in spans:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


def _milliseconds(seconds: Floats) -> Ints:
    whole: Ints = np.rint(seconds * 1000).astype(np.int64)
    return whole


def _each(parties: Ints, at: At) -> Floats:
    return np.broadcast_to(np.asarray(at, np.float64), parties.shape).copy()
