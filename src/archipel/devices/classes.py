# SPDX-License-Identifier: Apache-2.0
"""Classes of devices: what share of parties has one, how fast they are, at what power.

Speeds within a class are log-normal: a median, and the standard deviation of the logarithm. A
party's class, speed and bandwidth are drawn once, by (seed, party).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from archipel import rng
from archipel.devices.device import Floats, Job, Joules, Trip
from archipel.errors import ArchipelError
from archipel.rng import Ints

# Power of Wi-Fi while it moves data, in watts: RATE by Mbit/s and BASE. High: Huang et al., MobiSys
# 2012, https://doi.org/10.1145/2307636.2307658, phones of 2012. Low: a tenth of it, our assumption.
RATE_UP, RATE_DOWN, BASE = 0.28317, 0.13701, 0.13286
NEWER = 0.1


@dataclass(frozen=True)
class Device:
    """A class of devices."""

    share: float  # of the parties
    gflops: float | None = None  # billions of FLOPs per second while it trains, the median
    seconds: float | None = None  # in place of gflops: of one example's gradient, the median
    spread: float = 0.0  # standard deviation over parties of log(speed)
    jitter: float = 0.0  # the same from round to round, of one party
    setup: float = 0.0  # seconds before it trains, to wake up, connect and load; the median
    down: float | None = None  # Mbit/s, the median; None: downloads take no time
    up: float | None = None
    link_spread: float = 0.0  # standard deviation over parties of log(Mbit/s)
    watts: tuple[float, float] = (0.0, 0.0)  # low, high: while it trains
    # minutes that it is, and is not, in the mean; None: always
    idle: tuple[float, float] | None = None
    plugged: tuple[float, float] | None = None
    wifi: tuple[float, float] | None = None
    swing: float = 1.0  # how much more often it is plugged in at 2 o'clock at night than by day

    def __post_init__(self) -> None:
        if (self.gflops is None) == (self.seconds is None):
            raise ArchipelError("gflops: give either gflops or seconds, the time of one example.")
        for name in ("share", "gflops", "seconds", "down", "up"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ArchipelError(f"{name} = {value}: give a number above 0.")
        if not 0 <= self.setup < float("inf"):
            raise ArchipelError(f"setup = {self.setup}: give a number of seconds from 0.")
        for name in ("spread", "jitter", "link_spread"):
            if not 0 <= getattr(self, name) <= 5:
                raise ArchipelError(f"{name} = {getattr(self, name)}: give a number from 0 to 5.")
        if len(self.watts) != 2 or not 0 <= self.watts[0] <= self.watts[1] < float("inf"):
            raise ArchipelError(f"watts = {list(self.watts)}: give two numbers, low and high.")
        for name in ("idle", "plugged", "wifi"):
            span = getattr(self, name)
            if span is not None and not (len(span) == 2 and all(0.1 <= x <= 1e6 for x in span)):
                raise ArchipelError(
                    f"{name} = {list(span)}: give two means in minutes from 0.1, how long it is "
                    "and how long it is not."
                )
        if not 1 <= self.swing <= 1000:
            raise ArchipelError(f"swing = {self.swing}: give a number from 1 to 1000.")


@dataclass(frozen=True)
class Drawn:
    """Speeds of parties whose class is drawn by its share."""

    classes: Mapping[str, Device]
    seed: int

    @cached_property
    def _bounds(self) -> Floats:
        shares = np.cumsum([each.share for each in self.classes.values()])
        bounds: Floats = shares / shares[-1]
        return bounds

    def kind(self, parties: Ints) -> Ints:
        """The place of each party's class among the classes, `[m]`."""
        draws = rng.uniform(rng.keys(rng.key(self.seed, "device class"), parties))
        found: Ints = np.searchsorted(self._bounds[:-1], draws, side="right").astype(np.int64)
        return found

    def trip(self, parties: Ints, examples: Floats, job: Job, t: int | None = None) -> Trip:
        kind = self.kind(parties)
        fast = np.exp(self._field("spread", kind) * self._normal("speed", parties))
        if t is not None:
            jitter = self._field("jitter", kind)
            if jitter.any():
                fast = fast * np.exp(jitter * self._normal("jitter", parties, t))
        each = np.array(
            [
                one.seconds if one.seconds is not None else job.flops / (1e9 * (one.gflops or 1.0))
                for one in self.classes.values()
            ]
        )
        down, up = self._links(parties, kind)
        with np.errstate(over="ignore", divide="ignore"):  # endless is a time, too
            return Trip(
                job.down * 8e-6 / down,
                examples * each[kind] / fast,
                job.up * 8e-6 / up,
                self._field("setup", kind) / fast,
            )

    def joules(self, parties: Ints, trip: Trip, t: int | None = None) -> Joules:
        kind = self.kind(parties)
        down, up = self._links(parties, kind)
        radio = np.zeros(len(parties))
        for seconds, rate, watts in ((trip.download, down, RATE_DOWN), (trip.upload, up, RATE_UP)):
            talks = np.isfinite(rate)
            radio[talks] += seconds[talks] * (BASE + watts * rate[talks])
        low, high = (np.array([one.watts[i] for one in self.classes.values()]) for i in (0, 1))
        return Joules(low[kind] * trip.training + NEWER * radio, high[kind] * trip.training + radio)

    def _links(self, parties: Ints, kind: Ints) -> tuple[Floats, Floats]:
        """Mbit/s down and up, `[m]`: one draw for both, since a link is good or bad."""
        factor = np.exp(self._field("link_spread", kind) * self._normal("link", parties))
        return self._field("down", kind) * factor, self._field("up", kind) * factor

    def _field(self, name: str, kind: Ints) -> Floats:
        """A number of each party's class; None is endless."""
        told = [getattr(each, name) for each in self.classes.values()]
        values: Floats = np.array([np.inf if one is None else one for one in told], np.float64)
        return values[kind]

    def _normal(self, purpose: str, parties: Ints, *more: int) -> Floats:
        """One normal deviate for each party, by Box and Muller's transform."""
        drawn = rng.keys(rng.key(self.seed, f"device {purpose}", *more), parties)
        radius = np.sqrt(-2 * np.log1p(-rng.uniform(drawn)))
        angle = 2 * np.pi * rng.uniform(rng.subkeys(drawn, np.ones_like(parties)))
        normal: Floats = radius * np.cos(angle)
        return normal


