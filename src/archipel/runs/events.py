# SPDX-License-Identifier: Apache-2.0
"""Parties that do not wait for each other: a clock of events, and a round for every full buffer.

So many parties are at work at once, each from the version of the shared state that it was sent.
Who is done, or lost, is replaced at once by somebody who is there and idle; at the same second
arrivals come before departures, so that what begins then begins from the newest version. A party
whose upload lies in the buffer begins again after the server's step. All draws are keyed and what
is in the air is in the checkpoint, so a resumed run goes on in the same second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from heapq import heappop, heappush
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.devices.device import Always, Joules, Presence, Trip
from archipel.devices.timing import Timing
from archipel.engines.engine import Cause, Outcome, SteppingEngine
from archipel.errors import ArchipelError, BelowQuorum
from archipel.rng import Ints
from archipel.runs.clock import BEGINNING, Clock
from archipel.runs.participation import Cohort, Participation, draws

_TRIES = 100  # of a draw, before everybody who could be drawn is looked at
_FRUITLESS = 1000  # beginnings in one step of which nothing comes, by parties at work
_LOST = (Cause("dropped out"), Cause("dropped out", "no longer there"), Cause("too slow"))


class Flight(NamedTuple):
    """A party at work: ordered by when it ends, then by its number."""

    ends: float  # when its upload arrives, or it is lost
    party: int
    version: int  # of the shared state that it was sent
    lost: int  # why nothing comes of it, in `_LOST`; -1: its upload arrives
    low: float  # joules that it takes
    high: float


class Events:
    """Who is at work, and what happens next."""

    def __init__(
        self,
        who: Participation,
        eligible: Ints,
        seed: int,
        at_once: int,
        buffer: int,
        presence: Presence,
        trip: Callable[[Ints, int], Trip],
        joules: Callable[[Ints, Trip, int], Joules],
    ) -> None:
        """`at_once` parties are at work; `trip` says how long one takes, `joules` what it costs."""
        self._who, self._eligible, self._seed = who, eligible, seed
        self._at_once, self._buffer = at_once, buffer
        self._presence, self._trip, self._joules = presence, trip, joules
        self.now = 0.0
        self.flights: list[Flight] = []
        self._busy: set[int] = set()
        self._begun = 0  # flights so far, which the draws of their fates are keyed by
        self._draws = 0  # of this version

    @property
    def held(self) -> set[int]:
        """Versions of the shared state that uploads are still to come of."""
        return {flight.version for flight in self.flights if flight.lost < 0}

    def fill(self, t: int, clock: int, resting: set[int]) -> tuple[list[Flight], int]:
        """Go on until the buffer of step t is full: what ended, and how often all were away.

        `clock` counts steps so far and waiting; who is `resting` does not begin in this step.
        """
        ended, arrived, waited = list[Flight](), 0, 0
        self._draws, resting = 0, set(resting)
        most = self._begun + _FRUITLESS * self._at_once
        while True:
            while self.flights and self.flights[0].ends <= self.now:
                flight = heappop(self.flights)
                self._busy.discard(flight.party)
                ended.append(flight)
                if flight.lost < 0:
                    resting.add(flight.party)
                    arrived += 1
                    most = self._begun + _FRUITLESS * self._at_once
                if arrived == self._buffer:
                    return ended, waited
            here = self._here(clock + waited)
            self._depart(t, resting, here)
            if self._begun > most:
                raise BelowQuorum(
                    f"round {t + 1}: {_FRUITLESS * self._at_once} times a party began and did not "
                    "finish: lower simulate.dropouts, or give devices that stay for longer."
                )
            if not self._advance(t, resting, here):
                waited += 1
                if waited > _FRUITLESS:
                    raise BelowQuorum(
                        f"round {t + 1}: nobody is there, also after waiting {waited - 1} rounds."
                    )

    def _advance(self, t: int, resting: set[int], here: Ints | None) -> bool:
        """Go to the next event: somebody is done, or comes; whether there is one."""
        following = self.flights[0].ends if self.flights else np.inf
        if len(self.flights) < self._at_once:
            others = self._others(resting, here)
            if len(others):
                following = min(following, float(self._presence.comes(others, self.now).min()))
        if isfinite(following):
            self.now = following
            return True
        if self.flights or here is None:
            never = "finishes" if self.flights else "comes"
            raise ArchipelError(
                f"round {t + 1}: waits for a party that never {never}: give round.deadline, or "
                "devices with a speed."
            )
        return False

    # -- who begins --------------------------------------------------------------------------------

    def _depart(self, t: int, resting: set[int], here: Ints | None) -> None:
        """Have parties begin from version t until so many are at work."""
        wanted = self._at_once - len(self.flights)
        first = not self.flights and not self._draws
        if first and here is None and self._presence.always:  # as a round asks
            everybody = np.ones(len(self._eligible), bool)
            awake = ~np.isin(self._eligible, list(resting)) if resting else None
            asked, _ = self._who.ask(self._eligible, self._seed, t, everybody, awake)
            self._draws += 1
            self._begin(t, asked)
            return
        for _ in range(wanted):
            chosen = self._one(t, resting, here)
            if chosen is None:
                return
            self._begin(t, np.array([chosen]))

    def _one(self, t: int, resting: set[int], here: Ints | None) -> int | None:
        """One of those that are there and idle, drawn uniformly; None where nobody is."""
        draw = rng.generator(self._seed, t, "replacement", self._draws)
        self._draws += 1
        pool = self._eligible if here is None else here
        if not len(pool):
            return None
        for party in pool[draw.integers(len(pool), size=_TRIES)].tolist():
            free = party not in self._busy and party not in resting
            if free and self._presence.there(np.array([party]), self.now)[0]:
                return int(party)
        others = self._others(resting, here)
        others = others[self._presence.there(others, self.now)]
        return int(draw.choice(others)) if len(others) else None

    def _others(self, resting: set[int], here: Ints | None) -> Ints:
        """All that are neither at work nor resting."""
        pool = self._eligible if here is None else here
        return pool[~np.isin(pool, [*self._busy, *resting])]

    def _here(self, clock: int) -> Ints | None:
        """Parties that a share or rounds of absence do not keep away; None: nothing does."""
        if self._who.availability == 1 and not self._who.away:
            return None
        return self._eligible[self._who.here(self._eligible, self._seed, clock)]

    def _begin(self, t: int, parties: Ints) -> None:
        """Send version t to these parties; when each ends, and how, is known from then on."""
        who, trip = self._who, self._trip(parties, t)
        seconds, stays = trip.seconds, self._presence.until(parties, self.now) - self.now
        limit = np.inf if who.deadline is None else who.deadline
        drops = draws(self._seed, self._begun, "dropouts", parties) < who.dropouts
        moment = draws(self._seed, self._begun, "dropout moment", parties)
        with np.errstate(invalid="ignore"):  # parts of an endless trip
            drop = np.where(drops, moment * seconds, np.inf)
        ends = np.stack([drop, stays, np.full(len(parties), limit)])  # as `_LOST` has them
        lost = np.where(ends.min(axis=0) < seconds, ends.argmin(axis=0), -1)
        takes = np.minimum(ends.min(axis=0), seconds)
        with np.errstate(invalid="ignore"):
            costs = self._joules(parties, trip.within(takes), t)
        for i, party in enumerate(parties.tolist()):
            low, high = (float(cost[i]) for cost in costs)
            end = self.now + float(takes[i])
            heappush(self.flights, Flight(end, party, t, int(lost[i]), low, high))
        self._busy |= set(parties.tolist())
        self._begun += len(parties)

    # -- a checkpoint ------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """All that comes next depends on, between two steps."""
        whole = torch.tensor([flight[1:4] for flight in self.flights], dtype=torch.int64)
        parts = [(flight.ends, flight.low, flight.high) for flight in self.flights]
        return {
            "events.flights": whole.view(-1, 3),
            "events.seconds": torch.tensor(parts, dtype=torch.float64).view(-1, 3),
            "events.now": torch.tensor([self.now], dtype=torch.float64),
            "events.begun": torch.tensor([self._begun]),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        whole, parts = state["events.flights"].tolist(), state["events.seconds"].tolist()
        self.flights = sorted(
            Flight(ends, party, version, lost, low, high)
            for (party, version, lost), (ends, low, high) in zip(whole, parts, strict=True)
        )
        self._busy = {flight.party for flight in self.flights}
        self.now, self._begun = float(state["events.now"]), int(state["events.begun"])


class EventAttendance:
    """A simulation's, of an algorithm whose parties do not wait for each other."""

    def __init__(
        self,
        engine: SteppingEngine,
        who: Participation,
        eligible: Ints,
        seed: int,
        buffer: int,
        past: Callable[[], Sequence[Cohort]],
        clock: Clock | None = None,
    ) -> None:
        """Without a `clock` every party takes a second."""
        self._engine, self._who, self._eligible, self._past = engine, who, eligible, past
        self._clock, self._buffer = clock, buffer
        if clock is None:
            who = replace(who, deadline=None)
        self.events = Events(
            who,
            eligible,
            seed,
            who.count(len(eligible)),
            buffer,
            Always() if clock is None else clock.devices.presence,
            self._trip,
            self._joules,
        )

    def take_part(self, t: int, clock: int) -> tuple[Cohort, Outcome]:
        past = self._past()
        awake = self._who.awake(self._eligible, past)
        resting = set() if awake is None else set(self._eligible[~awake].tolist())
        ended, waited = self.events.fill(t, clock, resting)
        came = sorted((flight.party, flight.version) for flight in ended if flight.lost < 0)
        parties = np.array([party for party, _ in came], np.int64)
        versions = np.array([version for _, version in came], np.int64)
        missing = {f.party: _LOST[f.lost] for f in ended if f.lost >= 0 and f.party not in parties}
        before = next((one.timing for one in reversed(past) if one.timing), BEGINNING)
        timing = Timing(
            before.end,
            before.end,
            self.events.now,
            before.low + sum(flight.low for flight in ended),
            before.high + sum(flight.high for flight in ended),
            staleness=tuple((t - versions).tolist()),
        )
        sampled = np.sort(np.array([*parties, *missing], np.int64))
        cohort = Cohort(
            sampled, parties, np.broadcast_to(1.0, parties.shape), missing, waited=waited,
            timing=timing,
        )  # fmt: skip
        lost = len(ended) - len(parties)
        outcome = self._engine.step(t, parties, versions, self.events.held, unheard=lost)
        cohort = cohort.without(outcome.missing, 1)
        if outcome.given_up:
            cohort = cohort._replace(counted=False)
        if self._clock is not None:
            cohort = self._clock.settled(cohort, self._engine.anatomy)
        return cohort, outcome

    def before_evaluation(self) -> None:
        """Nobody is away from here."""

    def state(self) -> dict[str, Tensor]:
        return self.events.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.events.restore(state)

    def _trip(self, parties: Ints, t: int) -> Trip:
        if self._clock is None:
            return Trip(np.zeros(len(parties)), np.ones(len(parties)), np.zeros(len(parties)))
        return self._clock.trip(parties, self._clock.job(self._engine.anatomy, self._buffer), t)

    def _joules(self, parties: Ints, trip: Trip, t: int) -> Joules:
        if self._clock is None:
            return Joules(np.zeros(len(parties)), np.zeros(len(parties)))
        return self._clock.devices.speeds.joules(parties, trip, t)


