# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a round: the study's policy, and the drop-outs of a simulation.

One file, since a cohort comes of all of the policy's fields, in one order of draws.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel import rng
from archipel.devices.timing import Timing
from archipel.engines.engine import Cause, Floats
from archipel.errors import ArchipelError, BelowQuorum, unknown
from archipel.rng import Ints

Away = Mapping[int, tuple[tuple[int, int], ...]]  # party -> first and last round of each absence

_WAITS = 1000  # of one round, at most
_MANY = 100_000  # parties: of more, nobody looks at each in every round


class Cohort(NamedTuple):
    """The parties of one round."""

    sampled: Ints
    present: Ints  # those that will send something
    effort: Floats  # of the present ones: in [0, 1) for a straggler, else 1
    missing: dict[int, Cause]
    counted: bool = True  # False below the quorum: the round changes nothing
    waited: int = 0  # how often the round was tried before
    blocked: Mapping[int, Cause] = {}  # who was missing at the last of these tries
    answers: Ints | None = None  # how many messages each present one answers; None: all of them
    timing: Timing | None = None  # of a simulated clock
    stale: Mapping[int, int] = {}  # steps since a present one was sent the shared state, if any

    @property
    def reached(self) -> int:
        """How many were sent the round's work: not who was away, paused, had left or was revoked.

        >>> missing = {1: Cause("paused"), 2: Cause("too slow")}
        >>> Cohort(np.arange(3), np.arange(1), np.ones(1), missing).reached
        2
        """
        asked = sum(cause.reached for cause in self.missing.values())
        return len(self.sampled) - len(self.missing) + asked

    def without(self, lost: Mapping[int, Cause], needed: int) -> Cohort:
        """The same after the round, in which these were lost and so many were needed."""
        if not lost:
            return self._replace(answers=None)
        left = ~np.isin(self.present, list(lost))
        return self._replace(
            present=self.present[left],
            effort=self.effort[left],
            missing=self.missing | dict(lost),
            counted=int(left.sum()) >= needed,
            answers=None,
        )


