# SPDX-License-Identifier: Apache-2.0
"""Who will take part in every round, and what they will send: drawn and counted, not computed.

Draws are keyed by seed and round, so the parties of a run are known before it: the study's own
attendance is asked for every round, with an engine that counts what a round sends and computes
nothing. What cannot be known is left out: parties that diverge, and bytes of codes that are as long
as the numbers need.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, cast

import numpy as np

from archipel.aggregation.summation import least_of
from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.devices.timing import Timing
from archipel.engines.engine import Cause, Floats, Outcome, SteppingEngine
from archipel.engines.heard import Heard
from archipel.errors import BelowQuorum
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.boxes import is_peer
from archipel.exchange.varying import Varying, parts_of, size_of
from archipel.graphs import Topology
from archipel.rng import Ints
from archipel.runs.attendance import work_in_round
from archipel.runs.beginning import Beginning
from archipel.runs.participation import Cohort
from archipel.runs.simulation import attendance_of
from archipel.tree import Tree

_SECONDS = 20.0  # of drawing; rounds beyond are taken to be like those before
_CAUSE = 200  # bytes of a party in a round's list of who is missing, about


@dataclass(frozen=True)
class Ahead:
    """Rounds as they will be, an entry for each that was drawn."""

    rounds: int  # of the study
    work: Floats  # examples on the worker that has the most of them, tries that fail included
    everybody: Floats  # the same on all workers
    examples: Floats  # that all parties of a round work through, where it counts
    up: Floats  # bytes, or for peers exchanges, where it counts
    down: Floats
    blocks: Floats  # examples of the largest block of parties
    counted: Ints  # 0 below the quorum
    waited: Ints
    present: Ints  # parties whose upload is expected
    slow: Ints  # parties that are too slow
    sampled: Ints
    asked: Ints  # rounds that each party is asked in, [K]
    touched: int  # parties that ever train
    kept: float  # bytes of memory that the rounds are remembered in
    varying: frozenset[str]  # which way bytes depend on what is sent
    ends: str = ""  # why the run stops before its last round
    timing: Timing | None = None  # what the simulated clock says at the end, where there is one

    @property
    def drawn(self) -> int:
        return len(self.work)

    @property
    def scale(self) -> float:
        """Rounds that will be done, over those drawn."""
        return 1.0 if self.ends or not self.drawn else self.rounds / self.drawn


class Counting:
    """An engine that counts what a round sends, and computes nothing."""

    def __init__(
        self,
        anatomy: Anatomy,
        algorithm: Algorithm,
        data: Federation,
        eligible: Ints,
        options: Mapping[str, Any],
        workers: int,
        block: int,
        topology: Topology | None,
    ) -> None:
        self.anatomy, self._peer = anatomy, is_peer(algorithm)
        self._examples = np.zeros(data.parties)
        self._examples[eligible] = work_in_round(algorithm, data, eligible)
        self._topology = topology
        self._training, self._workers, self._block = data.training, workers, block
        how = getattr(options.get("wire"), "sum", None)
        self._least = 1 if how is None or options.get("protocols") else least_of(how)
        self._heard = Heard(data.training) if anatomy.whole else None
        self._told, self._forms = size_of(anatomy.sent), dict[int, list[tuple[int, int]]]()
        self.work = self.everybody = self.largest = 0.0  # of the calls since it was set to 0

    @property
    def varying(self) -> frozenset[str]:
        """Which way messages are as long as their numbers need: "up", "down"."""
        anatomy = self.anatomy
        up = [*(m.sent for m in anatomy.messages), *anatomy.mixed]
        down = [anatomy.sent, *(m.reply for m in anatomy.messages), *anatomy.mixed]
        ways = {"up": up, "down": down}
        return frozenset(way for way, trees in ways.items() if any(map(varies, trees)))

    def round(
        self,
        t: int,
        parties: Any,
        effort: Floats | None = None,
        *,
        answers: Ints | None = None,
        needed: int = 1,
        enough: int | None = None,
        unheard: int = 0,
    ) -> Outcome:
        ids = np.asarray(parties, np.int64)
        work = self._examples[ids] * (1.0 if effort is None else effort)
        if len(ids) == 0:
            return Outcome(ids)
        most = np.sort(work)[::-1][: self._block].sum()
        self.work += max(work.sum() / self._workers, work.max())
        self.everybody += work.sum()
        self.largest = max(self.largest, float(most))
        gradients = int(work.sum())
        if self._peer:
            return Outcome(ids, {}, gradients, *self._exchanged(t, ids))
        up, down = 0, self._told * (len(ids) + unheard)
        missing = dict[int, Cause]()
        there = np.ones(len(ids), bool)
        for number, (sent, reply) in enumerate(self._sizes(len(ids))):
            if answers is not None:
                there = answers > number
                detail = f"after message {number}" if number else ""
                lost = ids[answers == number].tolist()
                missing |= dict.fromkeys(lost, Cause("dropped out", detail))
            count = int(there.sum())
            up += sent * count
            if count < max(1, needed, self._least):
                few = f"wire.sum: {count} parties are in the sum, and {self._least} are needed."
                few = few if count >= max(1, needed) else ""
                return Outcome(ids[:0], missing, gradients, up, down, few)
            down += reply * count
        return Outcome(ids[there], missing, gradients, up, down)

    def step(
        self, t: int, parties: Any, versions: Any, held: Any = (), *, unheard: int = 0
    ) -> Outcome:
        """A step of parties that do not wait for each other: a round of those whose upload came."""
        return self.round(t, parties, unheard=unheard)

    def _exchanged(self, t: int, ids: Ints) -> tuple[int, int]:
        """Vectors that peers send each other, and receive; in bytes, where some are changes."""
        if self._topology is None:
            return 0, 0
        absent = np.setdiff1d(np.arange(self._training), ids)
        edges = self._topology.edges(t, absent).numpy()
        sent = edges.size
        if self._heard is not None:
            missed = self._heard.missed(t, ids, edges)
            change = sum(map(size_of, self.anatomy.mixed))
            sent = int(np.where(missed, self.anatomy.whole, change).sum())
        return sent, sent

    def _sizes(self, m: int) -> list[tuple[int, int]]:
        """Bytes of a party's messages and their replies in a round of m parties."""
        if m not in self._forms:
            messages = self.anatomy.in_cohort(m).messages
            self._forms[m] = [(size_of(each.sent), size_of(each.reply)) for each in messages]
        return self._forms[m]