def check_asynchronous(
    options: Mapping[str, Any],
    name: str,
    who: Participation,
    parties: int,
    buffer: int,
    averaged: bool,
) -> None:
    """Refuse what has no meaning where nobody waits for anybody, in a sentence."""
    usual = {each.name: each.default for each in fields(Participation)}
    for field, why in {
        "over_select": "nobody is asked in vain; leave it out, and raise round.sample instead",
        "quorum": f"a step takes a full buffer; set algorithm.buffer, here {buffer}",
        "on_missing": "nobody is waited for; leave it out",
        "stragglers": "who is slow comes late; give simulate.devices or simulate.speed instead",
        "lost": "a party sends one message; give simulate.dropouts instead",
        "patience": "nobody waits for the others; leave it out",
        "pace": "as many are at work as round.sample says; leave it out",
    }.items():
        value = options.get(field)
        if value is not None and value != usual.get(field, False):
            section = "round" if field in ("over_select", "quorum", "on_missing") else "simulate"
            raise ArchipelError(f"{section}.{field} = {value!r}: in {name} {why}.")
    if buffer * who.separation > parties:
        rest = "" if who.separation == 1 else f" and sits out {who.separation - 1} steps"
        raise ArchipelError(
            f"algorithm.buffer = {buffer}: a buffer has an upload of a party once{rest}, and "
            f"{parties} parties have training points; lower it to "
            f"{max(1, parties // who.separation)}."
        )
    if averaged and buffer < 2:
        raise ArchipelError(
            f"algorithm.buffer = {buffer}: BatchNorm's averaged statistics would be those of the "
            'one party that sent last; say model.statistics = "own", use GroupNorm, or a larger '
            "buffer."
        )