@dataclass(frozen=True)
class Participation:
    """A float `sample` is a rate (at least one party), a whole number so many parties.

    Below the `quorum` a round does not count, and `on_missing` says what then: go on with the next,
    wait and try it again, or abort. A party that cannot finish in time is a straggler: an algorithm
    either keeps what it has (`keeps_partial_work`) or goes on without it.
    """

    sample: float | int = 1.0
    over_select: float = 0.0  # ask this share more; the first to finish count
    quorum: float | int = 1  # uploads a round needs: a number, or a share of the sample
    on_missing: Literal["continue", "wait", "abort"] = "continue"
    deadline: float | None = None  # seconds; in a simulation it needs a `speed`
    late_joiners: bool = True  # between institutions: whether sites may join after the first round
    separation: int = 1  # b: who was asked in a round sits out the next b - 1
    # what happens to a simulation's parties
    dropouts: float = 0.0  # chance that a sampled party does not answer
    lost: float = 0.0  # chance that a party is lost between two messages of a round
    stragglers: float = 0.0  # share of a round's parties that do not finish
    availability: float | str = 1.0  # chance to be there, or "day:24": half of every 24 rounds
    away: Away = field(default_factory=dict)
    speed: float | None = None  # examples a party works through per second; None: no clock
    speed_spread: float = 0.0  # standard deviation over parties of log(speed)

    def __post_init__(self) -> None:
        for name in ("sample", "quorum"):
            value, least = getattr(self, name), 1 if name == "sample" else 0
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (value >= least if whole else 0 <= value <= 1):
                raise ArchipelError(
                    f"{name} = {value}: give a rate between 0 and 1, or a whole number of "
                    f"parties from {least}."
                )
        if isinstance(self.separation, bool) or self.separation < 1:
            raise ArchipelError(
                f"separation = {self.separation}: give a whole number of rounds from 1."
            )
        for name in ("dropouts", "lost", "stragglers", "availability"):
            value = getattr(self, name)
            if not isinstance(value, str) and not 0 <= value <= 1:
                raise ArchipelError(f"{name} = {value}: give a share between 0 and 1.")
        for name in ("over_select", "speed_spread"):
            value = getattr(self, name)
            if not 0 <= value <= 100:
                raise ArchipelError(f"{name} = {value}: give a number from 0 to 100.")
        for name in ("deadline", "speed"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ArchipelError(f"{name} = {value}: give a number above 0, or leave it out.")
        if self.on_missing not in ("continue", "wait", "abort"):
            raise unknown("on_missing", str(self.on_missing), ("continue", "wait", "abort"))
        if isinstance(self.availability, str) and not _day(self.availability):
            raise ArchipelError(
                f"availability = '{self.availability}': give a share between 0 and 1, or "
                "'day:24' for parties that are there half of every 24 rounds."
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Participation:
        """What a run's options say of it, those that are not None."""
        names = {each.name for each in fields(cls)}
        return cls(**{k: v for k, v in options.items() if k in names and v is not None})

    def count(self, parties: int) -> int:
        """How many of the parties a round samples."""
        if isinstance(self.sample, int):
            if self.sample > parties:
                raise ArchipelError(
                    f"sample = {self.sample}: only {parties} parties have training points; "
                    "sample fewer."
                )
            count = self.sample
        else:
            count = max(int(self.sample * parties + 1e-9), 1)
        asked = ceil(count * (1 + self.over_select) - 1e-9)
        if self.separation > 1 and asked * self.separation > parties:
            raise ArchipelError(
                f"separation = {self.separation}: {asked} of {parties} parties are asked in a "
                f"round, and those of the {self.separation - 1} before it sit out, which takes "
                f"{asked * self.separation} parties; sample fewer."
            )
        if isinstance(self.quorum, int) and self.quorum > count:
            raise ArchipelError(
                f"quorum = {self.quorum}: a round counts {count} of {parties} parties at most; "
                "lower it, or sample more."
            )
        return count

    def draw(
        self,
        eligible: Ints,
        seed: int,
        t: int,
        keeps_partial_work: bool = False,
        work: Floats | None = None,
        clock: int | None = None,
        messages: int = 1,
        past: Sequence[Cohort] = (),
    ) -> Cohort:
        """Draw round t's parties, uniformly without replacement, in ascending order.

        `work` is how many examples each eligible party would work through; `clock` is the time,
        which runs ahead of t once a round was waited for; `messages` are those that a party sends,
        and `past` the rounds before.
        """
        clock = t if clock is None else clock
        waited, blocked = 0, dict[int, Cause]()
        while True:
            at = (seed, t, clock + waited)
            cohort = self._attempt(eligible, *at, keeps_partial_work, work, past)
            answers = self.answers(cohort.present, seed, clock + waited, messages)
            cohort = cohort._replace(waited=waited, blocked=blocked, answers=answers)
            if cohort.counted or self.on_missing == "continue":
                return cohort
            self.may_wait(t, cohort, len(eligible))
            waited, blocked = waited + 1, cohort.missing

    def may_wait(self, t: int, cohort: Cohort, eligible: int, given_up: str = "") -> None:
        """Refuse to try a round again where the study says to abort, or it was tried too often.

        `given_up` says why its sum was, with as many as the quorum asks for.
        """
        if self.on_missing != "abort" and cohort.waited < _WAITS:
            return
        waited = cohort.waited
        causes = ", ".join(sorted(set(map(str, cohort.missing.values())))) or "too few are sampled"
        raise BelowQuorum(
            f"round {t + 1}: {len(cohort.present)} of {len(cohort.sampled)} parties answer "
            f"({causes}), "
            + (given_up.rstrip(".") or f"below the quorum of {self.needed(eligible)}")
            + (f", also after waiting {waited} rounds" if waited else "")
            + (": " if given_up else ": lower round.quorum, or ")
            + "say on_missing = 'continue'"
            + ("." if waited else " or 'wait'.")
        )

    def _attempt(
        self,
        eligible: Ints,
        seed: int,
        t: int,
        clock: int,
        keeps_partial_work: bool,
        work: Floats | None,
        past: Sequence[Cohort],
    ) -> Cohort:
        count = self.count(len(eligible))
        sampled, here = self.asked(eligible, seed, t, clock, past)
        missing = dict.fromkeys(sampled[~here].tolist(), Cause("away"))
        stays = here & (draws(seed, clock, "dropouts", sampled) >= self.dropouts)
        missing |= dict.fromkeys(sampled[here & ~stays].tolist(), Cause("dropped out"))

        effort = self.effort(sampled, seed, clock)
        seconds = self._seconds(eligible, sampled, seed, work)
        if self.deadline is not None and seconds is not None:
            in_time = np.minimum(1.0, self.deadline / np.maximum(seconds, 1e-12))
            effort = np.minimum(effort, in_time)
        if not keeps_partial_work:
            slow = stays & (effort < 1)
            missing |= dict.fromkeys(sampled[slow].tolist(), Cause("too slow"))
            stays &= ~slow

        if stays.sum() > count:  # the first to finish count
            order = seconds if seconds is not None else draws(seed, clock, "finish", sampled)
            first = np.flatnonzero(stays)[np.argsort(order[stays], kind="stable")[:count]]
            spare = stays.copy()
            spare[first] = False
            missing |= dict.fromkeys(sampled[spare].tolist(), Cause("not needed"))
            stays &= ~spare
        counted = int(stays.sum()) >= self.needed(len(eligible))
        if stays.all():  # nothing to copy
            return Cohort(sampled, sampled, whole(effort), missing, counted)
        return Cohort(sampled, sampled[stays], whole(effort[stays]), missing, counted)

    def effort(self, sampled: Ints, seed: int, clock: int) -> Floats:
        """How far each party gets: less than 1 for stragglers."""
        late = np.zeros(len(sampled), bool)
        late[
            np.argsort(draws(seed, clock, "stragglers", sampled))[
                : round(self.stragglers * len(sampled))
            ]
        ] = 1
        return np.where(late, draws(seed, clock, "effort", sampled), 1.0)

    def answers(self, present: Ints, seed: int, clock: int, messages: int) -> Ints | None:
        """How many messages each party answers before it is lost; None where nobody is."""
        if not self.lost or messages < 2:
            return None
        answers = np.full(len(present), messages)
        for number in range(messages - 1, 0, -1):
            chance = draws(seed, clock, f"lost after message {number}", present)
            answers[chance < self.lost] = number
        return answers if (answers < messages).any() else None

    def awake(self, eligible: Ints, past: Sequence[Cohort]) -> NDArray[np.bool_] | None:
        """Who was not asked in the rounds just before, `[len(eligible)]`; None: all may be."""
        if self.separation == 1 or not past:
            return None
        resting = np.concatenate([cohort.sampled for cohort in past[1 - self.separation :]])
        return ~np.isin(eligible, resting)

    def asked(
        self, eligible: Ints, seed: int, t: int, clock: int, past: Sequence[Cohort] = ()
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """The same as `ask`, at a cost that follows those who are asked where parties are many.

        Of many parties that come and go, some are drawn one after the other, until enough of them
        are there: every set of those who are is as likely.
        """
        resting = [cohort.sampled for cohort in past[1 - self.separation :]]
        rests = self.separation > 1 and len(resting) > 0
        if self.always and not rests:
            return self.ask(eligible, seed, t)
        count = ceil(self.count(len(eligible)) * (1 + self.over_select) - 1e-9)
        drawn = 4 * count if len(eligible) > _MANY else len(eligible)
        while drawn < len(eligible) // 4:
            of = rng.generator(seed, t, "sample", clock).choice(len(eligible), drawn, replace=False)
            parties = eligible[of]
            may = self.here(parties, seed, clock)
            if rests:
                may &= ~np.isin(parties, np.concatenate(resting))
            if may.sum() >= count:
                return np.sort(parties[may][:count]), np.ones(count, bool)
            drawn *= 4
        here = self.here(eligible, seed, clock)
        return self.ask(eligible, seed, t, here, self.awake(eligible, past))

    @property
    def always(self) -> bool:
        """Whether everybody is always there."""
        return self.availability == 1 and not self.away

    def ask(
        self,
        eligible: Ints,
        seed: int,
        t: int,
        here: NDArray[np.bool_] | None = None,
        awake: NDArray[np.bool_] | None = None,
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """Whom round t asks, those that are there first (all, if None), and whether each is there.

        Who sits out, since it was asked just before, is not asked (`awake`).
        """
        count = self.count(len(eligible))
        if here is None and awake is None:
            asked = min(len(eligible), ceil(count * (1 + self.over_select) - 1e-9))
            if asked == len(eligible):
                return eligible, np.ones(asked, bool)
            at = rng.generator(seed, t, "sample").choice(
                len(eligible), asked, replace=False, shuffle=False
            )
            return eligible[np.sort(at)], np.ones(asked, bool)
        here = np.ones(len(eligible), bool) if here is None else here
        may = np.ones(len(eligible), bool) if awake is None else awake
        asked = min(int(may.sum()), ceil(count * (1 + self.over_select) - 1e-9))
        if asked == len(eligible):
            return eligible, here
        pools = [np.flatnonzero(may & here), np.flatnonzero(may & ~here)]
        chosen: list[Ints] = []
        for purpose, pool in zip(("sample", "sample away"), pools, strict=True):
            wanted = min(len(pool), asked - sum(map(len, chosen)))
            if wanted:
                at = rng.generator(seed, t, purpose).choice(
                    len(pool), wanted, replace=False, shuffle=False
                )
                chosen.append(pool[at])
        places = np.sort(np.concatenate([np.empty(0, np.int64), *chosen]))
        return eligible[places], here[places]

    def here(self, eligible: Ints, seed: int, clock: int) -> NDArray[np.bool_]:
        """Which parties are there at a time, `[len(eligible)]`."""
        here = np.ones(len(eligible), bool)
        if isinstance(self.availability, str):
            day = _day(self.availability)
            phase = rng.uniform(rng.keys(rng.key(seed, 0, "time zone"), eligible))
            here = (clock + np.floor(phase * day)) % day < day / 2
        elif self.availability < 1:
            here = draws(seed, clock, "availability", eligible) < self.availability
        for party, absences in self.away.items():
            if any(first <= clock + 1 <= last for first, last in absences):
                here[eligible == party] = False
        return here

    def _seconds(
        self, eligible: Ints, sampled: Ints, seed: int, work: Floats | None
    ) -> Floats | None:
        """How long each sampled party works."""
        if self.speed is None or work is None:
            return None
        import torch  # who only reads about rounds does not wait for it

        uniform = torch.from_numpy(rng.uniform(rng.keys(rng.key(seed, 0, "speed"), sampled)))
        normal = 2**0.5 * torch.erfinv((2 * uniform - 1).clamp(-1 + 1e-12, 1 - 1e-12)).numpy()
        examples = work[np.searchsorted(eligible, sampled)]
        with np.errstate(over="ignore", divide="ignore"):  # endless is a time, too
            seconds: Floats = examples / (self.speed * np.exp(self.speed_spread * normal))
        return seconds

    def needed(self, parties: int) -> int:
        """How many uploads a round needs to count."""
        if isinstance(self.quorum, int):
            return self.quorum
        return ceil(self.quorum * self.count(parties) - 1e-9)


def absences(text: str) -> tuple[tuple[int, int], ...]:
    """Read rounds such as "11-20, 35".

    >>> absences("11-20, 35")
    ((11, 20), (35, 35))
    """
    spans = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        if match is None or int(match[2] or match[1]) < int(match[1]) or int(match[1]) < 1:
            raise ArchipelError(f"away = '{text}': give rounds such as '11-20' or '5, 11-20'.")
        spans.append((int(match[1]), int(match[2] or match[1])))
    return tuple(spans)


def whole(effort: Floats) -> Floats:
    """The same; ones that take no memory where everybody does all of the work."""
    return effort if (effort < 1).any() else np.broadcast_to(1.0, effort.shape)


def _day(availability: str) -> int:
    """Rounds of a day; 0 where the text is something else."""
    match = re.fullmatch(r"day:(\d{1,6})", availability)
    return int(match[1]) if match and int(match[1]) >= 2 else 0


def draws(seed: int, t: int, purpose: str, parties: Ints) -> Floats:
    """One number in [0, 1) for each party."""
    return rng.uniform(rng.keys(rng.key(seed, t, purpose), parties))
