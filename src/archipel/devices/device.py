# SPDX-License-Identifier: Apache-2.0
"""What a simulation asks of devices: who is there when, how long work takes, what it costs.

Time is in simulated seconds since the run began, at midnight UTC. Every answer is a function of
its arguments and the seed, so it may be asked again, in any order, after a resume or elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from archipel.rng import Ints

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
At = float | Floats  # a second, or one for each party

HOUR, DAY = 3600.0, 86400.0


class Job(NamedTuple):
    """What a party is asked to do besides the number of its examples."""

    flops: float  # of the gradient of one example
    up: float  # bytes it sends
    down: float  # bytes it is sent


class Trip(NamedTuple):
    """Seconds that each party takes from being asked to its upload's arrival, `[m]`."""

    download: Floats
    training: Floats
    upload: Floats
    setup: Floats | float = 0.0  # before all of it: to wake up, connect and load data

    @property
    def seconds(self) -> Floats:
        """All of it, `[m]`."""
        return self.setup + self.download + self.training + self.upload

    def of(self, some: Bools) -> Trip:
        """The trips of some of the parties."""
        setup = np.broadcast_to(self.setup, some.shape)[some]
        return Trip(self.download[some], self.training[some], self.upload[some], setup)

    def within(self, seconds: Floats) -> Trip:
        """As much of it as is done after so many seconds, `[m]`.

        >>> whole = Trip(np.array([1.0]), np.array([4.0]), np.array([2.0]))
        >>> [float(part[0]) for part in whole.within(np.array([3.0]))]
        [1.0, 2.0, 0.0, 0.0]
        """
        left, parts = np.maximum(seconds, 0.0), []
        for part in (self.setup, *self[:3]):
            done = np.minimum(part, left)
            parts.append(done)
            left = left - done
        setup, download, training, upload = parts
        return Trip(download, training, upload, setup)


class Joules(NamedTuple):
    """What work costs each party's battery, between two assumptions, `[m]`."""

    low: Floats
    high: Floats


class Presence(Protocol):
    """When parties are there: idle, plugged in and on Wi-Fi all at once."""

    @property
    def always(self) -> bool:
        """Whether nobody is ever away."""

    def there(self, parties: Ints, at: At) -> Bools:
        """Who is there at this second, or each at one of its own, `[m]`."""

    def until(self, parties: Ints, at: At) -> Floats:
        """When each ceases to be, `[m]`: `at` for who is not there, endless for who stays."""

    def comes(self, parties: Ints, at: At) -> Floats:
        """When each is there next, `[m]`: `at` for who is, endless for who never comes."""

    def zone(self, parties: Ints) -> Floats | None:
        """Hours that each party's clock is ahead of UTC, `[m]`; None where nobody knows."""


class Speeds(Protocol):
    """How fast parties work and talk, and at what power."""

    def trip(self, parties: Ints, examples: Floats, job: Job, t: int | None = None) -> Trip:
        """How long each takes in round t; without a t, as it usually does."""

    def joules(self, parties: Ints, trip: Trip, t: int | None = None) -> Joules:
        """What (a part of) its trip in round t costs each, `[m]`."""


class Devices(NamedTuple):
    """The devices of a simulation's parties."""

    speeds: Speeds
    presence: Presence


class Always:
    """Parties that are always there."""

    always = True

    def there(self, parties: Ints, at: At) -> Bools:
        return np.ones(len(parties), bool)

    def until(self, parties: Ints, at: At) -> Floats:
        return np.full(len(parties), np.inf)

    def comes(self, parties: Ints, at: At) -> Floats:
        return np.broadcast_to(np.float64(at), parties.shape).copy()

    def zone(self, parties: Ints) -> Floats | None:
        return None
