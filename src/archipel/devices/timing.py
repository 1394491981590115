# SPDX-License-Identifier: Apache-2.0
"""What the simulated clock says of a round, as journals keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

FIFTH = 0.2  # of the parties, the slowest ones
TOLD = 200  # parties that a round asks, up to which it is known when each did what


class Told(NamedTuple):
    """What a party did in a round: seconds of each part, bytes, and joules of each."""

    party: int
    seconds: tuple[float, ...]  # setup, download, training, upload
    low: tuple[float, ...]  # joules of download, training, upload
    high: tuple[float, ...]


class Timing(NamedTuple):
    """When a round was, in simulated seconds, and what devices spent, in joules, up to its end."""

    began: float  # when the round before ended
    start: float  # when enough were there and were asked
    end: float  # when its last upload arrived, or nobody else was waited for
    low: float  # joules of all rounds so far
    high: float
    zones: Mapping[str, tuple[int, int]] = {}  # asked and arrived, by hours ahead of UTC
    slow: int | None = None  # uploads of the slowest fifth of parties; None where all are as fast
    staleness: tuple[int, ...] = ()  # of each upload, where parties do not wait for each other
    bytes: tuple[int, int] = (0, 0)  # down and up, of each party
    told: tuple[Told, ...] = ()  # what each party did, where they are few

    def to_json(self) -> dict[str, Any]:
        zones = {name: list(both) for name, both in self.zones.items()}
        return {**self._asdict(), "zones": zones, "staleness": list(self.staleness)} | {
            "bytes": list(self.bytes),
            "told": [[each.party, *map(list, each[1:])] for each in self.told],
        }

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Timing:
        zones = {name: (int(both[0]), int(both[1])) for name, both in told["zones"].items()}
        did = tuple(Told(k, *map(tuple, parts)) for k, *parts in told.get("told", ()))
        rest = {"staleness": tuple(told.get("staleness", ())), "told": did}
        down, up = told.get("bytes", (0, 0))
        return cls(**{**told, "zones": zones, "bytes": (int(down), int(up)), **rest})
