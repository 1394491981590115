# SPDX-License-Identifier: Apache-2.0
"""Devices that come and go: idle, plugged in and on Wi-Fi, each by a chain of two states.

A chain leaves "on" at rate m and "off" at rate l(h), by the local hour h. That is the same as being
drawn anew at rate l + m, to "on" with chance l / (l + m), whatever it was before: rates off to on
(l + m) l / (l + m) = l, on to off m. So a device's state is that of its last draw, which needs no
more of the past; times of draws are a Poisson process at the rate's upper bound, of which those
beyond l(h) + m do not count. Draws lie in blocks of time with a key each, and any second, early or
late, costs the look into a few blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, pi
from typing import NamedTuple

import numpy as np

from archipel import rng
from archipel.devices.classes import Device, Drawn
from archipel.devices.device import DAY, HOUR, At, Bools, Floats
from archipel.rng import Ints

CONDITIONS = ("idle", "plugged", "wifi")
_PEAK = 2.0  # o'clock, when most are plugged in
_MOST = 12  # draws of a block, of which there is one in the mean: more have a chance of 1e-10
_COUNTS = np.cumsum(np.cumprod([exp(-1.0), *(1 / k for k in range(1, _MOST))]))


class _Chain(NamedTuple):
    """One condition of each of some parties, all `[m]`."""

    keys: rng.Keys
    on: Floats  # l: draws to "on" a second, in the mean over the day
    off: Floats  # m: draws to "off"
    swing: Floats  # a: l(h) = l (1 + a cos)
    ahead: Floats  # seconds that the local clock is ahead

    def of(self, some: Bools) -> _Chain:
        keys, *rest = self
        return _Chain(keys[some], *(part[some] for part in rest))

    @property
    def most(self) -> Floats:
        """The upper bound of l(h) + m."""
        return self.on * (1 + self.swing) + self.off

    def draws(self, block: Floats) -> tuple[Floats, Bools, Bools]:
        """When a block's draws are, `[m, c]`, and whether each is to "on", or to "off"."""
        keys = rng.subkeys(self.keys, block.astype(np.int64))
        counts = np.searchsorted(_COUNTS, rng.uniform(keys), side="right")
        most = max(int(counts.max(initial=0)), 1)
        words = rng.words(keys, 1 + 2 * most)[:, 1:]  # the first one was the count
        uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
        when = (block[:, None] + uniform[:, ::2]) / self.most[:, None]
        local = (when + self.ahead[:, None]) / DAY - _PEAK * HOUR / DAY
        on = (self.on / self.most)[:, None] * (1 + self.swing[:, None] * np.cos(2 * pi * local))
        drawn, mark = np.arange(most) < counts[:, None], uniform[:, 1::2]
        off = (mark >= on) & (mark < on + (self.off / self.most)[:, None])
        return when, drawn & (mark < on), drawn & off

    def state(self, at: Floats) -> Bools:
        """Whether it is on, by the last draw up to then."""
        found, block = np.zeros(len(at), bool), np.floor(at * self.most + 1e-9)
        left = np.ones(len(at), bool)
        while left.any():
            when, on, off = self.of(left).draws(block[left])
            past = when <= at[left, None]
            last_on = np.where(on & past, when, -np.inf).max(axis=1)
            last_off = np.where(off & past, when, -np.inf).max(axis=1)
            known = np.maximum(last_on, last_off) > -np.inf
            where = np.flatnonzero(left)
            found[where[known]] = (last_on > last_off)[known]
            left[where[known]] = False
            block[left] -= 1
        return found

    def next(self, at: Floats, to: str) -> Floats:
        """When it is next drawn to "on", or to "off", after then."""
        found, block = np.full(len(at), np.inf), np.floor(at * self.most - 1e-9)
        left = np.ones(len(at), bool)
        while left.any():
            when, on, off = self.of(left).draws(block[left])
            wanted = (on if to == "on" else off) & (when > at[left, None])
            first = np.where(wanted, when, np.inf).min(axis=1)
            where = np.flatnonzero(left)
            found[where] = first
            left[where[first < np.inf]] = False
            block[left] += 1
        return found


@dataclass(frozen=True)
class Nights:
    """When devices are there whose classes say how long they are idle, plugged in, on Wi-Fi."""

    speeds: Drawn  # whose classes they are
    time_zones: Sequence[float]  # hours ahead of UTC; as many parties in each

    always = False

    @cached_property
    def _rates(self) -> Mapping[str, tuple[Floats, Floats]]:
        """By condition, draws to "on" and "off" a second for each class; NaN: always on."""
        kinds: list[Device] = list(self.speeds.classes.values())
        found = {}
        for name in CONDITIONS:
            spans = [getattr(kind, name) or (np.nan, np.nan) for kind in kinds]
            if any(getattr(kind, name) for kind in kinds):
                minutes = np.array(spans, np.float64)
                found[name] = (1 / (60 * minutes[:, 1]), 1 / (60 * minutes[:, 0]))
        return found

    def zone(self, parties: Ints) -> Floats:
        draws = rng.uniform(rng.keys(rng.key(self.speeds.seed, "device zone"), parties))
        zones: Floats = np.array(self.time_zones, np.float64)
        return zones[(draws * len(zones)).astype(np.int64)]

    def there(self, parties: Ints, at: At) -> Bools:
        found, when = np.ones(len(parties), bool), _each(parties, at)
        for some, chain in self._chains(parties):
            asked = some & found  # who is not idle need not be plugged in
            kept = asked[some]
            found[asked] = chain.of(kept).state(when[asked])
        return found

    def until(self, parties: Ints, at: At) -> Floats:
        when = _each(parties, at)
        found, there = np.full(len(parties), np.inf), self.there(parties, at)
        for some, chain in self._chains(parties):
            asked = some & there
            ends = chain.of(asked[some]).next(when[asked], "off")
            found[asked] = np.minimum(found[asked], ends)
        return np.where(there, found, when)

    def comes(self, parties: Ints, at: At) -> Floats:
        when = _each(parties, at)
        left = ~self.there(parties, when)
        while left.any():
            some = parties[left]
            when[left] = self._latest(some, when[left])
            left[left] = ~self.there(some, when[left])
        return when

    def _latest(self, parties: Ints, at: Floats) -> Floats:
        """When the last of the conditions that do not hold then first holds."""
        latest = at.copy()
        for some, chain in self._chains(parties):
            out = np.zeros(len(parties), bool)
            out[some] = ~chain.state(at[some])
            begins = chain.of(out[some]).next(at[out], "on")
            latest[out] = np.maximum(latest[out], begins)
        return latest

    def _chains(self, parties: Ints) -> list[tuple[Bools, _Chain]]:
        """Each condition, of the parties whose class has it."""
        kind, ahead = self.speeds.kind(parties), self.zone(parties) * HOUR
        swings = np.array([each.swing for each in self.speeds.classes.values()], np.float64)
        found = []
        for name, (on, off) in self._rates.items():
            some = np.isfinite(on[kind])
            keys = rng.keys(rng.key(self.speeds.seed, f"device {name}"), parties[some])
            swing = (swings - 1) / (swings + 1) if name == "plugged" else np.zeros(len(swings))
            mine = kind[some]
            found.append((some, _Chain(keys, on[mine], off[mine], swing[mine], ahead[some])))
        return found


def _each(parties: Ints, at: At) -> Floats:
    return np.broadcast_to(np.asarray(at, np.float64), parties.shape).copy()
