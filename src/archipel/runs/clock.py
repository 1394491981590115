# SPDX-License-Identifier: Apache-2.0
"""Rounds on a simulated clock: who is there, who finishes first, who leaves in the middle.

A round begins when as many are there as it asks, or when patience ends and a quorum is there. It
ends with the last upload that it needs, at the deadline, or when nobody else is left to wait for.
The clock stands at the end of the round before, which the journal has, so a resumed run goes on in
the same second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import ceil, isfinite

import numpy as np

from archipel import rng
from archipel.devices.device import DAY, Bools, Devices, Floats, Job, Trip
from archipel.devices.timing import FIFTH, TOLD, Timing, Told
from archipel.engines.engine import Cause
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Anatomy
from archipel.rng import Ints
from archipel.runs.participation import Cohort, Participation, draws, whole

BEGINNING = Timing(0.0, 0.0, 0.0, 0.0, 0.0)
PATIENCE = 600.0  # seconds
_LONGEST = 30 * DAY  # that a round waits for enough to be there
_SAMPLE = 10_000  # parties, of which the slowest fifth is found
_PAST = 20  # rounds that pace steering looks back on


class Clock:
    """Draws rounds as `Participation` does, and says when everything happens."""

    def __init__(
        self,
        devices: Devices,
        who: Participation,
        eligible: Ints,
        seed: int,
        work: Floats,
        flops: float,
        *,
        patience: float | None = None,
        pace: bool = False,
    ) -> None:
        """`work` is how many examples each of `eligible` works through, `flops` those of one."""
        self.devices, self._who, self._eligible, self._seed = devices, who, eligible, seed
        self._work, self._flops, self._pace = work, flops, pace
        self._patience = PATIENCE if patience is None else patience
        self._back = dict[int, float]()  # until when parties are known to be away: time goes on
        self._slow = dict[str, float | None]()  # seconds beyond which the slowest fifth takes

    def draw(
        self,
        t: int,
        clock: int,
        past: Sequence[Cohort],
        anatomy: Anatomy,
        keeps_partial_work: bool = False,
        since: Timing | None = None,
    ) -> Cohort:
        """Draw round t; `clock` counts rounds so far and those that were waited for.

        It goes on `since` a try of the same round, or else since the round before.
        """
        if since is None:
            before = next((one.timing for one in reversed(past) if one.timing), BEGINNING)
            since = before._replace(began=before.end)
        now, waited, blocked = since, 0, dict[int, Cause]()
        while True:
            cohort = self._attempt(t, clock + waited, now, past, anatomy, keeps_partial_work)
            cohort = cohort._replace(waited=waited, blocked=blocked)
            if cohort.counted or self._who.on_missing == "continue":
                return cohort
            self._who.may_wait(t, cohort, len(self._eligible))
            assert cohort.timing is not None
            now, waited, blocked = cohort.timing, waited + 1, cohort.missing

    def settled(self, cohort: Cohort, anatomy: Anatomy) -> Cohort:
        """The same once the round is over: who of it came from where, and was slow."""
        assert cohort.timing is not None
        zones = dict[str, tuple[int, int]]()
        ahead = self.devices.presence.zone(cohort.sampled)
        if ahead is not None:
            arrived = np.isin(cohort.sampled, cohort.present)
            for zone in np.unique(ahead).tolist():
                mine = ahead == zone
                zones[f"{zone:g}"] = (int(mine.sum()), int((mine & arrived).sum()))
        slow, limit = None, self._slowest(anatomy)
        if limit is not None:
            usual = self.trip(cohort.present, self.job(anatomy, len(cohort.sampled)), None)
            slow = int((usual.seconds > limit).sum()) if cohort.counted else 0
        return cohort._replace(timing=cohort.timing._replace(zones=zones, slow=slow))

    def _attempt(
        self,
        t: int,
        clock: int,
        now: Timing,
        past: Sequence[Cohort],
        anatomy: Anatomy,
        keeps_partial_work: bool,
    ) -> Cohort:
        who, seed, eligible = self._who, self._seed, self._eligible
        count = who.count(len(eligible))
        start, sampled, here = self._asked(t, clock, now.end, past)
        missing = dict.fromkeys(sampled[~here].tolist(), Cause("away"))
        trip = self.trip(sampled, self.job(anatomy, len(sampled)), t)

        effort = who.effort(sampled, seed, clock)
        slow = (effort < 1) & (not keeps_partial_work)
        if who.deadline is not None:  # what is left of it to train
            left = who.deadline - trip.setup - trip.download - trip.upload
            left = left / np.maximum(trip.training, 1e-12)
            late = left < 1
            slow = slow | (late & (left <= 0 if keeps_partial_work else True))
            effort = np.where(late & ~slow, np.minimum(effort, left), effort)
            trip = trip._replace(training=np.where(late & ~slow, left, 1.0) * trip.training)
        finish = trip.seconds
        leaves = self.devices.presence.until(sampled, start) - start
        chance = draws(seed, clock, "dropouts", sampled) < who.dropouts
        moment = draws(seed, clock, "dropout moment", sampled)
        with np.errstate(invalid="ignore"):  # a part of an endless trip
            stops = np.where(chance, np.minimum(moment * finish, leaves), leaves)
        gone = here & (chance | (leaves < np.minimum(finish, who.deadline or np.inf)))
        missing |= dict.fromkeys(sampled[gone & chance].tolist(), Cause("dropped out"))
        went = Cause("dropped out", "no longer there")
        missing |= dict.fromkeys(sampled[gone & ~chance].tolist(), went)
        slow = slow & here & ~gone
        missing |= dict.fromkeys(sampled[slow].tolist(), Cause("too slow"))
        stays = here & ~gone & ~slow

        asked = np.flatnonzero(stays)
        first = asked[np.lexsort((draws(seed, clock, "finish", sampled)[stays], finish[stays]))]
        if len(first) >= count:
            seconds = float(finish[first[count - 1]]) if count else 0.0
            spare = np.zeros(len(sampled), bool)
            spare[first[count:]] = True
            missing |= dict.fromkeys(sampled[spare].tolist(), Cause("not needed"))
            stays &= ~spare
        else:
            ends = np.where(gone, stops, finish)[here]
            seconds = min(float(ends.max(initial=0.0)), who.deadline or np.inf)
        if not isfinite(seconds):
            raise ArchipelError(
                f"round {t + 1}: waits for a party that never finishes; give round.deadline, or "
                "devices with a speed."
            )
        asks, job = sampled[here], self.job(anatomy, len(sampled))
        did = trip.within(np.minimum(stops, seconds)).of(here)
        spent = self.devices.speeds.joules(asks, did, t)
        timing = Timing(
            now.began,
            start,
            start + seconds,
            now.low + float(spent.low.sum()),
            now.high + float(spent.high.sum()),
            bytes=(int(job.down), int(job.up)),
            told=self._told(asks, did, t) if len(asks) <= TOLD else (),
        )
        counted = int(stays.sum()) >= who.needed(len(eligible))
        present = sampled[stays]
        answers = who.answers(present, seed, clock, len(anatomy.messages))
        return Cohort(
            sampled, present, whole(effort[stays]), missing, counted, answers=answers, timing=timing
        )

    def _told(self, parties: Ints, did: Trip, t: int) -> tuple[Told, ...]:
        """When each did what, and what each part cost."""
        none = np.zeros(len(parties))
        parts = [
            Trip(did.download, none, none),
            Trip(none, did.training, none),
            Trip(none, none, did.upload),
        ]
        costs = [self.devices.speeds.joules(parties, part, t) for part in parts]
        columns = (
            np.stack([np.broadcast_to(did.setup, none.shape), *did[:3]], axis=1).tolist(),
            np.stack([cost.low for cost in costs], axis=1).tolist(),
            np.stack([cost.high for cost in costs], axis=1).tolist(),
        )
        rows = zip(parties.tolist(), *columns, strict=True)
        return tuple(Told(k, *map(tuple, each)) for k, *each in rows)

    # -- who is asked, and when --------------------------------------------------------------------

    def _asked(
        self, t: int, clock: int, at: float, past: Sequence[Cohort]
    ) -> tuple[float, Ints, Bools]:
        """When the round begins, whom it asks, and who of them is there at all."""
        who, eligible, seed = self._paced(past), self._eligible, self._seed
        awake, presence = who.awake(eligible, past), self.devices.presence
        if presence.always:
            return at, *who.ask(eligible, seed, t, who.here(eligible, seed, clock), awake)
        may = eligible
        if awake is not None or who.away or who.availability != 1:
            free = who.here(eligible, seed, clock)
            may = eligible[free if awake is None else free & awake]
        count = who.count(len(eligible))
        wanted = min(ceil(count * (1 + who.over_select) - 1e-9), len(may))
        needed = min(max(who.needed(len(eligible)), 1), len(may))
        chosen = self._there(may, t, at, wanted)
        if len(chosen) < wanted:
            at = self._wait(may, t, at, wanted, needed)
            chosen = self._there(may, t, at, wanted)
        return at, np.sort(chosen), np.ones(len(chosen), bool)

    def _there(self, may: Ints, t: int, at: float, wanted: int) -> Ints:
        """So many of those who are there, drawn uniformly; all where they are fewer."""
        chosen: list[Ints] = []
        for places in _shuffled(len(may), rng.generator(self._seed, t, "devices")):
            some = may[places]
            chosen.append(some[self.devices.presence.there(some, at)])
            if sum(map(len, chosen)) >= wanted:
                break
        return np.concatenate([np.empty(0, np.int64), *chosen])[:wanted]

    def _wait(self, may: Ints, t: int, at: float, wanted: int, needed: int) -> float:
        """When enough are there at once: as many as wanted, or as needed once patience ends."""
        presence, patient = self.devices.presence, at + self._patience
        comes = np.array([self._back.get(party, -1.0) for party in may.tolist()])
        unknown = comes <= at
        comes[unknown] = presence.comes(may[unknown], at)
        self._back |= dict(zip(may[unknown].tolist(), comes[unknown].tolist(), strict=True))
        there = comes == at
        until = presence.until(may[there], at).tolist()
        leaving = list(zip(until, may[there].tolist(), strict=True))
        coming = list(zip(comes[~there].tolist(), may[~there].tolist(), strict=True))
        heapify(leaving)
        heapify(coming)
        while True:
            leaves = leaving[0][0] if leaving else np.inf
            arrives = coming[0][0] if coming else np.inf
            if len(leaving) >= needed and min(leaves, arrives) > patient:
                return max(at, patient)
            at = min(leaves, arrives)
            if at > patient - self._patience + _LONGEST:
                raise ArchipelError(
                    f"round {t + 1}: {needed} of {len(may)} parties are not there at once in 30 "
                    "days of simulated time; lower round.quorum, or take more parties."
                )
            _, party = heappop(leaving if leaves <= arrives else coming)
            one = np.array([party])
            if leaves <= arrives:
                self._back[party] = float(presence.comes(one, at)[0])
                heappush(coming, (self._back[party], party))
                continue
            heappush(leaving, (float(presence.until(one, at)[0]), party))
            if len(leaving) >= (needed if at >= patient else wanted):
                return at

    def _paced(self, past: Sequence[Cohort]) -> Participation:
        """As many asked as lately were needed for the sample to arrive [Bonawitz 2019]."""
        who = self._who
        recent = [cohort for cohort in past[-_PAST:] if cohort.timing is not None]
        if not self._pace or not recent:
            return who
        asked = sum(len(cohort.sampled) for cohort in recent)
        spare = [sum(c.why == "not needed" for c in one.missing.values()) for one in recent]
        arrived = sum(len(one.present) for one in recent) + sum(spare)
        count = who.count(len(self._eligible))  # the study's own guess counts as one round
        share = (arrived + count) / (asked + count * (1 + who.over_select))
        return replace(who, over_select=min(max(1 / share - 1, 0.0), 2.0))

    # -- how long it takes -------------------------------------------------------------------------

    def job(self, anatomy: Anatomy, asked: int) -> Job:
        """What each of so many parties is asked to do."""
        round_of = anatomy.in_cohort(asked)
        return Job(self._flops, round_of.bytes_up, round_of.bytes_down)

    def trip(self, parties: Ints, job: Job, t: int | None) -> Trip:
        """How long each takes in round t; without a t, as it usually does."""
        examples = self._work[np.searchsorted(self._eligible, parties)]
        return self.devices.speeds.trip(parties, examples, job, t)

    def _slowest(self, anatomy: Anatomy) -> float | None:
        """The seconds that four fifths of parties usually do not exceed; None: all are as fast."""
        if not self._slow:
            some = self._eligible
            if len(some) > _SAMPLE:
                draw = rng.generator(self._seed, "the slowest").choice
                some = np.sort(draw(some, _SAMPLE, replace=False, shuffle=False))
            count = self._who.count(len(self._eligible))
            seconds = np.sort(self.trip(some, self.job(anatomy, count), None).seconds)
            limit = float(seconds[ceil((1 - FIFTH) * len(some) - 1e-9) - 1])
            self._slow["limit"] = limit if seconds[-1] > limit else None
        return self._slow["limit"]


def _shuffled(n: int, draws: np.random.Generator) -> Iterator[Ints]:
    """All of range(n) in random order, in pieces; a few of many cost little."""
    seen, size = np.empty(0, np.int64), 1024
    while 2 * len(seen) + size < n:
        drawn = draws.integers(0, n, size)
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        fresh = drawn[~np.isin(drawn, seen)]
        yield fresh
        seen, size = np.concatenate([seen, fresh]), 2 * size
    yield draws.permutation(np.setdiff1d(np.arange(n), seen))
