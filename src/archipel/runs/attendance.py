# SPDX-License-Identifier: Apache-2.0
"""Who takes part in each round, and what happens where too few do: as the loop asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.devices.timing import Timing
from archipel.engines.engine import Cause, Engine, Floats, Outcome
from archipel.exchange.boxes import Boxes
from archipel.rng import Ints
from archipel.runs.clock import Clock
from archipel.runs.participation import Cohort, Participation
from archipel.training.descent import work_of


class Attendance(Protocol):
    """A study's policy at work: it has the engine do a round with those who take part."""

    def take_part(self, t: int, clock: int) -> tuple[Cohort, Outcome]:
        """Do round t; wait, go on or abort as the study says where too few take part.

        `clock` counts the rounds so far and those that were waited for.
        """

    def before_evaluation(self) -> None:
        """Wait until somebody is there who can score the model."""


@runtime_checkable
class KeepingAttendance(Attendance, Protocol):
    """One that a checkpoint has a part of: what goes on between two rounds."""

    def state(self) -> dict[str, Tensor]:
        """All that who takes part next depends on besides the rounds so far."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""


class DrawnAttendance:
    """A simulation's: who is there, and who is lost, is drawn."""

    def __init__(
        self,
        engine: Engine,
        who: Participation,
        algorithm: Algorithm,
        fed: Federation,
        eligible: Ints,
        seed: int,
        past: Callable[[], Sequence[Cohort]] = tuple,
        clock: Clock | None = None,
    ) -> None:
        """`past` are the run's rounds so far; a `clock` says when devices do what."""
        self._engine, self._who, self._eligible, self._seed = engine, who, eligible, seed
        self._past = past
        self._partial = Boxes(algorithm).keeps_partial_work
        timed = who.speed is not None  # nobody else asks
        self._work = work_in_round(algorithm, fed, eligible) if timed else None
        self._clock = clock

    def take_part(self, t: int, clock: int) -> tuple[Cohort, Outcome]:
        who, eligible = self._who, self._eligible
        needed = who.needed(len(eligible))
        waited, blocked, why = 0, dict[int, Cause](), ""
        tried: dict[bytes, Outcome] = {}  # the same parties are lost again
        timing: Timing | None = None  # of the try before
        while True:
            drawn = self._draw(t, clock + waited, timing)
            cohort = drawn._replace(
                waited=waited + drawn.waited, blocked=drawn.blocked if drawn.waited else blocked
            )
            if not cohort.counted:
                return self._settled(cohort), Outcome(cohort.present[:0])
            parts = (cohort.present, cohort.effort, cohort.answers)
            same = b"".join(part.tobytes() for part in parts if part is not None)
            if same not in tried:
                unheard = cohort.reached - len(cohort.present)
                tried[same] = self._engine.round(
                    t,
                    cohort.present,
                    cohort.effort,
                    answers=cohort.answers,
                    needed=needed,
                    unheard=unheard,
                )
            outcome = tried[same]
            cohort = cohort.without(outcome.missing, needed)
            if outcome.given_up:
                cohort = cohort._replace(counted=False)
            why = outcome.given_up or why
            if cohort.counted or who.on_missing == "continue":
                return self._settled(cohort), outcome._replace(given_up=why)
            who.may_wait(t, cohort, len(eligible), outcome.given_up)
            waited, blocked, timing = cohort.waited + 1, cohort.missing, cohort.timing

    def _settled(self, cohort: Cohort) -> Cohort:
        return cohort if self._clock is None else self._clock.settled(cohort, self._engine.anatomy)

    def _draw(self, t: int, clock: int, since: Timing | None) -> Cohort:
        if self._clock is not None:
            about = self._engine.anatomy, self._partial
            return self._clock.draw(t, clock, self._past(), *about, since)
        messages = len(self._engine.anatomy.messages)
        return self._who.draw(
            self._eligible, self._seed, t, self._partial, self._work, clock, messages, self._past()
        )

    def before_evaluation(self) -> None:
        """Nobody is away from here."""


def work_in_round(algorithm: Algorithm, fed: Federation, eligible: Ints) -> Floats:
    """How many examples each party works through in a round."""
    n = fed.n.numpy()[eligible].astype(np.float64)
    if not hasattr(algorithm, "lr"):
        return n
    work = work_of(algorithm)
    if work.local_steps is None:
        return n * work.local_epochs
    size = n if work.batch_size is None else work.batch_size
    examples: Floats = work.local_steps * (
        size * n if isinstance(size, float) else np.minimum(size, n)
    )
    return examples