def varies(tree: Tree) -> bool:
    """Whether a message is as long as its numbers need."""
    return any(isinstance(part, Varying) for part in parts_of(tree))


def look_ahead(
    begun: Beginning,
    anatomy: Anatomy,
    algorithm: Algorithm,
    data: Federation,
    options: Mapping[str, Any],
    workers: int,
    block: int = 1,
    seconds: float = _SECONDS,
) -> Ahead:
    """Draw the parties of all rounds, for at most so many seconds."""
    past: list[Cohort] = []
    counting = Counting(
        anatomy, algorithm, data, begun.eligible, options, workers, block, begun.topology
    )
    engine = cast("SteppingEngine", counting)
    attendance = attendance_of(begun, engine, algorithm, data, lambda: past)
    asked, touched = np.zeros(data.parties, np.int64), np.zeros(data.parties, bool)
    rows: list[tuple[float, ...]] = []
    clock, kept, ends, began = 0, 0.0, "", time.perf_counter()
    for t in range(begun.rounds):
        counting.work = counting.everybody = counting.largest = 0.0
        try:
            cohort, outcome = attendance.take_part(t, clock)
        except BelowQuorum as error:
            ends = str(error)
            break
        clock += 1 + cohort.waited
        past.append(cohort)
        asked[cohort.sampled] += 1
        touched[outcome.arrived] = True
        kept += _kept(cohort)
        counts = cohort.counted
        late = sum(cause.why == "too slow" for cause in cohort.missing.values())
        spent = (outcome.gradients, outcome.up, outcome.down) if counts else (0, 0, 0)
        there = (len(cohort.present), late, len(cohort.sampled))
        did = (counting.work, counting.everybody)
        rows.append((*did, *spent, counting.largest, counts, cohort.waited, *there))
        if time.perf_counter() - began > seconds:
            break
    columns = np.array(rows, np.float64).reshape(len(rows), 11).T
    numbers = columns[6:].astype(np.int64)
    ever = float(touched.sum())
    if not ends and 0 < len(rows) < begun.rounds:  # as rounds of independent samples would
        share, eligible = ever / len(begun.eligible), len(begun.eligible)
        ever = eligible * (1 - (1 - share) ** (begun.rounds / len(rows)))
    work, everybody, examples, up, down, blocks = columns[:6]
    counted, waited, present, slow, sampled = numbers
    timing = past[-1].timing if past else None
    return Ahead(
        begun.rounds, work, everybody, examples, up, down, blocks, counted, waited, present, slow,
        sampled, asked, round(ever), kept, counting.varying, ends, timing,
    )  # fmt: skip


def _kept(cohort: Cohort) -> float:
    """Bytes of memory that a round's parties are remembered in."""
    arrays = {id(each): each for each in (cohort.sampled, cohort.present, cohort.effort)}
    numbers = sum(each.nbytes if each.base is None else 0 for each in arrays.values())
    lost = len(cohort.missing) + len(cohort.blocked)
    return numbers + getsizeof(cohort) + _CAUSE * lost