def alike(seconds: float = 1.0) -> Drawn:
    """Parties that are all as fast, so many seconds an example, and talk at no cost."""
    return Drawn({"alike": Device(1.0, seconds=seconds)}, 0)


# GFLOPS: FLASH's seconds per batch of ten of FEMNIST's network (103 MFLOP an example, forward and
# backward) on a Nexus S, a Redmi Note 7 Pro and a Pixel 4: 1.642, 0.588 and 0.179 (Yang et al.,
# WWW 2021, https://doi.org/10.1145/3442381.3449851, models/utils/device_util). Links: the median
# of its 19 measured Wi-Fi links, 4318 KiB/s down and 3286 up, spread by their extremes. Power:
# between EAFL (Arouj and Abdelmoniem, 2022, https://arxiv.org/abs/2208.04505) and AutoFL (Kim and
# Wu, MICRO 2021, https://doi.org/10.1145/3466752.3480129), of which the shares are. Bonawitz et
# al. (MLSys 2019, https://arxiv.org/abs/1902.01046) tell of rounds of two to three minutes, of
# which 6 to 10 % drop out, and of four times as many phones at night as by day. That is what our
# assumptions are made for: a setup of two minutes, phones that are there for half an hour in the
# mean, and how that is shared between the three conditions.
def _phone(share: float, gflops: float, watts: tuple[float, float]) -> Device:
    return Device(
        share,
        gflops=gflops,
        spread=0.3,
        jitter=0.1,
        setup=120.0,
        down=35.4,
        up=26.9,
        link_spread=0.6,
        watts=watts,
        idle=(90.0, 30.0),
        plugged=(60.0, 480.0),
        wifi=(180.0, 60.0),
        swing=5.0,
    )


PHONES: dict[str, Device] = {
    "high": _phone(0.15, 5.8, (5.5, 6.33)),
    "middle": _phone(0.35, 1.76, (5.44, 5.6)),
    "low": _phone(0.5, 0.63, (2.98, 3.6)),
}
